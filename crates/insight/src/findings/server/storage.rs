//! Memory, persistence and replication.

use super::{Finding, Node, Severity};

/// Shares of `maxmemory`, in percent.
const MEMORY_HIGH: u64 = 80;
const MEMORY_FULL: u64 = 95;

impl Node<'_> {
    pub(super) fn eviction(&self) -> Option<Finding> {
        let policy = self.info("maxmemory_policy")?;
        let bounded = self.number("maxmemory").is_some_and(|bytes| bytes > 0);
        (bounded && policy != "noeviction").then(|| {
            let finding = self.finding(
                Severity::Error,
                "eviction",
                format!("maxmemory-policy is {policy}"),
                "when memory runs out, Redis deletes buckets and limits without notice: clients that \
                 were denied start afresh",
            );
            finding.mend(self.command("CONFIG SET maxmemory-policy noeviction"))
        })
    }

    pub(super) fn evicted(&self) -> Option<Finding> {
        let count = self.number("evicted_keys").filter(|count| *count > 0)?;
        let finding = self.finding(
            Severity::Warning,
            "evicted",
            format!("it evicted {count} keys since it started"),
            "each was a bucket or limits deleted too early, unless other programs use this \
             server as well",
        );
        Some(finding.mend(self.command("INFO stats    # is evicted_keys still rising?")))
    }

    pub(super) fn memory(&self) -> Option<Finding> {
        let most = self.number("maxmemory").filter(|bytes| *bytes > 0)?;
        let used = self.number("used_memory")?;
        let percent = used.saturating_mul(100) / most;
        let severity = match percent {
            MEMORY_FULL.. => Severity::Error,
            MEMORY_HIGH.. => Severity::Warning,
            _ => return None,
        };
        let finding = self.finding(
            severity,
            "memory",
            format!("{percent}% of maxmemory is in use"),
            "at 100% a server that does not evict refuses every check that needs a new bucket, and \
             every edit",
        );
        let twice = most.saturating_mul(2);
        Some(finding.mend(self.command(&format!("CONFIG SET maxmemory {twice}"))))
    }

    pub(super) fn persistence(&self) -> Option<Finding> {
        let appending = self.info("aof_enabled")? == "1";
        let saving = self.setting("save").map(|save| !save.is_empty());
        if appending {
            return None;
        }
        let mend = self.command("CONFIG SET appendonly yes    # and CONFIG REWRITE");
        let finding = match saving {
            Some(true) => self.finding(
                Severity::Info,
                "persistence",
                "RDB snapshots are on, the append-only file is off",
                "a crash loses the edits since the last snapshot",
            ),
            Some(false) => self.finding(
                Severity::Warning,
                "persistence",
                "neither RDB snapshots nor the append-only file are on",
                "a restart loses the limits, their history and all usage; limiters keep the last \
                 limits they loaded only until they restart as well",
            ),
            None => self.finding(
                Severity::Info,
                "persistence",
                "the append-only file is off, and this user may not read whether snapshots are on",
                "a restart may lose edits, or all limits",
            ),
        };
        Some(finding.mend(mend))
    }

    pub(super) fn failed_saves(&self) -> Option<Finding> {
        let fields = ["rdb_last_bgsave_status", "aof_last_write_status"];
        let failed = fields
            .into_iter()
            .find(|field| self.info(field).is_some_and(|status| status != "ok"))?;
        Some(self.finding(
            Severity::Error,
            "saving",
            format!("{failed} is not ok"),
            "the disk is full or not writable; Redis refuses writes until that is fixed, or loses \
             them at the next restart",
        ))
    }

    pub(super) fn replicas(&self) -> Option<Finding> {
        let replicas = self.number("connected_slaves").filter(|count| *count > 0)?;
        let least = self.setting("min-replicas-to-write")?;
        (least == "0").then(|| {
            let finding = self.finding(
                Severity::Info,
                "replicas",
                format!("it has {replicas} replicas, and min-replicas-to-write is 0"),
                "a primary that is partitioned from its replicas keeps deciding while another is \
                 elected, and both admit requests; min-replicas-to-write stops it. It also stops \
                 when too many replicas are down, so use at least two",
            );
            finding.mend(self.command("CONFIG SET min-replicas-to-write 1"))
        })
    }
}
