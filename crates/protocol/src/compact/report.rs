//! Reports of a proxy's decisions without the limiter.

use policy::{Name, Wire as _};
use serde::{Deserialize, Serialize};

use super::{DecodeError, MAX_NAMES, MAX_PROXY, Reader, Table, Writer, read_indexed};
use crate::{DecidedBy, MAX_ENTRIES, Outcome};

/// The decisions that one worker of a proxy made without the limiter since its last report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// The domain.
    pub domain: Name,
    /// The id of the proxy, one Envoy process: a random word.
    pub proxy: String,
    /// The requests that it decided, whatever the number of limits that matched each.
    pub requests: RequestCounts,
    /// How often it made which decision.
    pub tallies: Vec<Tally>,
    /// The buckets that it denied most.
    pub denied: Vec<DeniedBucket>,
}

/// Requests by what became of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct RequestCounts {
    /// Those that passed.
    pub allowed: u64,
    /// Those that some limit denied.
    pub denied: u64,
}

impl RequestCounts {
    /// Adds to both counts.
    pub fn add(&mut self, other: Self) {
        self.allowed = self.allowed.saturating_add(other.allowed);
        self.denied = self.denied.saturating_add(other.denied);
    }
}

/// The number of one limit's decisions with the same outcome and source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tally {
    /// The limit.
    pub limit: Name,
    /// The outcome.
    pub outcome: Outcome,
    /// What decided.
    pub by: DecidedBy,
    /// Requests.
    pub count: u64,
}

/// A bucket that denied requests, and one of those requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeniedBucket {
    /// The limit.
    pub limit: Name,
    /// What decided.
    pub by: DecidedBy,
    /// The approximate number of requests.
    pub count: u64,
    /// How long ago the last one was, in milliseconds.
    pub ago_ms: u64,
    /// The values of the limit's `per`.
    pub bucket: Vec<(Name, Option<Vec<u8>>)>,
    /// The descriptor of one of these requests.
    pub descriptor: Vec<(Name, Vec<u8>)>,
}

/// Tallies in one report, at most.
const MAX_TALLIES: usize = 8192;

impl Report {
    /// Buckets in one report, at most.
    pub const MAX_DENIED: usize = 64;
    /// Bytes of a value in a report, at most: enough for people to recognise it.
    pub const MAX_VALUE: usize = 128;

    /// The report as bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut names = Table::default();
        for tally in &self.tallies {
            names.add(&tally.limit);
        }
        for denied in &self.denied {
            names.add(&denied.limit);
            denied.bucket.iter().for_each(|(name, _)| names.add(name));
            let entries = denied.descriptor.iter();
            entries.for_each(|(name, _)| names.add(name));
        }
        let mut writer = Writer::default();
        writer.array(7);
        self.domain.write(&mut writer);
        writer.text(&self.proxy);
        names.write(&mut writer);
        writer.list(self.tallies.iter(), |writer, tally| {
            writer.array(4);
            names.write_index(writer, &tally.limit);
            writer.text(tally.outcome.word());
            writer.text(tally.by.word());
            writer.unsigned(tally.count);
        });
        writer.list(self.denied.iter(), |writer, denied| {
            denied.write(writer, &names);
        });
        writer.unsigned(self.requests.allowed);
        writer.unsigned(self.requests.denied);
        writer.0
    }

    /// Reads a report. Leaves out decisions with outcomes or sources that only a later version has.
    ///
    /// # Errors
    /// What is wrong with the bytes.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        Reader::new(bytes).fields(7, |reader| {
            let domain = Name::read(reader)?;
            let proxy = reader.text()?;
            if proxy.len() > MAX_PROXY {
                return Err(DecodeError::Bounds("proxy"));
            }
            let names = reader.list(MAX_NAMES, "names", Name::read)?;
            let tallies = reader.list(MAX_TALLIES, "tallies", |reader| {
                reader.fields(4, |reader| Tally::read(reader, &names))
            })?;
            let denied = reader.list(Self::MAX_DENIED, "buckets", |reader| {
                reader.fields(6, |reader| DeniedBucket::read(reader, &names))
            })?;
            let (allowed, denied_requests) = (reader.unsigned()?, reader.unsigned()?);
            Ok(Self {
                domain,
                proxy: proxy.to_owned(),
                requests: RequestCounts {
                    allowed,
                    denied: denied_requests,
                },
                tallies: tallies.into_iter().flatten().collect(),
                denied: denied.into_iter().flatten().collect(),
            })
        })
    }
}

impl Tally {
    fn read(reader: &mut Reader<'_>, names: &[Name]) -> Result<Option<Self>, DecodeError> {
        let limit = read_indexed(reader, names)?;
        let outcome = Outcome::from_word(reader.text()?);
        let by = DecidedBy::from_word(reader.text()?);
        let count = reader.unsigned()?;
        let (Some(outcome), Some(by)) = (outcome, by) else {
            return Ok(None);
        };
        Ok(Some(Self {
            limit,
            outcome,
            by,
            count,
        }))
    }
}

impl DeniedBucket {
    fn write(&self, writer: &mut Writer, names: &Table<'_>) {
        writer.array(6);
        names.write_index(writer, &self.limit);
        writer.text(self.by.word());
        writer.unsigned(self.count);
        writer.unsigned(self.ago_ms);
        writer.list(self.bucket.iter(), |writer, (name, value)| {
            writer.array(2);
            names.write_index(writer, name);
            writer.optional(value.as_deref(), |writer, value| {
                writer.bytes(cut(value));
            });
        });
        writer.list(self.descriptor.iter(), |writer, (name, value)| {
            writer.array(2);
            names.write_index(writer, name);
            writer.bytes(cut(value));
        });
    }

    fn read(reader: &mut Reader<'_>, names: &[Name]) -> Result<Option<Self>, DecodeError> {
        let limit = read_indexed(reader, names)?;
        let by = DecidedBy::from_word(reader.text()?);
        let (count, ago_ms) = (reader.unsigned()?, reader.unsigned()?);
        let bucket = reader.list(MAX_ENTRIES, "bucket", |reader| {
            reader.fields(2, |reader| {
                let name = read_indexed(reader, names)?;
                let value = reader.optional(Reader::bytes)?;
                Ok((name, value.map(|value| cut(value).to_vec())))
            })
        })?;
        let descriptor = reader.list(MAX_ENTRIES, "descriptor", |reader| {
            reader.fields(2, |reader| {
                let name = read_indexed(reader, names)?;
                Ok((name, cut(reader.bytes()?).to_vec()))
            })
        })?;
        Ok(by.map(|by| Self {
            limit,
            by,
            count,
            ago_ms,
            bucket,
            descriptor,
        }))
    }
}

fn cut(value: &[u8]) -> &[u8] {
    value.get(..Report::MAX_VALUE).unwrap_or(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> Name {
        text.parse().unwrap()
    }

    fn report() -> Report {
        let tally = |outcome, by, count| Tally {
            limit: name("per-user"),
            outcome,
            by,
            count,
        };
        Report {
            domain: name("shop"),
            proxy: "p1".to_owned(),
            requests: RequestCounts {
                allowed: u64::MAX,
                denied: 38,
            },
            tallies: vec![
                tally(Outcome::Denied, DecidedBy::DenyCache, 40),
                tally(Outcome::Allowed, DecidedBy::Lease, u64::MAX),
            ],
            denied: vec![DeniedBucket {
                limit: name("per-user"),
                by: DecidedBy::DenyCache,
                count: 40,
                ago_ms: 17,
                bucket: vec![
                    (name("user"), Some(b"al\xffice".to_vec())),
                    (name("x"), None),
                ],
                descriptor: vec![(name("path"), b"/a".to_vec())],
            }],
        }
    }

    #[test]
    fn reports_round_trip() {
        assert_eq!(Report::decode(&report().encode()), Ok(report()));
    }

    #[test]
    fn long_values_are_cut() {
        let mut long = report();
        long.denied[0].descriptor[0].1 = vec![b'a'; 100_000];
        let bytes = long.encode();
        assert!(bytes.len() < 400, "{}", bytes.len());
        let read = Report::decode(&bytes).unwrap();
        assert_eq!(read.denied[0].descriptor[0].1.len(), Report::MAX_VALUE);
    }

    #[test]
    fn a_report_skips_tallies_with_an_unknown_decision_source() {
        let bytes = report().encode();
        let at = bytes.windows(5).position(|w| w == b"lease").unwrap();
        let mut later = bytes;
        later[at..at + 5].copy_from_slice(b"magic");
        assert_eq!(Report::decode(&later).unwrap().tallies.len(), 1);
    }
}
