//! The pointers that a JSON reader looks for.

use policy::Pointer;

use super::{MAX_POINTERS, WRAPPERS};

/// The pointers to look for.
#[derive(Clone, Copy, Debug)]
pub(in crate::cost) struct Targets<'p> {
    pointers: &'p [&'p Pointer],
    pub(super) events: bool,
    /// A bit for each pointer that begins with one of [`WRAPPERS`], a part it does not need.
    unwrapped: u32,
}

impl<'p> Targets<'p> {
    /// `events`: whether documents are events, whose [`WRAPPERS`] are transparent.
    pub(in crate::cost) fn new(pointers: &'p [&'p Pointer], events: bool) -> Self {
        let mut unwrapped = 0;
        for (at, pointer) in pointers.iter().enumerate().take(MAX_POINTERS) {
            if let [first, _, ..] = pointer.tokens()
                && events
                && WRAPPERS.contains(&first.as_str())
            {
                unwrapped |= 1 << at;
            }
        }
        Self {
            pointers,
            events,
            unwrapped,
        }
    }

    pub(super) fn tokens(&self, at: usize) -> &'p [String] {
        let tokens = self.pointers.get(at).map_or(&[][..], |of| of.tokens());
        let skip = usize::from(self.unwrapped >> at & 1 == 1);
        tokens.get(skip..).unwrap_or_default()
    }

    /// The text that bit `at` of the hits stands for, in a container at some level of the pointers.
    pub(super) fn text(&self, at: usize, level: usize) -> Option<&'p str> {
        match at.checked_sub(MAX_POINTERS) {
            Some(wrapper) => WRAPPERS.get(wrapper).copied(),
            None => self.tokens(at).get(level).map(String::as_str),
        }
    }
}
