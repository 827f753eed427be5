//! The parts of a check besides its values: leases, slots, costs and settlements.

use policy::{Name, SlotId};

use super::{DecodeError, ReadWords as _, Reader, Table, Writer};
use crate::{
    CostSettlement, Denied, Free, LeaseRequest, LimitCost, MAX_VALUE, Reservation, Settlement, Slot,
};

/// Settlements of one limit, at most. (A bucket has two epochs at a time.)
const MAX_SETTLEMENTS: usize = 16;

pub(super) fn write_lease(writer: &mut Writer, lease: &LeaseRequest, limits: &Table<'_>) {
    writer.array(3);
    limits.write_index(writer, &lease.limit);
    writer.unsigned(lease.want);
    writer.list(lease.settle.iter(), |writer, settlement| {
        writer.array(3);
        writer.unsigned(settlement.epoch);
        writer.unsigned(settlement.spent);
        writer.unsigned(settlement.returned);
    });
}

pub(super) fn read_lease(
    reader: &mut Reader<'_>,
    limits: &[Name],
) -> Result<LeaseRequest, DecodeError> {
    reader.fields(3, |reader| {
        Ok(LeaseRequest {
            limit: reader.indexed(limits)?,
            want: reader.unsigned()?,
            settle: reader.list(MAX_SETTLEMENTS, "settlements", |reader| {
                reader.fields(3, |reader| {
                    Ok(Settlement {
                        epoch: reader.unsigned()?,
                        spent: reader.unsigned()?,
                        returned: reader.unsigned()?,
                    })
                })
            })?,
        })
    })
}

pub(super) fn read_free(reader: &mut Reader<'_>, limits: &[Name]) -> Result<Free, DecodeError> {
    reader.fields(3, |reader| {
        Ok(Free {
            limit: reader.indexed(limits)?,
            slot: reader.slot()?,
            units: reader.unsigned()?,
        })
    })
}

pub(super) fn read_slot_id(reader: &mut Reader<'_>) -> Result<SlotId, DecodeError> {
    reader.fields(2, |reader| {
        Ok(SlotId {
            stamp: reader.unsigned()?,
            secret: reader.unsigned()?,
        })
    })
}

pub(super) fn read_cost(
    reader: &mut Reader<'_>,
    limits: &[Name],
) -> Result<LimitCost, DecodeError> {
    reader.fields(3, |reader| {
        Ok(LimitCost {
            limit: reader.indexed(limits)?,
            units: reader.unsigned()?,
            reserve: reader.boolean()?,
        })
    })
}

pub(super) fn read_settled(
    reader: &mut Reader<'_>,
    limits: &[Name],
) -> Result<CostSettlement, DecodeError> {
    reader.fields(3, |reader| {
        Ok(CostSettlement {
            limit: reader.indexed(limits)?,
            reservation: reader.reservation()?,
            units: reader.unsigned()?,
        })
    })
}

pub(super) fn write_denied(writer: &mut Writer, denied: &[Denied], limits: &Table<'_>) {
    writer.list(denied.iter(), |writer, denied| {
        writer.array(2);
        limits.write_index(writer, &denied.limit);
        writer.unsigned(denied.count);
    });
}

pub(super) fn read_denied(reader: &mut Reader<'_>, limits: &[Name]) -> Result<Denied, DecodeError> {
    reader.fields(2, |reader| {
        Ok(Denied {
            limit: reader.indexed(limits)?,
            count: reader.unsigned()?,
        })
    })
}

/// What checks and answers consist of.
pub(super) trait WriteParts {
    fn reservation(&mut self, reservation: &Reservation);
    fn slot(&mut self, slot: &Slot);
}

/// What checks and answers consist of.
pub(super) trait ReadParts {
    fn reservation(&mut self) -> Result<Reservation, DecodeError>;
    fn slot(&mut self) -> Result<Slot, DecodeError>;
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
}

pub(super) fn read_value(reader: &mut Reader<'_>) -> Result<Vec<u8>, DecodeError> {
    match reader.bytes()? {
        value if value.len() > MAX_VALUE => Err(DecodeError::Bounds("value")),
        value => Ok(value.to_vec()),
    }
}
