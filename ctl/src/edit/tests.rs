use policy::{Limit, Policy};

use std::collections::BTreeMap;

use super::*;
use crate::{error::Exit, printer::Printer};

fn policy(limits: &str) -> Policy {
    let file = format!("domain: shop\nlimits: [{limits}]\n");
    limits_file::read("test", file.as_bytes()).unwrap()
}

fn args() -> EditArgs {
    EditArgs {
        dry_run: false,
        reason: String::new(),
        author: Some("ada".to_owned()),
        wait: Wait { ms: None },
        yes: false,
    }
}

async fn replace(session: &Session<'_>, base: &Stored, after: &Policy) -> EditReport {
    replace_as(session, base, after, &args()).await
}

async fn replace_as(
    session: &Session<'_>,
    base: &Stored,
    after: &Policy,
    args: &EditArgs,
) -> EditReport {
    let planned = planned(session, base, after).await;
    let edited = session.write(args, &after.domain, base.clone(), planned);
    edited.await.unwrap().report
}

async fn planned(session: &Session<'_>, base: &Stored, after: &Policy) -> Planned {
    let plan = session
        .plan_edit(base.policy(), after, &BTreeMap::new())
        .await
        .unwrap();
    Planned {
        write: PlannedWrite::Parts(after.clone(), plan.overrides),
        changes: plan.changes,
    }
}

/// Sets limit `mine` to 2/s. Before the write, another edit sets the domain's limits to `theirs`.
async fn race(theirs: &str) -> (Result<EditReport, Error>, Policy) {
    let printer = Printer::silent();
    let session = Session::in_memory(&printer);
    let first = policy("{name: mine, rate: 1/s}, {name: other, rate: 1/s}");
    let domain = first.domain.clone();
    replace(&session, &Stored::Absent, &first).await;
    let theirs = policy(theirs);
    let raced = std::cell::Cell::new(false);
    let mine_in = async |base: &Stored| Ok(base.policy().and_then(|p| p.limit("mine")).cloned());
    let plan = async |base: &Stored, _: &Option<Limit>| {
        if !raced.replace(true) {
            replace(&session, base, &theirs).await;
        }
        let mine = policy("{name: mine, rate: 2/s}").limits.pop().unwrap();
        let after = limits_file::edit::with_limit(base.policy().unwrap(), mine).unwrap();
        Ok(planned(&session, base, &after).await)
    };
    let base = session.read(&domain, Overrides::None).await.unwrap();
    let result = session.edit(&args(), &domain, base, mine_in, plan).await;
    let result = result.map(|edited| edited.report);
    assert!(raced.get());
    let now = session.read(&domain, Overrides::All).await.unwrap();
    (result, now.policy().unwrap().clone())
}

fn rates(policy: &Policy) -> Vec<String> {
    let rate = |limit: &Limit| format!("{} {}", limit.name, limit.quota.parameters().rate.units);
    policy.limits.iter().map(rate).collect()
}

#[tokio::test]
async fn an_edit_of_another_limit_is_built_upon() {
    let (result, now) = race("{name: mine, rate: 1/s}, {name: other, rate: 5/s}").await;
    assert_eq!(result.unwrap().revision, Some(3));
    assert_eq!(rates(&now), ["mine 2", "other 5"]);
}

#[tokio::test]
async fn an_edit_of_the_same_limit_is_a_conflict_and_stays() {
    let (result, now) = race("{name: mine, rate: 9/s}, {name: other, rate: 1/s}").await;
    assert_eq!(result.unwrap_err().exit(), Exit::Conflict);
    assert_eq!(rates(&now), ["mine 9", "other 1"]);
}

#[tokio::test]
async fn what_changes_nothing_and_a_dry_run_write_nothing() {
    let printer = Printer::silent();
    let session = Session::in_memory(&printer);
    let one = policy("{name: mine, rate: 1/s}");
    replace(&session, &Stored::Absent, &one).await;
    let base = session.read(&one.domain, Overrides::All).await.unwrap();
    let same = replace(&session, &base, &one).await;
    assert_eq!(same.revision, Some(1));
    let changed = policy("{name: mine, rate: 2/s}");
    let dry = EditArgs {
        dry_run: true,
        ..args()
    };
    let report = replace_as(&session, &base, &changed, &dry).await;
    assert_eq!((report.revision, report.dry_run), (Some(1), true));
    let now = session.read(&one.domain, Overrides::All).await.unwrap();
    assert_eq!(rates(now.policy().unwrap()), ["mine 1"]);
}

#[tokio::test]
async fn another_order_is_an_edit() {
    let printer = Printer::silent();
    let session = Session::in_memory(&printer);
    let limits = |names: [&str; 4]| {
        policy(
            &names
                .map(|name| format!("{{name: {name}, rate: 1/s}}"))
                .join(", "),
        )
    };
    let first = limits(["a", "b", "c", "d"]);
    replace(&session, &Stored::Absent, &first).await;
    let base = session.read(&first.domain, Overrides::All).await.unwrap();
    let report = replace(&session, &base, &limits(["a", "c", "b", "d"])).await;
    assert_eq!(report.revision, Some(2));
    let [change] = report.domain_changes.as_slice() else {
        panic!("{report:?}")
    };
    let said = (
        change.field.as_str(),
        change.before_text(),
        change.after_text(),
    );
    assert_eq!(said, ("order", "[b, c]".to_owned(), "[c, b]".to_owned()));
    let now = session.read(&first.domain, Overrides::All).await.unwrap();
    assert_eq!(rates(now.policy().unwrap()), ["a 1", "c 1", "b 1", "d 1"]);
}
