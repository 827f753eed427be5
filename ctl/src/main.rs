//! rlctl, the control plane: edits limits, inspects and resets buckets.

fn main() {}
