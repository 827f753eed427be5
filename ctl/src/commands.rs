//! The commands. Each file holds one command's arguments and its work. None of them depends on the
//! command line as a whole ([`crate::cli`]), which lists them.

pub mod apply;
pub mod check;
pub mod completions;
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
pub mod reset;
pub mod set_limit;
pub mod simulate;
pub mod stats;
pub mod top;
pub mod validate;
