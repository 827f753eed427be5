//! Requests of a domain that no limit applies to.

use insight::limit::matchers;
use maud::{Markup, html};
use policy::Exemption;

use super::parts;

/// Exemptions shown; the rest is only counted.
const ROWS: usize = 50;

/// The first exemptions, in the order of the file; nothing without any.
pub(super) fn section(exemptions: &[Exemption]) -> Markup {
    let more = exemptions.len().saturating_sub(ROWS);
    let caption = "Exemptions: no limit applies to these requests";
    html! {
        @if !exemptions.is_empty() {
            section {
                h2 { "Exemptions" }
                div.scroll role="region" aria-label=(caption) tabindex="0" {
                    table {
                        caption { (caption) }
                        thead { tr {
                            th scope="col" { "Exemption" }
                            th.wide scope="col" { "Applies to" }
                        } }
                        tbody {
                            @for exemption in exemptions.iter().take(ROWS) {
                                tr {
                                    td.name { (exemption.name) }
                                    td.wide.name { (parts::value(&matchers(&exemption.to_node()))) }
                                }
                            }
                        }
                    }
                }
                @if more > 0 { p.muted { "And " (more) " more: rlctl list-limits shows all" } }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use policy::Policy;

    use super::*;

    fn shown(exempt: &str) -> String {
        let file = format!("domain: shop\nlimits: []\nexempt: [{exempt}]\n");
        let policy = Policy::from_yaml("test", file.as_bytes()).unwrap();
        section(&policy.exempt).into_string()
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
}
