//! The manual's examples work.

use limits_file::{Surroundings, read_with_warnings};
use policy::{Compiled, Descriptor, Policy, Problems};

const MANUAL: &str = include_str!("../../../docs/limits.md");

/// The fenced blocks of a language, each with the line it starts on.
fn blocks(language: &str) -> Vec<(usize, String)> {
    let mut blocks = Vec::new();
    let mut open: Option<(usize, String)> = None;
    for (number, line) in (1..).zip(MANUAL.lines()) {
        match &mut open {
            None if line == format!("```{language}") => open = Some((number + 1, String::new())),
            None => {}
            Some(_) if line == "```" => blocks.extend(open.take()),
            Some((_, text)) => {
                text.push_str(line);
                text.push('\n');
            }
        }
    }
    blocks
}

fn read(line: usize, text: &str) -> Result<Policy, Problems> {
    let name = format!("docs/limits.md, from line {line}");
    limits_file::read(&name, text.as_bytes())
}

#[test]
fn every_example_is_a_limits_file() {
    let blocks = blocks("yaml");
    assert!(blocks.len() >= 4);
    for (line, text) in blocks {
        if let Err(problems) = read(line, &text) {
            panic!("{problems}");
        }
        assert_no_warning("docs/limits.md", &text);
    }
    assert_no_warning("limits.yaml", include_str!("../../../limits.yaml"));
}

#[expect(clippy::panic, reason = "a test may fail loudly")]
fn assert_no_warning(file: &str, text: &str) {
    let around = Surroundings::default();
    match read_with_warnings(file, text.as_bytes(), |_| around) {
        Ok((_, None)) => {}
        Ok((_, Some(found))) | Err(found) => panic!("{found}"),
    }
}

#[test]
fn the_manuals_example_error_is_real() {
    let text = "domain: shop\nlimits:\n  - name: per-user\n    per: [user]\n    rate: 10/s\n    brust: 20\n";
    let problems = limits_file::read("limits.yaml", text.as_bytes()).unwrap_err();
    assert_eq!(blocks("text")[0].1, problems.to_string());
}

#[test]
fn an_admin_is_held_to_the_narrowest_limit_alone() {
    let blocks = blocks("yaml");
    let (line, text) = blocks
        .iter()
        .find(|(_, text)| text.contains("replaces"))
        .unwrap();
    let compiled = Compiled::new(read(*line, text).unwrap());
    let admin: Descriptor = [("group", "staff"), ("role", "admin"), ("user", "eve")]
        .map(|(key, value)| (key.parse().unwrap(), value.as_bytes().to_vec()))
        .into_iter()
        .collect();
    let matches = compiled.matching(&admin, 0);
    let names: Vec<&str> = matches.iter().map(|m| m.limit.name.as_str()).collect();
    assert_eq!(names, ["admins"]);
}

#[test]
fn the_table_of_patterns_is_right() {
    // As the table says: pattern, a value that matches, one that does not.
    for (pattern, yes, no) in [
        ("/api/orders", "/api/orders", "/api/orders/"),
        ("/api/*", "/api/", "/api/x/y"),
        ("/api/**", "/api", "/apis"),
        ("/a/**/z", "/a/b/c/z", "/a/bz"),
        ("re:v[0-9]+", "v12", "v12x"),
        ("cidr:10.0.0.0/8", "10.1.2.3", "11.0.0.1"),
        ("exact:*", "*", "x"),
        ("i:/login/**", "/Login/x", "/logins"),
        ("!/internal/**", "/x", "/internal"),
        ("*", "", "/"),
    ] {
        let file = format!(
            "domain: d\nlimits: [{{name: a, rate: 1/s, match: {{target: {pattern:?}}}}}]\n"
        );
        let compiled = Compiled::new(read(0, &file).unwrap());
        let matches = |value: &str| {
            let mut request = Descriptor::new();
            request.insert("target".parse().unwrap(), value);
            compiled.matching(&request, 0).len() == 1
        };
        assert!(matches(yes), "{pattern} {yes}");
        assert!(!matches(no), "{pattern} {no}");
    }
}
