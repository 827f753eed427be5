//! Documents as one tree, read from JSON here and from YAML by `limits-file`, and their problems, with places.
//!
//! A document is a tree of [`Node`]s, which have a place if they were read from a file. [`Field`]
//! and [`Take`] read a tree field by field and go on after a problem, so that a [`Report`] has all
//! of them; [`Problems`] shows them as a compiler does, with the line and a caret.

#[cfg(all(test, target_arch = "wasm32"))]
#[macro_use]
extern crate wasm_test;

mod fields;
mod node;
mod problem;
mod scalars;

pub use fields::{Field, Path, Report, Take, quoted};
pub use node::{Entry, JsonError, Node, Place, Value, is_number};
pub use problem::{
    Problem, Problems, distance, is_printable, printable, printable_styled, similar,
};
pub use scalars::{
    Choice, DomainError, Duration, Name, NameError, UnitError, format_timestamp, from_base64,
    name_hint, node_to_value, parse_digits, parse_duration, parse_timestamp, to_base64, unit_ms,
    value_to_node,
};
