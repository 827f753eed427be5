//! The commands. A file has the arguments and the work of one, or of a family: `diff` is in `apply`, `man` in
//! `completions`, `delete-domain` in `delete_limit`, `rollback` in `history`, `get-limit`, `export` and
//! `list-domains` in `list_limits`, `resume` in `pause`, `load-scripts` in `ping`, `credit` in `reset`. None of
//! them but `completions` depends on the command line as a whole ([`crate::cli`]), which lists them.

pub mod apply;
pub mod check;
pub mod completions;
#[cfg(feature = "controller")]
pub mod controller;
pub mod convert;
pub mod delete_limit;
pub mod denials;
pub mod doctor;
pub mod exemption;
pub mod explain;
pub mod history;
pub mod inspect;
pub mod list_keys;
pub mod list_limits;
pub mod list_proxies;
pub mod pause;
pub mod ping;
pub mod replay;
pub mod reset;
pub mod set_limit;
pub mod simulate;
pub mod stats;
pub mod suggest;
pub mod test;
pub mod top;
pub mod validate;
