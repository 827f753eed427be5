//! Derived figures, and whether they are within the budgets.

use super::{Report, Series, median, micros, row, thousandths};
use crate::bench::{
    setups::{STREAMED, STREAMED_BEFORE},
    start::Starts,
};
use crate::wasm::{SIZE_BUDGET_BYTES, kilobytes};

/// The least that a setup must reach of its reference's requests, in thousandths.
const BUDGETS: [(&str, u64); 7] = [
    ("every request checked", 500),
    (STREAMED, 500),
    ("leased", 800),
    ("checked, upstream", 650),
    (STREAMED_BEFORE, 650),
    ("denied, upstream", 1500),
    ("leased, upstream", 900),
];
/// The least that the limiter must reach of Redis's throughput alone, in thousandths.
const LIMITER_BUDGET: u64 = 800;
/// The most that a check may take in Redis, in nanoseconds, with how many a script call has.
const SCRIPT_BUDGETS_NS: [(u64, u64); 2] = [(1, 6000), (8, 3000)];
/// The median duration that a checked request may have alone, where Envoy answers itself, in microseconds. It
/// is three nested round trips, so see what a PING takes: where both processes have to be woken, a round trip
/// that does nothing may take 80 us.
const LONE_BUDGET_US: u64 = 200;
/// The rows of that budget, and their setups.
const LONE_CHECKS: [(&str, &str); 2] = [
    ("p50 of a lone check", "every request checked"),
    ("the same, by a stream", STREAMED),
];
/// The most that the filter may add to Envoy's start, in milliseconds.
const START_BUDGET_MS: u64 = 300;

impl Report {
    /// The CPU time of each process per request.
    pub(super) fn cpu_table(&self) -> String {
        let mut table = String::from("\n");
        table += &row([
            "CPU per request",
            "Envoy",
            "limiters",
            "Redis",
            "of no-op",
            "Envoy least",
        ]);
        // Other load on the machine only adds to it, so the least is the best estimate.
        let least = |series: &Series| series.cpu_ns(0).into_iter().min().unwrap_or(0);
        for series in &self.series {
            let [envoy, limiters, redis] =
                [0, 1, 2].map(|process| micros(median(series.cpu_ns(process))));
            let reference = self.series.iter().find(|s| s.name == series.reference);
            let own = least(series);
            let of_noop = (own * 1000).checked_div(reference.map_or(0, least));
            let of_noop = thousandths(of_noop.unwrap_or(0));
            table += &row([
                series.name,
                &envoy,
                &limiters,
                &redis,
                &of_noop,
                &micros(own),
            ]);
        }
        table += "\n";
        table += &row(["Envoy starts", "in", "CPU", "", "", ""]);
        for (at, name) in ["no filter", "no-op filter", "ours"].iter().enumerate() {
            let starts = || {
                self.starts
                    .iter()
                    .filter_map(|starts| starts.each().get(at).copied())
            };
            let took = median(starts().map(|start| start.took_ms).collect());
            let cpu = median(starts().map(|start| start.cpu_ms).collect());
            table += &row([
                name,
                &format!("{took} ms"),
                &format!("{cpu} ms"),
                "",
                "",
                "",
            ]);
        }
        table
    }

    /// The budgets, and whether they hold.
    pub(super) fn budgets(&self) -> String {
        let mut table = String::from("\n");
        table += &row(["budget", "is", "to be", "", "", ""]);
        let mut line = |name: &str, is: String, to_be: String, met: bool| {
            let verdict = if met { "met" } else { "missed" };
            table += &row([name, &is, &to_be, verdict, "", ""]);
        };
        for (name, budget) in BUDGETS {
            if let Some(series) = self.series.iter().find(|series| series.name == name) {
                let is = series.ratio().median;
                let to_be = format!(">= {}", thousandths(budget));
                line(name, thousandths(is), to_be, is >= budget);
            }
        }
        let is = self.limiter_ratio().median;
        let to_be = format!(">= {}", thousandths(LIMITER_BUDGET));
        line(
            "limiter of Redis",
            thousandths(is),
            to_be,
            is >= LIMITER_BUDGET,
        );
        for (checks, budget) in SCRIPT_BUDGETS_NS {
            let is = self.script_ns(checks);
            let to_be = format!("<= {}", micros(budget));
            let name = format!("script, {checks} of a call");
            line(&name, micros(is), to_be, is <= budget);
        }
        for (name, setup) in LONE_CHECKS {
            let is = self.lone_p50_us(setup);
            let to_be = format!("<= {LONE_BUDGET_US} us");
            line(name, format!("{is} us"), to_be, is <= LONE_BUDGET_US);
        }
        let to_be = format!("< {}", kilobytes(SIZE_BUDGET_BYTES));
        line(
            "filter.wasm",
            kilobytes(self.size),
            to_be,
            self.size < SIZE_BUDGET_BYTES,
        );
        let added = |starts: &Starts| starts.ours.took_ms.saturating_sub(starts.without.took_ms);
        let added = median(self.started(added));
        let to_be = format!("< {START_BUDGET_MS} ms");
        line(
            "adds to a start",
            format!("{added} ms"),
            to_be,
            added < START_BUDGET_MS,
        );
        table
    }

    pub(super) fn started(&self, figure: impl Fn(&Starts) -> u64) -> Vec<u64> {
        self.starts.iter().map(figure).collect()
    }
}
