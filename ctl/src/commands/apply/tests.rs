use super::*;

fn policy(limits: &str) -> Policy {
    let file = format!("domain: shop\nlimits: [{limits}]\n");
    limits_file::read("test", file.as_bytes()).unwrap()
}

fn merged(file: &str, live: &str, prune: bool) -> Merged {
    merge(policy(file), Some(&policy(live)), prune).unwrap()
}

fn names(policy: &Policy) -> Vec<&str> {
    policy
        .limits
        .iter()
        .map(|limit| limit.name.as_str())
        .collect()
}

const LIVE: &str = "{name: a, per: [user], rate: 1/s, \
                    overrides: [{values: {user: x}, rate: 9/s}]}, {name: b, rate: 1/s}";

#[test]
fn nothing_is_deleted_without_prune() {
    let kept = merged("{name: c, rate: 1/s}", LIVE, false);
    assert_eq!(names(&kept.policy), ["a", "b", "c"]);
    assert_eq!(kept.kept.len(), 2);
    // A file that has one limit moves none.
    let one = merged("{name: b, rate: 1/s}", LIVE, false);
    assert_eq!(names(&one.policy), ["a", "b"]);
    let other = merged(
        "{name: b, rate: 1/s}, {name: a, rate: 1/s}, {name: c, rate: 1/s}",
        LIVE,
        false,
    );
    assert_eq!(names(&other.policy), ["b", "a", "c"]);
    let pruned = merged("{name: c, rate: 1/s}", LIVE, true);
    assert_eq!(names(&pruned.policy), ["c"]);
    assert_eq!(pruned.kept, []);
}

#[test]
fn only_the_overrides_of_the_file_are_listed() {
    let same = merged("{name: a, per: [user], rate: 2/s}", LIVE, false);
    assert_eq!(same.policy.limits[0].overrides, []);
    assert_eq!(same.split_otherwise, []);
    let own =
        "{name: a, per: [user], rate: 2/s, overrides: [{values: {user: y}, unlimited: true}]}";
    let listed = merged(own, LIVE, false);
    assert_eq!(
        listed.policy.limits[0].overrides,
        policy(own).limits[0].overrides
    );
    let split = merged("{name: a, per: [tenant], rate: 2/s}", LIVE, false);
    assert_eq!(split.split_otherwise.len(), 1);
}
