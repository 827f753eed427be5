//! Stores on a Cluster.

mod faults;
mod hangs;
mod moving_pairs;
mod nodes;
mod rights;
mod slot_move;

pub use self::nodes::Cluster;
