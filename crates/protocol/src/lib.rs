//! The words that filter, limiter and programs exchange.
//!
//! One meaning ([`Check`], [`Answer`]), two encodings: JSON for people and
//! programs, a compact one for the filter.

mod check;

pub use check::{Answer, Check, Debit, LimitAnswer, Mode};
