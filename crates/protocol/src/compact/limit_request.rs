//! What a check says about one limit.

use policy::Name;

use super::{DecodeError, ReadWords as _, Reader, Table, Writer};
use crate::{
    CostSettlement, Debit, LeaseRequest, LimitCost, LimitRequest, MAX_FREE, MAX_SETTLED,
    Reservation, Settlement, Slot, SlotAct, SlotId, SlotOp,
};

/// Settlements of one lease, at most. (A bucket has two epochs at a time.)
const MAX_SETTLEMENTS: usize = 16;

/// The operations on slots.
const FREE: u64 = 1;
const RENEW: u64 = 2;
const ENTER: u64 = 3;

/// The words of a decision.
pub(super) trait WriteParts {
    fn reservation(&mut self, reservation: &Reservation);
    fn slot(&mut self, slot: &Slot);
}

/// The words of a decision.
pub(super) trait ReadParts {
    fn reservation(&mut self) -> Result<Reservation, DecodeError>;
    fn slot(&mut self) -> Result<Slot, DecodeError>;
    fn slot_id(&mut self) -> Result<SlotId, DecodeError>;
}

impl LimitRequest {
    pub(super) fn write(&self, writer: &mut Writer, limits: &Table<'_>) {
        writer.array(8);
        limits.write_index(writer, &self.limit);
        writer.boolean(self.skip);
        writer.optional(self.cost, |writer, cost| {
            writer.array(2);
            writer.unsigned(cost.units);
            writer.boolean(cost.reserve);
        });
        writer.optional(self.debit, |writer, debit| {
            writer.array(2);
            writer.unsigned(debit.units);
            writer.optional(debit.serial, Writer::unsigned);
        });
        writer.optional(self.lease.as_ref(), |writer, lease| {
            writer.array(2);
            writer.unsigned(lease.want);
            writer.list(lease.settle.iter(), |writer, settlement| {
                writer.array(3);
                writer.unsigned(settlement.epoch);
                writer.unsigned(settlement.spent);
                writer.unsigned(settlement.returned);
            });
        });
        writer.list(self.slots.iter(), |writer, op| {
            let (act, units) = match op.act {
                SlotAct::Free(units) => (FREE, units),
                SlotAct::Renew => (RENEW, 0),
                SlotAct::Enter => (ENTER, 0),
            };
            writer.array(3);
            writer.slot(&op.slot);
            writer.unsigned(act);
            writer.unsigned(units);
        });
        writer.list(self.settle.iter(), |writer, settled| {
            writer.array(2);
            writer.reservation(&settled.reservation);
            writer.unsigned(settled.units);
        });
        writer.unsigned(self.denied);
    }

    /// `first` accepts the position of the entry's limit among `limits`.
    pub(super) fn read(
        reader: &mut Reader<'_>,
        limits: &[Name],
        first: impl FnOnce(usize) -> Result<(), DecodeError>,
    ) -> Result<Self, DecodeError> {
        reader.fields(8, |reader| {
            let at = reader.index()?;
            first(at)?;
            Ok(Self {
                limit: limits.get(at).cloned().ok_or(DecodeError::Index)?,
                skip: reader.boolean()?,
                cost: reader.optional(|reader| {
                    reader.fields(2, |reader| {
                        Ok(LimitCost {
                            units: reader.unsigned()?,
                            reserve: reader.boolean()?,
                        })
                    })
                })?,
                debit: reader.optional(|reader| {
                    reader.fields(2, |reader| {
                        Ok(Debit {
                            units: reader.unsigned()?,
                            serial: reader.optional(Reader::unsigned)?,
                        })
                    })
                })?,
                lease: reader.optional(|reader| {
                    reader.fields(2, |reader| {
                        Ok(LeaseRequest {
                            want: reader.unsigned()?,
                            settle: reader.list(MAX_SETTLEMENTS, "settlements", read_settlement)?,
                        })
                    })
                })?,
                slots: reader.list(MAX_FREE, "slots", read_slot_op)?,
                settle: reader.list(MAX_SETTLED, "settle", |reader| {
                    reader.fields(2, |reader| {
                        Ok(CostSettlement {
                            reservation: reader.reservation()?,
                            units: reader.unsigned()?,
                        })
                    })
                })?,
                denied: reader.unsigned()?,
            })
        })
    }
}

fn read_settlement(reader: &mut Reader<'_>) -> Result<Settlement, DecodeError> {
    reader.fields(3, |reader| {
        Ok(Settlement {
            epoch: reader.unsigned()?,
            spent: reader.unsigned()?,
            returned: reader.unsigned()?,
        })
    })
}

fn read_slot_op(reader: &mut Reader<'_>) -> Result<SlotOp, DecodeError> {
    reader.fields(3, |reader| {
        let slot = reader.slot()?;
        let (act, units) = (reader.unsigned()?, reader.unsigned()?);
        let act = match act {
            FREE => SlotAct::Free(units),
            RENEW => SlotAct::Renew,
            ENTER => SlotAct::Enter,
            _ => return Err(DecodeError::Type),
        };
        Ok(SlotOp { slot, act })
    })
}

impl WriteParts for Writer {
    fn reservation(&mut self, reservation: &Reservation) {
        self.array(4);
        self.unsigned(reservation.secret);
        self.unsigned(reservation.number);
        self.unsigned(reservation.units);
        self.unsigned(reservation.seal);
    }

    fn slot(&mut self, slot: &Slot) {
        self.array(4);
        self.unsigned(slot.start_ms);
        self.unsigned(slot.parts);
        self.unsigned(slot.since_ms);
        self.unsigned(slot.turn);
    }
}

impl ReadParts for Reader<'_> {
    fn reservation(&mut self) -> Result<Reservation, DecodeError> {
        self.fields(4, |reader| {
            Ok(Reservation {
                secret: reader.unsigned()?,
                number: reader.unsigned()?,
                units: reader.unsigned()?,
                seal: reader.unsigned()?,
            })
        })
    }

    fn slot(&mut self) -> Result<Slot, DecodeError> {
        self.fields(4, |reader| {
            Ok(Slot {
                start_ms: reader.unsigned()?,
                parts: reader.unsigned()?,
                since_ms: reader.unsigned()?,
                turn: reader.unsigned()?,
            })
        })
    }

    fn slot_id(&mut self) -> Result<SlotId, DecodeError> {
        self.fields(2, |reader| {
            Ok(SlotId {
                stamp: reader.unsigned()?,
                secret: reader.unsigned()?,
            })
        })
    }
}
