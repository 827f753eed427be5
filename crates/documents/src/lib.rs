//! Documents: YAML and JSON as one tree, and their problems, with places.
//!
//! A document is a tree of [`Node`]s, which have a place if they were read from a file. [`Field`]
//! and [`Take`] read a tree field by field and go on after a problem, so that a [`Report`] has all
//! of them; [`Problems`] shows them as a compiler does, with the line and a caret.

#[cfg(all(test, target_arch = "wasm32"))]
#[macro_use]
extern crate wasm_test;

mod bytes;
mod fields;
mod name;
mod node;
mod printable;
mod problem;
mod scalars;
mod timestamp;
mod units;

pub use bytes::{from_base64, node_to_value, to_base64, value_to_node};
pub use fields::{Field, Fields, Form, Path, Report, Take, quoted};
pub use name::{DomainError, Name, NameError};
pub use node::{Entry, JsonError, Node, Place, Value};
pub use node::{from_text, load, load_all};
pub use printable::{is_printable, printable, printable_styled};
pub use problem::{Problem, Problems, distance, similar};
pub use scalars::{Choice, name_hint};
pub use timestamp::{format_timestamp, parse_timestamp};
pub use units::{Duration, UnitError, parse_digits, parse_duration, unit_ms};
