//! The records of domains in memory.

use async_trait::async_trait;
use policy::{Name, Override, Revision};
use store_plan::{Edit, Head, HistoryEntry, Overrides, Stored};
use tokio::sync::watch;

use super::{MemoryStore, lock};
use crate::{EditError, LimitOf, OverrideCursor, OverridePage, Policies, StoreError};

#[async_trait]
impl Policies for MemoryStore {
    async fn heads(&self) -> Result<Vec<Head>, StoreError> {
        Ok(lock(&self.domains).heads())
    }

    fn watch_edits(&self) -> watch::Receiver<u64> {
        self.edits.subscribe()
    }

    async fn read(&self, domain: &Name, overrides: Overrides) -> Result<Stored, StoreError> {
        Ok(lock(&self.domains).read(domain, overrides))
    }

    async fn read_override(
        &self,
        limit: &LimitOf<'_>,
        values: &[Option<Vec<u8>>],
    ) -> Result<Option<Override>, StoreError> {
        Ok(lock(&self.domains).override_of(limit, values))
    }

    async fn override_counts(
        &self,
        domain: &Name,
        limits: &[&Name],
    ) -> Result<Vec<u64>, StoreError> {
        Ok(lock(&self.domains).override_counts(domain, limits))
    }

    async fn scan_overrides(
        &self,
        limit: &LimitOf<'_>,
        _cursor: OverrideCursor,
    ) -> Result<OverridePage, StoreError> {
        Ok(lock(&self.domains).scan_overrides(limit))
    }

    async fn write(&self, edit: &Edit<'_>) -> Result<Revision, EditError> {
        let now_ms = (self.clock)();
        let revision = lock(&self.domains).write(edit, now_ms)?;
        self.edited();
        Ok(revision)
    }

    async fn history(&self, domain: &Name, max: usize) -> Result<Vec<HistoryEntry>, StoreError> {
        Ok(lock(&self.domains).history(domain, max))
    }
}
