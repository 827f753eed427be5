//! What the global options and the environment mean together.
