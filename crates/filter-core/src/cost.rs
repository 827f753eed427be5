//! What requests cost where that is not one number: read from the request, or reserved when it comes
//! and settled when its response ends.

mod body_reader;
mod event_lines;
mod json_reader;
