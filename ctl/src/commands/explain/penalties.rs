//! The penalties of the buckets of a request.

use std::collections::BTreeMap;

use policy::{Compiled, Descriptor, Name, Scope};

use crate::{clock, error::Error, penalty::BucketPenalty, session::Session};

/// By limit. Limits without a penalty are left out, and cost no call.
pub(super) async fn of_request(
    session: &Session<'_>,
    compiled: &Compiled,
    descriptor: &Descriptor,
) -> Result<BTreeMap<Name, BucketPenalty>, Error> {
    let mut penalties = BTreeMap::new();
    for found in compiled.matching(descriptor, clock::now_ms()) {
        let limit = found.limit;
        if limit.penalty.is_none() || found.missing.is_some() || limit.scope == Scope::Proxy {
            continue;
        }
        let values = found.values.iter().map(|value| value.map(<[u8]>::to_vec));
        let values: Vec<_> = values.collect();
        let bucket = session.store.inspect(compiled, &limit.name, &values, 1);
        let bucket = bucket.await.map_err(|error| session.check_failed(&error))?;
        let penalty = BucketPenalty::of(limit, &bucket);
        penalties.extend(penalty.map(|penalty| (limit.name.clone(), penalty)));
    }
    Ok(penalties)
}
