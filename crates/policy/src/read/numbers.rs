//! The numbers of a limit: `algorithm`, `rate` and what goes with them.

use algorithms::{Kind, Parameters, Rate};
use documents::{Field, Path, Report, Take};

use crate::{
    OverLimit, Quota,
    quota::{DEFAULT_MAX_DELAY_MS, Written, field_of},
    rate::parse_rate,
    read::slots,
};

/// What could be read of a limit's numbers.
pub(super) struct Numbers {
    /// The algorithm, if it is one.
    pub(super) kind: Option<Kind>,
    /// Everything, if it is right.
    pub(super) quota: Option<Quota>,
}

impl Numbers {
    /// Those of a limit, if it limits anything.
    pub(super) fn read(
        take: &mut Take<'_, '_>,
        limit: &Field<'_>,
        over_limit: OverLimit,
        unlimited: bool,
    ) -> Self {
        if unlimited {
            return Self::none();
        }
        read_numbers(take, limit, over_limit)
    }

    /// Of a limit that limits nothing; nobody reads them.
    fn none() -> Self {
        let parameters = Parameters::new(Kind::FixedWindow, 0, 1000);
        Self {
            kind: Some(Kind::FixedWindow),
            quota: Quota::new(&parameters).ok(),
        }
    }
}

fn read_numbers(take: &mut Take<'_, '_>, limit: &Field<'_>, over_limit: OverLimit) -> Numbers {
    let before = take.report.problems.len();
    let kind = match take.field("algorithm") {
        Some(field) => field.choice(take.report).map(|Written(kind)| kind),
        None => Some(Kind::TokenBucket),
    };
    let rate = if kind == Some(Kind::Concurrency) {
        slots::read(take, limit)
    } else {
        slots::refuse_all(take);
        match take.field("rate") {
            Some(field) => read_rate(&field, take.report),
            None => missing_rate(limit, take.report),
        }
    };
    let burst = take.integer("burst", 0);
    let sub_windows = take.integer("sub_windows", 1);
    let align = take
        .field("align")
        .and_then(|field| field.choice(take.report))
        .map(|Written(align)| align);
    let strict = take.boolean("strict");
    let max_delay_ms = read_max_delay(take, over_limit);
    let parameters = kind.zip(rate).map(|(kind, rate)| Parameters {
        kind,
        rate,
        burst,
        // A queue on another algorithm is refused by its own message.
        max_delay_ms: max_delay_ms.filter(|_| kind == Kind::LeakyBucket),
        align,
        sub_windows,
        strict,
    });
    let whole = take.report.problems.len() == before;
    let quota = parameters
        .filter(|_| whole)
        .and_then(|parameters| validate(parameters, limit, take.report));
    Numbers { kind, quota }
}

fn missing_rate(limit: &Field<'_>, report: &mut Report) -> Option<Rate> {
    if limit.node.get("rate").is_none() {
        limit
            .report(report, "a limit needs a `rate`")
            .push_hint("units per period, like `rate: 10/s`");
    }
    None
}

/// What the algorithm itself has to say about its numbers.
pub(super) fn validate(
    mut parameters: Parameters,
    owner: &Field<'_>,
    report: &mut Report,
) -> Option<Quota> {
    let mut whole = true;
    loop {
        let error = match Quota::new(&parameters) {
            Ok(quota) => return Some(quota).filter(|_| whole),
            Err(error) => error,
        };
        whole = false;
        let name = field_of(&error);
        let node = owner.node.get(name).unwrap_or(owner.node);
        let path = Path::Field(&owner.path, name);
        report.add(&path, node.place, error.to_string());
        // Validation reports one error at a time: remove its cause and validate again.
        match name {
            "burst" if parameters.burst.take().is_some() => {}
            "max_delay" if parameters.max_delay_ms.take().is_some() => {}
            "align" if parameters.align.take().is_some() => {}
            "sub_windows" if parameters.sub_windows.take().is_some() => {}
            "strict" if parameters.strict.take().is_some() => {}
            _ => return None,
        }
    }
}

pub(super) fn read_rate(field: &Field<'_>, report: &mut Report) -> Option<Rate> {
    field.parsed("a rate, units per period like 10/s", parse_rate, report)
}

fn read_max_delay(take: &mut Take<'_, '_>, over_limit: OverLimit) -> Option<u64> {
    let queue = over_limit == OverLimit::Queue;
    let Some(field) = take.field("max_delay") else {
        return queue.then_some(DEFAULT_MAX_DELAY_MS);
    };
    if !queue {
        field
            .report(take.report, "`max_delay` is for queues")
            .push_hint("add `over_limit: queue`, or remove `max_delay`");
    }
    field.duration(take.report).filter(|_| queue)
}
