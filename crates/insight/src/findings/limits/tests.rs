use super::*;

/// The limits that can be escaped, and the entry that a client leaves out for that.
fn ways_around(limits: &str) -> Vec<(String, String)> {
    let file = format!("domain: shop\nlimits: [{limits}]\n");
    let policy = limits_file::read("test", file.as_bytes()).unwrap();
    let found = look(&policy, &LiveEntries::default(), 0).into_iter();
    let found = found.filter(|finding| finding.severity == Severity::Warning);
    found
        .map(|finding| {
            let entry = finding
                .what
                .split('`')
                .nth(1)
                .unwrap_or_default()
                .to_owned();
            (finding.place, entry)
        })
        .collect()
}

fn around(limit: &str, entry: &str) -> Vec<(String, String)> {
    vec![(format!("shop/{limit}"), entry.to_owned())]
}

#[test]
fn what_a_client_may_leave_out_is_a_way_around() {
    let skips = "{name: a, per: [user], if_missing: skip, rate: 1/s}";
    assert_eq!(ways_around(skips), around("a", "user"));
    let matches = "{name: a, match: {plan: free}, rate: 1/s}";
    assert_eq!(ways_around(matches), around("a", "plan"));
}

#[test]
fn what_every_request_has_or_another_limit_catches_is_none() {
    for limits in [
        "{name: a, per: [remote_address], if_missing: skip, rate: 1/s}",
        "{name: a, match: {path: /x, method: GET}, rate: 1/s}",
        "{name: a, match: {plan: \"!free\"}, rate: 1/s}",
        "{name: a, per: [user], rate: 1/s}",
        "{name: a, per: [user], if_missing: skip, enforce: 0%, rate: 1/s}",
        "{name: a, match: {path: /x}, per: [user], if_missing: skip, rate: 1/s}, \
         {name: b, match: {path: /x}, rate: 9/s}",
        "{name: free, match: {plan: free}, rate: 1/s}, {name: paid, match: {plan: [gold, silver]}, rate: 9/s}, \
         {name: anonymous, match: {plan: \"!**\"}, rate: 1/s}",
    ] {
        assert_eq!(ways_around(limits), [], "{limits}");
    }
    // A limit on another path matches other requests.
    let elsewhere = "{name: a, match: {path: /x}, per: [user], if_missing: skip, rate: 1/s}, \
                     {name: b, match: {path: /y}, rate: 9/s}";
    assert_eq!(ways_around(elsewhere), around("a", "user"));
}

#[test]
fn requests_without_an_entry_share_a_bucket_of_limits_that_match_them() {
    let shares = |limits: &str| {
        let file = format!("domain: shop\nlimits: [{limits}]\n");
        let policy = limits_file::read("test", file.as_bytes()).unwrap();
        shared(&policy).map(|finding| finding.what)
    };
    assert!(
        shares("{name: a, per: [user], rate: 1/s}")
            .unwrap()
            .ends_with(" in a")
    );
    assert_eq!(shares("{name: a, per: [path], rate: 1/s}"), None);
    assert_eq!(shares("{name: a, descriptor: [user], rate: 1/s}"), None);
}

#[test]
fn a_domain_that_a_report_names_is_one_word_of_a_fix() {
    let domain = Name::domain("x'; rlctl delete-domain shop --yes; '").unwrap();
    let finding = flushed_domain(&domain, 1, 1);
    let mend = finding.mend.unwrap();
    let url = "?domain=x%27%3B%20rlctl%20delete-domain%20shop%20--yes%3B%20%27' |";
    assert!(mend.contains(url), "{mend}");
    let word = shell_word(domain.as_str());
    assert_eq!(word, r"'x'\''; rlctl delete-domain shop --yes; '\'''");
    assert_eq!(shell_word("shop.example:80/a"), "shop.example:80/a");
    for word in ["", "*", "$(id)", "a b", "~", "a\nb"] {
        assert_eq!(shell_word(word), format!("'{word}'"));
    }
}
