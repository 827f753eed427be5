//! A slot that moves to the next node, as operators move it.

use anyhow::Result;

use super::Cluster;
use crate::servers::Server;

/// A slot that has begun to move.
pub struct SlotMove<'c> {
    pub source: &'c Server,
    pub target: &'c Server,
    other: &'c Server,
    slot: String,
    target_id: String,
}

impl Cluster {
    /// Begins to move a slot from its node to the next.
    pub async fn start_moving(&self, slot: u16) -> Result<SlotMove<'_>> {
        let from = self.owner(slot).await?;
        let to = (from + 1) % 3;
        let source_id = self.id(from).await?;
        let moving = SlotMove {
            source: &self.nodes[from],
            target: &self.nodes[to],
            other: &self.nodes[(from + 2) % 3],
            slot: slot.to_string(),
            target_id: self.id(to).await?,
        };
        let (target, source) = (moving.target, moving.source);
        moving.set_slot(target, "IMPORTING", &source_id).await?;
        moving
            .set_slot(source, "MIGRATING", &moving.target_id)
            .await?;
        Ok(moving)
    }
}

impl SlotMove<'_> {
    async fn set_slot(&self, node: &Server, how: &str, id: &str) -> Result<()> {
        let set_slot = ["CLUSTER", "SETSLOT", &self.slot, how, id];
        node.command(&set_slot).await.map(drop)
    }

    /// Keys that have not moved.
    pub async fn keys(&self) -> Result<Vec<String>> {
        let keys = ["CLUSTER", "GETKEYSINSLOT", &self.slot, "1000"];
        self.source.ask(&keys).await
    }

    /// Moves a key.
    pub async fn migrate(&self, key: &str) -> Result<()> {
        let port = self.target.port().to_string();
        let migrate = ["MIGRATE", "127.0.0.1", &port, key, "0", "5000"];
        self.source.command(&migrate).await.map(drop)
    }

    /// Assigns the slot to the next node.
    pub async fn finish(&self) -> Result<()> {
        for node in [self.target, self.source, self.other] {
            self.set_slot(node, "NODE", &self.target_id).await?;
        }
        Ok(())
    }
}
