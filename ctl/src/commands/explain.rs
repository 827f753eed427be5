//! `rlctl explain`.

mod numbers;
mod penalties;
mod reasons;
mod view;

use std::collections::BTreeMap;

use clap::Args;
use policy::{Compiled, DESCRIPTOR, Descriptor, Name, REMOTE_ADDRESS, WHOLE_ADDRESS};

use crate::{
    args::{Global, examples},
    bucket::{self, RequestArgs},
    clock,
    error::Error,
    exit::Exit,
    penalty::BucketPenalty,
    printer::Printer,
    session::Session,
    suggest,
};
use view::{Report, Row};

/// Explain which limits apply to a request, and why the others do not.
#[derive(Debug, Args)]
#[command(after_help = examples!(
    "rlctl explain path=/api/orders method=GET user=alice"
    "rlctl explain path=/api/orders -o name      # the limits that apply"
))]
pub struct Explain {
    #[command(flatten)]
    request: RequestArgs,
}

impl Explain {
    /// Goes through every limit of the domain.
    pub async fn run(&self, global: &Global, printer: &Printer) -> Result<Exit, Error> {
        let session = Session::open(global, printer)?;
        let descriptor = session.descriptor(self.request.pairs()).await?;
        let policy = session.policy_for_request(&descriptor).await?;
        session.warn_of_pause(&policy, &[]);
        let compiled = Compiled::new(policy);
        let penalties = penalties::of_request(&session, &compiled, &descriptor).await?;
        let limits = explain(&compiled, &descriptor, penalties);
        let keys = compiled.needed_keys();
        for pair in self.request.pairs() {
            let of_service = pair.key == DESCRIPTOR && { compiled.limits().iter() }
                .any(|limit| limit.descriptor.is_some());
            let uses = |name: &str| keys.iter().any(|key| key.as_str() == name);
            let whole = pair.key == REMOTE_ADDRESS && uses(WHOLE_ADDRESS);
            if !of_service && !whole && !uses(&pair.key) {
                printer.note(format_args!("no limit uses `{}`", pair.key));
                let known = keys.iter().map(Name::as_str);
                if let Some(meant) = suggest::closest(&pair.key, known) {
                    printer.hint(format_args!("did you mean `{meant}`?"));
                }
            }
        }
        printer.data(&Report {
            domain: compiled.domain().to_string(),
            revision: compiled.revision().number,
            limits,
        })?;
        Ok(Exit::Done)
    }
}

fn explain(
    compiled: &Compiled,
    descriptor: &Descriptor,
    mut penalties: BTreeMap<Name, BucketPenalty>,
) -> Vec<Row> {
    let matches = compiled.matching(descriptor, clock::now_ms());
    let limits = compiled.limits().iter().enumerate();
    let rows = limits.map(|(index, limit)| {
        let found = matches.iter().find(|found| found.index == index);
        Row {
            limit: limit.name.to_string(),
            applies: found.is_some(),
            enforced: found.map(|found| found.enforced),
            bucket: found.map(|found| bucket::display(&limit.per, &found.values)),
            quota: found.and_then(|found| numbers::quota(compiled, found)),
            window: found.and_then(|found| numbers::window(compiled, found)),
            cost: found.and_then(|found| numbers::cost(compiled, found, descriptor)),
            penalty: penalties.remove(&limit.name),
            reasons: reasons::of_limit(compiled, index, descriptor, &matches),
        }
    });
    rows.collect()
}
