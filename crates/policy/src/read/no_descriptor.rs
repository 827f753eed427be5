//! In the filter: its snapshots have no limits of the rate limit service.

use documents::{Field, Take};

use crate::DescriptorLimit;

pub(super) fn read_descriptor(_: &mut Take<'_, '_>, _: &Field<'_>) -> Option<Box<DescriptorLimit>> {
    None
}
