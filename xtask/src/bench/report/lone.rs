//! Checks that travel alone: one of a call, or one at a time.

use serde_json::{Value, json};

use super::{Report, median, micros, row};
use crate::bench::{CALLS_AT_ONCE, LONE, SCRIPT_CHECKS};

impl Report {
    /// The time that the script itself takes Redis.
    pub(super) fn script_table(&self) -> String {
        let mut table = String::from("\n");
        table += &row(["the script in Redis", "per check", "least", "", "", ""]);
        for checks in SCRIPT_CHECKS {
            let name = format!("{checks} of a call");
            let (ns, least) = (self.script_ns(checks), self.script_rounds(checks).min());
            table += &row([&name, &micros(ns), &micros(least.unwrap_or(0)), "", "", ""]);
        }
        table
    }

    /// The median time of Redis for each check of a script call with so many, in nanoseconds.
    pub(super) fn script_ns(&self, checks: u64) -> u64 {
        median(self.script_rounds(checks).collect())
    }

    fn script_rounds(&self, checks: u64) -> impl Iterator<Item = u64> {
        let rounds = self.scripts.iter().filter(move |(of, _)| *of == checks);
        rounds.map(|(_, ns)| *ns)
    }

    /// The time of Redis for each check of a script call, as JSON.
    pub(super) fn script_times(&self) -> Value {
        let times = self.scripts.iter();
        times
            .map(|(checks, ns)| json!({"checks": checks, "ns": ns}))
            .collect()
    }

    /// What one check of a call costs the limiter, and where the time of a lone request goes.
    pub(super) fn lone_tables(&self) -> String {
        let mut table = String::from("\n");
        table += &row([
            "limiter, a check a call",
            "checks/s",
            "p50",
            "",
            "CPU",
            "least",
        ]);
        for at_once in CALLS_AT_ONCE {
            let calls = || self.calls.iter().filter(move |(of, _)| *of == at_once);
            let cpu: Vec<u64> = calls().map(|(_, calls)| calls.cpu_ns).collect();
            let rate = median(calls().map(|(_, calls)| calls.per_second).collect());
            let p50 = median(calls().map(|(_, calls)| calls.p50_us).collect());
            table += &row([
                &format!("{at_once} at once, HTTP/2"),
                &rate.to_string(),
                &format!("{p50} us"),
                "",
                &micros(median(cpu.clone())),
                &micros(cpu.into_iter().min().unwrap_or(0)),
            ]);
        }
        table += "\n";
        let head = [
            "one request at a time",
            "p50",
            "Envoy CPU",
            "limiters",
            "Redis",
            "",
        ];
        table += &row(head);
        let ping = format!("{} us", median(self.pings_us.clone()));
        table += &row(["PING of Redis", &ping, "", "", "", ""]);
        for name in LONE {
            let [envoy, limiters, redis] = [0, 1, 2].map(|process| {
                let used = self.lone.iter().filter(|(of, _)| *of == name);
                let used = used.filter_map(|(_, run)| run.cpu_ns.get(process).copied());
                micros(median(used.collect()))
            });
            let p50 = format!("{} us", self.lone_p50_us(name));
            table += &row([name, &p50, &envoy, &limiters, &redis, ""]);
        }
        table
    }

    /// The median duration of a lone request, in microseconds.
    pub(super) fn lone_p50_us(&self, name: &str) -> u64 {
        let runs = self.lone.iter().filter(|(of, _)| *of == name);
        median(runs.map(|(_, run)| run.sample.p50_us).collect())
    }

    /// Calls of one check each, as JSON.
    pub(super) fn single_checks(&self) -> Value {
        let calls = self.calls.iter().map(|(at_once, calls)| {
            json!({
                "at_once": at_once,
                "checks_per_second": calls.per_second,
                "p50_us": calls.p50_us,
                "cpu_ns": calls.cpu_ns,
            })
        });
        calls.collect()
    }

    /// Requests one at a time, as JSON.
    pub(super) fn lone_requests(&self) -> Value {
        let runs = self.lone.iter().map(
            |(name, run)| json!({"name": name, "p50_us": run.sample.p50_us, "cpu_ns": run.cpu_ns}),
        );
        runs.collect()
    }
}
