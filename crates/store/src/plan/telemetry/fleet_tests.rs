use super::*;

fn seen(id: &str, revision: u64, ago_ms: u64) -> ProxyStatus {
    ProxyStatus {
        id: id.to_owned(),
        node: None,
        is_module: true,
        revision: (revision > 0).then_some(Revision {
            number: revision,
            digest: u64::MAX,
        }),
        ago_ms,
    }
}

fn json(proxies: &[ProxyStatus]) -> String {
    let domain: Name = "shop".parse().unwrap();
    let fleet_report = FleetReport {
        revisions: BTreeMap::from([(domain.clone(), Revision::default())]),
        proxies: BTreeMap::from([(domain, proxies.to_vec())]),
        ..FleetReport::default()
    };
    let json = fleet_report.to_json();
    assert_eq!(FleetReport::read(&json), Some(fleet_report));
    json
}

#[test]
fn the_last_request_of_a_proxy_to_any_limiter_counts() {
    let reports = [
        ("a", 9_000, json(&[seen("p1", 1, 0), seen("p2", 1, 500)])),
        (
            "b",
            9_500,
            json(&[seen("p1", 2, 100), seen("p3", 0, 9_600)]),
        ),
        ("a", 8_000, json(&[seen("p4", 1, 0)])),
        ("b", 9_900, "{\"format\":2}".to_owned()),
    ];
    let reports = reports.map(|(id, at, json)| (id.to_owned(), at, json));
    let fleet = Fleet::from_reports(reports.clone(), 10_000);
    let found = |fleet: &Fleet| -> Vec<(String, u64)> {
        let all = fleet.proxies.values().flatten();
        all.map(|p| (p.id.clone(), p.ago_ms)).collect()
    };
    // The newest report of `b` is of a later format: it is skipped.
    assert_eq!(
        found(&fleet),
        [("p1".to_owned(), 1000), ("p2".to_owned(), 1500)]
    );
    assert_eq!(fleet.limiters.len(), 1);
    let fleet = Fleet::from_reports(reports.into_iter().take(3), 10_000);
    assert_eq!(
        found(&fleet),
        [("p1".to_owned(), 600), ("p2".to_owned(), 1500)],
        "p3's last request is too old"
    );
    assert_eq!(
        fleet.proxies["shop"][0].revision.as_ref().unwrap().number,
        2
    );
    assert_eq!(fleet.limiters.len(), 2);
}

#[test]
fn entries_are_known_once_every_limiter_with_live_proxies_reports_them() {
    let shop: Name = "shop".parse().unwrap();
    let note = |id: &str, proxy_ms_ago, entries: Option<&[&str]>| {
        let names = entries.map(|names| names.iter().map(|name| name.parse().unwrap()));
        let names = names.map(|names| (shop.clone(), names.collect()));
        let fleet_report = FleetReport {
            proxies: BTreeMap::from([(shop.clone(), vec![seen("p", 1, proxy_ms_ago)])]),
            entries: names.into_iter().collect(),
            ..FleetReport::default()
        };
        let json = fleet_report.to_json();
        assert_eq!(FleetReport::read(&json), Some(fleet_report));
        (id.to_owned(), 1, json)
    };
    let found = |notes: Vec<_>| {
        let fleet = Fleet::from_reports(notes, 1);
        let names = fleet.entries.get(&shop)?.iter();
        Some(names.map(Name::to_string).collect::<Vec<_>>())
    };
    let user = note("a", 0, Some(&["user"]));
    let all = found(vec![user.clone(), note("b", 0, Some(&["tenant"]))]);
    assert_eq!(all.unwrap(), ["tenant", "user"]);
    assert_eq!(found(vec![user.clone(), note("b", 0, None)]), None);
    assert_eq!(found(vec![note("b", 0, None), user.clone()]), None);
    let gone = note("b", PROXY_LIFE_MS + 1, None);
    assert_eq!(found(vec![gone.clone(), user]).unwrap(), ["user"]);
    assert_eq!(found(vec![gone]), None, "nobody supplies anything");
    assert_eq!(found(vec![note("b", 0, Some(&[]))]).unwrap(), [""; 0]);
}

#[test]
fn what_is_no_report_is_left_out() {
    let texts = [
        "",
        "[]",
        "{}",
        "{\"format\":1,\"proxies\":{\"shop\":[3,{\"id\":[]}]}}",
    ];
    for text in texts {
        let fleet = Fleet::from_reports([("a".to_owned(), 1, text.to_owned())], 1);
        assert!(fleet.proxies.is_empty(), "{text}");
    }
}
