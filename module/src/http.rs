//! Requests, responses and answers of the limiter as the state machine sees them.

use std::{cell::RefCell, collections::HashMap};

use filter_core::{
    Body, CallAnswer, Config, LocalReply, NoProperty, Refusal, Request, RequestHeaders, Response,
    ResponseHeaders, Source,
};

use protocol::MAX_VALUE;

use crate::{
    abi::{self, AnswerHeaders, Chunks, Headers, Metadata, MetadataPath, Part},
    fault,
};

// --- A request, for the hook that is running.

/// A request; its headers are read without copies.
pub struct HostRequest<'r, 'h> {
    request: &'r abi::Request<'h>,
    has_body: bool,
}

impl<'r, 'h> HostRequest<'r, 'h> {
    /// `has_body`: a body follows.
    pub fn new(request: &'r abi::Request<'h>, has_body: bool) -> Self {
        Self { request, has_body }
    }
}

impl Request for HostRequest<'_, '_> {
    fn headers<'r>(&'r self, name: &str) -> impl Iterator<Item = &'r [u8]> {
        self.request.values(Headers::Request, name)
    }

    fn header(&self, name: &str) -> Option<&[u8]> {
        self.headers(name).next()
    }

    fn has_body(&self) -> bool {
        self.has_body
    }

    fn property(&self, path: &[u8]) -> Result<Vec<u8>, NoProperty> {
        property(self.request, path)
    }

    fn metadata(&self, path: &[u8]) -> Option<Vec<u8>> {
        match Property::parse(path)? {
            Property::Metadata(path) => Some(message_of(self.request, &path)),
            _ => None,
        }
    }
}

/// The headers of a request that a decision edits.
pub struct Edited<'r, 'h>(pub &'r mut abi::Request<'h>);

impl RequestHeaders for Edited<'_, '_> {
    fn get(&self, name: &str) -> Option<Vec<u8>> {
        let mut values = self.0.values(Headers::Request, name);
        values.next().map(<[u8]>::to_vec)
    }

    fn set(&mut self, name: &str, value: &[u8]) {
        self.0.set_header(Headers::Request, name, value);
    }

    fn remove(&mut self, name: &str) {
        self.0.remove_header(Headers::Request, name);
    }
}

/// The chunk of a body that the running hook is about.
pub struct Chunk<'r>(Vec<&'r [u8]>);

impl<'r> Chunk<'r> {
    /// The chunk that follows `seen` bytes of the body. `chunk` and `buffer` are the parts of the body.
    ///
    /// Where the request is paused, Envoy moves the last chunk to the buffer before it calls the hook.
    pub fn read(request: &'r abi::Request<'_>, [chunk, buffer]: [Part; 2], seen: usize) -> Self {
        let chunks = request.body(chunk);
        if chunks.iter().any(|chunk| !chunk.is_empty()) {
            return Self(chunks);
        }
        let mut chunks = request.body(buffer);
        let mut skipped = 0;
        chunks.retain_mut(|chunk| {
            let skip = chunk.len().min(seen - skipped);
            skipped += skip;
            *chunk = chunk.get(skip..).unwrap_or_default();
            !chunk.is_empty()
        });
        Self(chunks)
    }

    /// Its size.
    pub fn len(&self) -> usize {
        self.0.iter().map(|chunk| chunk.len()).sum()
    }

    fn copy(&self, from: usize, len: usize) -> Vec<u8> {
        let bytes = self.0.iter().flat_map(|chunk| chunk.iter());
        bytes.skip(from).take(len).copied().collect()
    }
}

impl Body for Chunk<'_> {
    fn bytes(&self, from: usize, len: usize) -> Option<Vec<u8>> {
        Some(self.copy(from, len))
    }
}

// --- Properties, by the paths that the wasm filter's configuration has too.
//
// The ABI numbers Envoy's attributes, and reads metadata by namespace and key. What it cannot read is an
// error of the configuration: were it only absent, limits would silently not apply.

/// How the ABI returns an attribute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Text,
    /// A text that a wasm filter always gets: without a value it is empty. The ABI returns nothing then, as it does
    /// of a text that is absent.
    EmptyOrText,
    Number,
    Bool,
}
use Kind::{Bool, EmptyOrText, Number, Text};

/// The attributes that Envoy gives a module, with their numbers in the ABI.
const ATTRIBUTES: [(&[u8], Kind, u32); 33] = [
    (b"source\0address", Text, 24),
    (b"source\0port", Number, 25),
    (b"destination\0address", Text, 26),
    (b"destination\0port", Number, 27),
    (b"request\0path", Text, 0),
    (b"request\0url_path", Text, 1),
    (b"request\0host", Text, 2),
    (b"request\0scheme", Text, 3),
    (b"request\0method", Text, 4),
    (b"request\0referer", Text, 6),
    (b"request\0useragent", Text, 7),
    (b"request\0id", Text, 9),
    (b"request\0protocol", Text, 10),
    (b"request\0query", EmptyOrText, 11),
    (b"response\0code", Number, 15),
    (b"response\0code_details", Text, 16),
    (b"connection\0id", Number, 28),
    (b"connection\0mtls", Bool, 29),
    (b"connection\0requested_server_name", EmptyOrText, 30),
    (b"connection\0tls_version", Text, 31),
    (b"connection\0subject_local_certificate", Text, 32),
    (b"connection\0subject_peer_certificate", Text, 33),
    (b"connection\0dns_san_local_certificate", Text, 34),
    (b"connection\0dns_san_peer_certificate", Text, 35),
    (b"connection\0uri_san_local_certificate", Text, 36),
    (b"connection\0uri_san_peer_certificate", Text, 37),
    (b"connection\0sha256_peer_certificate_digest", Text, 38),
    (b"upstream\0address", Text, 41),
    (b"upstream\0port", Number, 42),
    (b"xds\0cluster_name", Text, 57),
    (b"xds\0route_name", EmptyOrText, 61),
    (b"xds\0virtual_host_name", Text, 63),
    (b"xds\0filter_chain_name", Text, 66),
];

/// What a path names.
enum Property<'p> {
    Attribute(Kind, u32),
    Header(&'p str),
    Metadata(MetadataPath<'p>),
    FilterState(&'p [u8]),
    /// Of Envoy's node, which Istio's agent makes from its environment.
    Node(&'p str),
}

impl<'p> Property<'p> {
    fn parse(path: &'p [u8]) -> Option<Self> {
        if let Some((_, kind, number)) = ATTRIBUTES.iter().find(|(known, ..)| *known == path) {
            return Some(Self::Attribute(*kind, *number));
        }
        let mut parts = path.split(|byte| *byte == 0);
        let parts = std::array::from_fn::<_, 6, _>(|_| parts.next());
        match parts {
            [Some(b"request"), Some(b"headers"), Some(name), None, ..] => {
                str::from_utf8(name).ok().map(Self::Header)
            }
            [
                Some(b"metadata"),
                Some(b"filter_metadata"),
                Some(of),
                Some(key),
                None,
                ..,
            ] => Some(Self::metadata(Metadata::Dynamic, of, key)),
            [
                Some(b"xds"),
                Some(b"route_metadata"),
                Some(b"filter_metadata"),
                Some(of),
                Some(key),
                None,
            ] => Some(Self::metadata(Metadata::Route, of, key)),
            [Some(b"node"), Some(b"metadata"), Some(key), None, ..] => {
                str::from_utf8(key).ok().map(Self::Node)
            }
            [Some(b"filter_state"), Some(key), None, ..] => Some(Self::FilterState(key)),
            _ => None,
        }
    }

    fn metadata(of: Metadata, namespace: &'p [u8], key: &'p [u8]) -> Self {
        Self::Metadata(MetadataPath { of, namespace, key })
    }
}

fn property(request: &abi::Request<'_>, path: &[u8]) -> Result<Vec<u8>, NoProperty> {
    let value = match Property::parse(path).ok_or(NoProperty::Absent)? {
        Property::Attribute(Text, number) => {
            let value = request.text_attribute(number);
            value.filter(|value| !value.is_empty()).map(<[u8]>::to_vec)
        }
        Property::Attribute(EmptyOrText, number) => {
            Some(request.text_attribute(number).unwrap_or_default().to_vec())
        }
        Property::Attribute(Number, number) => {
            let value = request.number_attribute(number);
            value.map(|value| value.to_le_bytes().to_vec())
        }
        Property::Attribute(Bool, number) => {
            let value = request.bool_attribute(number).unwrap_or_default();
            Some(vec![value.into()])
        }
        Property::Header(name) => {
            let values = request.values(Headers::Request, name).collect::<Vec<_>>();
            (!values.is_empty()).then(|| values.join(&b','))
        }
        Property::Metadata(path) => {
            metadata(request, &path, None).and_then(|value| bytes_of(&value))
        }
        Property::FilterState(key) => request.filter_state(key).map(<[u8]>::to_vec),
        Property::Node(key) => node_metadata(key),
    };
    value.ok_or(NoProperty::Absent)
}

/// Envoy's number of the direction of the request's listener.
pub fn listener_direction(request: &abi::Request<'_>) -> Option<u64> {
    const LISTENER_DIRECTION: u32 = 59;
    request.number_attribute(LISTENER_DIRECTION)
}

fn node_metadata(key: &str) -> Option<Vec<u8>> {
    let value = match key {
        "NAMESPACE" => std::env::var_os("POD_NAMESPACE"),
        _ => std::env::var_os(format!("ISTIO_META_{key}")),
    };
    value.map(std::ffi::OsString::into_encoded_bytes)
}

/// A value of metadata.
enum Value<'r> {
    Text(&'r [u8]),
    Number(f64),
    Bool(bool),
    /// Of so many items.
    List(usize),
}

/// The types of values in metadata that the ABI can read. Maps are as absent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Type {
    Text,
    Number,
    Bool,
    List,
}

/// Items of a list that are read; the others are cut.
const ITEMS_MAX: usize = 1024;

/// Items that may have another type than the one before, or none that can be read: of each, Envoy writes up to three
/// lines. After them a list is cut.
const CHANGES_MAX: usize = 4;

/// Reads a value of metadata, or an item of a list there.
fn metadata<'r>(
    request: &'r abi::Request<'_>,
    path: &MetadataPath<'_>,
    item: Option<usize>,
) -> Option<Value<'r>> {
    let read = |of| match of {
        Type::Text => request.metadata_text(path, item).map(Value::Text),
        Type::Number => request.metadata_number(path, item).map(Value::Number),
        Type::Bool => request.metadata_bool(path, item).map(Value::Bool),
        Type::List if item.is_none() => request.metadata_list(path).map(Value::List),
        Type::List => None,
    };
    // Envoy logs an error each time that a value has another type: most have the same in every request.
    let name = [path.namespace, path.key].join(&0);
    let name = (name, item.is_some());
    let known = TYPES.with_borrow(|types| types.get(&name).copied());
    if let Some(value) = known.and_then(read) {
        return Some(value);
    }
    for of in [Type::Text, Type::Number, Type::Bool, Type::List] {
        if Some(of) != known
            && let Some(value) = read(of)
        {
            TYPES.with_borrow_mut(|types| types.insert(name, of));
            return Some(value);
        }
    }
    None
}

thread_local! {
    /// The types that values of metadata had last, by namespace and key, and whether it is that of an item:
    /// as many as configurations name.
    static TYPES: RefCell<HashMap<(Vec<u8>, bool), Type>> = RefCell::default();
}

/// As Envoy encodes a value for a wasm filter.
fn bytes_of(value: &Value<'_>) -> Option<Vec<u8>> {
    match value {
        Value::Text(text) => Some(text.to_vec()),
        Value::Number(number) => Some(number.to_le_bytes().to_vec()),
        Value::Bool(bit) => Some(vec![(*bit).into()]),
        Value::List(_) => None,
    }
}

/// A message `google.protobuf.Value`; empty without a value.
fn message_of(request: &abi::Request<'_>, path: &MetadataPath<'_>) -> Vec<u8> {
    const LIST: u8 = 6 << 3 | 2;
    const ITEM: u8 = 1 << 3 | 2;
    let len = match metadata(request, path, None) {
        Some(Value::List(len)) => len,
        value => return scalar(value.as_ref()),
    };
    let (mut items, mut last, mut changes) = (Vec::new(), None, 0);
    for item in 0..len {
        // What is longer is cut, not absent: limits would skip the request. The same list is cut at the same item.
        if item >= ITEMS_MAX || changes > CHANGES_MAX || items.len() > MAX_VALUE {
            break;
        }
        let value = metadata(request, path, Some(item));
        let of = value.as_ref().map(std::mem::discriminant);
        changes += usize::from(of.is_none() || last.is_some_and(|last| Some(last) != of));
        last = of;
        items.extend(field(ITEM, &scalar(value.as_ref())));
    }
    field(LIST, &items)
}

fn scalar(value: Option<&Value<'_>>) -> Vec<u8> {
    const NUMBER: u8 = 2 << 3 | 1;
    const TEXT: u8 = 3 << 3 | 2;
    const BOOL: u8 = 4 << 3;
    match value {
        Some(Value::Text(text)) => field(TEXT, text),
        Some(Value::Number(number)) => [&[NUMBER], &number.to_le_bytes()[..]].concat(),
        Some(Value::Bool(bit)) => vec![BOOL, (*bit).into()],
        Some(Value::List(_)) | None => Vec::new(),
    }
}

/// A field of bytes in protobuf encoding.
fn field(tag: u8, bytes: &[u8]) -> Vec<u8> {
    let mut out = vec![tag];
    let mut len = bytes.len();
    while let Ok(low) = u8::try_from(len & 0x7f) {
        len >>= 7;
        if len == 0 {
            out.push(low);
            break;
        }
        out.push(low | 0x80);
    }
    out.extend_from_slice(bytes);
    out
}

/// Why Envoy cannot give a module what a configuration reads.
pub fn unreadable(config: &Config) -> Option<String> {
    fn path(source: &Source) -> Option<&[u8]> {
        match source {
            Source::Property(path, _) => Some(path),
            Source::Hashed(source) => path(source),
            _ => None,
        }
    }
    let mut sources = config.sources.iter();
    let (key, path) = sources.find_map(|(key, source)| {
        let path = path(source)?;
        Property::parse(path).is_none().then_some((key, path))
    })?;
    let path = String::from_utf8_lossy(path).replace('\0', ".");
    Some(format!(
        "descriptors: {key}: Envoy gives a module no property {path}. Let a filter before it put the \
         value into a header (as jwt_authn's claim_to_headers), or into filter state \
         (envoy.filters.http.set_filter_state), and read that"
    ))
}

// --- A response, and local replies.

/// The headers of a response.
pub struct HostResponse<'r, 'h> {
    request: &'r mut abi::Request<'h>,
    /// Whether the response had any of [`NUMBERS`] before this filter wrote one.
    had_numbers: Option<bool>,
}

/// How the names of headers begin that are set.
const NUMBERS: &str = "x-ratelimit-";

impl<'r, 'h> HostResponse<'r, 'h> {
    /// As they are before this filter.
    pub fn new(request: &'r mut abi::Request<'h>) -> Self {
        Self {
            request,
            had_numbers: None,
        }
    }

    /// Whether the response may have had a header before this filter.
    fn may_have(&mut self, name: &str) -> bool {
        let read = || self.request.has_prefix(Headers::Response, NUMBERS);
        !name.starts_with(NUMBERS) || *self.had_numbers.get_or_insert_with(read)
    }
}

impl ResponseHeaders for HostResponse<'_, '_> {
    fn get(&self, name: &str) -> Option<Vec<u8>> {
        let mut values = self.request.values(Headers::Response, name);
        values.next().map(<[u8]>::to_vec)
    }

    fn set(&mut self, name: &'static str, value: &str) {
        if self.may_have(name) {
            let value = value.as_bytes();
            self.request.set_header(Headers::Response, name, value);
        } else {
            // The same, for half of what it costs.
            self.add(name, value);
        }
    }

    fn add(&mut self, name: &'static str, value: &str) {
        self.may_have(name);
        let value = value.as_bytes();
        self.request.add_header(Headers::Response, name, value);
    }

    fn property(&self, path: &[u8]) -> Option<Vec<u8>> {
        property(self.request, path).ok()
    }
}

/// The rest of a response.
pub struct ResponsePart<'r, 'h> {
    request: &'r abi::Request<'h>,
    chunk: Chunk<'r>,
}

impl<'r, 'h> ResponsePart<'r, 'h> {
    /// What the running hook is about, after `seen` bytes of the body.
    pub fn read(request: &'r abi::Request<'h>, seen: usize) -> Self {
        let parts = [Part::ResponseChunk, Part::ResponseBuffer];
        Self {
            request,
            chunk: Chunk::read(request, parts, seen),
        }
    }

    /// Without a chunk.
    pub fn trailers(request: &'r abi::Request<'h>) -> Self {
        Self {
            request,
            chunk: Chunk(Vec::new()),
        }
    }

    /// The size of the chunk.
    pub fn len(&self) -> usize {
        self.chunk.len()
    }
}

impl Response for ResponsePart<'_, '_> {
    fn body(&self, from: usize, len: usize) -> Option<Vec<u8>> {
        Some(self.chunk.copy(from, len))
    }

    fn trailer(&self, name: &str) -> Option<Vec<u8>> {
        let mut values = self.request.values(Headers::ResponseTrailers, name);
        values.next().map(<[u8]>::to_vec)
    }

    fn property(&self, path: &[u8]) -> Option<Vec<u8>> {
        property(self.request, path).ok()
    }
}

fn is_grpc(request: &abi::Request<'_>) -> bool {
    filter_core::is_grpc(request.values(Headers::Request, "content-type").next())
}

/// Answers a request that a panic left without a decision.
pub fn refuse_after_panic(request: abi::Request<'_>, status: u16) {
    const UNAVAILABLE: (&str, &str) = ("grpc-status", "14");
    let headers = is_grpc(&request).then_some(UNAVAILABLE);
    request.respond(status, headers.into_iter(), "", "rl_denied:panic");
}

/// Answers a request.
pub fn refuse(mut request: abi::Request<'_>, refusal: Refusal) {
    fault::point("reply");
    let grpc = is_grpc(&request);
    let LocalReply {
        status,
        details,
        headers,
        body,
        grpc_status,
    } = refusal.reply(grpc);
    // For access logs: `%FILTER_STATE(wasm.rl_denied:PLAIN)%`, as of the wasm filter.
    request.set_filter_state("wasm.rl_denied", details.as_bytes());
    let grpc_status = grpc.then(|| grpc_status.to_string());
    let grpc_status = grpc_status.iter().map(|status| ("grpc-status", &**status));
    let headers = headers.iter().chain(grpc_status);
    request.respond(status, headers, &body, &details);
}

// --- An answer of the limiter.

/// The answer to a call.
pub struct Answer<'h> {
    /// Its headers.
    pub headers: AnswerHeaders<'h>,
    /// Its body.
    pub body: Chunks<'h>,
}

impl CallAnswer for Answer<'_> {
    fn header(&self, name: &str) -> Option<&[u8]> {
        self.headers.first(name)
    }

    fn body(&self, max_len: usize) -> Option<Vec<u8>> {
        let len = self.body.len();
        if len > max_len {
            return None;
        }
        let mut body = Vec::with_capacity(len);
        for chunk in self.body.iter() {
            body.extend_from_slice(chunk);
        }
        Some(body)
    }
}
