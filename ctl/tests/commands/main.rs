//! rlctl as a user runs it, and what its manual shows. All are one program, because each program of tests is linked of
//! its own.

mod activity;
mod broken;
mod cli;
mod cluster;
mod docs;
mod doctor;
mod faults;
mod fleet;
mod json;
mod pictures;
mod prompt;
mod redis;
mod replay;
mod secrets;
mod support;
mod top;
mod watch;
