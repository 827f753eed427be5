//! The metrics by their names, each with its help.

use prometheus_client::registry::Registry;

use super::Metrics;

impl Metrics {
    pub(super) fn register(&self) {
        let Ok(mut all) = self.registry.lock() else {
            return;
        };
        all.register(
            "checks",
            "Decisions made by this limiter, by limit",
            self.checks.clone(),
        );
        self.decisions.register(&mut all);
        self.leases.register(&mut all);
        self.slots.register(&mut all);
        self.costs.register(&mut all);
        self.penalties.register(&mut all);
        self.register_unlimited(&mut all);
        all.register(
            "undecided",
            "Checks without a decision: the store failed or took too long",
            self.undecided.clone(),
        );
        self.compared.register(&mut all);
        all.register(
            "delayed",
            "Allowed checks that a queue delayed",
            self.delayed.clone(),
        );
        all.register(
            "policy_revision",
            "Revision of the limits in force",
            self.revision.clone(),
        );
        all.register(
            "policy_fault",
            "1 while the limits in the store cannot be used and the last good ones are in force; /readyz says why",
            self.policy_fault.clone(),
        );
        all.register(
            "policy_lost_edits",
            "Times that the revision in the store decreased: a failover or a restored backup lost edits",
            self.lost_edits.clone(),
        );
        all.register(
            "refused",
            "Requests answered with an error, by error code",
            self.refused.clone(),
        );
        all.register(
            "connections_cut",
            "Connections closed by the limiter: idle, replaced by newer ones, or with unread responses",
            self.cut.clone(),
        );
        self.register_timing(&mut all);
        self.register_load(&mut all);
    }

    fn register_unlimited(&self, all: &mut Registry) {
        self.exempt.register(all);
        all.register(
            "unmatched",
            "Checks that no limit applies to, without an exemption",
            self.unmatched.clone(),
        );
        all.register(
            "unmatched_descriptors",
            "Descriptors of Envoy's rate limit service that no limit applies to: no such domain, or no such limit",
            self.unmatched_descriptors.clone(),
        );
    }

    fn register_timing(&self, all: &mut Registry) {
        all.register(
            "check_duration_seconds",
            "Time to decide the checks of a request, without reading it",
            self.check_duration.clone(),
        );
        all.register(
            "store_duration_seconds",
            "Duration of a store call",
            self.store_duration.clone(),
        );
        all.register(
            "store_batch_size",
            "Checks per store call",
            self.store_batch.clone(),
        );
        all.register(
            "store_up",
            "1 if the last store calls succeeded; at 0, /readyz says why they failed",
            self.store_up.clone(),
        );
    }

    fn register_load(&self, all: &mut Registry) {
        all.register(
            "stale",
            "Checks repeated because a bucket had a newer revision of its limit than this limiter",
            self.stale.clone(),
        );
        all.register(
            "inflight_requests",
            "Requests in flight; --max-inflight bounds them",
            self.inflight.clone(),
        );
        all.register(
            "body_bytes",
            "Bytes held by request bodies until they are answered",
            self.body_bytes.clone(),
        );
        all.register(
            "waiting_checks",
            "Checks that wait for permits; --max-waiters bounds them",
            self.waiting.clone(),
        );
        all.register(
            "held_polls",
            "Long polls held; each proxy has one",
            self.held.clone(),
        );
        all.register(
            "health_watches",
            "Calls that watch the health over gRPC",
            self.watches.clone(),
        );
        all.register(
            "check_streams",
            "Check streams that are open; each worker of a proxy may have one",
            self.check_streams.clone(),
        );
    }
}
