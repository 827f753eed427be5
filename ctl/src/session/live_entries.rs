//! The descriptor entries that live proxies supply.

use insight::LiveEntries;

use super::Session;
use crate::error::Error;

impl Session<'_> {
    /// The entries that live proxies supply.
    pub async fn live_entries(&self) -> Result<LiveEntries, Error> {
        let fleet = self.store.fleet().await;
        let fleet = fleet.map_err(|error| self.failed(&error))?;
        Ok(LiveEntries::of(&fleet))
    }
}
