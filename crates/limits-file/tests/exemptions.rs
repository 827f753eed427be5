//! Exemptions of a limits file.

use std::fmt::Write;

use limits_file::{ToNode as _, edit::with_exemption, policy_from_node};
use policy::{Policy, Problems};

fn read(exempt: &str) -> Result<Policy, Problems> {
    let file = format!("domain: shop\nexempt: {exempt}\nlimits: [{{name: all, rate: 1/s}}]\n");
    limits_file::read("limits.yaml", file.as_bytes())
}

#[test]
fn problems_are_named_and_placed() {
    let entries = (0..129).fold(String::new(), |mut text, n| {
        write!(text, "{{name: x{n}, match: {{e{n}: a}}}}, ").unwrap();
        text
    });
    for (exempt, problem) in [
        ("[{name: a}]", "exempt[0]: an exemption needs a `match`"),
        (
            "[{name: a, match: {}}]",
            "exempt[0]: an exemption needs a `match`",
        ),
        (
            "[{match: {path: /x}}]",
            "exempt[0]: an exemption needs a `name`",
        ),
        (
            "[{name: a, match: {path: \"re:(\"}}]",
            "exempt[0].match.path: expected a pattern",
        ),
        (
            "[{name: a, match: {path: /x}}, {name: a, match: {path: /y}}]",
            "exempt[1].name: a second exemption `a`",
        ),
        (
            "[{name: a, mtach: {path: /x}}]",
            "exempt[0].mtach: unknown field",
        ),
        ("yes", "exempt: expected a list of exemptions"),
        (
            &format!("[{entries}]"),
            "the domain's limits and exemptions name more than 128 different entries",
        ),
    ] {
        let problems = read(exempt).unwrap_err().to_string();
        assert!(problems.contains(problem), "{problems}");
    }
    let many = "{name: a, match: {path: /x}}, ".repeat(1001);
    let problems = read(&format!("[{many}]")).unwrap_err().to_string();
    assert!(problems.contains("more than 1000 exemptions"), "{problems}");
}

#[test]
fn exemptions_are_written_as_they_were_read() {
    let policy = read("[{name: a, match: {path: [/x, \"!/y\"], method: GET}}]").unwrap();
    let again = policy_from_node(&policy.to_node()).unwrap();
    assert_eq!(again.exempt, policy.exempt);
}

#[test]
fn an_edit_puts_an_exemption_in_the_place_of_its_name() {
    let policy = read("[{name: a, match: {path: /x}}]").unwrap();
    let of = |exempt: &str| read(exempt).unwrap().exempt.remove(0);
    let changed = with_exemption(&policy, of("[{name: a, match: {path: /y}}]"))
        .and_then(|policy| with_exemption(&policy, of("[{name: b, match: {path: /z}}]")));
    let both = read("[{name: a, match: {path: /y}}, {name: b, match: {path: /z}}]").unwrap();
    assert_eq!(changed.unwrap().exempt, both.exempt);
    let mut full = policy;
    for n in 1..1000 {
        full.exempt.extend(both.exempt.first().cloned());
        full.exempt[n].name = format!("e{n}").parse().unwrap();
    }
    assert!(with_exemption(&full, both.exempt[0].clone()).is_ok());
    let problems = with_exemption(&full, both.exempt[1].clone()).unwrap_err();
    assert!(
        problems
            .to_string()
            .contains("exempt: more than 1000 exemptions"),
        "{problems}"
    );
}
