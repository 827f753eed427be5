use futures_util::FutureExt as _;
use store::{Change, Edit, Options, Overrides, Signature, StoreUrl, open};

use super::*;
use crate::metrics::Metrics;

// --- Which ids count

fn id(n: usize) -> String {
    format!("{n:032x}")
}

fn address(last: u8) -> IpAddr {
    IpAddr::from([10, 0, 0, last])
}

fn after(start: Instant, s: u64) -> Instant {
    start + Duration::from_secs(s)
}

fn counts(registry: &mut Registry, address: IpAddr, id: &str, now: Instant) -> bool {
    registry.admit(address, id, now).is_some()
}

#[test]
fn one_address_adds_at_most_its_share_of_proxies_and_hides_none() {
    let start = Instant::now();
    let fleet = &mut Registry::new(16, start);
    assert!(counts(fleet, address(1), &id(1), start));
    let invented = (100..7100).filter(|n| counts(fleet, address(2), &id(*n), start));
    assert_eq!(invented.count(), 16);
    assert!(counts(fleet, address(3), &id(2), start), "others count");
    assert!(counts(fleet, address(1), &id(1), start));
    // Expired ids make room.
    assert!(!counts(fleet, address(2), &id(9000), after(start, 9)));
    assert!(counts(fleet, address(2), &id(9000), after(start, 12)));
}

#[test]
fn a_proxy_whose_address_changes_still_counts() {
    let start = Instant::now();
    let fleet = &mut Registry::new(1, start);
    assert!(counts(fleet, address(1), &id(1), start));
    assert!(counts(fleet, address(2), &id(1), after(start, 5)));
    assert!(counts(fleet, address(2), &id(1), after(start, 12)));
    assert!(counts(fleet, address(2), &id(2), after(start, 12)));
}

#[test]
fn proxies_behind_a_sidecar_are_bounded_in_total() {
    let start = Instant::now();
    let fleet = &mut Registry::new(16, start);
    let loopback = IpAddr::from([127, 0, 0, 6]);
    let mut named = |from, at| {
        let all = (from..from + 1000).filter(|n| counts(fleet, loopback, &id(*n), at));
        all.count()
    };
    assert_eq!(named(0, start), NEW_MAX);
    let mut all = NEW_MAX;
    for s in 1..=9 {
        let at = after(start, s);
        all += named(usize::try_from(s).unwrap() * 1000, at);
    }
    assert_eq!(all, PROXIES_MAX);
    assert_eq!(named(20_000, after(start, 10)), 0);
}

#[test]
fn an_invalid_proxy_id_does_not_count() {
    let start = Instant::now();
    let fleet = &mut Registry::new(16, start);
    for id in [
        "",
        "p1",
        "\u{1b}[2J",
        &"x".repeat(32),
        &"A".repeat(32),
        &"0".repeat(33),
    ] {
        assert!(!counts(fleet, address(1), id, start), "{id}");
    }
}

// --- How many share a limit

#[tokio::test]
async fn a_domain_with_many_pairs_takes_nothing_of_anothers_count_nor_of_its_own() {
    let store = open(&StoreUrl::Memory, Options::default()).unwrap();
    for domain in ["busy", "quiet"] {
        let limits = (0..60).map(|n| format!("{{name: l{n}, rate: 1/s}}"));
        let limits = limits.collect::<Vec<_>>().join(",");
        let text = format!("domain: {domain}\nlimits: [{limits}]\n");
        let policy = limits_file::read("test", text.as_bytes()).unwrap();
        let base = store.read(&policy.domain, Overrides::All).await.unwrap();
        let edit = Edit {
            domain: &policy.domain,
            base: &base,
            change: Change::Limits(&policy),
            by: &Signature::default(),
        };
        store.write(&edit).await.unwrap();
    }
    let domains = Arc::new(Domains::new(Arc::clone(&store), Arc::new(Metrics::new())));
    let polling = Arc::clone(&domains);
    let polling = tokio::spawn(async move { polling.poll_forever().await });
    while domains.all().len() < 2 {
        tokio::task::yield_now().await;
    }
    polling.abort();
    let fleet = Fleet::new(store, 16);
    let name = |text: &str| text.parse::<Name>().unwrap();
    let limits: Vec<Name> = (0..60).map(|n| name(&format!("l{n}"))).collect();
    let proxies = PAIRS_MAX / limits.len() + 100;
    for nth in 0..proxies {
        fleet.checked(&name("busy"), &id(nth).into(), &limits);
    }
    for nth in 0..3 {
        fleet.checked(&name("quiet"), &id(nth).into(), &limits[..2]);
    }
    fleet.record(&domains).await;
    let counts = |domain| {
        let counts = fleet.counts(&name(domain)).unwrap();
        (
            counts.all,
            ["l0", "l59"].map(|limit| counts.of(&name(limit))),
        )
    };
    let proxies = u64::try_from(proxies).unwrap();
    // Never less than there are, so that no proxy takes too large a share.
    assert_eq!(counts("busy"), (proxies, [Some(proxies); 2]));
    assert_eq!(counts("quiet"), (3, [Some(3), None]));
}

// --- What is listed of them

fn record(registry: &mut Registry, id: &str, revision: Option<&Revision>, now: Instant) {
    let sender = RequestingProxy {
        id,
        node: Some("edge-1\u{1b}[2J"),
        is_module: true,
        revision,
    };
    registry.record(&shop(), &id.into(), sender, now);
}

fn shop() -> Name {
    "shop".parse().unwrap()
}

#[test]
fn a_proxy_stays_for_ten_seconds_with_its_last_report() {
    let start = Instant::now();
    let fleet = &mut Registry::new(16, start);
    let first = Revision {
        number: 1,
        digest: 7,
    };
    record(fleet, "p1", None, start);
    record(fleet, "p2", None, start);
    record(fleet, "p1", Some(&first), after(start, 6));
    let alive = fleet.alive(after(start, 11));
    let [p1] = &alive[&shop()][..] else {
        panic!("{alive:?}");
    };
    assert_eq!((p1.id.as_str(), p1.ago_ms), ("p1", 5000));
    assert_eq!(p1.revision, Some(first));
    assert_eq!(
        (p1.node.as_deref(), p1.is_module),
        (Some("edge-1[2J"), true)
    );
    assert!(fleet.alive(after(start, 17)).is_empty());
}

#[tokio::test]
async fn a_proxy_that_comes_or_has_another_revision_is_news() {
    let fleet = Fleet::new(open(&StoreUrl::Memory, Options::default()).unwrap(), 16);
    let saw = |revision: Option<&Revision>| {
        let proxy = RequestingProxy {
            id: &id(1),
            node: None,
            is_module: false,
            revision,
        };
        fleet.saw(address(1), &shop(), proxy).unwrap();
        fleet.has_news().now_or_never().is_some()
    };
    let first = Revision {
        number: 1,
        digest: 7,
    };
    assert_eq!([saw(None), saw(None)], [true, false]);
    assert_eq!([saw(Some(&first)), saw(Some(&first))], [true, false]);
}

#[test]
fn invented_proxies_take_bounded_memory_and_expire() {
    let now = Instant::now();
    let fleet = &mut Registry::new(16, now);
    for n in 0..2 * LISTED_MAX {
        record(fleet, &format!("p{n}"), None, now);
    }
    assert_eq!(fleet.alive(now)[&shop()].len(), LISTED_MAX);
    let later = now + LIFE * 2;
    assert!(fleet.alive(later).is_empty());
    record(fleet, "p", None, later);
    assert_eq!(fleet.alive(later)[&shop()].len(), 1);
}

fn list(registry: &mut Registry, id: &str, entries: &str, now: Instant) {
    record(registry, id, None, now);
    registry.list_entries(&shop(), &id.into(), entries, now);
}

#[test]
fn each_proxy_supplies_what_it_listed_itself() {
    let start = Instant::now();
    let fleet = &mut Registry::new(16, start);
    let at = |s| after(start, s);
    let entries = |fleet: &mut Registry, s| {
        let mut alive = fleet.alive(at(s)).remove(&shop()).unwrap_or_default();
        alive.sort_by(|a, b| a.id.cmp(&b.id));
        let of = |proxy: ProxyStatus| {
            let Some(entries) = proxy.supplies else {
                return "?".to_owned();
            };
            let names: Vec<_> = entries.iter().map(Name::to_string).collect();
            names.join(",")
        };
        alive.into_iter().map(of).collect::<Vec<_>>().join(" ")
    };
    list(fleet, "p1", "user,tenant", at(0));
    list(fleet, "p2", "tenant", at(0));
    assert_eq!(entries(fleet, 1), "tenant,user tenant");
    for (list_of_p3, s) in [("no name", 2), (",", 3), ("user,", 4)] {
        list(fleet, "p3", list_of_p3, at(s));
        assert_eq!(entries(fleet, s), "tenant,user tenant ?", "{list_of_p3}");
    }
    list(fleet, "p3", "", at(4));
    assert_eq!(entries(fleet, 4), "tenant,user tenant ");
    record(fleet, "p4", None, at(5));
    assert_eq!(
        entries(fleet, 5),
        "tenant,user tenant  ?",
        "it checks, and has not polled yet"
    );
    list(fleet, "p1", "user", at(8));
    assert_eq!(entries(fleet, 16), "user", "the others are gone");
    record(fleet, "p1", None, at(17));
    assert_eq!(entries(fleet, 19), "?", "it lists nothing any more");
}

#[test]
fn invented_entries_take_bounded_memory_and_expire() {
    let start = Instant::now();
    let fleet = &mut Registry::new(16, start);
    let names = |to: usize| {
        let names = (0..to).map(|n| format!("e{n}"));
        names.collect::<Vec<_>>().join(",")
    };
    let known = |fleet: &mut Registry, entries: &str, now| {
        list(fleet, "p1", entries, now);
        fleet.alive(now)[&shop()][0].supplies.is_some()
    };
    assert!(!known(fleet, &names(ENTRIES_MAX + 1), start));
    let repeated = "user,".repeat(ENTRIES_MAX) + "user";
    assert!(!known(fleet, &repeated, start));
    assert!(known(fleet, &names(ENTRIES_MAX), start));
    assert!(!known(fleet, "one-more", start));
    assert_eq!(fleet.lists.entries, 0, "nobody has the long list any more");
    assert!(known(fleet, &names(ENTRIES_MAX), start));
    fleet.alive(start + LIFE * 2);
    assert!(known(fleet, "one-more", start + LIFE * 2));
}
