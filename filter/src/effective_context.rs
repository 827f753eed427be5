//! Host calls for other contexts than the one whose callback is running.

use proxy_wasm::hostcalls;

/// The context that host calls apply to while the steps of several requests are carried out. Dropping
/// it restores the context whose callback is running.
pub struct EffectiveContext {
    own: u32,
    current: u32,
}

impl EffectiveContext {
    pub fn new(own: u32) -> Self {
        Self { own, current: own }
    }

    /// Returns whether the context still exists.
    pub fn switch_to(&mut self, context_id: u32) -> bool {
        if self.current != context_id {
            if hostcalls::set_effective_context(context_id).is_err() {
                return false;
            }
            self.current = context_id;
        }
        true
    }
}

impl Drop for EffectiveContext {
    fn drop(&mut self) {
        self.switch_to(self.own);
    }
}
