//! Problems of a server.

use store::Health;

use crate::{Finding, Severity};

/// Clocks that differ by more than this are reported, in milliseconds.
const SKEW_MS: u64 = 1000;

/// All findings of a server but those of its clock; `store` is the URL that led to it.
pub fn look(node: &Health, store: &str, prefix: &str) -> Vec<Finding> {
    let node = Node {
        health: node,
        store,
        prefix,
    };
    let checks = [
        node.information(),
        node.role(),
        node.version(),
        node.scripts(),
        node.eviction(),
        node.evicted(),
        node.memory(),
        node.persistence(),
        node.failed_saves(),
        node.replicas(),
        node.lacking_rights(),
        node.spare_rights(),
    ];
    checks.into_iter().flatten().collect()
}

/// How the clocks of the servers and of this machine differ.
pub fn clocks(nodes: &[Health], here_ms: u64) -> Vec<Finding> {
    let skewed = |node: &&Health| {
        let slack_ms = u64::try_from(node.round_trip.as_millis()).unwrap_or(u64::MAX);
        node.now_ms.abs_diff(here_ms) > SKEW_MS.saturating_add(slack_ms.saturating_mul(2))
    };
    let finding = |node: &Health| {
        let (by, way) = match node.now_ms.checked_sub(here_ms) {
            Some(ahead) => (ahead, "ahead of"),
            None => (here_ms.saturating_sub(node.now_ms), "behind"),
        };
        Finding::new(
            Severity::Warning,
            "clock",
            node.address.as_str(),
            format!("its clock is {} {way} this machine's", crate::duration(by)),
            "buckets count by the server's clock; a pause or an override with an end also goes by \
             that of each limiter and proxy, and ends early or late where they differ",
        )
        .mend("chronyc tracking    # on both machines: which of them is not synchronized?")
    };
    nodes.iter().filter(skewed).map(finding).collect()
}

struct Node<'h> {
    health: &'h Health,
    store: &'h str,
    prefix: &'h str,
}

/// The command line of the server's own client; `store` is the URL that led to the server.
pub fn client(health: &Health, store: &str) -> String {
    let info = health.info.as_ref();
    let client = match info.and_then(|info| info.get("valkey_version")) {
        Some(_) => "valkey-cli",
        None => "redis-cli",
    };
    let address = &health.address;
    match address.split_once("://") {
        Some(("unix", path)) => format!("{client} -s {path}"),
        // Only the sentinels have the address of the primary.
        Some(("redis-sentinel" | "rediss-sentinel", _)) => format!("{client} -h PRIMARY"),
        Some(_) => format!("{client} -u {address}"),
        // A node of a Cluster.
        None => {
            let tls = if store.starts_with("rediss-") {
                "s"
            } else {
                ""
            };
            format!("{client} -u redis{tls}://{address}")
        }
    }
}

impl Node<'_> {
    fn finding(
        &self,
        severity: Severity,
        check: &'static str,
        what: impl Into<String>,
        why: &str,
    ) -> Finding {
        Finding::new(severity, check, self.health.address.as_str(), what, why)
    }

    fn info(&self, field: &str) -> Option<&str> {
        let info = self.health.info.as_ref()?;
        info.get(field).map(String::as_str)
    }

    fn number(&self, field: &str) -> Option<u64> {
        self.info(field)?.parse().ok()
    }

    fn setting(&self, name: &str) -> Option<&str> {
        let settings = self.health.settings.as_ref()?;
        settings.get(name).map(String::as_str)
    }

    /// A command for the server's own client, which asks for a password itself.
    fn command(&self, words: &str) -> String {
        format!("{} {words}", client(self.health, self.store))
    }

    fn information(&self) -> Option<Finding> {
        if self.health.info.is_some() {
            return None;
        }
        Some(self.finding(
            Severity::Info,
            "info",
            "INFO is not permitted to this user",
            "memory, eviction, persistence, replicas and version were not checked; \
             run doctor as another user, or grant +info",
        ))
    }

    fn role(&self) -> Option<Finding> {
        (self.info("role") == Some("slave")).then(|| {
            self.finding(
                Severity::Error,
                "role",
                "it is a replica",
                "it refuses every check and every edit; the URL has to lead to the primary",
            )
        })
    }

    fn version(&self) -> Option<Finding> {
        if self.info("valkey_version").is_some() {
            return None;
        }
        let version = self.info("redis_version")?;
        let major: u64 = version.split('.').next()?.parse().ok()?;
        (major < 7).then(|| {
            self.finding(
                Severity::Error,
                "version",
                format!("Redis {version}"),
                "7.0 is the oldest tested version; older ones stop an edit half-way where the user \
                 lacks a permission",
            )
        })
    }

    fn scripts(&self) -> Option<Finding> {
        let missing = self.health.scripts.iter().filter(|script| !script.loaded);
        let names: Vec<&str> = missing.map(|script| script.name).collect();
        if names.is_empty() {
            return None;
        }
        let finding = self.finding(
            Severity::Info,
            "scripts",
            format!("scripts of this version are missing: {}", names.join(", ")),
            "limiters load a missing script when they first need it, so the first checks take \
             longer",
        );
        Some(finding.mend("rlctl load-scripts"))
    }
}

// --- The permissions of the user that rlctl logs in as.

impl Node<'_> {
    pub(super) fn lacking_rights(&self) -> Option<Finding> {
        let rights = self.health.rights.as_ref()?;
        if rights.lacking.is_empty() {
            return None;
        }
        let finding = self.finding(
            Severity::Error,
            "rights",
            format!("this user may not use {}", rights.lacking.join(", ")),
            "some checks, edits or listings are refused; limiters that log in as another user \
             may have other permissions",
        );
        let grants: Vec<String> = rights
            .lacking
            .iter()
            .map(|command| format!("+{}", command.to_ascii_lowercase()))
            .collect();
        let prefix = self.prefix;
        let words = format!(
            "ACL SETUSER NAME '~{prefix}*' '&{prefix}*' {}",
            grants.join(" ")
        );
        Some(finding.mend(self.command(&words)))
    }

    pub(super) fn spare_rights(&self) -> Option<Finding> {
        let rights = self.health.rights.as_ref()?;
        if rights.spare.is_empty() {
            return None;
        }
        Some(self.finding(
            Severity::Info,
            "rights",
            format!(
                "this user has permissions it does not need: {}",
                rights.spare.join(", ")
            ),
            "a leaked password then exposes more than the limits; docs/rlctl.md lists the \
             permissions that are enough",
        ))
    }
}

// --- Memory, persistence and replication.

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
        // The server may use more than it is allowed: an edit lowered that.
        let twice = most.max(used).saturating_mul(2);
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

#[cfg(test)]
mod tests;
