//! Groups items that belong to one bucket.

/// Number of chains. A group is searched among those whose hashes have the same low byte.
const CHAINS: usize = 256;

/// Splits items into groups in which each item is the `same` as the first. Equal items have equal
/// `hash`es, which are keyed, so that clients cannot fill one chain.
pub(crate) fn grouped<T>(
    items: Vec<T>,
    hash: impl Fn(&T) -> u64,
    same: impl Fn(&T, &T) -> bool,
) -> impl Iterator<Item = Vec<T>> {
    let mut chains: Vec<Vec<Vec<T>>> = Vec::new();
    chains.resize_with(if items.len() > 1 { CHAINS } else { 1 }, Vec::new);
    let mask = chains.len() - 1;
    for item in items {
        let [low, ..] = hash(&item).to_le_bytes();
        let Some(chain) = chains.get_mut(usize::from(low) & mask) else {
            continue;
        };
        let of = |group: &&mut Vec<T>| group.first().is_some_and(|first| same(first, &item));
        match chain.iter_mut().find(of) {
            Some(group) => group.push(item),
            None => chain.push(vec![item]),
        }
    }
    chains.into_iter().flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_items_form_one_group_in_their_original_order() {
        for count in [0, 1, 2, 3000_u64] {
            let items: Vec<u64> = (0..count).collect();
            let same = |one: &u64, other: &u64| one % 1000 == other % 1000;
            let groups: Vec<_> = grouped(items, |item| item % 1000, same).collect();
            let wanted = usize::try_from(count.min(1000)).unwrap();
            assert_eq!(groups.len(), wanted);
            for group in groups {
                let first = group[0] % 1000;
                let like: Vec<u64> = (first..count).step_by(1000).collect();
                assert_eq!(group, like);
            }
        }
    }
}
