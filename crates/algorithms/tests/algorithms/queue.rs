//! Slots of a queue that are released.

mod bucket;
mod delays;
mod edits;
mod intervals;
mod model;
mod names;
mod turns;
