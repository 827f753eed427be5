//! envoyproxy/ratelimit's configuration: trees of descriptors, one or more files for a domain.
//!
//! The rules are those of its commit 6bcd4d2f8eda (it has no versions), where a `*` is a wildcard anywhere in a value.
//! Trees become one limit for each descriptor that has a `rate_limit`, and an unlimited one for each
//! that has neither a `rate_limit` nor descriptors below it, because such a descriptor keeps less
//! specific ones from applying.

mod read;
mod rules;
mod write;

use documents::Problems;

use crate::{
    Conversion, File,
    assemble::assemble,
    report::{load_all, yaml},
};

use rules::{Descriptor, Quota, RateLimit, RateLimitConfig, Unit};

/// Reads files; those of one domain are merged, as with `MERGE_DOMAIN_CONFIG`.
pub(crate) fn convert(files: &[File<'_>]) -> Result<Conversion, Vec<Problems>> {
    let mut readings = load_all(files, yaml)?;
    let mut configs: Vec<(usize, RateLimitConfig)> = Vec::new();
    for (file, reading) in readings.iter_mut().enumerate() {
        configs.extend(
            read::configs(reading)
                .into_iter()
                .map(|config| (file, config)),
        );
    }
    let domains = write::domains(&configs, &mut readings);
    assemble(domains, readings)
}
