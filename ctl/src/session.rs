//! A command's way to Redis: the store, the domain that is meant, and errors as users need them.

use std::{sync::Arc, time::Duration};

use policy::{Limit, Name, Override, Policy};
use store::{
    CheckError, EditError, HeadState, LimitOf, Options, Overrides, Store, StoreError, Stored,
};

#[cfg(test)]
use store::StoreUrl;

use crate::{
    bucket::Values,
    cli::Global,
    edit,
    error::Error,
    exit::Exit,
    printer::Printer,
    settings::{self, Settings},
    suggest,
};

const CONNECT_SLACK: Duration = Duration::from_millis(200);

/// An open store and what was said about how to use it.
#[derive(Debug)]
pub struct Session<'p> {
    /// The store.
    pub store: Arc<dyn Store>,
    /// Where the command says what it has to say.
    pub printer: &'p Printer,
    settings: Settings,
}

impl<'p> Session<'p> {
    /// Opens the store; it connects at its first use.
    pub fn open(global: &Global, printer: &'p Printer) -> Result<Self, Error> {
        let settings = Settings::resolve(global, |name| std::env::var(name).ok())?;
        let options = Options {
            keys: settings.keys.clone(),
            timeout: settings.timeout,
            // A connection attempt that takes too long should be what is reported.
            control_timeout: settings.timeout + CONNECT_SLACK,
            connect_timeout: settings.timeout,
            ..Options::default()
        };
        let store =
            store::open(&settings.url, options).map_err(|error| failure(&error, &settings))?;
        Ok(Self {
            store,
            printer,
            settings,
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
        }
    }

    /// What a store's error means to the user.
    pub fn failed(&self, error: &StoreError) -> Error {
        failure(error, &self.settings)
    }

    /// What an edit's error means to the user.
    pub fn edit_failed(&self, error: &EditError) -> Error {
        match error {
            EditError::Store(error @ (StoreError::Timeout(_) | StoreError::Broken(_))) => self
                .failed(error)
                .hint("the edit may have been written all the same; `rlctl history` tells"),
            EditError::Store(error) => self.failed(error),
            EditError::Conflict { .. } => edit::conflict(),
            EditError::UnknownLimit(_) => Error::not_found(error.to_string()),
            _ => Error::new(Exit::Refused, error.to_string()),
        }
    }

    /// What a check's error means to the user.
    pub fn check_failed(&self, error: &CheckError) -> Error {
        match error {
            CheckError::Store(error) => self.failed(error),
            CheckError::UnknownLimit(_) => Error::not_found(error.to_string()),
            CheckError::NoMatch => Error::new(Exit::NotFound, error.to_string())
                .hint("`rlctl explain` with the same -d says why"),
            CheckError::Stale => edit::conflict(),
            CheckError::WrongBucket { .. } => Error::usage(error.to_string()),
        }
    }

    /// The domain that was named, if one was.
    pub fn named_domain(&self) -> Option<&Name> {
        self.settings.domain.as_ref()
    }

    /// Every domain with limits.
    pub async fn domains(&self) -> Result<Vec<Name>, Error> {
        let heads = self
            .store
            .heads()
            .await
            .map_err(|error| self.failed(&error))?;
        let live = heads
            .into_iter()
            .filter(|head| matches!(head.state, HeadState::Live(_)));
        let mut names: Vec<Name> = live.map(|head| head.domain).collect();
        names.sort_unstable();
        Ok(names)
    }

    /// The domain that is meant: the one named, else the only one there is.
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
                let names: Vec<&str> = many.iter().map(Name::as_str).collect();
                Err(
                    Error::usage(format!("which domain? there are: {}", names.join(", ")))
                        .hint("name it with --domain or RLCTL_DOMAIN"),
                )
            }
        }
    }

    /// What is stored of a domain.
    pub async fn read(&self, domain: &Name, overrides: Overrides) -> Result<Stored, Error> {
        let stored = self.store.read(domain, overrides).await;
        let mut stored = stored.map_err(|error| self.failed(&error))?;
        if let Stored::Live(record) = &mut stored {
            sort_overrides(&mut record.policy);
        }
        Ok(stored)
    }

    /// The limits of the domain that is meant; an error if it has none.
    pub async fn policy(&self, overrides: Overrides) -> Result<Policy, Error> {
        let domain = self.domain().await?;
        match self.read(&domain, overrides).await? {
            Stored::Live(record) => Ok(record.policy),
            Stored::Absent | Stored::Deleted(_) => Err(self.no_domain(&domain).await),
        }
    }

    /// A limit of a record, or an error that says what is not there.
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

    /// The override of one bucket.
    pub async fn override_of(
        &self,
        domain: &Name,
        limit: &Limit,
        values: &Values,
    ) -> Result<Option<Override>, Error> {
        let of = LimitOf { domain, limit };
        let found = self.store.read_override(&of, values).await;
        found.map_err(|error| self.failed(&error))
    }

    /// A domain that did not exist a moment ago may be a typo.
    pub async fn warn_of_new_domain(&self) -> Result<(), Error> {
        let Some(named) = self.named_domain() else {
            return Ok(());
        };
        let domains = self.domains().await?;
        let others: Vec<&str> = domains
            .iter()
            .filter(|domain| *domain != named)
            .map(Name::as_str)
            .collect();
        if !others.is_empty() {
            let others = others.join(", ");
            self.printer
                .warn(format_args!("{named} is a new domain beside {others}"));
        }
        Ok(())
    }

    /// The error for a domain that is not there.
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

/// The store keeps overrides in no order; an export should not differ from the last one by that.
pub fn sort_overrides(policy: &mut Policy) {
    for limit in &mut policy.limits {
        limit.overrides.sort_by(|a, b| a.values.cmp(&b.values));
    }
}

/// The limit of that name, or an error that says which one was probably meant.
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

fn failure(error: &StoreError, settings: &Settings) -> Error {
    let url = &settings.url;
    let source = settings.url_source;
    let unreachable = |why: String| Error::new(Exit::Unreachable, why).hint(whence(settings));
    match error {
        StoreError::Unreachable(why) => unreachable(format!("cannot reach {url}: {why}")),
        StoreError::Timeout(limit) => unreachable(format!(
            "{url} did not answer within {} ms",
            limit.as_millis()
        )),
        StoreError::Broken(why) => unreachable(format!("lost the connection to {url}: {why}")),
        StoreError::Auth(why) => Error::new(Exit::Auth, format!("{url} refused the login: {why}"))
            .hint(format!(
                "the credentials are those of {source}: redis://user:password@host"
            )),
        StoreError::Refused(refusal) => {
            let message = format!("{url} refused: {} {}", refusal.code, refusal.message);
            Error::new(Exit::Refused, message).maybe_hint(refusal.hint())
        }
        StoreError::Corrupt(_) | StoreError::Unsupported(_) => {
            Error::new(Exit::Refused, format!("{url}: {error}"))
        }
    }
}

/// What to look at first when there is no answer.
fn whence(settings: &Settings) -> String {
    match settings.url_source {
        settings::DEFAULT_SOURCE => {
            "is it running? nothing was said of where it is: --redis or RLCTL_REDIS does".to_owned()
        }
        settings::FLAG_SOURCE => "is it running there?".to_owned(),
        variable => {
            format!("is it running? the address is that of {variable}; --redis names another")
        }
    }
}
