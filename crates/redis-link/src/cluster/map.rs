//! Which node of a Cluster has which slots.

use std::{
    collections::{HashMap, hash_map::DefaultHasher},
    hash::{Hash, Hasher},
    sync::Arc,
};

use redis::Value;

use crate::{Error, Node, value};

/// Slots of a Cluster.
const SLOTS: usize = 16384;
/// The most nodes to connect to: more than a Cluster supports.
const NODES_MAX: usize = 1024;
/// The index of a slot without a node.
const NO_NODE: u16 = u16::MAX;

/// The host and port of a node.
pub(super) type Place = (String, u16);

/// A range of slots, first and last, and the place of the master that has them.
pub(super) type Range = (u16, u16, Place);

/// The masters, and the slots of each.
#[derive(Clone, Default)]
pub(super) struct Map {
    nodes: Vec<(Place, Arc<Node>)>,
    /// For each slot an index into `nodes`.
    owners: Vec<u16>,
}

impl Map {
    /// The map of these ranges. A node that `known` has a connection to keeps it.
    pub(super) fn new(ranges: &[Range], known: &Self, connect: impl Fn(&Place) -> Node) -> Self {
        let mut map = Self {
            nodes: Vec::new(),
            owners: vec![NO_NODE; SLOTS],
        };
        let kept: HashMap<&Place, &Arc<Node>> = known.nodes.iter().map(|(p, n)| (p, n)).collect();
        for (first, last, place) in ranges {
            let node = || match kept.get(place) {
                Some(node) => Arc::clone(node),
                None => Arc::new(connect(place)),
            };
            let Some(index) = map.index_of(place, node) else {
                continue;
            };
            let slots = usize::from(*first)..=usize::from(*last);
            if let Some(owners) = map.owners.get_mut(slots) {
                owners.fill(index);
            }
        }
        map
    }

    /// The same map with one slot moved, and a new node if necessary.
    pub(super) fn with_moved(
        &self,
        slot: u16,
        place: &Place,
        connect: impl Fn(&Place) -> Node,
    ) -> Self {
        let mut map = self.clone();
        if let Some(index) = map.index_of(place, || Arc::new(connect(place)))
            && let Some(owner) = map.owners.get_mut(usize::from(slot))
        {
            *owner = index;
        }
        map
    }

    /// The same map with a node that has no slots yet.
    pub(super) fn with_node(&self, place: &Place, connect: impl Fn(&Place) -> Node) -> Self {
        let mut map = self.clone();
        map.index_of(place, || Arc::new(connect(place)));
        map
    }

    fn index_of(&mut self, place: &Place, node: impl FnOnce() -> Arc<Node>) -> Option<u16> {
        let found = self.nodes.iter().position(|(known, _)| known == place);
        if found.is_none() && self.nodes.len() < NODES_MAX {
            self.nodes.push((place.clone(), node()));
        }
        let index = found.unwrap_or(self.nodes.len() - 1);
        let known = self.nodes.get(index).is_some_and(|(p, _)| p == place);
        known.then(|| u16::try_from(index).ok()).flatten()
    }

    /// The node that has a slot, and its place.
    pub(super) fn owner(&self, slot: u16) -> Option<&(Place, Arc<Node>)> {
        let index = self.owners.get(usize::from(slot))?;
        self.nodes.get(usize::from(*index))
    }

    pub(super) fn node(&self, place: &Place) -> Option<&Arc<Node>> {
        let found = self.nodes.iter().find(|(known, _)| known == place);
        found.map(|(_, node)| node)
    }

    pub(super) fn nodes(&self) -> &[(Place, Arc<Node>)] {
        &self.nodes
    }

    /// Almost certainly differs between different maps.
    pub(super) fn fingerprint(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        for (place, _) in &self.nodes {
            place.hash(&mut hasher);
        }
        self.owners.hash(&mut hasher);
        hasher.finish()
    }
}

/// Reads the answer to CLUSTER SLOTS of the node at `asked`.
pub(super) fn ranges(answer: Value, asked: &str) -> Result<Vec<Range>, Error> {
    let ranges = value::items(answer)?.into_iter();
    let ranges: Vec<Range> = ranges.map(|r| range(r, asked)).collect::<Result<_, _>>()?;
    if ranges.is_empty() {
        return Err(Error::Unreachable(
            "the cluster's node has no map of slots yet".to_owned(),
        ));
    }
    Ok(ranges)
}

fn range(answer: Value, asked: &str) -> Result<Range, Error> {
    let mut parts = value::items(answer)?.into_iter();
    let mut next = || parts.next().ok_or_else(value::short);
    let number = |value: Value| u16::try_from(value::integer(value)?).map_err(|_| value::short());
    let (first, last) = (number(next()?)?, number(next()?)?);
    let mut master = value::items(next()?)?.into_iter();
    let mut next = || master.next().ok_or_else(value::short);
    let (host, port) = (value::optional_text(next()?)?, number(next()?)?);
    Ok((first, last, (named(host.as_deref(), asked), port)))
}

/// A node that gives no host for itself is at the host that was queried.
pub(super) fn named(host: Option<&str>, asked: &str) -> String {
    match host {
        None | Some("" | "?") => asked.to_owned(),
        Some(host) => host.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(host: Option<&str>, port: i64) -> Value {
        let host = host.map_or(Value::Nil, |h| Value::BulkString(h.as_bytes().to_vec()));
        Value::Array(vec![
            host,
            Value::Int(port),
            Value::SimpleString("id".into()),
        ])
    }

    #[test]
    fn a_slot_range_without_a_host_name_belongs_to_the_asked_node() {
        let range =
            |first, last, node| Value::Array(vec![Value::Int(first), Value::Int(last), node]);
        let answer = Value::Array(vec![
            range(0, 1, node(Some("10.0.0.1"), 7000)),
            range(2, 16383, node(None, 7001)),
            range(5, 5, node(Some("?"), 7002)),
        ]);
        let found = ranges(answer, "asked").unwrap();
        let place = |host: &str, port| (host.to_owned(), port);
        assert_eq!(
            found,
            [
                (0, 1, place("10.0.0.1", 7000)),
                (2, 16383, place("asked", 7001)),
                (5, 5, place("asked", 7002)),
            ]
        );
    }

    #[test]
    fn nonsense_is_an_error_never_a_panic() {
        for answer in [
            Value::Okay,
            Value::Array(vec![]),
            Value::Array(vec![Value::Int(1)]),
            Value::Array(vec![Value::Array(vec![Value::Int(-1), Value::Int(70_000)])]),
            Value::Array(vec![Value::Array(vec![
                Value::Int(0),
                Value::Int(1),
                node(Some("a"), 70_000),
            ])]),
        ] {
            assert!(ranges(answer.clone(), "a").is_err(), "{answer:?}");
        }
    }
}
