//! Where a line of a log has what, and the request that a line stands for.

use std::{fmt, str::FromStr};

use policy::{
    Address, DEFAULT_PREFIXES, Descriptor, MULTIPLE_VALUES, Name, REMOTE_ADDRESS, WHOLE_ADDRESS,
    hashed, normal_value, whole_number,
};
use protocol::MAX_VALUE;
use regex::bytes::Regex;
use serde::{Serialize, Serializer};

use crate::{
    Request, Service,
    json::Tree,
    text::{self, Named},
    time::{self, END_MS, thousandths, time_ms},
};

/// The form of a log's lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Format {
    /// A JSON object a line.
    Json,
    /// Envoy's default text, or Istio's.
    Envoy,
    /// NGINX's and Apache's combined format, or the common one.
    Combined,
    /// What a regular expression matches.
    Pattern,
}

impl Format {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Json => "json",
            Self::Envoy => "envoy",
            Self::Combined => "combined",
            Self::Pattern => "pattern",
        }
    }
}

/// What a line says about a request, beside the entries that limits name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Field {
    /// When it started.
    Time,
    /// When it ended.
    EndTime,
    /// Milliseconds that it took.
    Duration,
    /// Seconds that it took.
    DurationS,
    /// Milliseconds until its service's answer began.
    ServiceTime,
    /// Seconds until then.
    ServiceTimeS,
    /// Its method.
    Method,
    /// Its path, with the query.
    Path,
    /// Its host.
    Host,
    /// The client's address.
    Address,
    /// `X-Forwarded-For`, as it was sent on.
    Forwarded,
    /// The name of its route.
    Route,
    /// The status of its response.
    Status,
    /// Bytes of its response's body.
    BytesSent,
}

const FIELDS: usize = 14;

impl Field {
    /// Each field, its name on the command line, and the keys under which logs in JSON usually have it, the
    /// best first: Envoy's own examples, Istio, Envoy Gateway, NGINX, Caddy. A slash leads into an object.
    pub(crate) const ALL: [(Self, &'static str, &'static [&'static str]); FIELDS] = [
        (
            Self::Time,
            "time",
            &["start_time", "time", "timestamp", "@timestamp", "ts"],
        ),
        (
            Self::EndTime,
            "end_time",
            &["end_time", "time_iso8601", "time_local", "msec"],
        ),
        (Self::Duration, "duration", &["duration", "duration_ms"]),
        (
            Self::DurationS,
            "duration_s",
            &["request_time", "duration_s"],
        ),
        (
            Self::ServiceTime,
            "service_time",
            &[
                "upstream_service_time",
                "x-envoy-upstream-service-time",
                "x_envoy_upstream_service_time",
                "response_duration",
            ],
        ),
        (
            Self::ServiceTimeS,
            "service_time_s",
            &["upstream_header_time"],
        ),
        (
            Self::Method,
            "method",
            &["method", ":method", "request_method", "request/method"],
        ),
        (
            Self::Path,
            "path",
            &[
                "x-envoy-origin-path",
                "x-envoy-original-path",
                "path",
                ":path",
                "request_uri",
                "uri",
                "request/uri",
            ],
        ),
        (
            Self::Host,
            "host",
            &[
                "authority",
                ":authority",
                "host",
                "http_host",
                "request/host",
            ],
        ),
        (
            Self::Address,
            "remote_address",
            &[
                "downstream_remote_address",
                "remote_address",
                "remote_addr",
                "request/client_ip",
                "request/remote_ip",
            ],
        ),
        (
            Self::Forwarded,
            "forwarded_for",
            &[
                "x_forwarded_for",
                "x-forwarded-for",
                "forwarded_for",
                "http_x_forwarded_for",
            ],
        ),
        (Self::Route, "route", &["route_name", "route"]),
        (
            Self::Status,
            "status",
            &["response_code", "status", "status_code", "code"],
        ),
        (
            Self::BytesSent,
            "bytes_sent",
            &["bytes_sent", "body_bytes_sent", "size"],
        ),
    ];

    fn named(name: &str) -> Option<Self> {
        let named = Self::ALL.into_iter().find(|(_, known, _)| *known == name);
        named.map(|(field, ..)| field)
    }
}

/// Fields of two units or meanings: the second counts where a line lacks the first.
const PAIRS: [(Field, Field); 3] = [
    (Field::Time, Field::EndTime),
    (Field::Duration, Field::DurationS),
    (Field::ServiceTime, Field::ServiceTimeS),
];

/// What the name of Caddy's logger for requests begins with. Its lines have the time of the end where others have
/// that of the start, and seconds where others have milliseconds.
const CADDY: &[u8] = b"http.log.access";

/// What the names of Caddy's other loggers begin with whose lines have a request: one that has a line of its own, or one
/// of the admin API.
const CADDYS_OTHERS: [&[u8]; 2] = [b"http.", b"admin."];

/// The keys under which programs say what happened, in a log of their own that may go to the same output.
const MESSAGE: [&str; 3] = ["msg", "message", "Message"];

impl FromStr for Field {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        Self::named(name).ok_or_else(|| {
            let known: Vec<&str> = Self::ALL.iter().map(|(_, name, _)| *name).collect();
            format!("a field is one of {}", known.join(", "))
        })
    }
}

/// Where a line has a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Where {
    /// At a JSON pointer.
    Pointer(String),
    /// A parameter of the path's query.
    Query(String),
    /// What the format calls so: a value of a text format, a group of the regular expression.
    Named(String),
}

impl FromStr for Where {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Ok(match text.strip_prefix("query:") {
            Some("") => return Err("`query:` is followed by a parameter's name".to_owned()),
            Some(key) => Self::Query(key.to_owned()),
            None if text.starts_with('/') => Self::Pointer(text.to_owned()),
            None if text.is_empty() => return Err("it is empty".to_owned()),
            None => Self::Named(text.to_owned()),
        })
    }
}

impl fmt::Display for Where {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pointer(text) | Self::Named(text) => f.write_str(text),
            Self::Query(key) => write!(f, "query:{key}"),
        }
    }
}

/// Where the lines of logs have what.
#[derive(Clone, Debug, Default)]
pub struct Layout {
    /// The format; `None`: by the first lines.
    pub format: Option<Format>,
    /// The regular expression of [`Format::Pattern`].
    pub pattern: Option<Regex>,
    /// The entries of descriptors that are read, sorted. Those of every proxy come from the fields; others are
    /// under their own name unless `entries` says where.
    pub needed: Vec<Name>,
    /// Where entries are.
    pub entries: Vec<(Name, Where)>,
    /// Where fields are.
    pub fields: Vec<(Field, Where)>,
    /// Where further numbers are.
    pub costs: Vec<Where>,
    /// How many proxies that are trusted stand before the one that wrote the log (`xff_num_trusted_hops`).
    pub trusted_hops: usize,
    /// To how many bits IPv4 and IPv6 addresses are cut; `None`: as filters do by default.
    pub prefixes: Option<[u8; 2]>,
    /// Entries whose values are hashed.
    pub hashed: Vec<Name>,
}

/// A layout that contradicts itself.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct LayoutError(String);

/// Why a line is not read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unreadable {
    /// It is empty, or begins with what no format begins with.
    #[error("begins like no access log")]
    Unknown,
    /// It is no JSON object, or not UTF-8.
    #[error("is no JSON object")]
    Json,
    /// It is no line of Envoy's.
    #[error("is not in Envoy's default format")]
    Envoy,
    /// It is no line of the combined format.
    #[error("is not in the combined format")]
    Combined,
    /// The regular expression does not match.
    #[error("does not match the pattern")]
    Pattern,
    /// It has no time, one in an unknown form, or one after the year 9998.
    #[error("has no time that can be read")]
    Time,
    /// Its time is far from those of the lines around it: a clock was wrong.
    #[error("has a time more than a year from those of the lines around it")]
    Astray,
    /// It is too long.
    #[error("is longer than 1 MiB")]
    TooLong,
}

impl Serialize for Unreadable {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// Where an entry's value comes from.
#[derive(Clone, Debug)]
enum Source {
    Field(Field),
    Address,
    WholeAddress,
    Slot(usize),
    Query(String),
}

/// Values of one line, by slot: first the fields, then what was named.
#[derive(Debug, Default)]
pub(crate) struct Values {
    text: Vec<u8>,
    slots: Vec<Slot>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Slot {
    start: usize,
    end: usize,
    /// 0: no value. Else the smaller the better.
    rank: u8,
    /// The line has a place for the value, and none there.
    null: bool,
}

impl Values {
    fn clear(&mut self, slots: usize) {
        self.text.clear();
        self.slots.clear();
        self.slots.resize(slots, Slot::default());
    }

    /// Sets a value, unless there is one of a better rank (from 1). A dash is how logs write that there is none, and
    /// nothing is how NGINX writes it in JSON.
    pub(crate) fn set(&mut self, slot: usize, rank: u8, value: &[u8]) {
        if matches!(value, b"-" | b"") {
            return self.set_null(slot);
        }
        if let Some(found) = self.slots.get_mut(slot)
            && (found.rank == 0 || rank < found.rank)
        {
            let start = self.text.len();
            self.text.extend_from_slice(value);
            (found.start, found.end, found.rank) = (start, self.text.len(), rank);
        }
    }

    /// The line has a slot's place, and no value there.
    pub(crate) fn set_null(&mut self, slot: usize) {
        if let Some(found) = self.slots.get_mut(slot) {
            found.null = true;
        }
    }

    /// Whether the line has a place for a field, and none there.
    fn lacks(&self, field: Field) -> bool {
        let slot = self.slots.get(field as usize);
        slot.is_some_and(|slot| slot.null && slot.rank == 0)
    }

    /// Whether the line has no value but in these slots, where it has some.
    fn has_only(&self, slots: &[usize]) -> bool {
        let mut found = self.slots.iter().enumerate();
        found.all(|(at, slot)| slot.rank == 0 || slots.contains(&at))
    }

    /// Whether the line has places for a request, and none there: it is about a connection.
    fn is_of_connection(&self) -> bool {
        self.lacks(Field::Method) && self.of(Field::Path).is_none()
    }

    fn service(&self) -> Service {
        let took = (self.of(Field::ServiceTime).and_then(time::whole))
            .or_else(|| thousandths(self.of(Field::ServiceTimeS)?));
        match took {
            Some(ms) => Service::Took(ms),
            None if self.lacks(Field::ServiceTime) || self.lacks(Field::ServiceTimeS) => {
                Service::Silent
            }
            None => Service::Unknown,
        }
    }

    /// Has a value count as another field's, which has none.
    fn move_value(&mut self, from: Field, to: Field) {
        let [from, to] = [from as usize, to as usize];
        if let Ok([from, to]) = self.slots.get_disjoint_mut([from, to])
            && to.rank == 0
        {
            std::mem::swap(from, to);
        }
    }

    pub(crate) fn field(&mut self, field: Field, value: &[u8]) {
        self.set(field as usize, 1, value);
    }

    fn get(&self, slot: usize) -> Option<&[u8]> {
        let found = self.slots.get(slot).filter(|slot| slot.rank > 0)?;
        self.text.get(found.start..found.end)
    }

    fn of(&self, field: Field) -> Option<&[u8]> {
        self.get(field as usize)
    }
}

/// Reads the lines of logs in one format.
#[derive(Debug)]
pub(crate) struct Reader {
    pub(crate) format: Format,
    entries: Vec<(Name, Source, bool)>,
    costs: Vec<Source>,
    trusted_hops: usize,
    prefixes: [u8; 2],
    slots: usize,
    /// The slots of the name of the logger and of a message.
    program: Option<[usize; 2]>,
    /// Of [`PAIRS`], those of which a line of Caddy's has the second under the first's usual keys.
    of_caddy: Vec<(Field, Field)>,
    tree: Tree,
    named: Named,
    pattern: Option<Regex>,
    values: Values,
    /// Whether the time of the last request was written as a whole second.
    pub(crate) whole_second: bool,
    /// How many requests have each entry, in the order of `entries`.
    pub(crate) found: Vec<u64>,
}

impl Layout {
    /// Checks what can be checked without a log.
    ///
    /// # Errors
    /// The first contradiction.
    pub fn check(&self) -> Result<(), LayoutError> {
        if self.format == Some(Format::Pattern) && self.pattern.is_none() {
            return Err(LayoutError(
                "the format `pattern` needs a pattern".to_owned(),
            ));
        }
        let formats = match (self.format, &self.pattern) {
            (_, Some(_)) => vec![Format::Pattern],
            (Some(format), None) => vec![format],
            (None, None) => vec![Format::Json, Format::Envoy, Format::Combined],
        };
        // What is said must fit one of the formats that the logs may have.
        let mut first = None;
        for format in formats {
            match Reader::new(self, format) {
                Ok(_) => return Ok(()),
                Err(error) => first = first.or(Some(error)),
            }
        }
        first.map_or(Ok(()), Err)
    }

    /// Where an entry's value comes from, for people.
    pub fn describe(&self, entry: &Name, format: Format) -> String {
        let mut given = self.entries.iter().filter(|(name, _)| name == entry);
        if let Some((_, place)) = given.next() {
            return place.to_string();
        }
        let named = |field: Field| {
            let field = self.fields.iter().find(|(known, _)| *known == field);
            field.map(|(_, place)| place.to_string())
        };
        match entry.as_str() {
            REMOTE_ADDRESS | WHOLE_ADDRESS => named(Field::Address)
                .or_else(|| named(Field::Forwarded))
                .unwrap_or_else(|| "the client's address".to_owned()),
            name => match (Field::named(name), format) {
                (Some(field), _) => named(field).unwrap_or_else(|| format!("the {name}")),
                (None, Format::Json) => format!("/{name}"),
                (None, _) => name.to_owned(),
            },
        }
    }
}

/// The field that an entry of every proxy comes from.
fn built_in(entry: &str) -> Option<Source> {
    Some(match entry {
        "method" => Source::Field(Field::Method),
        "path" => Source::Field(Field::Path),
        "host" => Source::Field(Field::Host),
        "route" => Source::Field(Field::Route),
        REMOTE_ADDRESS => Source::Address,
        WHOLE_ADDRESS => Source::WholeAddress,
        _ => return None,
    })
}

impl Reader {
    pub(crate) fn new(layout: &Layout, format: Format) -> Result<Self, LayoutError> {
        let mut reader = Self {
            format,
            entries: Vec::new(),
            costs: Vec::new(),
            trusted_hops: layout.trusted_hops,
            prefixes: layout.prefixes.unwrap_or(DEFAULT_PREFIXES),
            slots: FIELDS,
            program: None,
            of_caddy: Vec::new(),
            tree: Tree::default(),
            named: Named::default(),
            pattern: layout.pattern.clone(),
            values: Values::default(),
            whole_second: false,
            found: vec![0; layout.needed.len()],
        };
        for (field, place) in &layout.fields {
            reader.place(place, *field as usize)?;
        }
        let given = |field| layout.fields.iter().any(|(known, _)| *known == field);
        for (field, name, keys) in Field::ALL {
            let pair = PAIRS.iter().find(|(first, _)| *first == field);
            // Whoever says where the second is means that the first's usual key has something else, or the same.
            if given(field) || pair.is_some_and(|(_, second)| given(*second)) {
                continue;
            }
            match format {
                Format::Json => {
                    let of_caddy = pair.filter(|(first, _)| *first != Field::ServiceTime);
                    reader.of_caddy.extend(of_caddy);
                    for (rank, key) in (1_u8..).zip(keys) {
                        reader.tree.add(key.split('/'), field as usize, rank);
                    }
                }
                Format::Pattern => reader.group(name, field as usize),
                Format::Envoy | Format::Combined => {}
            }
        }
        if format == Format::Json {
            reader.place_program();
        }
        for entry in &layout.needed {
            let given = layout.entries.iter().find(|(name, _)| name == entry);
            let source = match given {
                Some((_, place)) => reader.source(place)?,
                None => match built_in(entry.as_str()) {
                    Some(source) => source,
                    None => reader.own_name(entry.as_str()),
                },
            };
            let hashed = layout.hashed.contains(entry);
            reader.entries.push((entry.clone(), source, hashed));
        }
        for place in &layout.costs {
            let source = reader.source(place)?;
            reader.costs.push(source);
        }
        Ok(reader)
    }

    /// Has the name of the logger and a message put into slots.
    fn place_program(&mut self) {
        let [logger, message] = [self.slots, self.slots + 1];
        self.tree.add(["logger"], logger, 1);
        for key in MESSAGE {
            self.tree.add([key], message, 1);
        }
        self.program = Some([logger, message]);
        self.slots += 2;
    }

    fn source(&mut self, place: &Where) -> Result<Source, LayoutError> {
        if let Where::Query(key) = place {
            return Ok(Source::Query(key.clone()));
        }
        let slot = self.slots;
        self.slots += 1;
        self.place(place, slot)?;
        Ok(Source::Slot(slot))
    }

    /// Has what is at a place put into a slot.
    fn place(&mut self, place: &Where, slot: usize) -> Result<(), LayoutError> {
        let wrong = |what: String| Err(LayoutError(what));
        let format = self.format.name();
        match (place, self.format) {
            (Where::Pointer(pointer), Format::Json) => {
                let keys: Vec<String> = { pointer.split('/').skip(1) }
                    .map(|key| key.replace("~1", "/").replace("~0", "~"))
                    .collect();
                self.tree.add(keys.iter().map(String::as_str), slot, 1);
            }
            (Where::Pointer(pointer), _) => {
                return wrong(format!(
                    "`{pointer}` is a place in JSON; the format is {format}"
                ));
            }
            (Where::Named(name), Format::Json) => {
                return wrong(format!(
                    "`{name}` is no JSON pointer; it begins with `/`, like /{name}"
                ));
            }
            (Where::Named(name), Format::Pattern) => {
                let pattern = self.pattern.iter();
                let groups: Vec<&str> = { pattern }
                    .flat_map(|p| p.capture_names().flatten())
                    .collect();
                if !groups.contains(&name.as_str()) {
                    return wrong(format!(
                        "the pattern has no group `{name}`; it has {}",
                        groups.join(", ")
                    ));
                }
                self.group(name, slot);
            }
            (Where::Named(name), Format::Envoy | Format::Combined) => {
                let known = match self.format {
                    Format::Envoy => text::ENVOY,
                    _ => text::COMBINED,
                };
                if !known.contains(&name.as_str()) {
                    return wrong(format!(
                        "lines in the format {format} have no `{name}`; they have {}",
                        known.join(", ")
                    ));
                }
                self.named.add(name, slot);
            }
            (Where::Query(_), _) => return wrong("a field is in no query".to_owned()),
        }
        Ok(())
    }

    /// An entry that no flag places: it is under its own name, if at all.
    fn own_name(&mut self, entry: &str) -> Source {
        let slot = self.slots;
        self.slots += 1;
        match self.format {
            Format::Json => self.tree.add([entry], slot, 1),
            Format::Pattern => self.group(entry, slot),
            Format::Envoy | Format::Combined => self.named.add(entry, slot),
        }
        Source::Slot(slot)
    }

    /// Has a group of the pattern put into a slot, if it has one of that name.
    fn group(&mut self, name: &str, slot: usize) {
        let groups = self.pattern.iter().flat_map(Regex::capture_names);
        let groups: Vec<_> = groups.collect();
        if let Some(group) = groups.iter().position(|group| *group == Some(name)) {
            self.named.groups.push((group, slot));
        }
    }

    /// The request of a line; `None`: the line is about something else.
    pub(crate) fn read(&mut self, line: &[u8]) -> Result<Option<Request>, Unreadable> {
        self.values.clear(self.slots);
        let values = &mut self.values;
        let is_request = match self.format {
            Format::Json => self.read_json(line)?,
            Format::Envoy => text::envoy(line, &self.named, values)?,
            Format::Combined => text::combined(line, &self.named, values)?,
            Format::Pattern => {
                let pattern = self.pattern.as_ref().ok_or(Unreadable::Pattern)?;
                text::pattern(line, pattern, &self.named, values)?
            }
        };
        if !is_request {
            return Ok(None);
        }
        let values = &self.values;
        let took_ms =
            (values.of(Field::Duration)).and_then(|text| time::took_ms(text, time::whole));
        let took_ms = took_ms.or_else(|| time::took_ms(values.of(Field::DurationS)?, thousandths));
        let start = values.of(Field::Time).and_then(time_ms);
        let end = || values.of(Field::EndTime).and_then(time_ms);
        let written = start.or_else(end).ok_or(Unreadable::Time)?;
        self.whole_second = written.is_multiple_of(1000);
        let before_ms = start.map_or(took_ms, |_| None).unwrap_or(0);
        let at_ms = written.saturating_sub(before_ms);
        if at_ms >= END_MS {
            return Err(Unreadable::Time);
        }
        let mut descriptor = Descriptor::new();
        for (at, (name, source, hash)) in self.entries.iter().enumerate() {
            if let Some(value) = self.value(source) {
                descriptor.insert(name.clone(), as_sent(name, value, *hash));
                if let Some(found) = self.found.get_mut(at) {
                    *found += 1;
                }
            }
        }
        let values = &self.values;
        let cost = |source: &Source| self.value(source).and_then(|text| whole_number(&text));
        let method = values.of(Field::Method).unwrap_or_default();
        Ok(Some(Request {
            at_ms,
            took_ms,
            service: values.service(),
            descriptor,
            is_head: method == b"HEAD",
            is_connect: method == b"CONNECT",
            status: values.of(Field::Status).and_then(status),
            bytes_sent: values.of(Field::BytesSent).and_then(time::whole),
            costs: self.costs.iter().map(cost).collect(),
        }))
    }

    /// Reads an object; `false`: it is about something else than a request.
    fn read_json(&mut self, line: &[u8]) -> Result<bool, Unreadable> {
        let values = &mut self.values;
        self.tree.read(line, values)?;
        let Some([logger, message]) = self.program else {
            return Ok(true);
        };
        let begins = |name| { values.get(logger) }.is_some_and(|logger| logger.starts_with(name));
        if begins(CADDY) {
            for (first, second) in &self.of_caddy {
                values.move_value(*first, *second);
            }
        } else if CADDYS_OTHERS.into_iter().any(begins) {
            return Ok(false);
        }
        let is_of_program = values.get(message).is_some()
            && values.has_only(&[
                logger,
                message,
                Field::Time as usize,
                Field::EndTime as usize,
                Field::Duration as usize,
                Field::DurationS as usize,
            ]);
        Ok(!is_of_program && !values.is_of_connection())
    }

    /// Takes back that a request's entries were found, since it is left out.
    pub(crate) fn forget(&mut self, request: &Request) {
        for ((name, ..), found) in self.entries.iter().zip(&mut self.found) {
            *found -= u64::from(request.descriptor.get(name.as_str()).is_some());
        }
    }

    fn value(&self, source: &Source) -> Option<Vec<u8>> {
        let values = &self.values;
        match source {
            Source::Field(field) => values.of(*field).map(<[u8]>::to_vec),
            Source::Slot(slot) => values.get(*slot).map(<[u8]>::to_vec),
            Source::Query(key) => parameter(values.of(Field::Path)?, key),
            Source::WholeAddress => self.client().map(|address| address.to_text()),
            Source::Address => {
                let address = self.client()?;
                let [v4, v6] = self.prefixes;
                let bits = if address.is_v4() { v4 } else { v6 };
                Some(address.cut(bits).to_text())
            }
        }
    }

    /// The address that Envoy takes for the client's: of `X-Forwarded-For` the last, which is that of the
    /// connection and which the proxy that wrote the log has appended itself, or one before it for each proxy that is
    /// trusted. Where there is none, or no address, Envoy takes the connection's.
    fn client(&self) -> Option<Address> {
        let values = &self.values;
        if let Some(text) = values.of(Field::Address) {
            return address(text);
        }
        let mut forwarded = values.of(Field::Forwarded)?.rsplit(|byte| *byte == b',');
        let connection = forwarded.clone().next();
        let trusted = forwarded.nth(self.trusted_hops).and_then(address);
        trusted.or_else(|| address(connection?))
    }
}

/// A value as the filter sends it.
fn as_sent(entry: &Name, value: Vec<u8>, hash: bool) -> Vec<u8> {
    if hash && value != MULTIPLE_VALUES {
        return hashed(&value);
    }
    if value.len() <= MAX_VALUE {
        return value;
    }
    let mut value = normal_value(entry.as_str(), value);
    value.truncate(MAX_VALUE);
    value
}

fn status(text: &[u8]) -> Option<u16> {
    u16::try_from(time::whole(text)?).ok()
}

fn address(text: &[u8]) -> Option<Address> {
    let host = without_port(text.trim_ascii());
    // The zone of a link-local address does not distinguish clients.
    let host = host.split(|byte| *byte == b'%').next()?;
    Address::parse(host).map(Address::canonical)
}

/// An address without its port and brackets.
fn without_port(address: &[u8]) -> &[u8] {
    let before = |text: &'_ [u8], end| text.iter().position(|byte| *byte == end);
    if let Some(v6) = address.strip_prefix(b"[") {
        return before(v6, b']').and_then(|end| v6.get(..end)).unwrap_or(v6);
    }
    let mut colons = address.iter().filter(|byte| **byte == b':');
    match (colons.next(), colons.next()) {
        (Some(_), None) => before(address, b':')
            .and_then(|end| address.get(..end))
            .unwrap_or(address),
        _ => address,
    }
}

/// The value of a parameter of a path's query, as the filter reads it: [`MULTIPLE_VALUES`] if it is there several
/// times with different values.
fn parameter(target: &[u8], name: &str) -> Option<Vec<u8>> {
    let mut values = normalize::parameters(target, name);
    let first = values.next()?;
    Some(if values.all(|value| value == first) {
        first
    } else {
        MULTIPLE_VALUES.to_vec()
    })
}
