//! The numbers of a limit: `algorithm`, `rate` and what goes with them.

use algorithms::{Kind, ParameterError, Parameters, Rate};
use documents::{Duration, Field, Path, Report, Take, quoted};

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
    /// All numbers, if they are valid.
    pub(super) quota: Option<Quota>,
}

impl Numbers {
    /// Reads the numbers of a limit, if it limits anything.
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

    /// The numbers of a limit that limits nothing; they are never used.
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
    let written = take
        .field("algorithm")
        .map(|field| field.choice(take.report).map(|Written(kind)| kind));
    let rate = match written {
        Some(Some(Kind::Concurrency)) => slots::read(take, limit),
        // The fields of an unknown algorithm are unknown, too.
        Some(None) => {
            slots::skip_all(take);
            let field = take.field("rate");
            field.and_then(|field| read_rate(&field, take.report))
        }
        _ => {
            slots::refuse_all(take);
            match take.field("rate") {
                Some(field) => read_rate(&field, take.report),
                None => missing_rate(limit, take.report),
            }
        }
    };
    let kind = match written {
        Some(kind) => kind,
        None if rate.is_some_and(|rate| rate.calendar.is_some()) => Some(Kind::FixedWindow),
        None => Some(Kind::TokenBucket),
    };
    let burst = take.integer("burst", 0);
    let sub_windows = take.integer("sub_windows", 1);
    let align = take
        .field("align")
        .and_then(|field| field.choice(take.report))
        .map(|Written(align)| align);
    let strict = take.boolean("strict");
    let time_zone = read_time_zone(take);
    let week_start = take
        .field("week_start")
        .and_then(|field| field.choice(take.report))
        .map(|Written(day)| day);
    let max_delay_ms = read_max_delay(take, over_limit);
    let parameters = kind.zip(rate).map(|(kind, rate)| Parameters {
        kind,
        rate,
        burst,
        // A queue on another algorithm gets a message of its own.
        max_delay_ms: max_delay_ms.filter(|_| kind == Kind::LeakyBucket),
        align,
        sub_windows,
        strict,
        time_zone,
        week_start,
    });
    let whole = take.report.problems.len() == before;
    let quota = parameters
        .filter(|_| whole)
        .and_then(|parameters| validate(parameters, limit, take.report));
    Numbers { kind, quota }
}

fn missing_rate(limit: &Field<'_>, report: &mut Report) -> Option<Rate> {
    // A merge key, which is reported, was to bring it.
    if limit.node.get("rate").is_none() && limit.node.get("<<").is_none() {
        limit
            .report(report, "a limit needs a `rate`")
            .push_hint("units per period, like `rate: 10/s`");
    }
    None
}

/// Validates the numbers by the algorithm itself.
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
        let problem = report.add(&path, node.place, error.to_string());
        if let ParameterError::CalendarKind { unit } = error {
            problem.push_hint(format!(
                "remove `algorithm`, or give the rate a length of time, such as {}",
                Duration(unit.nominal_ms())
            ));
        }
        // Validation reports one error at a time: remove its cause and validate again.
        match name {
            "burst" if parameters.burst.take().is_some() => {}
            "max_delay" if parameters.max_delay_ms.take().is_some() => {}
            "align" if parameters.align.take().is_some() => {}
            // The algorithm needs some: one divides every window.
            "sub_windows"
                if parameters.kind == Kind::SlidingWindowBuckets
                    && parameters.sub_windows.is_some_and(|number| number != 1) =>
            {
                parameters.sub_windows = Some(1);
            }
            "sub_windows" if parameters.sub_windows.take().is_some() => {}
            "strict" if parameters.strict.take().is_some() => {}
            "time_zone" if parameters.time_zone.take().is_some() => {}
            "week_start" if parameters.week_start.take().is_some() => {}
            _ => return None,
        }
    }
}

pub(super) fn read_rate(field: &Field<'_>, report: &mut Report) -> Option<Rate> {
    field.parsed("a rate, units per period like 10/s", parse_rate, report)
}

/// The zone's name as its database spells it.
pub(super) fn read_time_zone(take: &mut Take<'_, '_>) -> Option<&'static str> {
    let field = take.field("time_zone")?;
    let text = field.text("the name of a time zone, like Europe/Berlin", take.report)?;
    let zone = calendar::zone(text);
    if zone.is_none() {
        let message = format!("{} is not a time zone", quoted(text));
        let problem = field.report(take.report, message);
        if let Some((name, way)) = calendar::offset(text) {
            problem.push_hint(format!(
                "did you mean `{name}`, which is {way} UTC? the sign in these names is the opposite of the \
                 usual one; a place, like Europe/Berlin, has summer time"
            ));
            return zone;
        }
        match calendar::similar(text).as_slice() {
            [] => problem
                .push_hint("a name of the IANA time zone database, like Europe/Berlin or UTC"),
            meant => problem.push_hint(format!("did you mean `{}`?", meant.join("` or `"))),
        }
    }
    zone
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
