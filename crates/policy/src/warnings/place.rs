//! Finds the place in a file of a path in its document.

use documents::{Node, Place, Value};

/// Where a field stands, or the nearest that contains it.
pub(super) fn place_of(root: &Node, path: &str) -> Option<Place> {
    let mut at = root;
    let mut place = root.place;
    // `limits[2].match.path[0]`; a name may hold dots, so keys are tried whole.
    let mut rest = path;
    while !rest.is_empty() {
        rest = rest.trim_start_matches('.');
        let (next, after) = match rest.strip_prefix('[') {
            Some(item) => {
                let (index, after) = item.split_once(']')?;
                let index: usize = index.parse().ok()?;
                (at.items().get(index), after)
            }
            None => match field_of(at, rest) {
                Some((node, after)) => (Some(node), after),
                None => (None, ""),
            },
        };
        let Some(next) = next else {
            // `per: user` is a list of one.
            return place;
        };
        at = next;
        place = at.place.or(place);
        rest = after;
    }
    place
}

/// The longest key of a map that the path starts with, and what follows it.
fn field_of<'n, 'p>(node: &'n Node, path: &'p str) -> Option<(&'n Node, &'p str)> {
    let Value::Map(entries) = &node.value else {
        return None;
    };
    let fits = entries.iter().filter_map(|entry| {
        let after = path.strip_prefix(entry.key.as_str())?;
        let ends = after.is_empty() || after.starts_with(['.', '[']);
        ends.then_some((&entry.value, after))
    });
    fits.min_by_key(|(_, after)| after.len())
}
