//! Buckets and requests as text.

use algorithms::{Adaptive, AdaptiveState};
use policy::{Duration, Limit, Name, Node, Penalty, PenaltyStatus, ShareText, format_timestamp};
use store::{BucketActivity, KeyValue, Keys};

use crate::{ceil_seconds, counted, duration, pause_state};

/// `user=alice tenant=acme`, or `(all)` if the limit has only one bucket. Bytes that are not text,
/// or that could control a terminal, are escaped.
pub fn display<V: AsRef<[u8]>>(per: &[Name], values: &[Option<V>]) -> String {
    if per.is_empty() {
        return "(all)".to_owned();
    }
    let one = |(name, value): (&Name, &Option<V>)| match value {
        Some(value) => format!("{name}={}", visible(value.as_ref())),
        None => format!("{name}: none"),
    };
    per.iter()
        .zip(values)
        .map(one)
        .collect::<Vec<_>>()
        .join(" ")
}

/// Bytes as text that is safe to print on a terminal.
pub fn visible(bytes: &[u8]) -> String {
    bytes.utf8_chunks().fold(String::new(), |mut text, chunk| {
        for c in chunk.valid().chars() {
            if policy::is_printable(c) {
                text.push(c);
            } else {
                text.extend(c.escape_default());
            }
        }
        for byte in chunk.invalid() {
            text.extend(std::ascii::escape_default(*byte).map(char::from));
        }
        text
    })
}

/// `user=alice tenant=acme`.
pub fn bucket_text(found: &BucketActivity) -> String {
    let (per, values): (Vec<Name>, Vec<_>) = found.bucket.iter().cloned().unzip();
    display(&per, &values)
}

/// How to order buckets by denials: first by those that were enforced, then by those that would have
/// been.
pub fn denial_rank(found: &BucketActivity) -> (u64, u64) {
    (found.denied, found.over)
}

/// `path=/api remote_address=192.0.2.7`.
pub fn request_text(descriptor: &[(Name, Vec<u8>)]) -> String {
    let one = |(name, value): &(Name, Vec<u8>)| format!("{name}={}", visible(value));
    descriptor.iter().map(one).collect::<Vec<_>>().join(" ")
}

// --- The bucket that a Redis key stands for.

/// Entries and values of a bucket, in the order of the limit's `per`; `None` is the bucket of the
/// requests without that entry.
pub type KeyEntries = Vec<(String, Option<String>)>;

/// The bucket of a key; `None` if the limit is deleted or has another `per` now.
pub fn key_entries(keys: &Keys, limit: Option<&Limit>, key: &str) -> Option<KeyEntries> {
    let limit = limit?;
    let bucket = keys.parse_bucket(key.as_bytes())?;
    let values = bucket.arrange(&limit.per, &limit.partition)?;
    let named = limit.per.iter().zip(&values);
    Some(named.map(|(name, value)| key_entry(name, value)).collect())
}

/// One entry, as people read it.
pub fn key_entry(name: &Name, value: &KeyValue) -> (String, Option<String>) {
    let value = match value {
        KeyValue::Absent => None,
        KeyValue::Plain(bytes) => Some(visible(bytes)),
        KeyValue::Digest(sha256) => Some(format!("sha256:{sha256}")),
    };
    (name.to_string(), value)
}

/// `user=alice tenant: none`; `(all)` of a limit with one bucket.
pub fn describe_key(entries: &[(String, Option<String>)]) -> String {
    if entries.is_empty() {
        return "(all)".to_owned();
    }
    let one = |(name, value): &(String, Option<String>)| match value {
        Some(value) => format!("{name}={value}"),
        None => format!("{name}: none"),
    };
    entries.iter().map(one).collect::<Vec<_>>().join(" ")
}

// --- A limit in a line.

/// The condition of a limit, given as a document: `path=/api/** method=GET|POST`, `*` for every request; the
/// entries of a descriptor as the file lists them, `message_type=marketing, to_number`.
pub fn matchers(limit: &Node) -> String {
    if let Some(entries) = limit.get("descriptor") {
        let entries: Vec<String> = entries.items().iter().map(plain).collect();
        return entries.join(", ");
    }
    let Some(Node {
        value: policy::Value::Map(entries),
        ..
    }) = limit.get("match")
    else {
        return "*".to_owned();
    };
    let one = |entry: &policy::Entry| {
        let patterns: Vec<String> = match entry.value.items() {
            [] => vec![plain(&entry.value)],
            many => many.iter().map(plain).collect(),
        };
        format!("{}={}", entry.key, patterns.join("|"))
    };
    entries.iter().map(one).collect::<Vec<_>>().join(" ")
}

/// What is unusual about a limit.
pub fn notes(limit: &Limit, now_ms: u64) -> String {
    let node = limits_file::node_without_overrides(limit);
    let mut notes = Vec::from_iter(pause_state(limit.paused, now_ms));
    let text = |name: &str| node.get(name).map(plain);
    match text("enforce").as_deref() {
        Some("0%") => notes.push("shadow".to_owned()),
        Some(percent) => notes.push(format!("enforced {percent}")),
        None => {}
    }
    notes.extend(text("over_limit"));
    notes.extend(text("scope").map(|scope| format!("per {scope}")));
    notes.extend(text("precheck").map(|percent| format!("precheck {percent}")));
    notes.extend(
        node.get("lease")
            .and_then(|lease| lease.get("ttl"))
            .map(|ttl| format!("leased {}", plain(ttl))),
    );
    notes.extend(limit.penalty.as_ref().map(penalty_rule));
    notes.extend(text("hidden").map(|_| "hidden".to_owned()));
    notes.extend(node.get("replaces").map(|names| {
        let names: Vec<String> = names.items().iter().map(plain).collect();
        format!("replaces {}", names.join(","))
    }));
    notes.join(", ")
}

/// A value as text, without quotes.
pub fn plain(node: &Node) -> String {
    node.as_text()
        .map_or_else(|| node.to_yaml_line(), str::to_owned)
}

// --- Penalties as text.

/// When a bucket is penalized, and for how long: `penalty of 15m after 10 denials in 1m`, or `penalty of 15m,
/// then 2 times as long each time up to 1d, after 10 denials in 1m`.
pub fn penalty_rule(penalty: &Penalty) -> String {
    let (lasts, within) = (Duration(penalty.for_ms), Duration(penalty.within_ms));
    let denials = counted(penalty.after, "denial");
    let grows = match penalty.grow {
        0 | 1 => String::new(),
        times => {
            let longest = Duration(penalty.longest_ms());
            format!(", then {times} times as long each time up to {longest},")
        }
    };
    format!("penalty of {lasts}{grows} after {denials} in {within}")
}

/// The state of a bucket, at a time in milliseconds since the epoch: `denied until 2026-12-01T12:03:04Z,
/// for 14 min 20 s`, `7 of 10 denials in 1m, which would deny it for 15m`, or that it was not read. Where penalties
/// grow, also how long this one and the next last, and from when on that is `for` again. Not `enforced`: the
/// limit only reports.
pub fn penalty_state(
    penalty: &Penalty,
    status: &PenaltyStatus,
    enforced: bool,
    now_ms: u64,
) -> String {
    if status.unread {
        return "not read: its slot of the Cluster is moving, and one node has the bucket, the other its denials".to_owned();
    }
    let at = |in_ms: u64| {
        let seconds = ceil_seconds(now_ms.saturating_add(in_ms));
        format_timestamp(seconds.saturating_mul(1000))
    };
    let anew = at(status.anew_ms);
    if status.left_ms > 0 {
        let end = at(status.left_ms);
        let denied = if enforced {
            "denied"
        } else {
            "would be denied"
        };
        let grows = match status.anew_ms.saturating_sub(status.left_ms) / 2 {
            0 => String::new(),
            lasts => {
                let [lasts, next] = [lasts, status.next_ms].map(Duration);
                format!(" of {lasts}; one that begins before {anew} lasts {next}")
            }
        };
        return format!(
            "{denied} until {end}, for {}{grows}",
            duration(status.left_ms)
        );
    }
    // A bucket that an override lifts has no next one.
    let lasts = Duration(status.next_ms.max(penalty.for_ms));
    let within = Duration(penalty.within_ms);
    let denials = counted(penalty.after, "denial");
    let count = status.denials;
    let again = match status.anew_ms {
        0 => String::new(),
        _ => format!(", from {anew} on for {}", Duration(penalty.for_ms)),
    };
    format!("{count} of {denials} in {within}, which would deny it for {lasts}{again}")
}

// --- How an adaptive limit was found, in words.

/// The answers of a window that say enough to be judged where the window has not ended.
const ANSWERS_MIN: u64 = 5;

/// The share of slow answers, per mille, of an adaptive limit that is at its minimum, if it is larger than its
/// `share` allows.
pub fn slow_at_minimum(rule: &Adaptive, state: &AdaptiveState) -> Option<u64> {
    let judged = (state.answers >= ANSWERS_MIN).then(|| state.slow * 1000 / state.answers);
    // At the minimum, what the service does counts as its own.
    let slow = judged.unwrap_or(0).max(state.own_slow);
    (state.limit_milli <= rule.min * 1000 && slow > 1000 - rule.share).then_some(slow)
}

/// What the limit is now and why, and what its window has seen.
pub fn adaptive_state(rule: &Adaptive, state: &AdaptiveState) -> [String; 2] {
    let slots = |milli: u64| milli / 1000;
    let (now, before) = (slots(state.limit_milli), slots(state.moved_from_milli));
    let of = |late, slow| {
        format!(
            "{} of the answers late, {} slow",
            ShareText(late),
            ShareText(slow)
        )
    };
    let moved = if state.moved_ms == 0 {
        "it has not moved".to_owned()
    } else {
        let grew = state.limit_milli >= state.moved_from_milli;
        let how = if grew { "grew" } else { "fell" };
        let at = format_timestamp(state.moved_ms);
        let (late, slow) = (state.moved_late, state.moved_slow);
        format!("{how} from {before} at {at}: {}", of(late, slow))
    };
    let stuck = match slow_at_minimum(rule, state) {
        Some(slow) => format!(
            "; at its minimum, and {} of the answers are slow",
            ShareText(slow)
        ),
        None => String::new(),
    };
    let AdaptiveState {
        answers,
        late,
        slow,
        most,
        ..
    } = state;
    let since = format_timestamp(state.start_ms);
    let mut window = format!(
        "{answers} answers since {since}: {late} late, {slow} of them slow; {most} in flight at most"
    );
    if state.own_late > 0 {
        window.push_str("; by nature ");
        window.push_str(&of(state.own_late, state.own_slow));
    }
    [
        format!("{now} of {} to {}; {moved}{stuck}", rule.min, rule.max),
        window,
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_shown_cannot_move_the_cursor() {
        let values = [Some(b"\x1b[2Jal\xffice".to_vec()), None];
        let per: Vec<Name> = vec!["user".parse().unwrap(), "tenant".parse().unwrap()];
        assert_eq!(
            display(&per, &values),
            "user=\\u{1b}[2Jal\\xffice tenant: none"
        );
    }
}

#[cfg(test)]
mod penalty_tests {
    use super::*;

    const PENALTY: Penalty = Penalty::new(10, 60_000, 900_000);

    #[test]
    fn the_rule_is_in_the_words_of_the_file() {
        assert_eq!(
            penalty_rule(&PENALTY),
            "penalty of 15m after 10 denials in 1m"
        );
        let first = Penalty {
            after: 1,
            ..PENALTY
        };
        assert_eq!(penalty_rule(&first), "penalty of 15m after 1 denial in 1m");
        let growing = Penalty {
            grow: 2,
            max_ms: 86_400_000,
            ..PENALTY
        };
        assert_eq!(
            penalty_rule(&growing),
            "penalty of 15m, then 2 times as long each time up to 1d, after 10 denials in 1m"
        );
    }

    #[test]
    fn the_state_is_the_end_or_the_count() {
        let mut status = PenaltyStatus {
            denials: 7,
            next_ms: 900_000,
            ..PenaltyStatus::default()
        };
        let counting = penalty_state(&PENALTY, &status, true, 1_763_000_000_000);
        assert_eq!(
            counting,
            "7 of 10 denials in 1m, which would deny it for 15m"
        );
        // The end is rounded up to whole seconds, so that it is not named too early.
        status.left_ms = 860_001;
        let denied = penalty_state(&PENALTY, &status, true, 1_763_000_000_000);
        assert_eq!(denied, "denied until 2025-11-13T02:27:41Z, for 14 min 21 s");
        let growing = Penalty {
            grow: 2,
            max_ms: 86_400_000,
            ..PENALTY
        };
        status = PenaltyStatus {
            next_ms: 3_600_000,
            anew_ms: 860_001 + 2 * 1_800_000,
            ..status
        };
        let denied = penalty_state(&growing, &status, true, 1_763_000_000_000);
        assert_eq!(
            denied,
            "denied until 2025-11-13T02:27:41Z, for 14 min 21 s of 30m; one that begins before \
             2025-11-13T03:27:41Z lasts 1h"
        );
        let ended = PenaltyStatus {
            left_ms: 0,
            denials: 0,
            ..status
        };
        assert_eq!(
            penalty_state(&growing, &ended, true, 1_763_000_000_000),
            "0 of 10 denials in 1m, which would deny it for 1h, from 2025-11-13T03:27:41Z on for 15m"
        );
        let shadow = penalty_state(&PENALTY, &status, false, 1_763_000_000_000);
        assert!(shadow.starts_with("would be denied until "), "{shadow}");
    }
}

#[cfg(test)]
mod adaptive_tests {
    use super::*;

    const RULE: Adaptive = Adaptive {
        min: 5,
        max: 200,
        latency_ms: 300,
        share: 950,
    };

    #[test]
    fn a_limit_at_its_minimum_is_too_slow_by_its_window_or_by_nature() {
        let state = AdaptiveState {
            limit_milli: 5000,
            answers: 20,
            slow: 2,
            ..AdaptiveState::default()
        };
        assert_eq!(slow_at_minimum(&RULE, &state), Some(100));
        let quick = AdaptiveState { slow: 1, ..state };
        assert_eq!(slow_at_minimum(&RULE, &quick), None);
        let few = AdaptiveState {
            answers: 4,
            own_slow: 60,
            ..state
        };
        assert_eq!(slow_at_minimum(&RULE, &few), Some(60));
        let above = AdaptiveState {
            limit_milli: 5001,
            ..state
        };
        assert_eq!(slow_at_minimum(&RULE, &above), None);
    }

    #[test]
    fn a_state_says_why_the_limit_moved() {
        let state = AdaptiveState {
            limit_milli: 5000,
            start_ms: 1_763_000_001_300,
            answers: 20,
            late: 6,
            slow: 2,
            most: 5,
            own_late: 40,
            own_slow: 5,
            moved_ms: 1_763_000_001_000,
            moved_from_milli: 7_999,
            moved_late: 800,
            moved_slow: 755,
            ..AdaptiveState::default()
        };
        assert_eq!(
            adaptive_state(&RULE, &state),
            [
                "5 of 5 to 200; fell from 7 at 2025-11-13T02:13:21Z: 80% of the answers late, 75.5% slow; \
                 at its minimum, and 10% of the answers are slow",
                "20 answers since 2025-11-13T02:13:21.300Z: 6 late, 2 of them slow; 5 in flight at most; \
                 by nature 4% of the answers late, 0.5% slow",
            ]
        );
        let fresh = AdaptiveState {
            limit_milli: 20_000,
            ..AdaptiveState::default()
        };
        let [now, _] = adaptive_state(&RULE, &fresh);
        assert_eq!(now, "20 of 5 to 200; it has not moved");
    }
}
