//! The results of the last store calls; `rl_store_up` is derived from them.

use std::{
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use protocol::Answer;
use store::{CheckError, StoreError};
use tokio::time::Instant;

/// If all calls fail for this long, the store counts as down.
const LASTING: Duration = Duration::from_millis(500);
/// Older results say nothing about the present.
const RECENT: Duration = Duration::from_secs(5);

/// The results of the last calls.
#[derive(Debug, Default)]
pub(crate) struct StoreCalls {
    last: Mutex<Option<Last>>,
}

#[derive(Debug)]
enum Last {
    Decided,
    /// All calls failed since then.
    Failed {
        since: Instant,
        last: Instant,
        why: String,
    },
}

impl StoreCalls {
    /// Records the result of a call; no answers mean that it was abandoned.
    pub(crate) fn called(&self, answers: &[Result<Answer, CheckError>], now: Instant) {
        let errors = answers.iter().map(|answer| store_error(answer.as_ref()));
        let errors: Option<Vec<&StoreError>> = errors.collect();
        let mut last = self.lock();
        let Some(errors) = errors else {
            *last = Some(Last::Decided);
            return;
        };
        let since = match &*last {
            Some(Last::Failed { since, .. }) => *since,
            Some(Last::Decided) | None => now,
        };
        let why = errors.first().map(ToString::to_string);
        *last = Some(Last::Failed {
            since,
            last: now,
            why: why.unwrap_or_else(|| "it keeps no timeout".to_owned()),
        });
    }

    /// Whether any call was made yet.
    pub(crate) fn any(&self) -> bool {
        self.lock().is_some()
    }

    /// Why checks get no decision, if all recent ones got none.
    pub(crate) fn trouble(&self, now: Instant) -> Option<String> {
        match &*self.lock() {
            Some(Last::Failed { since, last, why })
                if last.duration_since(*since) >= LASTING && now.duration_since(*last) < RECENT =>
            {
                Some(why.clone())
            }
            _ => None,
        }
    }

    fn lock(&self) -> MutexGuard<'_, Option<Last>> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The store's failure to decide a check, unless only that check is affected.
fn store_error<'a>(answer: Result<&'a Answer, &'a CheckError>) -> Option<&'a StoreError> {
    match answer {
        Err(CheckError::Store(StoreError::Corrupt(_))) => None,
        Err(CheckError::Store(error) | CheckError::PartiallyCharged(error)) => Some(error),
        Ok(_) | Err(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use store::CheckPlanError;

    use super::*;

    fn failed() -> Result<Answer, CheckError> {
        Err(StoreError::Timeout(Duration::from_millis(10)).into())
    }

    #[test]
    fn trouble_is_reported_when_calls_keep_failing() {
        let (calls, mut now) = (StoreCalls::default(), Instant::now());
        assert!(!calls.any());
        for _ in 0..6 {
            assert_eq!(calls.trouble(now), None);
            calls.called(&[failed(), failed()], now);
            now += LASTING / 5;
        }
        let why = calls.trouble(now).unwrap();
        assert!(why.contains("within 10 ms"), "{why}");
        // One decision is enough.
        calls.called(&[failed(), Err(CheckPlanError::NoMatch.into())], now);
        assert_eq!(calls.trouble(now), None);
    }

    #[test]
    fn trouble_expires_without_new_calls() {
        let (calls, now) = (StoreCalls::default(), Instant::now());
        calls.called(&[], now);
        calls.called(&[], now + LASTING);
        assert!(calls.trouble(now + LASTING).is_some());
        assert_eq!(calls.trouble(now + LASTING + RECENT), None);
    }
}
