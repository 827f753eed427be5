//! Envoy's log. It is where the reason of a refused configuration can be read.

#![expect(unsafe_code, reason = "calls the host with a pointer to a live slice")]

use super::raw;

/// How much a message matters.
#[derive(Clone, Copy, Debug)]
#[repr(u32)]
pub enum Level {
    /// Worth knowing.
    Info = 2,
    /// Something works less well than it should.
    Warn = 3,
    /// Something does not work.
    Error = 4,
}

/// Writes text, escaped where a terminal would obey it. A host that cannot log is not told so: there
/// is nowhere to say it.
pub fn write(level: Level, text: &str) {
    let text = filter_core::printable(text);
    // SAFETY: `text` outlives the call.
    let _ = unsafe { raw::proxy_log(level as u32, text.as_ptr(), text.len()) };
}
