//! The descriptor entries that live proxies supply, and the values that they give to them.

use insight::LiveEntries;
use policy::{Descriptor, Name, WHOLE_ADDRESS};

use super::Session;
use crate::{
    bucket::{self, BucketArgs, Pair},
    error::Error,
};

impl Session<'_> {
    /// The entries that live proxies supply.
    pub async fn live_entries(&self) -> Result<LiveEntries, Error> {
        let fleet = self.store.fleet().await;
        let fleet = fleet.map_err(|error| self.failed(&error))?;
        Ok(LiveEntries::of(&fleet))
    }

    /// The values of a bucket as the proxies of a domain have them. Notes what they alter.
    pub async fn as_proxies_have(&self, domain: &Name, pairs: &[Pair]) -> Result<Vec<Pair>, Error> {
        let altered = self.altered(domain, pairs).await?;
        Ok(altered.into_iter().map(|(pair, _)| pair).collect())
    }

    /// As [`Session::as_proxies_have`], for a bucket with the entries that it lacks.
    pub async fn bucket(&self, domain: &Name, bucket: &BucketArgs) -> Result<BucketArgs, Error> {
        Ok(BucketArgs {
            values: self.as_proxies_have(domain, &bucket.values).await?,
            without: bucket.without.clone(),
        })
    }

    /// The request with these entries as a proxy would describe it. Notes what proxies alter.
    pub async fn descriptor<'p>(
        &self,
        pairs: impl IntoIterator<Item = &'p Pair>,
    ) -> Result<Descriptor, Error> {
        let pairs: Vec<Pair> = pairs.into_iter().cloned().collect();
        let as_given = bucket::descriptor(&pairs)?;
        if pairs.is_empty() {
            return Ok(as_given);
        }
        let mut entries = Vec::with_capacity(pairs.len() + 1);
        let is_whole = |pair: &Pair| pair.key == WHOLE_ADDRESS;
        let is_given = pairs.iter().any(is_whole);
        for (pair, whole) in self.altered(&self.domain().await?, &pairs).await? {
            entries.push(pair);
            if let Some(value) = whole.filter(|_| !is_given) {
                let key = WHOLE_ADDRESS.to_owned();
                entries.push(Pair { key, value });
            }
        }
        bucket::descriptor(&entries)
    }

    /// Each pair as proxies have it, and the value that patterns test where that is another.
    async fn altered(
        &self,
        domain: &Name,
        pairs: &[Pair],
    ) -> Result<Vec<(Pair, Option<String>)>, Error> {
        if pairs.is_empty() {
            return Ok(Vec::new());
        }
        // Without it, addresses are cut as filters do by default, which the note says.
        let live = self.live_entries().await.unwrap_or_default();
        let mut altered = Vec::with_capacity(pairs.len());
        for pair in pairs {
            let Pair { key, value } = pair;
            let as_proxies = live
                .alter(domain, key, value.as_bytes())
                .map_err(Error::usage)?;
            if let Some(note) = as_proxies.note {
                self.printer.note(note);
            }
            // The normal form of a path need not be text, and is made again from what was given.
            let value = String::from_utf8(as_proxies.value).unwrap_or_else(|_| value.clone());
            let matched = as_proxies.matched.and_then(|v| String::from_utf8(v).ok());
            let key = key.clone();
            altered.push((Pair { key, value }, matched));
        }
        Ok(altered)
    }
}
