//! Durations as text.

/// Whole seconds, rounded up, so that a retry is never too early.
pub fn ceil_seconds(ms: u64) -> u64 {
    ms.div_ceil(1000)
}

/// `85 ms`, `1.3 s`, `42 s`, `3 min 20 s`, `2 h 5 min`, `3 d 4 h`; rounded up.
pub fn duration(ms: u64) -> String {
    const MIN: u64 = 60;
    const HOUR: u64 = 60 * MIN;
    const DAY: u64 = 24 * HOUR;
    match ms {
        0..1000 => return format!("{ms} ms"),
        1000..=9900 => {
            let tenths = ms.div_ceil(100);
            return match tenths % 10 {
                0 => format!("{} s", tenths / 10),
                rest => format!("{}.{rest} s", tenths / 10),
            };
        }
        _ => {}
    }
    let seconds = ceil_seconds(ms);
    let (unit, name, smaller, smaller_name) = match seconds {
        0..MIN => return format!("{seconds} s"),
        MIN..HOUR => (MIN, "min", 1, "s"),
        HOUR..DAY => (HOUR, "h", MIN, "min"),
        _ => (DAY, "d", HOUR, "h"),
    };
    let in_smaller = seconds.div_ceil(smaller);
    let (whole, rest) = (in_smaller / (unit / smaller), in_smaller % (unit / smaller));
    if rest == 0 {
        format!("{whole} {name}")
    } else {
        format!("{whole} {name} {rest} {smaller_name}")
    }
}

/// How long ago, in one unit: `just now`, `42 s ago`, `5 min ago`, `3 d ago`.
pub fn age(ms: u64) -> String {
    match ms / 1000 {
        0..5 => "just now".to_owned(),
        s @ 5..60 => format!("{s} s ago"),
        s @ 60..3600 => format!("{} min ago", s / 60),
        s @ 3600..86_400 => format!("{} h ago", s / 3600),
        s => format!("{} d ago", s / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_rounded_up_and_short() {
        let cases = [
            (0, "0 ms"),
            (999, "999 ms"),
            (1000, "1 s"),
            (1001, "1.1 s"),
            (9901, "10 s"),
            (9900, "9.9 s"),
            (59_001, "1 min"),
            (60_000, "1 min"),
            (200_000, "3 min 20 s"),
            (3_600_000, "1 h"),
            (7_500_000, "2 h 5 min"),
            (7_199_999, "2 h"),
            (273_600_000, "3 d 4 h"),
        ];
        for (ms, text) in cases {
            assert_eq!(duration(ms), text, "{ms}");
        }
    }

    #[test]
    fn ages_take_one_unit() {
        let cases = [
            (4999, "just now"),
            (59_999, "59 s ago"),
            (300_000, "5 min ago"),
            (7_200_000, "2 h ago"),
            (259_200_000, "3 d ago"),
        ];
        for (ms, text) in cases {
            assert_eq!(age(ms), text, "{ms}");
        }
    }
}
