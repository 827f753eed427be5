//! The limits of the model.

/// How a limit takes part.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mode {
    Enforce,
    Shadow,
    Quota,
    /// A quota that only reports, and so is never over.
    ShadowQuota,
}

/// A limit of the model. All are fixed windows of a year, so that time decides nothing.
#[derive(Clone, Debug)]
pub struct Limit {
    pub name: &'static str,
    /// The entries of the descriptors that it applies to.
    pub entries: &'static [(&'static str, &'static str)],
    pub units: Option<i64>,
    pub mode: Mode,
    pub replaces: Option<&'static str>,
    pub fitting: bool,
}

const fn limit(
    name: &'static str,
    entries: &'static [(&'static str, &'static str)],
    units: i64,
) -> Limit {
    Limit {
        name,
        entries,
        units: Some(units),
        mode: Mode::Enforce,
        replaces: None,
        fitting: false,
    }
}

/// An empty value matches any value, and one that ends with `*` any value with that prefix.
pub const LIMITS: [Limit; 11] = [
    limit("a-any", &[("a", "")], 5),
    limit("a-one", &[("a", "1")], 3),
    limit("a-wild", &[("a", "x*")], 4),
    Limit {
        units: None,
        ..limit("a-free", &[("a", "free")], 0)
    },
    Limit {
        replaces: Some("c"),
        ..limit("a-b", &[("a", ""), ("b", "")], 6)
    },
    limit("c", &[("c", "")], 2),
    Limit {
        fitting: true,
        ..limit("d-fits", &[("d", "")], 7)
    },
    Limit {
        mode: Mode::Shadow,
        replaces: Some("a-one"),
        ..limit("shadow", &[("s", "")], 3)
    },
    Limit {
        mode: Mode::Quota,
        ..limit("q", &[("q", "")], 2)
    },
    Limit {
        mode: Mode::Quota,
        ..limit("r", &[("r", "")], 4)
    },
    limit("none", &[("n", "")], 0),
];

/// A limit that applies to requests: to every descriptor that has this entry.
pub const MATCHED: Limit = limit("matched", &[("a", "2")], 9);

/// A file with some of these limits, each with other numbers and another mode. A limit replaces only
/// later ones, since cycles are refused.
pub fn random(random: &mut fastrand::Rng) -> Vec<Limit> {
    let mut limits: Vec<Limit> = LIMITS.to_vec();
    limits.retain(|_| random.u8(..6) > 0);
    let names: Vec<&str> = limits.iter().map(|limit| limit.name).collect();
    for (at, limit) in limits.iter_mut().enumerate() {
        limit.units = (random.u8(..7) > 0).then(|| random.i64(0..7));
        limit.fitting = limit.units.is_some() && random.u8(..8) == 0;
        limit.mode = match random.u8(..10) {
            _ if limit.units.is_none() => Mode::Enforce,
            0..=3 => Mode::Quota,
            4 => Mode::ShadowQuota,
            5 => Mode::Shadow,
            _ => Mode::Enforce,
        };
        let later = &names[at + 1..];
        let replaces = !later.is_empty() && random.u8(..4) == 0;
        limit.replaces = replaces.then(|| later[random.usize(..later.len())]);
    }
    limits
}

/// The same as limits of a file.
pub fn document(limits: &[Limit]) -> String {
    let lines = limits.iter().map(|limit| {
        let entries = limit.entries.iter().map(|(key, value)| match *value {
            "" => (*key).to_owned(),
            value => format!("{key}={value}"),
        });
        let entries = entries.collect::<Vec<_>>().join(", ");
        let quota = match limit.units {
            Some(units) => format!("algorithm: fixed_window, rate: {units}/365d"),
            None => "unlimited: true".to_owned(),
        };
        let mode = match limit.mode {
            Mode::Enforce => "",
            Mode::Shadow => ", enforce: 0%",
            Mode::Quota => ", quota_mode: true",
            Mode::ShadowQuota => ", quota_mode: true, enforce: 0%",
        };
        let replaces = limit.replaces.map(|other| format!(", replaces: [{other}]"));
        let replaces = replaces.unwrap_or_default();
        let charge = if limit.fitting {
            ", charge: fitting"
        } else {
            ""
        };
        let name = limit.name;
        format!("  - {{name: {name}, descriptor: [{entries}], {quota}{mode}{replaces}{charge}}}\n")
    });
    let matched = "  - {name: matched, match: {a: '2'}, algorithm: fixed_window, rate: 9/365d}\n";
    lines.chain([matched.to_owned()]).collect()
}
