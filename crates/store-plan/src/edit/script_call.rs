//! An edit as KEYS and ARGV of `lua/policy_write.lua`.

use policy::{Name, OVERRIDES_MAX};

use super::{Expected, HISTORY_BYTES_MAX, HISTORY_MAX, How, OverrideWrites, Plan};
use crate::{Keys, Signature};

impl Expected {
    /// ARGV 1 and 2.
    fn as_arguments(&self) -> (String, String) {
        match self {
            Self::Nothing => (String::new(), String::new()),
            Self::Any => ("*".to_owned(), String::new()),
            Self::At(revision) => (
                revision.number.to_string(),
                format!("{:016x}", revision.digest),
            ),
        }
    }
}

impl Plan {
    /// KEYS and ARGV. `staged` are the keys of what is written by [`How::Stage`], in order.
    pub fn script_call(
        &self,
        keys: &Keys,
        domain: &Name,
        expected: &Expected,
        staged: Vec<String>,
        by: &Signature,
    ) -> (Vec<String>, Vec<String>) {
        let (number, digest) = expected.as_arguments();
        let limit = self.limit.as_ref().map(ToString::to_string);
        let mut args = vec![
            number,
            digest,
            self.operation.word().to_owned(),
            by.author.clone(),
            by.reason.clone(),
            self.before.clone(),
            self.after.clone(),
            limit.unwrap_or_default(),
            self.limits.clone().unwrap_or_default(),
            keys.edits(),
            domain.to_string(),
            HISTORY_MAX.to_string(),
            HISTORY_BYTES_MAX.to_string(),
            OVERRIDES_MAX.to_string(),
        ];
        let raise: &[Name] = if self.raise_all {
            // A field for each of 10,000 limits holds up every check for 10 ms.
            args.push("*".to_owned());
            &[]
        } else {
            args.push(self.raise.len().to_string());
            &self.raise
        };
        args.extend(raise.iter().map(ToString::to_string));
        args.push(self.forget.len().to_string());
        args.extend(self.forget.iter().map(ToString::to_string));
        args.push(self.overrides.len().to_string());
        let mut touched = vec![keys.policy(domain), keys.history(domain)];
        for (limit, writes) in &self.overrides {
            touched.push(keys.overrides(domain, limit));
            push_writes(&mut args, writes);
        }
        touched.extend(staged);
        (touched, args)
    }
}

fn push_writes(args: &mut Vec<String>, writes: &OverrideWrites) {
    let (how, fields) = match writes.how {
        How::Keep => ("keep", &writes.fields[..]),
        How::Clear => ("clear", &writes.fields[..]),
        How::Stage => ("staged", &[][..]),
    };
    args.push(how.to_owned());
    args.push(fields.len().to_string());
    for (field, json) in fields {
        args.push(field.clone());
        args.push(json.clone().unwrap_or_default());
    }
}
