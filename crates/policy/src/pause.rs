//! The kill switch: it puts a limit, or a whole domain, out of force for a while.

use documents::{Field, Node, Report, Take, Value, format_timestamp, parse_timestamp};

/// Until the pause ends, its limit counts as absent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Pause {
    /// When it ends on its own, in milliseconds since the epoch; `None`: never.
    pub until_ms: Option<u64>,
}

/// Every field of a pause with an end.
const FIELDS: [&str; 1] = ["until"];

impl Pause {
    /// The meaning of `paused: false`: not paused, or no longer.
    pub const OVER: Self = Self { until_ms: Some(0) };

    /// Whether it holds at a time in milliseconds since the epoch.
    pub fn holds(self, now_ms: u64) -> bool {
        self.until_ms.is_none_or(|until_ms| now_ms < until_ms)
    }

    /// The one that ends later, of a limit's pause and its domain's: both have started already.
    pub fn later(one: Option<Self>, other: Option<Self>) -> Option<Self> {
        match (one, other) {
            (Some(a), Some(b)) => Some(Self {
                until_ms: a.until_ms.zip(b.until_ms).map(|(a, b)| a.max(b)),
            }),
            (one, other) => one.or(other),
        }
    }

    /// The value of `paused`.
    pub fn to_node(self) -> Node {
        match self.until_ms {
            None => true.into(),
            Some(0) => false.into(),
            Some(ms) => Node::map([("until", Node::text(format_timestamp(ms)))]),
        }
    }

    /// Reads the value of `paused` of a document that is already validated.
    pub fn from_node(node: &Node) -> Option<Self> {
        match &node.value {
            Value::Bool(true) => Some(Self { until_ms: None }),
            Value::Bool(false) => Some(Self::OVER),
            _ => Some(Self {
                until_ms: Some(parse_timestamp(node.get("until")?.as_text()?)?),
            }),
        }
    }

    /// Takes `paused`: `true`, `false`, or a map with `until`.
    pub(crate) fn take(take: &mut Take<'_, '_>) -> Option<Self> {
        let field = take.field("paused")?;
        match field.node.value {
            Value::Bool(true) => Some(Self { until_ms: None }),
            Value::Bool(false) => Some(Self::OVER),
            Value::Map(_) => read_until(&field, take.report),
            _ => {
                field
                    .expected("true, false or a map with `until`", take.report)
                    .push_hint("a pause that ends by itself: {until: 2026-12-01T00:00Z}");
                None
            }
        }
    }
}

fn read_until(pause: &Field<'_>, report: &mut Report) -> Option<Pause> {
    let mut until_ms = None;
    pause.read_map(&FIELDS, report, &mut |take| {
        if let Some(field) = take.field("until") {
            until_ms = field.time(take.report);
        } else if pause.node.get("until").is_none() {
            pause
                .report(take.report, "a pause needs `until`")
                .push_hint("or write `paused: true` for one without an end");
        }
    })?;
    Some(Pause {
        until_ms: Some(until_ms?),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const FOREVER: Pause = Pause { until_ms: None };

    fn until(ms: u64) -> Pause {
        Pause { until_ms: Some(ms) }
    }

    #[test]
    fn a_pause_holds_up_to_its_end() {
        assert!(FOREVER.holds(u64::MAX));
        assert!(until(5).holds(4));
        assert!(!until(5).holds(5));
        assert!(!Pause::OVER.holds(0));
    }

    #[test]
    fn the_later_of_two_pauses_holds() {
        assert_eq!(Pause::later(None, None), None);
        assert_eq!(Pause::later(Some(until(1)), None), Some(until(1)));
        assert_eq!(Pause::later(Some(until(1)), Some(until(2))), Some(until(2)));
        assert_eq!(Pause::later(Some(FOREVER), Some(until(2))), Some(FOREVER));
    }
}
