//! MOVED and ASK.

use super::map::{Place, named};
use crate::{Error, Outcome, Refusal};

/// The request belongs to another node; the one that replied did nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Redirect {
    /// The slot is at this node now.
    Moved { slot: u16, to: Place },
    /// The slot is migrating to this node, and these keys are no longer or never were here: ask
    /// there once.
    Ask { to: Place },
}

impl Redirect {
    /// The redirect in an answer; `None` if it is no redirect. `asked` is the host that gave it.
    pub(super) fn of(answer: &Outcome, asked: &str) -> Option<Self> {
        let Err(Error::Refused(Refusal { code, message })) = answer else {
            return None;
        };
        let (slot, address) = message.split_once(' ')?;
        let (host, port) = address.rsplit_once(':')?;
        let to = (named(Some(host), asked), port.parse().ok()?);
        match code.as_str() {
            "MOVED" => Some(Self::Moved {
                slot: slot.parse().ok()?,
                to,
            }),
            "ASK" => Some(Self::Ask { to }),
            _ => None,
        }
    }
}

/// Whether an outcome is a reason to query the map of slots again.
pub(super) fn calls_for_refresh(answer: &Outcome) -> bool {
    match answer {
        Err(Error::Refused(refusal)) => matches!(
            refusal.code.as_str(),
            "MOVED" | "CLUSTERDOWN" | "READONLY" | "NOREPLICAS" | "LOADING" | "MASTERDOWN"
        ),
        Err(Error::Unreachable(_) | Error::Broken(_) | Error::Timeout(_)) => true,
        Ok(_) | Err(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(code: &str, message: &str) -> Option<Redirect> {
        let refusal = Refusal {
            code: code.to_owned(),
            message: message.to_owned(),
        };
        Redirect::of(&Err(Error::Refused(refusal)), "asked")
    }

    #[test]
    fn nodes_are_named_in_every_way_that_servers_do() {
        let to = |host: &str, port| (host.to_owned(), port);
        let moved = |slot, to| Some(Redirect::Moved { slot, to });
        assert_eq!(
            of("MOVED", "3999 127.0.0.1:6381"),
            moved(3999, to("127.0.0.1", 6381))
        );
        assert_eq!(of("MOVED", "0 ::1:6381"), moved(0, to("::1", 6381)));
        assert_eq!(of("MOVED", "7 :6381"), moved(7, to("asked", 6381)));
        let ask = Some(Redirect::Ask {
            to: to("cache-1.example", 7),
        });
        assert_eq!(of("ASK", "7 cache-1.example:7"), ask);
        for nonsense in ["", "7", "7 host", "7 host:port", "x host:70000"] {
            assert_eq!(of("MOVED", nonsense), None, "{nonsense}");
        }
        assert_eq!(of("ERR", "7 host:1"), None);
    }
}
