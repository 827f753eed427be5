use super::*;

#[test]
fn the_hash_never_changes() {
    let name: Name = "per-user".parse().unwrap();
    let hash = |values: &[Option<&[u8]>]| bucket_hash(&name, values);
    insta::assert_snapshot!(
        format!("{:016x} {:016x} {:016x} {:016x}",
            hash(&[]), hash(&[None]), hash(&[Some(b"")]), hash(&[Some(b"alice"), Some(b"\xff")])),
        @"34f2109633e4488e 3ad97c15eb8f7dda 12ed2b61bb6a992e 0fd71eb41f765edd"
    );
}

#[test]
fn exactly_the_positions_of_a_hash_are_found_last_one_first() {
    let mut positions = Positions::default();
    assert_eq!(positions.of(0).next(), None);
    // Every hash occurs three times, and many fall into one chain.
    let hashes = (0..3000_u64).map(|n| n % 1000 * 64);
    for (position, hash) in hashes.enumerate() {
        positions.add(hash, position);
    }
    for n in 0..1000 {
        let of: Vec<usize> = positions.of(n * 64).collect();
        let n = usize::try_from(n).unwrap();
        assert_eq!(of, [n + 2000, n + 1000, n]);
    }
    assert_eq!(positions.of(1).next(), None);
}
