//! Checks as KEYS and ARGV.

mod form;

use super::{Clock, ScriptCall, ScriptCheck, call::integer};
use form::encode_form;

/// How many of the latest forms a check is compared with: the checks of a batch usually have few
/// forms, and if they have many, comparing with more would cost more than it saves.
const FORMS_COMPARED: usize = 8;

/// Lays out a batch of checks, to be decided in this order. A form that several checks have is
/// encoded once.
pub fn encode<'a>(checks: &[ScriptCheck<'a>], clock: Clock) -> ScriptCall<'a> {
    let limits = checks.iter().map(|check| check.limits.len()).sum();
    let mut keys = Vec::with_capacity(limits);
    let mut args = Vec::with_capacity(32 + checks.len());
    args.extend([clock.argument(), 0]);
    let mut forms = Vec::new();
    let mut asked = Vec::with_capacity(checks.len());
    for check in checks {
        keys.extend(check.limits.iter().map(|limit| limit.key));
        for limit in &check.limits {
            keys.extend(limit.costs.map(|costs| costs.key));
            keys.extend(limit.penalty.map(|penalty| penalty.key));
        }
        let start = args.len();
        encode_form(&mut args, check);
        asked.push(number_of_last(&mut forms, &mut args, start));
    }
    if let Some(count) = args.get_mut(1) {
        *count = integer(forms.len());
    }
    args.extend(asked);
    ScriptCall { keys, args }
}

/// The number, from 1, of the form at the end of `args`, from `start` on; cuts it off if it is
/// there already. `forms` has the starts of all forms.
fn number_of_last(forms: &mut Vec<usize>, args: &mut Vec<i64>, start: usize) -> i64 {
    let form = args.get(start..);
    let ends = forms.iter().skip(1).copied().chain([start]);
    let known = forms.iter().copied().zip(ends).enumerate();
    let mut latest = known.skip(forms.len().saturating_sub(FORMS_COMPARED));
    if let Some((index, _)) = latest.find(|(_, (from, to))| args.get(*from..*to) == form) {
        args.truncate(start);
        return integer(index + 1);
    }
    forms.push(start);
    integer(forms.len())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::script::ScriptLimit;
    use algorithms::{Algorithm, Kind, Parameters, check::Options};

    fn algorithm() -> Algorithm {
        Algorithm::new(&Parameters::new(Kind::TokenBucket, 10, 1000)).unwrap()
    }

    fn check<'a>(algorithm: &'a Algorithm, key: &'a [u8], cost: u64) -> ScriptCheck<'a> {
        ScriptCheck {
            limits: vec![ScriptLimit {
                cost,
                ..ScriptLimit::new(key, algorithm, 7)
            }],
            options: Options::default(),
        }
    }

    #[test]
    fn what_is_asked_again_is_said_once() {
        let algorithm = algorithm();
        let checks = [("a", 1), ("b", 2), ("c", 1)];
        let checks = checks.map(|(key, cost)| check(&algorithm, key.as_bytes(), cost));
        let call = encode(&checks, Clock::Server);
        assert_eq!(call.keys, [b"a", b"b", b"c"]);
        let forms = [
            [0, 1, 1, 7, 1, 0, 10, 100, 1, 0],
            [0, 1, 1, 7, 2, 0, 10, 100, 1, 0],
        ];
        assert_eq!(
            call.args,
            [&[-1, 2], &forms[0][..], &forms[1], &[1, 2, 1]].concat()
        );
    }

    #[test]
    fn forms_beyond_those_compared_are_said_again() {
        let algorithm = algorithm();
        let costs = (0..=FORMS_COMPARED).chain([1, 0]);
        let checks: Vec<_> = costs
            .map(|cost| check(&algorithm, b"k", cost as u64))
            .collect();
        let call = encode(&checks, Clock::Server);
        let last = integer(FORMS_COMPARED) + 2;
        assert_eq!(call.args[1], last);
        assert!(call.args.ends_with(&[last - 1, 2, last]), "{:?}", call.args);
    }
}
