//! "Did you mean": the most similar name.

/// The candidate closest to `typed`, if one is close enough to be worth naming.
pub fn closest<'c>(typed: &str, candidates: impl IntoIterator<Item = &'c str>) -> Option<&'c str> {
    // A third of the letters may differ; more than that is another word.
    let allowed = (typed.chars().count() / 3).max(1);
    candidates
        .into_iter()
        .map(|candidate| (strsim::osa_distance(typed, candidate), candidate))
        .filter(|(distance, _)| *distance <= allowed)
        .min()
        .map(|(_, candidate)| candidate)
}

/// A hint for a name that does not exist: the one that was meant, else all there are.
pub fn hint<'c>(typed: &str, what: &str, known: impl IntoIterator<Item = &'c str>) -> String {
    const SHOWN: usize = 12;
    let known: Vec<&str> = known.into_iter().collect();
    if let Some(meant) = closest(typed, known.iter().copied()) {
        return format!("did you mean `{meant}`?");
    }
    let shown: Vec<&str> = known.iter().copied().take(SHOWN).collect();
    match known.len() {
        0 => format!("there are no {what} yet"),
        n if n > SHOWN => format!("there are {n} {what}: {}, …", shown.join(", ")),
        _ => format!("there are: {}", shown.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAMES: [&str; 3] = ["per-user", "per-tenant", "exports"];

    #[test]
    fn typos_find_the_name_that_was_meant() {
        assert_eq!(closest("per-usr", NAMES), Some("per-user"));
        assert_eq!(closest("pre-user", NAMES), Some("per-user"));
        assert_eq!(closest("export", NAMES), Some("exports"));
        assert_eq!(closest("logins", NAMES), None);
    }

    #[test]
    fn another_word_gets_the_list() {
        assert_eq!(
            hint("logins", "limits", NAMES),
            "there are: per-user, per-tenant, exports"
        );
        assert_eq!(hint("logins", "limits", []), "there are no limits yet");
    }
}
