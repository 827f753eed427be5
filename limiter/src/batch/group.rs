//! Requests whose checks go to the store in one call.

use std::sync::Arc;

use protocol::Check;
use tokio::sync::oneshot;

use super::entry::{Entry, Outcome};
use crate::domains::Active;

/// Checks that go to the store in one call.
pub(super) struct Group {
    pub(super) policy: Arc<Active>,
    pub(super) force: bool,
    pub(super) checks: Vec<Check>,
    pub(super) requests: Vec<Request>,
}

/// A request, and how many of the checks are its own.
pub(super) struct Request {
    pub(super) checks: usize,
    pub(super) proxy: Option<Arc<str>>,
    pub(super) reply: oneshot::Sender<Outcome>,
}

/// One group per policy; nearly always one.
pub(super) fn group(entries: Vec<Entry>) -> Vec<Group> {
    let mut groups: Vec<Group> = Vec::with_capacity(1);
    for mut entry in entries {
        let request = Request {
            checks: entry.checks.len(),
            proxy: entry.proxy,
            reply: entry.reply,
        };
        let known = groups
            .iter_mut()
            .find(|group| group.force == entry.force && Arc::ptr_eq(&group.policy, &entry.policy));
        match known {
            Some(group) => {
                group.checks.append(&mut entry.checks);
                group.requests.push(request);
            }
            None => groups.push(Group {
                policy: entry.policy,
                force: entry.force,
                checks: entry.checks,
                requests: vec![request],
            }),
        }
    }
    groups
}
