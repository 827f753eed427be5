//! A slot in a queue, or of a request in flight.

/// The longest time that a slot of a request in flight lives without being renewed: a day.
const SLOT_TTL_MAX_MS: u64 = 86_400_000;

/// The name of an admitted request's slot in a queue. Only the bucket interprets it. For a request in
/// flight, it consists of the id's stamp and secret, the ttl, and the limit's generation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Slot {
    /// When it starts, by the bucket's clock, in whole milliseconds.
    pub start_ms: u64,
    /// The fraction of a millisecond that was rounded off.
    pub parts: u64,
    /// When the bucket started to accept such names.
    pub since_ms: u64,
    /// How often this time was given before.
    pub turn: u64,
}

impl Slot {
    /// The slot of a request that was charged this many units, as text for programs.
    pub fn to_text(self, units: u64) -> String {
        let Self {
            start_ms,
            parts,
            since_ms,
            turn,
        } = self;
        format!("{start_ms}.{parts}.{since_ms}.{turn}.{units}")
    }

    /// How long the slot of a request in flight lives without being renewed, in milliseconds. The slot
    /// of a queue has a time in this field, which is later than any such duration.
    pub fn ttl_ms(self) -> Option<u64> {
        Some(self.since_ms).filter(|ms| *ms <= SLOT_TTL_MAX_MS)
    }

    /// Reads what [`Self::to_text`] wrote, with the units.
    pub fn from_text(text: &str) -> Option<(Self, u64)> {
        let mut numbers = text.split('.').map(|number| number.parse().ok());
        let slot = Self {
            start_ms: numbers.next()??,
            parts: numbers.next()??,
            since_ms: numbers.next()??,
            turn: numbers.next()??,
        };
        let units = numbers.next()??;
        numbers.next().is_none().then_some((slot, units))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_round_trips_through_text() {
        let slot = Slot {
            start_ms: 1_763_000_040_000,
            parts: 3,
            since_ms: 1_763_000_000_000,
            turn: 2,
        };
        let text = slot.to_text(5);
        assert_eq!(text, "1763000040000.3.1763000000000.2.5");
        assert_eq!(Slot::from_text(&text), Some((slot, 5)));
        for wrong in ["", "1.2.3.4", "1.2.3.4.5.6", "1.2.3.4.x", "1.2.3.4.-5"] {
            assert_eq!(Slot::from_text(wrong), None, "{wrong}");
        }
    }
}
