//! Findings that `--ignore` leaves out.

use std::str::FromStr;

use insight::Finding;

use crate::suggest;

/// The names of all checks; a test checks that there are no others.
const CHECKS: [&str; 19] = [
    "clock",
    "domains",
    "eviction",
    "evicted",
    "fleet",
    "info",
    "memory",
    "missing",
    "orphans",
    "paused",
    "persistence",
    "records",
    "replicas",
    "rights",
    "role",
    "saving",
    "scripts",
    "unmeant",
    "version",
];

/// The findings of a check, or of a check at one place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ignored {
    check: String,
    place: Option<String>,
}

impl FromStr for Ignored {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (check, place) = match text.split_once('=') {
            Some((check, place)) => (check, Some(place.to_owned())),
            None => (text, None),
        };
        // An empty variable counts as unset.
        if CHECKS.contains(&check) || text.is_empty() {
            return Ok(Self {
                check: check.to_owned(),
                place,
            });
        }
        Err(match suggest::closest(check, CHECKS) {
            Some(meant) => format!("there is no check `{check}`; did you mean `{meant}`?"),
            None => format!(
                "there is no check `{check}`; there are: {}",
                CHECKS.join(", ")
            ),
        })
    }
}

impl Ignored {
    /// Whether this finding is to be ignored.
    pub fn is(&self, finding: &Finding) -> bool {
        let place = self.place.as_ref();
        self.check == finding.check && place.is_none_or(|place| *place == finding.place)
    }
}

#[cfg(test)]
mod tests {
    use insight::Severity;

    use super::*;

    #[test]
    fn a_check_is_ignored_everywhere_or_at_one_place() {
        let finding = |place: &str| Finding::new(Severity::Warning, "paused", place, "", "");
        let all: Ignored = "paused".parse().unwrap();
        let one: Ignored = "paused=shop/a".parse().unwrap();
        assert!(all.is(&finding("shop/a")) && all.is(&finding("shop/b")));
        assert!(one.is(&finding("shop/a")) && !one.is(&finding("shop/b")));
        let error = "pused".parse::<Ignored>().unwrap_err();
        assert!(error.ends_with("did you mean `paused`?"), "{error}");
    }

    #[test]
    fn every_check_can_be_ignored_and_no_other() {
        let sources = [
            include_str!("orphans.rs"),
            include_str!("../../../../crates/insight/src/findings/fleet.rs"),
            include_str!("../../../../crates/insight/src/findings/limits.rs"),
            include_str!("../../../../crates/insight/src/findings/server.rs"),
            include_str!("../../../../crates/insight/src/findings/server/permissions.rs"),
            include_str!("../../../../crates/insight/src/findings/server/storage.rs"),
        ];
        // In the source, a check's name is on the line after its severity.
        let lines: Vec<&str> = sources.iter().flat_map(|text| text.lines()).collect();
        let named = lines.windows(2).filter_map(|pair| {
            let [severity, name] = pair else { return None };
            let severity = severity.trim();
            let is_one = severity.starts_with("Severity::") && severity.ends_with(',')
                || severity == "severity,";
            let name = name.trim().strip_prefix('"')?.strip_suffix("\",")?;
            is_one.then_some(name)
        });
        let mut named: Vec<&str> = named.collect();
        let inline = lines.iter().filter_map(|line| {
            let (_, rest) = line.split_once("(Severity::")?;
            rest.split('"').nth(1)
        });
        named.extend(inline);
        named.sort_unstable();
        named.dedup();
        let mut all = CHECKS;
        all.sort_unstable();
        assert_eq!(named, all);
    }
}
