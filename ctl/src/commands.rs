//! The commands. Each file holds one command's arguments and its work. None of them depends on the
//! command line as a whole ([`crate::cli`]), which lists them.

pub mod apply;
pub mod check;
pub mod completions;
pub mod convert;
pub mod credit;
pub mod delete_domain;
pub mod delete_limit;
pub mod denials;
pub mod diff;
pub mod doctor;
pub mod exemption;
pub mod explain;
pub mod export;
pub mod get_limit;
pub mod history;
pub mod inspect;
pub mod list_domains;
pub mod list_keys;
pub mod list_limits;
pub mod list_proxies;
pub mod load_scripts;
pub mod man;
pub mod pause;
pub mod ping;
pub mod reset;
pub mod rollback;
pub mod set_limit;
pub mod simulate;
pub mod stats;
pub mod top;
pub mod validate;
