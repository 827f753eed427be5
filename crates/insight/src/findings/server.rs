//! Problems of a server.

mod permissions;
mod storage;

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

#[cfg(test)]
mod tests;
