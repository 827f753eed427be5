//! A session with Redis: the store, the domain, and messages for errors.

use std::{
    collections::BTreeMap,
    path::PathBuf,
    sync::{Arc, atomic::AtomicU64},
    time::Duration,
};

use policy::{Limit, Name, Policy};
use store::{ClientCertificate, HeadState, Options, Overrides, Record, Store, Stored};

#[cfg(test)]
use store::StoreUrl;

use crate::{
    args::Global,
    error::Error,
    printer::Printer,
    render::truncated_list,
    settings::{self, Settings},
    suggest,
};

mod edit_plan;
mod errors;
mod kept_overrides;
mod live_entries;
mod overrides;
mod pauses;
mod progress;

pub use edit_plan::{Deltas, EditPlan, deletion_summary};
pub use errors::conflict;
use errors::failure;
pub use insight::LiveEntries;

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
        if let Some(leftover) = settings::leftover_context(&settings) {
            printer.warn(format_args!(
                "{leftover} is not read: rlctl has no contexts, and uses {}",
                settings.url
            ));
            printer.hint("RLCTL_REDIS, RLCTL_DOMAIN, RL_KEY_PREFIX and RLCTL_TIMEOUT take their place");
        }
        let file = |name| settings::variable(name).map(PathBuf::from);
        let files = file("RL_STORE_CERT").zip(file("RL_STORE_KEY"));
        let options = Options {
            client_certificate: files.map(|(cert, key)| ClientCertificate { cert, key }),
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

    /// A session with a store of its own, for tests.
    #[cfg(test)]
    pub(crate) fn in_memory(printer: &'p Printer) -> Self {
        let settings = Settings {
            url: StoreUrl::Memory,
            url_source: settings::DEFAULT_SOURCE,
            keys: store::Keys::default(),
            timeout: Duration::from_secs(1),
            domain: None,
        };
        let store = store::open(&settings.url, Options::default()).unwrap();
        Self {
            store,
            printer,
            settings,
            walked: Arc::default(),
        }
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
        let counts = self.store.count_proxies(domain, &asked.collect()).await;
        let counts = counts.map_err(|error| self.failed(&error))?;
        let of_limit = |(limit, count): (Option<Name>, u64)| Some((limit?, count));
        Ok(counts.into_iter().filter_map(of_limit).collect())
    }

    /// The store's clock, in milliseconds since the epoch.
    pub async fn now_ms(&self) -> Result<u64, Error> {
        let now_ms = self.store.now_ms().await;
        now_ms.map_err(|error| self.failed(&error))
    }

    /// The domain that was named, if one was.
    pub fn named_domain(&self) -> Option<&Name> {
        self.settings.domain.as_ref()
    }

    /// Every domain with limits, including limits that this version cannot read.
    pub async fn domains(&self) -> Result<Vec<Name>, Error> {
        let heads = self
            .store
            .heads()
            .await
            .map_err(|error| self.failed(&error))?;
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
            [] => Err(Error::not_found("there is no domain yet").hint(
                "`rlctl apply -f limits.yaml` makes one; so does `rlctl set-limit --domain NAME …`",
            )),
            many => {
                let names = truncated_list(many, NAMED_MAX);
                Err(Error::usage(format!("which domain? there are: {names}"))
                    .hint("name it with --domain or RLCTL_DOMAIN"))
            }
        }
    }

    /// The stored record of a domain.
    pub async fn read(&self, domain: &Name, overrides: Overrides) -> Result<Stored, Error> {
        let stored = self.store.read(domain, overrides).await;
        let mut stored = stored.map_err(|error| self.failed(&error))?;
        if let Stored::Live(record) = &mut stored {
            sort_overrides(&mut record.policy);
        }
        Ok(stored)
    }

    /// The record of the domain; an error if it has no limits.
    pub async fn record(&self, overrides: Overrides) -> Result<Box<Record>, Error> {
        let domain = self.domain().await?;
        match self.read(&domain, overrides).await? {
            Stored::Live(record) => Ok(record),
            Stored::Absent | Stored::Deleted(_) => Err(self.no_domain(&domain).await),
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
            Ok(known) => error.hint(suggest::hint(
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
        .hint(suggest::hint(name, "limits", known))
    })
}
