//! A connected server that refuses commands: it became a replica, is out of memory, or the user
//! lacks a permission.

use std::time::Duration;

use tokio::time::Instant;

use super::{Session, Shared, Status, WhenLost};
use crate::{Lane, Refusal, reply::Reply};

/// How often to probe a server that refused commands.
pub(super) const RECHECK: Duration = Duration::from_millis(250);
/// A refusal is reported for this long after the last one, since a permission may cover one command
/// and not the next.
const QUIET: Duration = Duration::from_secs(1);
/// A script with a shebang line is refused before it runs if writes are: by a replica, a server out
/// of memory, without its replicas or with a full disk. It has no key, so any node of a Cluster
/// accepts it.
pub(super) const TAKES_WRITES: &str = "#!lua\nreturn 1";

/// A server that replies with refusals.
pub(super) struct Refusing {
    pub(super) refusal: Refusal,
    since: Instant,
    last: Instant,
}

impl Shared {
    pub(super) fn track_refusals(&self, session: &Session, replies: &[Reply]) {
        let refusals = replies.iter().filter_map(|reply| reply.as_ref().err());
        let Some(refusal) = refusals.into_iter().find(|r| r.is_a_state()) else {
            return;
        };
        // A primary that became a replica, or lost its replicas, stays connected and refuses every
        // write: there may be a new primary. A node of a Cluster keeps its connection; its callers
        // refresh the map of slots.
        if refusal.may_be_a_demotion() && !self.route.refresh() && self.when_lost == WhenLost::Wait
        {
            self.refused.notify_one();
        }
        // A refusal by a previous primary does not concern its successor.
        let current = match &*self.status.borrow() {
            Status::Up(now) | Status::Suspect(now, _) => now.number == session.number,
            Status::Connecting | Status::Down(_) => false,
        };
        if current && self.lane == Lane::Data {
            self.refuses(refusal);
        }
    }

    fn refuses(&self, refusal: &Refusal) {
        let now = Instant::now();
        self.refusing.send_if_modified(|refusing| match refusing {
            Some(known) if known.refusal.code == refusal.code => {
                known.last = now;
                false
            }
            _ => {
                let since = refusing.as_ref().map_or(now, |known| known.since);
                tracing::warn!(server = %self.route.server(), %refusal, "commands are refused");
                *refusing = Some(Refusing {
                    refusal: refusal.clone(),
                    since,
                    last: now,
                });
                true
            }
        });
    }

    /// Updates the refusal by the reply to a probe for writes.
    pub(super) fn check_writable(&self, answer: &Reply) {
        match answer {
            // A user without permission for the probe gets no information from it.
            Err(refusal) if refusal.code != "NOPERM" => return self.refuses(refusal),
            Ok(_) | Err(_) => {}
        }
        self.refusing.send_if_modified(|refusing| {
            let over = refusing.take_if(|known| known.last.elapsed() >= QUIET);
            if let Some(Refusing { since, .. }) = &over {
                let (server, lasted) = (self.route.server(), since.elapsed());
                tracing::info!(%server, ?lasted, "commands are not refused any more");
            }
            over.is_some()
        });
    }
}
