//! The numbers of one check, without its keys.

use algorithms::{
    Debits, Kind, LeaseRequest, PROXY_MARKS, SlotAct,
    check::{Costs, Mode},
};

use crate::script::{
    ScriptCheck, ScriptCosts, ScriptPenalty,
    call::{encode_edges, exact, integer, named, time},
};

const PEEK: i64 = 1;
const FORCE: i64 = 2;
const REPORTED: i64 = 4;
const GIVEN_BACK: i64 = 8;
const DENIED: i64 = 16;
/// For each millisecond that the caller waits for permits.
const PATIENCE: i64 = 32;
/// Longer than any wait, and exact in Lua with the other flags.
const PATIENCE_MAX_MS: u64 = 1 << 40;
const OBSERVED: i64 = 16;
const LEASED: i64 = 32;
const FREEING: i64 = 64;
const PRICED: i64 = 128;
const PENALIZING: i64 = 256;
const TOGETHER: i64 = 512;

/// In the place of a reservation's secret: make none, and add up those that are open.
const COUNT_OPEN: i64 = -2;

/// Appends the form of a check: everything but its keys.
pub(super) fn encode_form(args: &mut Vec<i64>, check: &ScriptCheck<'_>) {
    args.extend([flags(check), integer(check.limits.len())]);
    for limit in &check.limits {
        let numbers = limit.algorithm.numbers();
        let observed = match limit.mode {
            Mode::Enforce => 0,
            Mode::Observe => OBSERVED,
            Mode::Together => OBSERVED + TOGETHER,
        };
        let leased = limit.lease.map_or(0, |_| LEASED);
        let freeing = if limit.free.is_empty() { 0 } else { FREEING };
        let priced = limit.costs.map_or(0, |_| PRICED);
        let penalizing = limit.penalty.map_or(0, |_| PENALIZING);
        args.extend([
            i64::from(numbers.kind) + observed + leased + freeing + priced + penalizing,
            exact(limit.generation),
            exact(limit.cost),
            exact(limit.debit),
            exact(numbers.limit),
            exact(numbers.x),
            exact(numbers.y),
            exact(numbers.z),
        ]);
        if let Some(lease) = &limit.lease {
            encode_lease(args, lease);
        }
        if !limit.free.is_empty() {
            args.push(integer(limit.free.len()));
            for op in limit.free {
                args.extend(named(&op.slot));
                args.push(act(op.act, limit.algorithm.kind()));
            }
        }
        if let Some(ScriptCosts { costs, .. }) = &limit.costs {
            encode_costs(args, costs);
        }
        if let Some(ScriptPenalty {
            penalty, reported, ..
        }) = &limit.penalty
        {
            args.extend([
                exact(penalty.after),
                exact(penalty.within_ms),
                exact(penalty.for_ms),
                exact(*reported),
            ]);
        }
        encode_edges(args, limit.algorithm, limit.debit_serial);
    }
}

/// The number behind the name of a slot: what its request was charged, or for a request in flight one of
/// the operations of `lua/lib/concurrency.lua`.
fn act(act: SlotAct, kind: Kind) -> i64 {
    match (act, kind) {
        (SlotAct::Free(_), Kind::Concurrency) => 1,
        (SlotAct::Renew, Kind::Concurrency) => 2,
        (SlotAct::Enter, Kind::Concurrency) => 3,
        (SlotAct::Free(units), _) => exact(units),
        // A slot of no units, which frees nothing.
        (SlotAct::Renew | SlotAct::Enter, _) => 0,
    }
}

fn flags(check: &ScriptCheck<'_>) -> i64 {
    let peek = if check.options.peek { PEEK } else { 0 };
    let force = if check.options.force { FORCE } else { 0 };
    let debits = match check.options.debits {
        Debits::Admitted => 0,
        Debits::Reported => REPORTED,
        Debits::Refunded => GIVEN_BACK,
    };
    let denied = if check.options.denied { DENIED } else { 0 };
    // It only matters to penalties, and checks without flags are cheaper.
    let patience = if check.limits.iter().any(|limit| limit.penalty.is_some()) {
        PATIENCE * exact(check.options.patience_ms.min(PATIENCE_MAX_MS))
    } else {
        0
    };
    peek + force + debits + denied + patience
}

fn encode_costs(args: &mut Vec<i64>, costs: &Costs<'_>) {
    let unreserved = if costs.count_open { COUNT_OPEN } else { -1 };
    let secret = costs.secret.map_or(unreserved, exact);
    args.extend([secret, integer(costs.settle.len())]);
    for settlement in costs.settle {
        args.extend([
            exact(settlement.reservation.number),
            exact(settlement.reservation.secret),
            exact(settlement.reservation.units),
            exact(settlement.units),
        ]);
    }
}

fn encode_lease(args: &mut Vec<i64>, lease: &LeaseRequest<'_>) {
    args.extend([
        exact(lease.ttl_ms),
        exact(lease.want),
        i64::from(lease.proxy % PROXY_MARKS),
        integer(lease.settle.len()),
    ]);
    for settlement in lease.settle {
        args.extend([
            time(settlement.epoch),
            exact(settlement.spent),
            exact(settlement.returned),
        ]);
    }
}
