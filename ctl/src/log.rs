//! Access logs on the command line: the flags that say where a line has what, the files, and a thread that
//! reads them while another decides.

use std::{
    collections::{HashMap, hash_map::Entry},
    fs::{File, Metadata},
    io::{self, Cursor, Read},
    os::unix::fs::MetadataExt as _,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
        mpsc::{Receiver, RecvTimeoutError, Sender, SyncSender, channel, sync_channel},
    },
    thread::JoinHandle,
    time::Duration,
};

use access_log::{
    Broken, Counts, Cut, Field, Format, FoundEntry, Layout, Log, LogError, Logs, REORDER_MAX,
    Request, Where,
};
use clap::{Args, ValueEnum};
use policy::{IfAbsent, Limit, Name, Policy, Pricing, REMOTE_ADDRESS, WHOLE_ADDRESS};
use regex::bytes::RegexBuilder;
use serde::Serialize;
use tokio::signal::unix::SignalKind;

use crate::{
    bucket::Pair,
    error::{self, Error, Exit},
    input::unreadable,
    printer::Printer,
    render::{self, counted},
    replay::LimitResult,
};

/// Where the lines of a log have what.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Log options")]
pub struct LogArgs {
    /// The format of the log's lines: auto, json, envoy or combined.
    #[arg(
        long = "log-format",
        requires = "logs",
        conflicts_with = "pattern",
        value_name = "FORMAT",
        default_value = "auto",
        hide_possible_values = true
    )]
    format: FormatArg,

    // No comment of rustdoc, which takes the groups for HTML.
    #[arg(
        long,
        value_name = "REGEX",
        requires = "logs",
        help = r"A regular expression whose named groups are fields and entries: (?P<time>\S+) (?P<user>\S+) ..."
    )]
    pattern: Option<String>,

    /// Where a line has an entry of the descriptor: user=/headers/x-user-id, a JSON pointer;
    /// user=remote_user, what the format calls so; key=query:api_key, a parameter of the path's query.
    /// Without it, an entry is under its own name. May be given several times.
    #[arg(long, value_name = "NAME=WHERE", requires = "logs")]
    entry: Vec<Pair>,

    /// Where a line has something else: time, end_time, duration (milliseconds), duration_s (seconds),
    /// service_time or service_time_s (until the service's answer began), method, path, host, remote_address,
    /// forwarded_for, route, status or bytes_sent; as time=/ts.
    /// Without it, under the keys that Envoy and NGINX are usually configured with.
    #[arg(long, value_name = "FIELD=WHERE", requires = "logs")]
    field: Vec<Pair>,

    /// Where a line has what the request or its response cost at a limit, in units: tokens=/usage/total. Once for
    /// each of the limit's cost.from, in its order.
    #[arg(long, value_name = "LIMIT=WHERE", requires = "logs")]
    cost_from: Vec<Pair>,

    /// How many trusted proxies stand before the one that wrote the log (Envoy's xff_num_trusted_hops),
    /// where lines have X-Forwarded-For and not the client's address.
    #[arg(
        long,
        value_name = "N",
        default_value_t = 0,
        hide_default_value = true,
        requires = "logs"
    )]
    trusted_hops: usize,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum FormatArg {
    #[default]
    Auto,
    Json,
    Envoy,
    Combined,
}

impl LogArgs {
    /// The layout for limits that need these entries, and the limits whose cost it has places for.
    pub fn layout(&self, policies: &[&Policy]) -> Result<(Layout, Vec<Name>), Error> {
        let of_limits = policies.iter().flat_map(|policy| {
            let exempt = policy.exempt.iter().flat_map(|exempt| &exempt.matchers);
            let limits = policy.limits.iter().flat_map(Limit::keys);
            limits.chain(exempt.map(|matcher| &matcher.entry))
        });
        let mut needed: Vec<Name> = of_limits.cloned().collect();
        needed.sort_unstable();
        needed.dedup();
        let mut layout = Layout {
            format: match self.format {
                FormatArg::Auto => None,
                FormatArg::Json => Some(Format::Json),
                FormatArg::Envoy => Some(Format::Envoy),
                FormatArg::Combined => Some(Format::Combined),
            },
            needed,
            trusted_hops: self.trusted_hops,
            ..Layout::default()
        };
        if let Some(pattern) = &self.pattern {
            let built = RegexBuilder::new(pattern).build();
            let wrong = |error| Error::usage(format!("--pattern: {error}"));
            layout.pattern = Some(built.map_err(wrong)?);
        }
        self.refuse_repeats()?;
        for Pair { key, value, .. } in &self.entry {
            let wrong = |why: String| Error::usage(format!("--entry {key}={value}: {why}"));
            let name: Name =
                { key.parse() }.map_err(|e: policy::NameError| wrong(e.to_string()))?;
            let place = value.parse().map_err(wrong)?;
            if [REMOTE_ADDRESS, WHOLE_ADDRESS].contains(&name.as_str()) {
                let hint =
                    format!("--field {REMOTE_ADDRESS}={value} does, and cuts it as proxies do");
                return Err(
                    wrong("an entry does not say where the address is".to_owned()).hint(hint),
                );
            }
            if !layout.needed.contains(&name) {
                let known = layout.needed.iter().map(Name::as_str);
                let hint = error::hint(key, "entries that the limits need", known);
                return Err(wrong("no limit has this entry".to_owned()).hint(hint));
            }
            layout.entries.push((name, place));
        }
        for Pair { key, value, .. } in &self.field {
            let wrong = |why: String| Error::usage(format!("--field {key}={value}: {why}"));
            let field: Field = key.parse().map_err(wrong)?;
            layout.fields.push((field, value.parse().map_err(wrong)?));
        }
        let priced = self.costs(policies, &mut layout)?;
        { layout.check() }.map_err(|error| Error::usage(error.to_string()))?;
        Ok((layout, priced))
    }

    /// Refuses two places of one thing, of which only one could count.
    fn refuse_repeats(&self) -> Result<(), Error> {
        for (flag, pairs) in [("--entry", &self.entry), ("--field", &self.field)] {
            let mut keys: Vec<&str> = pairs.iter().map(|pair| pair.key.as_str()).collect();
            keys.sort_unstable();
            if let Some([key, _]) = keys.array_windows().find(|[a, b]| a == b) {
                return Err(Error::usage(format!("{flag} {key}=… is given twice")));
            }
        }
        Ok(())
    }

    /// Adds the places of costs; returns the limits that they are for.
    fn costs(&self, policies: &[&Policy], layout: &mut Layout) -> Result<Vec<Name>, Error> {
        let mut priced = Vec::with_capacity(self.cost_from.len());
        for Pair { key, value, .. } in &self.cost_from {
            let wrong = |why: String| Error::usage(format!("--cost-from {key}={value}: {why}"));
            let place: Where = value.parse().map_err(wrong)?;
            let limit = policies.iter().find_map(|policy| policy.limit(key));
            let known = { policies.iter() }.flat_map(|policy| &policy.limits);
            let limit = limit.ok_or_else(|| {
                let known = known.map(|limit| limit.name.as_str());
                wrong("there is no such limit".to_owned()).hint(error::hint(key, "limits", known))
            })?;
            let name = limit.name.clone();
            let limits = policies.iter().filter_map(|policy| policy.limit(key));
            let places = limits.map(numbers).max().unwrap_or(0);
            let given = priced.iter().filter(|other| **other == name).count();
            if places == 0 {
                return Err(wrong(
                    "what a request costs this limit is no number of its own".to_owned(),
                )
                .hint("costs are read where `cost` has `from`: docs/limits.md"));
            }
            if given == places {
                return Err(wrong(format!(
                    "it is given more than once for each of the limit's `from`, which has {places}"
                )));
            }
            layout.costs.push(place);
            priced.push(name);
        }
        self.refuse_doubtful_bounds(policies)?;
        Ok(priced)
    }

    /// Refuses a number that may be of any of several places, where these have other bounds.
    fn refuse_doubtful_bounds(&self, policies: &[&Policy]) -> Result<(), Error> {
        for Pair { key, .. } in &self.cost_from {
            let given = self
                .cost_from
                .iter()
                .filter(|pair| pair.key == *key)
                .count();
            for limit in policies.iter().filter_map(|policy| policy.limit(key)) {
                let Some(Pricing::Request(price)) = limit.pricing.as_deref() else {
                    continue;
                };
                let mut bounds = price.from.iter().map(|from| (from.min, from.max));
                let first = bounds.next();
                if given < price.from.len() && bounds.any(|other| Some(other) != first) {
                    let places = price.from.len();
                    return Err(Error::usage(format!(
                        "--cost-from {key}: the limit's `from` has {places} places with different bounds"
                    ))
                    .hint("give the flag once for each, in their order"));
                }
            }
        }
        Ok(())
    }
}

/// How many places of numbers a limit reads its cost from.
fn numbers(limit: &Limit) -> usize {
    match limit.pricing.as_deref() {
        None => 0,
        Some(Pricing::Request(price)) => price.from.len(),
        Some(Pricing::Response(price)) if price.has_status() => 0,
        Some(Pricing::Response(price)) => price.from.len(),
    }
}

// --- Reading.

/// Requests that go from one thread to the other at once.
const BATCH: usize = 512;

/// Bytes of requests that go from one thread to the other at once, about.
const BATCH_BYTES: usize = 1 << 20;

/// Bound: batches of requests of a log that wait to be decided. Beyond it, reading waits.
const BATCHES_MAX: usize = 8;

/// How far reading is.
#[derive(Debug, Default)]
pub struct Progress {
    /// The files that are read, each once.
    files: Vec<String>,
    /// Files that are named again, and the names under which they are read.
    repeats: Vec<(String, String)>,
    /// Bytes of the files.
    total: u64,
    read: AtomicU64,
    requests: AtomicU64,
    /// Whether the user wants no more.
    stopped: Arc<AtomicBool>,
}

impl Progress {
    /// Ends reading: what was read until then still goes on; `true`: it was stopped already.
    pub fn stop(&self) -> bool {
        self.stopped.swap(true, Ordering::Relaxed)
    }

    /// Whether it was stopped.
    pub fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Relaxed)
    }
}

/// Logs that a thread of its own reads.
#[derive(Debug)]
pub struct Reading {
    batches: Receiver<Vec<Request>>,
    /// Requests that were decided. Memory is given back fastest by the thread that took it.
    done: Sender<Vec<Request>>,
    thread: JoinHandle<Result<Counts, LogError>>,
    /// How far it is.
    pub progress: Arc<Progress>,
}

/// A file whose bytes are counted.
struct Counted {
    from: File,
    progress: Arc<Progress>,
}

impl Read for Counted {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        let read = self.from.read(to)?;
        let more = u64::try_from(read).unwrap_or(u64::MAX);
        self.progress.read.fetch_add(more, Ordering::Relaxed);
        Ok(read)
    }
}

/// How often a wait for a pipe looks whether the user still wants it.
const LOOKED_EVERY: Duration = Duration::from_millis(100);

/// Bound: pieces of a pipe that wait to be read. Beyond it, who writes to the pipe waits.
const PIECES_MAX: usize = 4;

/// A pipe, read by a thread of its own, which may wait for bytes for ever: at Ctrl-C the pipe ends here.
struct Pipe {
    pieces: Receiver<io::Result<Vec<u8>>>,
    piece: Cursor<Vec<u8>>,
    progress: Arc<Progress>,
}

impl Pipe {
    fn new(mut from: impl Read + Send + 'static, progress: Arc<Progress>) -> Self {
        let (to, pieces) = sync_channel(PIECES_MAX);
        std::thread::spawn(move || {
            let mut piece = vec![0; 64 * 1024];
            loop {
                let read = match from.read(&mut piece) {
                    Ok(0) => return,
                    Ok(read) => Ok(piece.get(..read).unwrap_or_default().to_vec()),
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                    Err(error) => Err(error),
                };
                if to.send(read).is_err() {
                    return;
                }
            }
        });
        Self {
            pieces,
            piece: Cursor::default(),
            progress,
        }
    }
}

impl Read for Pipe {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        loop {
            let read = self.piece.read(to)?;
            if read > 0 || to.is_empty() {
                return Ok(read);
            }
            match self.pieces.recv_timeout(LOOKED_EVERY) {
                Ok(piece) => self.piece = Cursor::new(piece?),
                Err(RecvTimeoutError::Timeout) if !self.progress.is_stopped() => {}
                Err(_) => return Ok(0),
            }
        }
    }
}

impl Reading {
    /// Reads files; `-` is stdin.
    pub fn start(paths: &[String], layout: Layout) -> Result<Self, Error> {
        if paths.iter().filter(|path| *path == "-").count() > 1 {
            return Err(Error::usage("stdin can be read once only"));
        }
        let mut progress = Progress::default();
        let mut known = HashMap::new();
        for path in paths {
            if path != "-" {
                let found = std::fs::metadata(path).map_err(|error| unreadable(path, &error))?;
                if found.is_dir() {
                    return Err(Error::usage(format!("{path} is a folder"))
                        .hint(format!("name its files, as in {path}/*")));
                }
                // A glob also finds the link to the newest of rotated logs. Read twice, it would count twice.
                match known.entry((found.dev(), found.ino())) {
                    Entry::Vacant(new) => {
                        new.insert(path);
                    }
                    Entry::Occupied(first) => {
                        progress
                            .repeats
                            .push((path.clone(), (*first.get()).clone()));
                        continue;
                    }
                }
                progress.total = progress.total.saturating_add(found.len());
            }
            progress.files.push(path.clone());
        }
        let progress = Arc::new(progress);
        let logs = { progress.files.iter() }.map(|path| log(path, &progress));
        let logs = logs.collect::<Result<_, _>>()?;
        let (to, batches) = sync_channel(BATCHES_MAX);
        let (done, decided) = channel();
        let theirs = Arc::clone(&progress);
        let thread = std::thread::spawn(move || read(logs, layout, (&to, &decided), &theirs));
        Ok(Self {
            batches,
            done,
            thread,
            progress,
        })
    }

    /// The next requests; none at the end.
    pub fn batch(&mut self) -> Option<Vec<Request>> {
        self.batches.recv().ok()
    }

    /// Gives requests back that are decided.
    pub fn give_back(&self, requests: Vec<Request>) {
        // A thread that has ended has no use for them.
        let _ = self.done.send(requests);
    }

    /// What was read. Reading ends here if it has not.
    pub fn end(self) -> Result<Counts, Error> {
        drop(self.batches);
        let read = self.thread.join();
        let read = read.map_err(|_| Error::new(Exit::Refused, "reading the log failed"))?;
        read.map_err(|error| {
            let unknown = matches!(error, LogError::Format { .. });
            Error::usage(error.to_string()).maybe_hint(unknown.then_some(FORMATS))
        })
    }
}

/// What to do about a log in no format that is known.
pub const FORMATS: &str = "known are JSON lines, Envoy's and Istio's text and the combined format; --pattern reads \
                           others, and --log-format json|envoy|combined says why a line is not read";

fn log(path: &str, progress: &Arc<Progress>) -> Result<Log, Error> {
    let progress = Arc::clone(progress);
    if path == "-" {
        return Ok(Log::once("stdin", Pipe::new(io::stdin(), progress)));
    }
    // A pipe has a path too, as in <(zcat access.log.gz), and gives its bytes once.
    if !std::fs::metadata(path).is_ok_and(|found| found.is_file()) {
        let from = File::open(path).map_err(|error| unreadable(path, &error))?;
        return Ok(Log::once(path, Pipe::new(from, progress)));
    }
    let file = path.to_owned();
    let mut known: Option<Metadata> = None;
    Ok(Log::new(path, move || {
        let from = File::open(&file)?;
        // It is opened twice, perhaps hours apart, and logs are rotated meanwhile: by a new file, or by an empty one.
        let found = from.metadata()?;
        let rotated = known.as_ref().is_some_and(|known| {
            (known.dev(), known.ino()) != (found.dev(), found.ino()) || found.len() < known.len()
        });
        if rotated {
            return Err(io::Error::other("it was rotated before it was read"));
        }
        known = Some(found);
        let progress = Arc::clone(&progress);
        Ok(Box::new(Counted { from, progress }))
    }))
}

fn read(
    logs: Vec<Log>,
    layout: Layout,
    (to, decided): (&SyncSender<Vec<Request>>, &Receiver<Vec<Request>>),
    progress: &Progress,
) -> Result<Counts, LogError> {
    let mut logs = Logs::new(logs, layout, Arc::clone(&progress.stopped))?;
    // What was read to see when each file begins is read again.
    progress.read.store(0, Ordering::Relaxed);
    let mut batch = Vec::with_capacity(BATCH);
    let mut bytes = 0;
    loop {
        let request = logs.next_request()?;
        let ended = request.is_none();
        bytes += request.as_ref().map_or(0, Request::bytes);
        batch.extend(request);
        if batch.len() == BATCH || bytes > BATCH_BYTES || ended {
            bytes = 0;
            let requests = u64::try_from(batch.len()).unwrap_or(0);
            let batch = std::mem::replace(&mut batch, Vec::with_capacity(BATCH));
            decided.try_iter().for_each(drop);
            let gone = to.send(batch).is_err();
            progress.requests.fetch_add(requests, Ordering::Relaxed);
            if gone || ended {
                return Ok(logs.counts());
            }
        }
    }
}

// --- A bar on a terminal, and Ctrl-C.

/// Awaits what reads a log, on a thread of its own. Draws how far it is; at Ctrl-C, has it end with what was read so far.
pub async fn watched<T: Send + 'static>(
    printer: &Printer,
    progress: &Progress,
    work: impl FnOnce() -> Result<T, Error> + Send + 'static,
) -> Result<T, Error> {
    let work = tokio::task::spawn_blocking(work);
    let mut work = std::pin::pin!(printer.drawing(work, || progress.text(printer)));
    let mut interrupts = tokio::signal::unix::signal(SignalKind::interrupt())
        .map_err(|error| Error::usage(format!("cannot wait for Ctrl-C: {error}")))?;
    loop {
        tokio::select! {
            biased;
            done = &mut work => {
                let failed = |error| Error::new(Exit::Refused, format!("reading failed: {error}"));
                return done.map_err(failed)?;
            }
            // The second time the user wants nothing any more.
            _ = interrupts.recv() => if progress.stop() {
                return Err(printer.interrupted());
            },
        }
    }
}

impl Progress {
    fn text(&self, printer: &Printer) -> String {
        let requests = self.requests.load(Ordering::Relaxed);
        let read = self.read.load(Ordering::Relaxed).min(self.total);
        if self.total == 0 {
            return format!("{requests} requests");
        }
        let bar = render::bar(read, self.total, printer.page());
        let (read, total) = (read >> 20, self.total.div_ceil(1 << 20));
        format!("{bar} {read} of {total} MiB, {requests} requests")
    }
}

// --- What is said about the log itself.

/// What was read of logs.
#[derive(Clone, Debug, Serialize)]
pub struct LogReport {
    /// The files.
    pub files: Vec<String>,
    /// What is in them.
    #[serde(flatten)]
    pub counts: Counts,
    /// Whether Ctrl-C ended it.
    pub interrupted: bool,
    /// The limits that go by each entry.
    #[serde(skip)]
    limits_of: Vec<(Name, Vec<Name>)>,
    /// What limits go by and requests lack, each with a hint.
    #[serde(skip)]
    lacking: Vec<(String, String)>,
    /// See [`Progress`].
    #[serde(skip)]
    repeats: Vec<(String, String)>,
}

/// What limits go by.
#[derive(Clone, Debug)]
pub struct Needs {
    duration: bool,
    service_time: bool,
    status: bool,
    /// Limits that estimate costs by bytes.
    estimates: Vec<Name>,
    /// Limits that reserve what a request states.
    reserves: Vec<Name>,
    /// Limits whose cost has a place in the log, and the place.
    costs: Vec<(Name, String)>,
    /// Entries, each with the limits that go by it.
    entries: Vec<(Name, Vec<Name>)>,
}

impl Needs {
    /// Of limits, of which those that are `priced` have places of their costs in the layout.
    pub fn new(policies: &[&Policy], priced: &[Name], layout: &Layout) -> Self {
        let limits: Vec<&Limit> = policies.iter().flat_map(|policy| &policy.limits).collect();
        let by_response = || {
            let all = limits.iter();
            all.filter_map(|limit| Some((&limit.name, limit.response_price()?)))
        };
        let estimates = by_response()
            .filter(|(_, price)| !price.has_status() && price.if_absent == IfAbsent::Estimate);
        let reserves = by_response().filter(|(_, price)| !price.reserve.from.is_empty());
        let of_entry = |entry: &Name| {
            let by = limits
                .iter()
                .filter(|limit| limit.keys().any(|key| key == entry));
            let mut names: Vec<Name> = by.map(|limit| limit.name.clone()).collect();
            names.sort_unstable();
            names.dedup();
            (entry.clone(), names)
        };
        let costs = priced.iter().zip(&layout.costs);
        Self {
            duration: limits.iter().any(|limit| limit.gives_slots()),
            service_time: { limits.iter() }
                .any(|limit| limit.quota.parameters().adaptive.is_some()),
            status: by_response().any(|(_, price)| price.has_status() || price.on_error.is_some()),
            estimates: estimates.map(|(name, _)| name.clone()).collect(),
            reserves: reserves.map(|(name, _)| name.clone()).collect(),
            costs: { costs.map(|(limit, place)| (limit.clone(), place.to_string())) }.collect(),
            entries: layout.needed.iter().map(of_entry).collect(),
        }
    }
}

const AS_WITHOUT: &str = "without one, it costs what the limit takes where none is stated";

impl LogReport {
    /// What is said about logs.
    pub fn new(progress: &Progress, counts: Counts) -> Self {
        Self {
            files: { progress.files.iter() }
                .map(|file| if file == "-" { "stdin" } else { file }.to_owned())
                .collect(),
            counts,
            interrupted: progress.is_stopped(),
            limits_of: Vec::new(),
            lacking: Vec::new(),
            repeats: progress.repeats.clone(),
        }
    }

    /// Notes what limits go by and requests lack, of so many requests. `decided` says how many lacked their cost.
    pub fn note_lacking(&mut self, needs: &Needs, requests: u64, decided: &[&LimitResult]) {
        self.limits_of.clone_from(&needs.entries);
        self.note_costs(needs, decided);
        let estimated = decided.iter().any(|limit| {
            let mut estimates = needs.estimates.iter();
            limit.unpriced > 0 && estimates.any(|name| *name.as_str() == *limit.name)
        });
        for (needed, found, what, then, hint) in [
            (
                needs.duration,
                self.counts.durations,
                "duration",
                "without one, it ends at once, and holds no slot",
                "--field duration=… or duration_s=… says where lines have it, as a number",
            ),
            (
                needs.service_time,
                self.counts.service_times,
                "time until the service's answer began",
                "adaptive limits go by durations, which have the whole response in them",
                "--field service_time=… or service_time_s=… says where lines have it, as a number",
            ),
            (
                estimated,
                self.counts.sizes,
                "size of the response, by which its cost is estimated",
                "without one, it costs the most that it can",
                "--field bytes_sent=… says where lines have it",
            ),
            (
                needs.status,
                self.counts.statuses,
                "status, by which responses cost",
                AS_WITHOUT,
                "--field status=… says where lines have it",
            ),
        ] {
            if needed {
                let lack = requests.saturating_sub(found);
                self.note((lack, requests, "of the log"), what, then, hint);
            }
        }
    }

    fn note_costs(&mut self, needs: &Needs, decided: &[&LimitResult]) {
        for limit in decided {
            let mut place = needs
                .costs
                .iter()
                .filter(|(name, _)| *name.as_str() == *limit.name);
            let (what, hint) = match place.next() {
                Some((_, place)) => (
                    format!("number for its cost at {place}"),
                    "it is a whole number of units".to_owned(),
                ),
                None => (
                    "number for its cost".to_owned(),
                    format!("--cost-from {}=… says where lines have it", limit.name),
                ),
            };
            let whose = format!("at {}", limit.name);
            let (lack, of) = (limit.unpriced, limit.priced + limit.unpriced);
            self.note((lack, of, &whose), &what, AS_WITHOUT, &hint);
        }
        for limit in &needs.reserves {
            self.lacking.push((
                format!("{limit} reserves what a request states, which no log has: each reserves the default"),
                "`reserve.default` of the limit says how much".to_owned(),
            ));
        }
    }

    fn note(&mut self, (lack, of, whose): (u64, u64, &str), what: &str, then: &str, hint: &str) {
        let who = match lack {
            0 => return,
            _ if lack == of => format!("no request {whose} has a {what}"),
            1 => format!("1 of {of} requests {whose} has no {what}"),
            _ => format!("{lack} of {of} requests {whose} have no {what}"),
        };
        let why = format!("{who}: {then}");
        self.lacking.push((why, hint.to_owned()));
    }

    fn warn_of_files(&self, printer: &Printer) {
        if self.interrupted {
            printer.warn("interrupted: this is about what was read so far");
        }
        for (again, first) in &self.repeats {
            let what = if again == first {
                "named twice".to_owned()
            } else {
                format!("the same file as {first}")
            };
            printer.warn(format_args!("{again} is {what}: it is read once"));
        }
        for Cut { file, why } in &self.counts.cut {
            printer.warn(format_args!(
                "{file} is damaged or ends early ({why}): the rest is missing"
            ));
        }
    }

    /// Warns of what makes the result less than exact.
    pub fn warn(&self, printer: &Printer, requests: u64) {
        self.warn_of_files(printer);
        let counts = &self.counts;
        match counts.others {
            0 => {}
            1 => printer.note("1 line is no request, and is left out"),
            lines => printer.note(format_args!(
                "{lines} lines are no requests, and are left out"
            )),
        }
        if counts.broken > 0 {
            let lines = counted(counts.broken, "line");
            printer.warn(format_args!("{lines} could not be read, and are left out"));
            for Broken { file, line, why } in &counts.first_broken {
                printer.hint(format_args!("{file}:{line} {why}"));
            }
        }
        if counts.late > 0 {
            let late = counted(counts.late, "request");
            printer.warn(format_args!(
                "{late} started before one that is {REORDER_MAX} lines earlier in the log: counted as if they \
                 started with it"
            ));
        }
        if requests == 0 {
            return;
        }
        for entry in counts.entries.iter().filter(|entry| entry.requests == 0) {
            // Patterns test the whole address, which is there if the address is.
            if entry.name.as_str() != WHOLE_ADDRESS {
                let FoundEntry { name, from, .. } = entry;
                let mut limits_of = self.limits_of.iter();
                let limits = limits_of.find(|(entry, _)| entry == name);
                let by = match limits.map_or(&[][..], |(_, limits)| limits) {
                    [] => String::new(),
                    [limit] => format!(", which {limit} goes by"),
                    [limit, others @ ..] => {
                        let others = counted(others.len(), "other limit");
                        format!(", which {limit} and {others} go by")
                    }
                };
                printer.warn(format_args!(
                    "no request of the log has `{name}` ({from}){by}"
                ));
                let flag = if name.as_str() == REMOTE_ADDRESS {
                    "field"
                } else {
                    "entry"
                };
                printer.hint(format_args!("--{flag} {name}=… says where lines have it"));
            }
        }
        for (why, hint) in &self.lacking {
            printer.warn(why);
            printer.hint(hint);
        }
        if counts.whole_seconds {
            printer.warn(
                "the log's times are whole seconds: requests of one second count as simultaneous, so limits \
                 with a small burst deny more here than they would",
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_is_rotated_after_it_was_looked_into_is_not_read_for_it() {
        let folder = tempfile::TempDir::new().unwrap();
        let file = folder.path().join("access.log");
        let line = "{\"time\":1795650437250}\n";
        // Another file of that name, the same one emptied, and one that grows meanwhile.
        for (rotate, requests) in [("rename", 0), ("empty", 0), ("append", 6)] {
            std::fs::write(&file, line.repeat(5)).unwrap();
            let path = file.to_str().unwrap();
            let logs = vec![log(path, &Arc::default()).unwrap()];
            let mut logs = Logs::new(logs, Layout::default(), Arc::default()).unwrap();
            match rotate {
                "rename" => {
                    std::fs::rename(&file, folder.path().join("access.log.1")).unwrap();
                    std::fs::write(&file, line.repeat(9)).unwrap();
                }
                "empty" => std::fs::write(&file, line).unwrap(),
                _ => std::fs::write(&file, line.repeat(6)).unwrap(),
            }
            let mut read = 0;
            while logs.next_request().unwrap().is_some() {
                read += 1;
            }
            assert_eq!(read, requests, "{rotate}");
            let whys: Vec<String> = logs.counts().cut.into_iter().map(|cut| cut.why).collect();
            let expected = "it was rotated before it was read".to_owned();
            assert_eq!(
                whys.contains(&expected),
                requests == 0,
                "{rotate}: {whys:?}"
            );
        }
    }
}
