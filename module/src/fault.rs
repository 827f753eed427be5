//! Panics on demand: the tests inject one into each hook.

#[cfg(feature = "faults")]
use std::sync::{Mutex, PoisonError};

#[cfg(feature = "faults")]
static NEXT: Mutex<Option<&'static str>> = Mutex::new(None);

/// The next time that this point is reached, it panics.
#[cfg(feature = "faults")]
pub fn inject(point: &'static str) {
    *NEXT.lock().unwrap_or_else(PoisonError::into_inner) = Some(point);
}

/// Whether the injected panic has not happened yet.
#[cfg(feature = "faults")]
pub fn is_due() -> bool {
    NEXT.lock()
        .unwrap_or_else(PoisonError::into_inner)
        .is_some()
}

/// A point where a test may inject a panic.
#[cfg(feature = "faults")]
pub(crate) fn point(name: &str) {
    let mut next = NEXT.lock().unwrap_or_else(PoisonError::into_inner);
    if *next == Some(name) {
        *next = None;
        drop(next);
        #[expect(clippy::panic, reason = "that is its purpose")]
        {
            panic!("injected at {name}");
        }
    }
}

/// A point where a test may inject a panic.
#[cfg(not(feature = "faults"))]
pub(crate) const fn point(_name: &str) {}
