use limits_file::limit_from_node;
use policy::{
    Descriptor, IfAbsent, Limit, MAX_TOKENS, Pointer, Pricing, RequestPlace, whole_number,
};

fn limit(cost: &str) -> Limit {
    let text = format!("{{name: a, rate: 100/1m, cost: {cost}}}");
    let node = limits_file::yaml::read("limit", text.as_bytes()).unwrap();
    limit_from_node(&node).unwrap()
}

#[test]
fn a_request_costs_what_its_header_says_or_its_row_or_the_default() {
    let read = limit(
        "{from: {request_header: x-cost, min: 2, max: 9}, table: [{match: {path: /a}, units: 5}], default: 1}",
    );
    let Some(Pricing::Request(price)) = read.pricing.as_deref() else {
        panic!("it is a price of the request");
    };
    let units = |header: Option<&'static str>, path: &str| {
        let entries = Descriptor::from_iter([("path".parse().unwrap(), path.as_bytes().to_vec())]);
        price.units(|_| whole_number(header?.as_bytes()), &entries)
    };
    for (header, path, cost) in [
        (Some("7"), "/a", 7),
        (Some("0"), "/a", 2),
        (Some("99999999999999999999999"), "/a", 9),
        (Some("-1"), "/a", 5),
        (Some(""), "/a", 5),
        (None, "/b", 1),
    ] {
        assert_eq!(units(header, path), cost, "{header:?} {path}");
    }
    assert!(read.keys().any(|key| key.as_str() == "path"));
}

/// A client may send a header twice, or a path too long to search.
#[test]
fn doubt_about_rows_makes_no_request_cheaper() {
    let read = limit(
        "{table: [{match: {tier: internal}, units: 1}, {match: {path: 're:/export/.*'}, units: 50}, \
         {match: {tier: '!gold'}, units: 20}, {match: {path: /search}, units: 5}], default: 10}",
    );
    let long = format!("/{}", "x".repeat(9000));
    for (tier, path, units) in [
        ("internal", "/a", 1),
        ("(several)", "/a", 20),
        ("gold", "/export/a", 50),
        ("gold", "/search", 5),
        ("gold", "/a", 10),
        ("gold", &long, 50),
        ("internal", &long, 1),
        ("(several)", &long, 50),
    ] {
        let entries = [("tier", tier), ("path", path)];
        let entries = entries.map(|(key, value)| (key.parse().unwrap(), value.as_bytes().to_vec()));
        let entries = Descriptor::from_iter(entries);
        assert_eq!(read.units_of(&entries, 0), units, "{tier} {path}");
    }
}

#[test]
fn a_reserve_is_capped_and_an_absent_cost_estimated() {
    let read = limit(
        "{from: {response_json: /a}, reserve: {from: {request_header: m}, default: 1000, cap: 10%}, max: 5000}",
    );
    let price = read.response_price().unwrap();
    assert!(read.settles());
    let units = |header: &str| {
        let number = |_: &RequestPlace| whole_number(header.as_bytes());
        let reserve = &price.reserve;
        (reserve.wanted(number), reserve.units(100_000, number))
    };
    assert_eq!(
        ["32000", "7", "x", "0"].map(units),
        [(32_000, 10_000), (7, 7), (1000, 1000), (1, 1)]
    );
    assert_eq!(price.absent(1000, Some(100), 100_000), 1000);
    assert_eq!(price.absent(1000, Some(10_000), 100_000), 2500);
    assert_eq!(price.cut(price.absent(1000, Some(1 << 40), 100_000)), 5000);
    assert_eq!(price.on_error, Some(0));
    let said = price.said(200, |_| Some(9000));
    assert_eq!(said.map(|said| price.cut(said)), Some(5000));
    assert_eq!(price.said(200, |_| None), None);
}

/// A client may choose that a response cannot be read, so this must not make it cheaper.
#[test]
fn a_response_that_cannot_be_read_costs_the_most_possible() {
    for (cost, units) in [
        ("max: 5000", 5000),
        ("max: 5000, if_absent: max", 5000),
        ("max: 5000, if_absent: reserved", 100),
        ("max: 5000, if_absent: 7", 7),
        // Without `max`: a whole bucket.
        ("if_absent: estimate", 100_000),
        ("if_absent: max", 100_000),
    ] {
        let cost_of = format!("{{from: {{response_json: /a}}, reserve: 100, {cost}}}");
        let read = limit(&cost_of);
        let price = read.response_price().unwrap();
        assert_eq!(price.absent(100, None, 100_000), units, "{cost}");
        // What was reserved is never given back for it.
        let absent = price.absent(100, None, 10);
        assert!(absent >= 100 || cost.ends_with('7'), "{cost}: {absent}");
        let estimates = price.if_absent == IfAbsent::Estimate;
        let absent = price.absent(100, Some(2000), 100_000);
        assert_eq!(absent, if estimates { 500 } else { units }, "{cost}");
    }
}

#[test]
fn a_cost_depends_on_the_body_by_a_number_in_it_or_its_length() {
    let depends = [
        "{from: {response_json: /a}, reserve: 1, if_absent: 5}",
        "{from: {response_header: a}, reserve: 1}",
    ];
    let other = [
        "{from: {response_header: a}, reserve: 1, if_absent: max}",
        "{from: {status: [401]}}",
    ];
    let needs_body = |cost| limit(cost).response_price().unwrap().needs_body();
    assert_eq!(depends.map(needs_body), [true; 2]);
    assert_eq!(other.map(needs_body), [false; 2]);
}

#[test]
fn pointers_are_read_and_written() {
    for (text, tokens) in [
        ("/usage/total_tokens", vec!["usage", "total_tokens"]),
        ("/a~1b/~0", vec!["a/b", "~"]),
        ("/", vec![""]),
    ] {
        let pointer = Pointer::parse(text).unwrap();
        assert_eq!(pointer.tokens(), tokens);
        assert_eq!(pointer.to_string(), text);
    }
    let deep = "/a".repeat(MAX_TOKENS + 1);
    for text in ["", "usage", "/a~2", "/a~", deep.as_str()] {
        assert_eq!(Pointer::parse(text), None, "{text}");
    }
}
