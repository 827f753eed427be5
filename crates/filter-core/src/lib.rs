//! The decision at the proxy, as a state machine behind a host trait.
