use super::*;

fn shown(exempt: &str) -> String {
    let file = format!("domain: shop\nlimits: []\nexempt: [{exempt}]\n");
    let policy = limits_file::read("test", file.as_bytes()).unwrap();
    exemptions(&policy.exempt).into_string()
}

#[test]
fn each_exemption_is_shown_with_what_it_applies_to() {
    let page = shown(
        "{name: health, match: {path: \"/<b>\"}}, {name: internal, match: {remote_address: \"cidr:10.0.0.0/8\"}}",
    );
    for text in ["health", "/&lt;b&gt;", "internal", "cidr:10.0.0.0/8"] {
        assert!(page.contains(text), "{text} in {page}");
    }
    assert!(!page.contains("more"), "{page}");
    assert_eq!(shown(""), "");
}

#[test]
fn the_first_fifty_exemptions_are_shown_and_the_rest_counted() {
    let many: Vec<String> = (0..70)
        .map(|n| format!("{{name: own-{n}, match: {{path: /{n}}}}}"))
        .collect();
    let page = shown(&many.join(", "));
    assert!(page.contains("own-49") && !page.contains("own-50"));
    assert!(page.contains("And 20 more"), "{page}");
}
