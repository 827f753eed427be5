//! A session with Redis: the store, the domain, and messages for errors.

mod edit_plan;

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

pub use insight::LiveEntries;
use policy::{Descriptor, Limit, Name, Policy, WHOLE_ADDRESS};
use store::{
    CheckError, CheckPlanError, Cursor, EditError, EditPlanError, HeadState, KeyValue, Options,
    Overrides, Record, Store, StoreError, Stored,
};

use crate::{
    bucket::{self, BucketArgs, Pair},
    cli::Global,
    commands::list_keys,
    error::{self, Error, Exit},
    printer::Printer,
    render::{self, pause_state, truncated_list},
    settings::{self, Settings},
};
pub use edit_plan::{Deltas, EditPlan, deletion_summary};

/// Domains that one message names.
const NAMED_MAX: usize = 12;

const CONNECT_SLACK: Duration = Duration::from_millis(200);

/// An open store and the settings to use it with.
#[derive(Debug)]
pub struct Session<'p> {
    /// The store.
    pub store: Arc<dyn Store>,
    /// Prints results and messages.
    pub printer: &'p Printer,
    settings: Settings,
    /// Keys that the store has scanned so far.
    walked: Arc<AtomicU64>,
}

impl<'p> Session<'p> {
    /// Opens the store; it connects at its first use.
    pub fn open(global: &Global, printer: &'p Printer) -> Result<Self, Error> {
        let settings = Settings::resolve(global, settings::variable)?;
        for (name, meant) in settings::misspelt(std::env::vars_os().map(|(name, _)| name)) {
            printer.warn(format_args!(
                "the variable {name} is not read; did you mean RLCTL_{meant}?"
            ));
        }
        let options = Options {
            client_certificate: settings.client_certificate.clone(),
            keys: settings.keys.clone(),
            timeout: settings.timeout,
            // A slow connection attempt fails first, so that the error is about the connection.
            control_timeout: settings.timeout + CONNECT_SLACK,
            connect_timeout: settings.timeout,
            ..Options::default()
        };
        let walked = Arc::clone(&options.walked);
        let store =
            store::open(&settings.url, options).map_err(|error| failure(&error, &settings))?;
        Ok(Self {
            store,
            printer,
            settings,
            walked,
        })
    }

    /// How keys are named.
    pub fn keys(&self) -> &store::Keys {
        &self.settings.keys
    }

    /// The prefix of every key.
    pub fn key_prefix(&self) -> &str {
        self.settings.keys.prefix()
    }

    /// How many proxies share each of some limits.
    pub async fn proxies<'n>(
        &self,
        domain: &Name,
        limits: impl Iterator<Item = &'n Name>,
    ) -> Result<BTreeMap<Name, u64>, Error> {
        // Without proxies nothing is recorded.
        let asked = limits.map(|limit| (Some(limit.clone()), Vec::new()));
        let counts = self
            .call(self.store.count_proxies(domain, &asked.collect()))
            .await?;
        let of_limit = |(limit, count): (Option<Name>, u64)| Some((limit?, count));
        Ok(counts.into_iter().filter_map(of_limit).collect())
    }

    /// The store's clock, in milliseconds since the epoch.
    pub async fn now_ms(&self) -> Result<u64, Error> {
        self.call(self.store.now_ms()).await
    }

    /// The domain that was named, if one was.
    pub fn named_domain(&self) -> Option<&Name> {
        self.settings.domain.as_ref()
    }

    /// Every domain with limits, including limits that this version cannot read.
    pub async fn domains(&self) -> Result<Vec<Name>, Error> {
        let heads = self.call(self.store.heads()).await?;
        let live = heads
            .into_iter()
            .filter(|head| matches!(head.state, HeadState::Live(_) | HeadState::Unreadable(_)));
        let mut names: Vec<Name> = live.map(|head| head.domain).collect();
        names.sort_unstable();
        Ok(names)
    }

    /// The domain that was named, else the only one there is.
    pub async fn domain(&self) -> Result<Name, Error> {
        if let Some(named) = self.named_domain() {
            return Ok(named.clone());
        }
        let domains = self.domains().await?;
        match domains.as_slice() {
            [only] => Ok(only.clone()),
            [] => Err(Error::not_found("there is no domain yet")
                .hint(
                    "`rlctl apply -f limits.yaml` makes one; so does `rlctl set-limit --domain NAME …`",
                )
                .hint("where there were limits, the store lost them, or it is another one: see `rlctl doctor`")),
            many => {
                let names = truncated_list(many, NAMED_MAX);
                Err(Error::usage(format!("which domain? there are: {names}"))
                    .hint("name it with --domain or RLCTL_DOMAIN"))
            }
        }
    }

    /// The stored record of a domain.
    pub async fn read(&self, domain: &Name, overrides: Overrides) -> Result<Stored, Error> {
        let mut stored = self.call(self.store.read(domain, overrides)).await?;
        if let Stored::Live(record) = &mut stored {
            sort_overrides(&mut record.policy);
        }
        Ok(stored)
    }

    /// The record of a domain as an edit of one limit needs it: with that limit alone, if it is there.
    pub async fn read_for(&self, domain: &Name, limit: &Name) -> Result<Stored, Error> {
        self.call(self.store.read_part(domain, &[limit])).await
    }

    /// As [`Session::record`], with this limit alone if it is there.
    pub async fn record_for(&self, limit: &str) -> Result<Box<Record>, Error> {
        let Ok(name) = limit.parse() else {
            return self.record(Overrides::None).await;
        };
        let domain = self.domain().await?;
        let read = self.read_for(&domain, &name).await?;
        self.live(read, &domain).await
    }

    /// The record of the domain; an error if it has no limits.
    pub async fn record(&self, overrides: Overrides) -> Result<Box<Record>, Error> {
        let domain = self.domain().await?;
        let read = self.read(&domain, overrides).await?;
        self.live(read, &domain).await
    }

    async fn live(&self, read: Stored, domain: &Name) -> Result<Box<Record>, Error> {
        match read {
            Stored::Live(record) => Ok(record),
            Stored::Absent | Stored::Deleted(_) => Err(self.no_domain(domain).await),
        }
    }

    /// The limits of the domain; an error if it has none.
    pub async fn policy(&self, overrides: Overrides) -> Result<Policy, Error> {
        let record = self.record(overrides).await?;
        Ok(record.policy)
    }

    /// A limit of a record; an error if the domain or the limit does not exist.
    pub async fn limit_in<'b>(
        &self,
        base: &'b Stored,
        domain: &Name,
        name: &str,
    ) -> Result<&'b Limit, Error> {
        match base.policy() {
            Some(policy) => find_limit(policy, name),
            None => Err(self.no_domain(domain).await),
        }
    }

    /// Warns that the domain is new: its name may be a typo.
    pub async fn warn_of_new_domain(&self) -> Result<(), Error> {
        let Some(named) = self.named_domain() else {
            return Ok(());
        };
        let domains = self.domains().await?;
        let others: Vec<&Name> = domains.iter().filter(|domain| *domain != named).collect();
        if !others.is_empty() {
            let others = truncated_list(&others, NAMED_MAX);
            self.printer
                .warn(format_args!("{named} is a new domain beside {others}"));
        }
        Ok(())
    }

    /// The error for a domain that does not exist.
    pub async fn no_domain(&self, domain: &Name) -> Error {
        let error = Error::not_found(format!("there is no domain `{domain}`"));
        match self.domains().await {
            Ok(known) => error.hint(error::hint(
                domain.as_str(),
                "domains",
                known.iter().map(Name::as_str),
            )),
            Err(_) => error,
        }
    }
}

/// The store returns overrides in no order; sorted, exports of equal limits are equal.
pub fn sort_overrides(policy: &mut Policy) {
    for limit in &mut policy.limits {
        limit.overrides.sort_by(|a, b| a.values.cmp(&b.values));
    }
}

/// The error for a limit whose buckets are not in Redis.
pub fn buckets_in_proxies(limit: &Limit) -> Error {
    Error::not_found(format!(
        "limit {} has its buckets in the proxies",
        limit.name
    ))
    .hint("`scope: proxy` keeps one in every Envoy; Redis does not hold them")
}

/// The limit of that name; an error that suggests a similar name if there is none.
pub fn find_limit<'l>(policy: &'l Policy, name: &str) -> Result<&'l Limit, Error> {
    policy.limit(name).ok_or_else(|| {
        let known = policy.limits.iter().map(|limit| limit.name.as_str());
        Error::not_found(format!(
            "there is no limit `{name}` in domain {}",
            policy.domain
        ))
        .hint(error::hint(name, "limits", known))
    })
}

// --- The store's errors as messages: what happened, and what to check first.

impl Session<'_> {
    /// The answer of the store, or the message for its error.
    pub async fn call<T>(
        &self,
        answer: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, Error> {
        answer.await.map_err(|error| self.failed(&error))
    }

    /// The message for an error of the store.
    pub fn failed(&self, error: &StoreError) -> Error {
        failure(error, &self.settings)
    }

    /// The message for an error of an edit.
    pub fn edit_failed(&self, error: &EditError) -> Error {
        match error {
            EditError::Store(error @ (StoreError::Timeout(_) | StoreError::Broken(_))) => {
                self.failed(error).hint(
                    "it is unknown whether the edit was written; `rlctl history -n 3` shows it if it was",
                )
            }
            EditError::Store(error) => self.failed(error),
            EditError::Bucket(CheckError::Store(
                error @ (StoreError::Timeout(_) | StoreError::Broken(_)),
            )) => self
                .failed(error)
                .hint("it may have been done: look before you try again"),
            EditError::Bucket(error) => self.check_failed(error),
            EditError::Conflict { .. } => conflict(),
            EditError::Plan(EditPlanError::UnknownLimit(_)) => Error::not_found(error.to_string()),
            _ => Error::new(Exit::Refused, error.to_string()),
        }
    }

    /// The message for an error of a change of one bucket, which comes before the entry in the history: without
    /// an answer, `uncertain` says how to find out.
    pub fn bucket_change_failed(&self, error: &EditError, uncertain: String) -> Error {
        match error {
            EditError::Store(error) | EditError::Bucket(CheckError::Store(error))
                if matches!(error, StoreError::Timeout(_) | StoreError::Broken(_)) =>
            {
                self.failed(error).hint(uncertain)
            }
            error => self.edit_failed(error),
        }
    }

    /// The message for an error of a check.
    pub fn check_failed(&self, error: &CheckError) -> Error {
        match error {
            CheckError::Store(error) | CheckError::PartiallyCharged(error) => self.failed(error),
            CheckError::CorruptBucket(limit) => Error::new(Exit::Refused, error.to_string()).hint(
                format!("`rlctl reset {limit}` with the bucket's values resets it"),
            ),
            CheckError::Plan(CheckPlanError::UnknownLimit(_)) => {
                Error::not_found(error.to_string())
            }
            CheckError::Plan(CheckPlanError::NoMatch) => {
                Error::new(Exit::NotFound, error.to_string())
                    .hint("`rlctl explain` with the same -d says why")
            }
            CheckError::Stale => conflict(),
            CheckError::Plan(CheckPlanError::WrongBucket { .. }) => Error::usage(error.to_string()),
        }
    }
}

/// Another edit of the same limit or domain was written first.
pub fn conflict() -> Error {
    Error::new(
        Exit::Conflict,
        "conflict: another edit was written in the meantime",
    )
    .hint("nothing was written; `rlctl history` shows the other edit, then try again")
}

fn failure(error: &StoreError, settings: &Settings) -> Error {
    let url = &settings.url;
    let source = &settings.url_source;
    let unreachable = |why: String| Error::new(Exit::Unreachable, why).hint(whence(settings));
    match error {
        StoreError::Unreachable(why) => unreachable(format!("cannot reach {url}: {why}")),
        StoreError::Timeout(limit) => Error::new(
            Exit::Unreachable,
            format!("{url} did not answer within {} ms", limit.as_millis()),
        )
        .hint("it takes connections, and is slow or hangs; --timeout 5s waits longer"),
        StoreError::Broken(why) => unreachable(format!("lost the connection to {url}: {why}")),
        StoreError::Auth(why) => Error::new(Exit::Auth, format!("{url} refused the login: {why}"))
            .hint(format!(
                "the credentials come from {source}: redis://user:password@host"
            )),
        StoreError::Refused(refusal) => {
            let message = format!("{url} refused: {} {}", refusal.code, refusal.message);
            let hint = match refusal.code.as_str() {
                "WRONGTYPE" => {
                    Some("a key of ours holds something else; `rlctl doctor` looks for it")
                }
                _ => refusal.hint(),
            };
            Error::new(Exit::Refused, message).maybe_hint(hint)
        }
        StoreError::Corrupt(_) | StoreError::Unsupported(_) => {
            Error::new(Exit::Refused, format!("{url}: {error}"))
        }
    }
}

/// The hint when there is no answer.
fn whence(settings: &Settings) -> String {
    match settings.url_source {
        settings::DEFAULT_SOURCE => {
            "is it running? this is the default address; --redis or RLCTL_REDIS sets another"
                .to_owned()
        }
        settings::FLAG_SOURCE => "the address is that of --redis".to_owned(),
        variable => format!("the address comes from {variable}; --redis overrides it"),
    }
}

// --- The descriptor entries that live proxies supply, and the values that they give to them.

impl Session<'_> {
    /// The entries that live proxies supply.
    pub async fn live_entries(&self) -> Result<LiveEntries, Error> {
        let fleet = self.call(self.store.fleet()).await?;
        Ok(LiveEntries::from_fleet(&fleet))
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
                let raw = None;
                entries.push(Pair { key, value, raw });
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
            let Pair { key, value, .. } = pair;
            let listed = self.as_listed(domain, pair).await?;
            let given = listed.as_deref().unwrap_or(value.as_bytes());
            let as_proxies = live.alter(domain, key, given).map_err(Error::usage)?;
            if let Some(note) = as_proxies.note {
                self.printer.note(note);
            }
            let matched = as_proxies.matched.and_then(|v| String::from_utf8(v).ok());
            let (value, raw) = match String::from_utf8(as_proxies.value) {
                Ok(text) => (text, None),
                Err(error) => (value.clone(), Some(error.into_bytes())),
            };
            let key = key.clone();
            altered.push((Pair { key, value, raw }, matched));
        }
        Ok(altered)
    }

    /// The value of which `list-keys` prints this, if a bucket has one, and none has this itself.
    async fn as_listed(&self, domain: &Name, pair: &Pair) -> Result<Option<Vec<u8>>, Error> {
        let marks = ["\\x", "\\u{", "sha256:"];
        if !marks.iter().any(|mark| pair.value.contains(mark)) {
            return Ok(None);
        }
        let stored = self.read(domain, Overrides::None).await?;
        let Some(policy) = stored.policy() else {
            return Ok(None);
        };
        self.with_progress(self.find_listed(policy, pair)).await
    }

    async fn find_listed(&self, policy: &Policy, pair: &Pair) -> Result<Option<Vec<u8>>, Error> {
        let (mut found, mut cursor) = (None, Some(Cursor::default()));
        while let Some(from) = cursor {
            // Who may not list keys names values as they are.
            let Ok(page) = self.store.list(&policy.domain, None, from).await else {
                return Ok(None);
            };
            for bucket in &page.buckets {
                let entries = list_keys::entries(policy, bucket).into_iter();
                let mut entries = entries.filter(|(name, _)| name.as_str() == pair.key);
                let is = |(name, value): &(&Name, &KeyValue)| {
                    bucket::key_entry(name, value).1.as_ref() == Some(&pair.value)
                };
                match entries.find(is) {
                    Some((_, KeyValue::Plain(bytes))) if bytes == pair.value.as_bytes() => {
                        return Ok(None);
                    }
                    Some((_, value)) => found = Some(value.clone()),
                    None => {}
                }
            }
            cursor = page.next;
        }
        match found {
            Some(KeyValue::Plain(bytes)) => Ok(Some(bytes)),
            Some(KeyValue::Digest(_)) => {
                let key = &pair.key;
                let why = format!("`{key}` is too long for a key: the store has only its digest");
                Err(Error::usage(why).hint(format!(
                    "name all of it, as in {key}=\"$(cat FILE)\"; `rlctl reset` without values resets every bucket"
                )))
            }
            Some(KeyValue::Absent) | None => Ok(None),
        }
    }
}

// --- Warnings that a limit, or the whole domain, is paused.

impl Session<'_> {
    /// Warns if the whole domain is paused, or one of the limits that are named.
    pub fn warn_of_pause(&self, policy: &Policy, limits: &[&str]) {
        if let Some(paused) = pause_state(policy.paused) {
            self.printer.warn(format_args!(
                "domain {} is {paused}: none of its limits is in force; `rlctl resume` ends that",
                policy.domain
            ));
        }
        let named = limits.iter().filter_map(|name| policy.limit(name));
        for (limit, paused) in named.filter_map(|limit| Some((limit, pause_state(limit.paused)?))) {
            let name = &limit.name;
            self.printer.warn(format_args!(
                "{name} is {paused}: it is not in force; `rlctl resume --limit {name}` ends that"
            ));
        }
    }
}

// --- Progress of a scan over all keys: a bar on a terminal, nothing elsewhere.

impl Session<'_> {
    /// Runs a scan over keys and shows its progress.
    pub async fn with_progress<T>(&self, walk: impl Future<Output = T>) -> T {
        if !self.printer.draws() {
            return walk.await;
        }
        let total = self.store.key_count().await.ok().flatten();
        let text = || {
            let walked = self.walked.load(Ordering::Relaxed);
            // Keys are created and deleted during the scan.
            let Some((total, walked)) = total.map(|total| (total, walked.min(total))) else {
                return format!("{walked} keys");
            };
            let bar = render::bar(walked, total, self.printer.page());
            format!("{bar} {walked} of {total} keys")
        };
        self.printer.drawing(walk, text).await
    }
}
