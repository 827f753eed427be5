//! What a request costs at a limit whose `cost` is not one number: units that the request or its
//! descriptor names, or that are reserved when the request comes and settled when its response ends.

use std::fmt;

use crate::{Entries, Limit, Matcher};

/// The largest cost of one request, in units.
pub const MAX_COST: u64 = 1_000_000_000_000;

/// A `cost` with fields.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Pricing {
    /// Known when the request comes.
    Request(RequestPrice),
    /// Known when the response ends.
    Response(ResponsePrice),
}

/// A cost that is known when the request comes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestPrice {
    /// The first that has a value is the cost.
    pub from: Vec<RequestValue>,
    /// Without such a value: the first row that matches the descriptor is the cost; where it may be
    /// another, the dearest of them.
    pub table: Vec<Row>,
    /// Without either, in units.
    pub default: u64,
}

/// A number in a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestValue {
    /// Where it is.
    pub place: RequestPlace,
    /// A smaller number counts as this.
    pub min: u64,
    /// A larger number counts as this.
    pub max: u64,
}

/// Where a number of a request is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RequestPlace {
    /// In a header, by its name in lower case.
    Header(String),
    /// In the body: JSON. Only reserves are read from there.
    Json(Pointer),
}

/// The cost of requests that match.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// Every matcher must hold, as a limit's.
    pub matchers: Vec<Matcher>,
    /// Units.
    pub units: u64,
}

/// A cost that is known when the response ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResponsePrice {
    /// The first that has a value is the cost.
    pub from: Vec<Source>,
    /// What is charged when the request comes.
    pub reserve: Reserve,
    /// The cost if the response's status is from 400 to 599, in units; `None`: the sources decide.
    pub on_error: Option<u64>,
    /// The cost if no source has a value, or if the response did not end.
    pub if_absent: IfAbsent,
    /// The most that a response costs, in units: more counts as this.
    pub max: u64,
}

/// Units that are charged when the request comes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reserve {
    /// The first that has a value.
    pub from: Vec<RequestValue>,
    /// Units, if none has; at least 1.
    pub default: u64,
    /// The most, in percent of what a bucket holds (1 to 100).
    pub cap_percent: u32,
}

/// Where the cost of a response is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// A sum of numbers: it has a value if one of them has.
    Sum(Vec<Term>),
    /// The status.
    Status {
        /// The statuses that cost, as ranges (`from`, `to`), both included.
        of: Vec<(u16, u16)>,
        /// What they cost, in units; others cost nothing.
        units: u64,
    },
}

/// A number in a response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Term {
    /// Where it is.
    pub place: ResponseValue,
    /// What it is multiplied by, at least 1.
    pub weight: u64,
}

/// Where a number of a response is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ResponseValue {
    /// In the body: JSON, or the last of its server-sent events that has it.
    Json(Pointer),
    /// In a header, by its name in lower case.
    Header(String),
    /// In a trailer, by its name in lower case.
    Trailer(String),
    /// In Envoy's dynamic metadata: the namespace, and the keys from there.
    Metadata(Vec<String>),
}

/// The cost of a response that does not state it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum IfAbsent {
    /// A quarter of the bytes of its body, at least what was reserved. If these bytes say nothing,
    /// because the body is compressed for instance, as [`IfAbsent::Max`]: the client may have chosen that.
    #[default]
    Estimate,
    /// The most that a response costs.
    Max,
    /// What was reserved.
    Reserved,
    /// So many units.
    Units(u64),
}

impl RequestValue {
    /// Whether the request's body has it.
    pub fn is_in_body(&self) -> bool {
        matches!(self.place, RequestPlace::Json(_))
    }
}

impl RequestPrice {
    /// What a request costs, in units. `number` returns the number in a place, `entries` the
    /// descriptor.
    pub fn units(
        &self,
        number: impl Fn(&RequestPlace) -> Option<u64>,
        entries: &(impl Entries + ?Sized),
    ) -> u64 {
        let said = first_value(&self.from, number);
        said.unwrap_or_else(|| {
            // In doubt about rows, the dearest counts: no client pays less for sending a header twice.
            let mut dearest = 0;
            for row in &self.table {
                let value = |matcher: &Matcher| entries.get(matcher.entry.as_str());
                let mut matchers = row.matchers.iter();
                if matchers.clone().all(|of| of.holds(value(of))) {
                    dearest = dearest.max(row.units);
                    if matchers.all(|of| of.is_certain(value(of))) {
                        return dearest;
                    }
                }
            }
            dearest.max(self.default)
        })
    }
}

impl Reserve {
    /// What a request reserves in a bucket of so many units: at least 1. `number` returns the
    /// number in a place.
    pub fn units(&self, capacity: u64, number: impl Fn(&RequestPlace) -> Option<u64>) -> u64 {
        self.capped(self.wanted(number), capacity)
    }

    /// What a request is to reserve, before a bucket cuts it: at least 1.
    pub fn wanted(&self, number: impl Fn(&RequestPlace) -> Option<u64>) -> u64 {
        // A denial is known for 1 unit and more: for none, each request would be asked again.
        first_value(&self.from, number)
            .unwrap_or(self.default)
            .max(1)
    }

    /// The pointers into the request's body.
    pub fn pointers(&self) -> impl Iterator<Item = &Pointer> {
        self.from.iter().filter_map(|value| match &value.place {
            RequestPlace::Json(pointer) => Some(pointer),
            RequestPlace::Header(_) => None,
        })
    }

    /// Units, cut to what a bucket of `capacity` units gives to one request; at least 1.
    pub fn capped(&self, units: u64, capacity: u64) -> u64 {
        let most = u128::from(capacity) * u128::from(self.cap_percent) / 100;
        let most = u64::try_from(most).unwrap_or(u64::MAX);
        units.min(most).max(1)
    }
}

impl ResponsePrice {
    /// The cost of a response that does not state it, in units, before `max` cuts it: from the units
    /// reserved, the bytes of its body that passed (`None`: they say nothing) and what the bucket holds.
    pub fn absent(&self, reserved: u64, bytes: Option<u64>, capacity: u64) -> u64 {
        match (self.if_absent, bytes) {
            (IfAbsent::Estimate, Some(bytes)) => (bytes / 4).max(reserved),
            (IfAbsent::Estimate | IfAbsent::Max, _) => self.most(capacity).max(reserved),
            (IfAbsent::Reserved, _) => reserved,
            (IfAbsent::Units(units), _) => units,
        }
    }

    /// The most that a response costs in a bucket of so many units. Without `max` that is all of them:
    /// a larger cost would be no worse a price, only a longer debt.
    fn most(&self, capacity: u64) -> u64 {
        match self.from.as_slice() {
            [Source::Status { units, .. }] => *units,
            _ if self.has_max() => self.max,
            _ => capacity,
        }
    }

    /// Units, cut to `max`.
    pub fn cut(&self, units: u64) -> u64 {
        units.min(self.max)
    }

    /// Whether `max` is set.
    pub fn has_max(&self) -> bool {
        self.max < MAX_COST
    }

    /// Whether the status alone decides the cost.
    pub fn has_status(&self) -> bool {
        matches!(self.from.as_slice(), [Source::Status { .. }])
    }

    /// Whether the cost depends on the body: on a number in it or on its length.
    pub fn needs_body(&self) -> bool {
        self.if_absent == IfAbsent::Estimate || self.has_json()
    }

    /// Whether a source is in the body.
    pub fn has_json(&self) -> bool {
        self.is_any(|place| matches!(place, ResponseValue::Json(_)))
    }

    /// Whether a source is a trailer.
    pub fn has_trailer(&self) -> bool {
        self.is_any(|place| matches!(place, ResponseValue::Trailer(_)))
    }

    fn is_any(&self, wanted: fn(&ResponseValue) -> bool) -> bool {
        self.terms().any(|term| wanted(&term.place))
    }

    /// The numbers in the response that the cost is made of.
    pub fn terms(&self) -> impl Iterator<Item = &Term> {
        self.from.iter().flat_map(|source| match source {
            Source::Sum(terms) => terms.as_slice(),
            Source::Status { .. } => &[],
        })
    }

    /// The cost by the sources, in units, before `max` cuts it; `None`: none has a value.
    pub fn said(&self, status: u16, value: impl Fn(&ResponseValue) -> Option<u64>) -> Option<u64> {
        let of_source = |source: &Source| match source {
            Source::Status { of, units } => {
                let costs = of.iter().any(|(from, to)| (*from..=*to).contains(&status));
                Some(if costs { *units } else { 0 })
            }
            Source::Sum(terms) => {
                let found = terms.iter().filter_map(|term| {
                    let number = value(&term.place)?;
                    Some(number.saturating_mul(term.weight))
                });
                found.reduce(u64::saturating_add)
            }
        };
        self.from.iter().find_map(of_source)
    }
}

fn first_value(
    from: &[RequestValue],
    number: impl Fn(&RequestPlace) -> Option<u64>,
) -> Option<u64> {
    let value = |source: &RequestValue| Some(number(&source.place)?.clamp(source.min, source.max));
    from.iter().find_map(value)
}

/// Reads a number of digits only; one too large for 64 bits counts as the largest.
pub fn whole_number(text: &[u8]) -> Option<u64> {
    let digits = text.trim_ascii();
    if digits.is_empty() {
        return None;
    }
    digits.iter().try_fold(0_u64, |number, digit| {
        let digit = digit.is_ascii_digit().then(|| u64::from(digit - b'0'))?;
        Some(number.saturating_mul(10).saturating_add(digit))
    })
}

impl Limit {
    /// The conditions in the rows of a table.
    pub(crate) fn priced_by(&self) -> impl Iterator<Item = &Matcher> {
        let table = match self.pricing.as_deref() {
            Some(Pricing::Request(price)) => price.table.as_slice(),
            _ => &[],
        };
        table.iter().flat_map(|row| &row.matchers)
    }

    /// Whether its cost is reserved when the request comes and settled when the response ends.
    pub fn settles(&self) -> bool {
        self.response_price().is_some()
    }

    /// Its cost, if the response states it.
    pub fn response_price(&self) -> Option<&ResponsePrice> {
        match self.pricing.as_deref()? {
            Pricing::Response(price) => Some(price),
            Pricing::Request(_) => None,
        }
    }

    /// The cost of a program's request without units of its own, or of a proxy's of which only the
    /// descriptor is known: the table's, the reserve in a bucket of so many units, or the limit's
    /// number.
    pub fn units_of(&self, entries: &(impl Entries + ?Sized), capacity: u64) -> u64 {
        match self.pricing.as_deref() {
            None => self.cost,
            Some(Pricing::Request(price)) => price.units(|_| None, entries),
            Some(Pricing::Response(price)) => price.reserve.units(capacity, |_| None),
        }
    }
}

/// Bound: JSON pointers that the costs of one request read. Beyond it, a limit with more is refused
/// when it is written; of several limits, the numbers of later ones count as absent, of which `validate` warns.
pub const MAX_POINTERS: usize = 30;
/// The most parts of a pointer.
pub const MAX_TOKENS: usize = 8;
/// The longest pointer, in bytes.
const MAX_LEN: usize = 200;

/// A JSON pointer (RFC 6901): the path to a value in a document, such as `/usage/total_tokens`; not to the document itself.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Pointer {
    tokens: Vec<String>,
}

impl Pointer {
    /// Reads a pointer; `None`: invalid, or too long.
    pub fn parse(text: &str) -> Option<Self> {
        let path = text.strip_prefix('/').filter(|_| text.len() <= MAX_LEN)?;
        let tokens = path.split('/').map(unescape);
        Self::new(tokens.collect::<Option<_>>()?)
    }

    /// The pointer of these keys and indexes; `None`: none, or too many.
    pub fn new(tokens: Vec<String>) -> Option<Self> {
        (1..=MAX_TOKENS)
            .contains(&tokens.len())
            .then_some(Self { tokens })
    }

    /// The keys and indexes on the way; at least one.
    pub fn tokens(&self) -> &[String] {
        &self.tokens
    }
}

fn unescape(token: &str) -> Option<String> {
    let mut parts = token.split('~');
    let mut plain = parts.next()?.to_owned();
    for part in parts {
        let (character, rest) = match part.as_bytes().first()? {
            b'0' => ('~', part.strip_prefix('0')?),
            b'1' => ('/', part.strip_prefix('1')?),
            _ => return None,
        };
        plain.push(character);
        plain.push_str(rest);
    }
    Some(plain)
}

impl fmt::Display for Pointer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut tokens = self.tokens.iter();
        tokens.try_for_each(|token| {
            let escaped = token.replace('~', "~0").replace('/', "~1");
            write!(f, "/{escaped}")
        })
    }
}
