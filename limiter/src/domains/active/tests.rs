use super::*;

use protocol::{CostSettlement, LeaseRequest, LimitRequest, Reservation};

#[test]
fn the_weight_of_a_check_follows_the_limits_that_match_it() {
    let text = "domain: shop\nlimits:\n  \
        - {name: cheap, match: {what: cheap}, rate: 1/s}\n  \
        - {name: dear, match: {what: dear}, algorithm: sliding_window_buckets, rate: 100/1m, sub_windows: 1000}\n";
    let policy = limits_file::read("test", text.as_bytes()).unwrap();
    let active = Active::new(policy, &Metrics::new(), None).unwrap();
    let check = |what: &str| Check {
        descriptor: [("what".parse().unwrap(), what.into())]
            .into_iter()
            .collect(),
        ..Check::default()
    };
    assert_eq!(active.weight(&check("cheap"), 0, false), 1);
    assert_eq!(active.weight(&check("nothing"), 0, false), 1);
    let dear = active.weight(&check("dear"), 0, false);
    assert!(dear > 10, "{dear}");
    let leased = Check {
        limits: vec![LimitRequest {
            lease: Some(LeaseRequest {
                want: 1,
                settle: Vec::new(),
            }),
            ..LimitRequest::new("dear".parse().unwrap())
        }],
        ..check("dear")
    };
    assert!(active.weight(&leased, 0, false) > 5 * dear);
    let other = Check {
        only: vec!["cheap".parse().unwrap()],
        ..check("dear")
    };
    assert_eq!(active.weight(&other, 0, false), 1);
    let settlement = CostSettlement {
        reservation: Reservation::default(),
        units: 1,
    };
    let settling = |what: &str| Check {
        limits: vec![LimitRequest {
            settle: vec![settlement; 100],
            ..LimitRequest::new(what.parse().unwrap())
        }],
        ..check(what)
    };
    assert_eq!(active.weight(&settling("cheap"), 0, false), 1 + 25);
    assert_eq!(
        active.weight(&settling("dear"), 0, false),
        dear + 25 + 1000 / 4
    );
}

#[test]
fn a_penalty_and_a_cost_in_the_response_weigh_too() {
    let text = "domain: shop\nlimits:\n  \
        - {name: logins, match: {what: login}, rate: 1/s, penalty: {after: 9, within: 1m, for: 1m}}\n  \
        - {name: tokens, match: {what: call}, rate: 1/s, penalty: {after: 9, within: 1m, for: 1m}, \
           cost: {from: {response_json: /total}, reserve: {default: 1}}}\n";
    let policy = limits_file::read("test", text.as_bytes()).unwrap();
    let active = Active::new(policy, &Metrics::new(), None).unwrap();
    let weights = ["login", "call"].map(|what| {
        let descriptor = [("what".parse().unwrap(), what.into())];
        let check = Check {
            descriptor: descriptor.into_iter().collect(),
            ..Check::default()
        };
        active.weight(&check, 0, false)
    });
    assert_eq!(weights, [3, 5]);
}

#[tokio::test]
async fn a_check_of_many_cheap_limits_weighs_as_much_as_those_before_it_unless_it_is_to_be_exact() {
    let limits: Vec<_> = (0..50)
        .map(|n| format!("  - {{name: l{n}, rate: 1/s}}\n"))
        .collect();
    let text = format!("domain: shop\nlimits:\n{}", limits.concat());
    let policy = limits_file::read("test", text.as_bytes()).unwrap();
    let active = Active::new(policy, &Metrics::new(), None).unwrap();
    let check = Check::default();
    let weights = |active: &Active| [false, true].map(|exact| active.weight(&check, 0, exact));
    assert_eq!(weights(&active), [1, 50]);
    let memory = store::open(&store::StoreUrl::Memory, store::Options::default()).unwrap();
    let call = async |only: &[&str], calls: usize| {
        let only = only.iter().map(|name| name.parse().unwrap()).collect();
        let checks = [Check {
            only,
            ..Check::default()
        }];
        let answers = memory.check(&active.compiled, &checks, false).await;
        for _ in 0..calls {
            active.called(checks.iter().zip(&answers));
        }
    };
    call(&[], 1).await;
    assert_eq!(weights(&active), [50, 50]);
    call(&["l7"], 8).await;
    let [less, _] = weights(&active);
    assert!((10..30).contains(&less), "{less}");
    call(&["l7"], 200).await;
    assert_eq!(weights(&active), [1, 50]);
    call(&[], 1).await;
    let text = text.replace("1/s", "2/s");
    let policy = limits_file::read("test", text.as_bytes()).unwrap();
    let edited = Active::new(policy, &Metrics::new(), Some(&active)).unwrap();
    assert_eq!(weights(&edited), [50, 50]);
}

#[tokio::test]
async fn while_one_caller_waits_for_new_edges_the_others_get_the_snapshot_before() {
    let text = "domain: shop\nlimits:\n  - {name: reports, rate: 500/month}\n";
    let policy = limits_file::read("test", text.as_bytes()).unwrap();
    let active = Arc::new(Active::new(policy, &Metrics::new(), None).unwrap());
    let before = active.snapshot.load_full();
    let later_ms = before.until_ms;
    let turn = alone().await;
    let waiting = [(); 2].map(|()| {
        let active = Arc::clone(&active);
        tokio::spawn(async move { active.snapshot(later_ms).await })
    });
    while !active.renewing.load(Ordering::Acquire) {
        tokio::task::yield_now().await;
    }
    assert!(Arc::ptr_eq(&active.snapshot(later_ms).await, &before));
    let [first, second] = waiting;
    assert!(Arc::ptr_eq(&second.await.unwrap(), &before));
    // Its client leaves: the work goes on.
    first.abort();
    drop(turn);
    while active.renewing.load(Ordering::Acquire) {
        tokio::task::yield_now().await;
    }
    let fresh = active.snapshot(later_ms).await;
    assert!(fresh.until_ms > later_ms && fresh.etag != before.etag);
    let json = [(); 2].map(|()| fresh.json(&active));
    let [json, again] = futures_util::future::join_all(json)
        .await
        .try_into()
        .unwrap();
    assert!(json.is_some() && json == again);
}
