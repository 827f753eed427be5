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
        supplies: None,
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
fn entries_are_known_once_every_live_proxy_reports_its_own() {
    let shop: Name = "shop".parse().unwrap();
    let note = |limiter: &str, id: &str, ago_ms, entries: Option<&str>| {
        let names = entries.map(|list| list.split_whitespace().map(|name| name.parse().unwrap()));
        let proxy = ProxyStatus {
            supplies: names.map(|names| Arc::new(names.collect())),
            ..seen(id, 1, ago_ms)
        };
        (
            limiter.to_owned(),
            1,
            json(&[proxy, seen("gone", 1, PROXY_LIFE_MS + 1)]),
        )
    };
    let found = |notes: Vec<_>| {
        let fleet = Fleet::from_reports(notes, 1);
        let names = fleet.entries.get(&shop)?.iter();
        Some(names.map(Name::to_string).collect::<Vec<_>>().join(" "))
    };
    let user = note("a", "p", 5, Some("user"));
    let all = found(vec![user.clone(), note("b", "q", 0, Some("tenant"))]);
    assert_eq!(all.as_deref(), Some("tenant user"));
    let unknown = note("b", "q", 0, None);
    assert_eq!(found(vec![user.clone(), unknown.clone()]), None);
    assert_eq!(found(vec![unknown, user.clone()]), None);
    assert_eq!(
        found(vec![note("b", "q", 0, Some(""))]).as_deref(),
        Some("")
    );
    assert_eq!(
        found(vec![note("b", "gone", PROXY_LIFE_MS + 1, Some("user"))]),
        None
    );
    // It polls one limiter, and checks at others, before and after.
    let (earlier, later) = (note("b", "p", 9, None), note("c", "p", 0, None));
    for reports in [[&user, &earlier, &later], [&later, &earlier, &user]] {
        let reports = reports.map(Clone::clone).to_vec();
        assert_eq!(found(reports).as_deref(), Some("user"));
    }
}

#[test]
fn proxies_that_supply_the_same_share_one_list_in_the_report() {
    let supplying = |id: &str, names: &[&str]| ProxyStatus {
        supplies: Some(Arc::new(
            names.iter().map(|name| name.parse().unwrap()).collect(),
        )),
        ..seen(id, 1, 0)
    };
    let json = json(&[
        supplying("p1", &["tenant", "user"]),
        supplying("p2", &["user"]),
        supplying("p3", &["user", "tenant"]),
        ProxyStatus {
            node: Some("edge".to_owned()),
            ..seen("p4", 1, 0)
        },
    ]);
    insta::assert_snapshot!(json, @r#"{"format":1,"revisions":{"shop":[0,"0000000000000000"]},"proxies":{"shop":[{"id":"p1","ago_ms":0,"revision":[1,"ffffffffffffffff"],"filter":"module","entries":0},{"id":"p2","ago_ms":0,"revision":[1,"ffffffffffffffff"],"filter":"module","entries":1},{"id":"p3","ago_ms":0,"revision":[1,"ffffffffffffffff"],"filter":"module","entries":0},{"id":"p4","ago_ms":0,"revision":[1,"ffffffffffffffff"],"node":"edge","filter":"module"}]},"entries":[["tenant","user"],["user"]]}"#);
    // A set that cannot be read, or that is not there, is unknown.
    for (from, to) in [
        ("\"tenant\"", "\"no name\""),
        ("\"entries\":0", "\"entries\":7"),
    ] {
        assert!(json.contains(from), "{json}");
        let report = FleetReport::read(&json.replace(from, to)).unwrap();
        let known = report.proxies.values().flatten();
        let known: Vec<_> = known.map(|proxy| proxy.supplies.is_some()).collect();
        assert_eq!(known, [false, true, false, false]);
    }
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
