//! Lines of JSON: of each object only the values at places that were asked for.

use std::{borrow::Cow, fmt};

use serde::{
    Deserialize, Deserializer,
    de::{DeserializeSeed, IgnoredAny, MapAccess, SeqAccess, Visitor},
};
use serde_json::value::RawValue;

use crate::layout::{Unreadable, Values};

/// The places in an object that are asked for.
#[derive(Debug, Default)]
pub(crate) struct Tree {
    /// Sorted by the length of the key, then by key: most comparisons are of lengths.
    children: Vec<(String, Tree)>,
    /// The slots that get the value here, each with the rank of this place.
    slots: Vec<(usize, u8)>,
}

impl Tree {
    /// Asks for the value at a path of keys; an index is a key of a list.
    pub(crate) fn add<'k>(
        &mut self,
        path: impl IntoIterator<Item = &'k str>,
        slot: usize,
        rank: u8,
    ) {
        let mut tree = self;
        for key in path {
            let at = match tree.position(key) {
                Ok(at) => at,
                Err(at) => {
                    tree.children.insert(at, (key.to_owned(), Self::default()));
                    at
                }
            };
            let Some((_, child)) = tree.children.get_mut(at) else {
                return;
            };
            tree = child;
        }
        tree.slots.push((slot, rank));
    }

    fn position(&self, key: &str) -> Result<usize, usize> {
        let by = |known: &str| known.len().cmp(&key.len()).then_with(|| known.cmp(key));
        self.children.binary_search_by(|(known, _)| by(known))
    }

    fn child(&self, key: &str) -> Option<&Self> {
        let at = self.position(key).ok()?;
        self.children.get(at).map(|(_, child)| child)
    }

    /// Reads a line.
    pub(crate) fn read(&self, line: &[u8], values: &mut Values) -> Result<(), Unreadable> {
        if line.trim_ascii_start().first() != Some(&b'{') {
            return Err(Unreadable::Json);
        }
        let seed = At { tree: self, values };
        // Looking at all bytes at once is faster than at each text on its own.
        let read = match std::str::from_utf8(line) {
            Ok(line) => seed.whole(serde_json::Deserializer::from_str(line)),
            Err(_) => seed.whole(serde_json::Deserializer::from_slice(line)),
        };
        read.map_err(|_| Unreadable::Json)
    }
}

/// A place in a line that is read.
struct At<'t> {
    tree: &'t Tree,
    values: &'t mut Values,
}

impl<'de> DeserializeSeed<'de> for At<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<(), D::Error> {
        if self.tree.children.is_empty() {
            let raw = <&RawValue>::deserialize(from)?;
            self.set(raw.get());
            return Ok(());
        }
        if self.tree.slots.is_empty() {
            return from.deserialize_any(self);
        }
        // A value that is asked for as a whole and in parts.
        let raw = <&RawValue>::deserialize(from)?;
        let again = At {
            tree: self.tree,
            values: self.values,
        };
        again.set(raw.get());
        let parts = serde_json::Deserializer::from_str(raw.get()).deserialize_any(self);
        parts.map_err(serde::de::Error::custom)
    }
}

impl At<'_> {
    fn whole<'de, R: serde_json::de::Read<'de>>(
        self,
        mut json: serde_json::Deserializer<R>,
    ) -> serde_json::Result<()> {
        self.deserialize(&mut json)?;
        json.end()
    }

    /// Sets the slots of this place to a value: text without quotes, numbers and booleans as they are
    /// written.
    fn set(self, raw: &str) {
        // An object or a list is no value.
        if raw.starts_with(['{', '[']) {
            return;
        }
        let inside = raw
            .strip_prefix('"')
            .map(|text| text.strip_suffix('"').unwrap_or(text));
        let value = match inside {
            Some(text) if memchr::memchr(b'\\', text.as_bytes()).is_none() => Cow::Borrowed(text),
            Some(_) => match serde_json::from_str(raw) {
                Ok(text) => Cow::Owned(text),
                Err(_) => return,
            },
            None => Cow::Borrowed(raw),
        };
        for (slot, rank) in &self.tree.slots {
            if raw == "null" {
                self.values.set_null(*slot);
            } else {
                self.values.set(*slot, *rank, value.as_bytes());
            }
        }
    }
}

impl<'de> Visitor<'de> for At<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(key) = map.next_key::<Key<'de>>()? {
            match self.tree.child(&key.0) {
                Some(tree) => map.next_value_seed(At {
                    tree,
                    values: &mut *self.values,
                })?,
                None => {
                    map.next_value::<IgnoredAny>()?;
                }
            }
        }
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<(), A::Error> {
        for index in 0_usize.. {
            let more = match self.tree.child(&index.to_string()) {
                Some(tree) => list.next_element_seed(At {
                    tree,
                    values: &mut *self.values,
                })?,
                None => list.next_element::<IgnoredAny>()?.map(drop),
            };
            if more.is_none() {
                break;
            }
        }
        Ok(())
    }

    // A scalar where an object was expected: it has none of what is asked for.
    fn visit_bool<E>(self, _: bool) -> Result<(), E> {
        Ok(())
    }

    fn visit_i64<E>(self, _: i64) -> Result<(), E> {
        Ok(())
    }

    fn visit_u64<E>(self, _: u64) -> Result<(), E> {
        Ok(())
    }

    fn visit_f64<E>(self, _: f64) -> Result<(), E> {
        Ok(())
    }

    fn visit_str<E>(self, _: &str) -> Result<(), E> {
        Ok(())
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }
}

/// A key, copied only if it has escapes.
struct Key<'k>(Cow<'k, str>);

impl<'de> Deserialize<'de> for Key<'de> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Text;
        impl<'de> Visitor<'de> for Text {
            type Value = Key<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a key")
            }

            fn visit_borrowed_str<E>(self, key: &'de str) -> Result<Key<'de>, E> {
                Ok(Key(Cow::Borrowed(key)))
            }

            fn visit_str<E>(self, key: &str) -> Result<Key<'de>, E> {
                Ok(Key(Cow::Owned(key.to_owned())))
            }
        }
        from.deserialize_str(Text)
    }
}
