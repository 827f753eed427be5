use proptest::{collection::vec, prelude::*};

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

proptest! {
    #[test]
    fn what_was_added_and_not_removed_is_found(changes in vec((0..6_u64, 0..4_usize, any::<bool>()), 1..200)) {
        let (mut positions, mut model) = (Positions::default(), Vec::new());
        for (hash, position, adds) in changes {
            // Two chains of three hashes each.
            let hash = (hash % 2) | (hash << 32);
            if adds {
                positions.add(hash, position);
                model.push((hash, position));
            } else {
                positions.remove(hash, position);
                let at = model.iter().position(|known| *known == (hash, position));
                at.map(|at| model.remove(at));
            }
            for hash in (0..6).map(|hash| (hash % 2) | (hash << 32)) {
                let mut found: Vec<usize> = positions.of(hash).collect();
                let of = model.iter().filter(|(known, _)| *known == hash);
                let mut expected: Vec<usize> = of.map(|(_, position)| *position).collect();
                found.sort_unstable();
                expected.sort_unstable();
                prop_assert_eq!(found, expected);
            }
        }
        // Each hash is in its chain once.
        for first in &positions.chains {
            let mut chain = Vec::new();
            let mut number = *first;
            while let Some(entry) = positions.entry(number) {
                prop_assert!(!chain.contains(&entry.hash));
                chain.push(entry.hash);
                number = entry.next;
            }
        }
    }
}
