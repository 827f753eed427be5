use super::*;

use protocol::{LeaseRequest, LimitRequest};

#[test]
fn the_weight_of_a_check_follows_the_limits_that_match_it() {
    let text = "domain: shop\nlimits:\n  \
        - {name: cheap, match: {what: cheap}, rate: 1/s}\n  \
        - {name: dear, match: {what: dear}, algorithm: sliding_window_buckets, rate: 100/1m, sub_windows: 1000}\n";
    let policy = limits_file::read("test", text.as_bytes()).unwrap();
    let active = Active::new(policy, &Metrics::new()).unwrap();
    let check = |what: &str| Check {
        descriptor: [("what".parse().unwrap(), what.into())]
            .into_iter()
            .collect(),
        ..Check::default()
    };
    assert_eq!(active.weight(&check("cheap"), 0), 1);
    assert_eq!(active.weight(&check("nothing"), 0), 1);
    let dear = active.weight(&check("dear"), 0);
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
    assert!(active.weight(&leased, 0) > 5 * dear);
    let other = Check {
        only: vec!["cheap".parse().unwrap()],
        ..check("dear")
    };
    assert_eq!(active.weight(&other, 0), 1);
}
