//! A store that behaves as the test says, and otherwise like the memory store.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex},
};

use algorithms::check::Verdict;
use anyhow::Result;
use async_trait::async_trait;
use harness::until;
use policy::{Compiled, Name, Override, Revision};
use protocol::{Answer, Check};
use store::{
    ActiveProxies, Buckets, CheckError, Checks, Credit, CreditReport, Cursor, Diagnostics, Edit,
    EditError, Head, Health, HistoryEntry, Inspection, LimitOf, Options, OverrideCursor,
    OverridePage, Overrides, Page, PingReply, Policies, ProxyCounts, Report, ResetReport,
    ResetScope, ScriptStatus, Signature, Store, StoreError, StoreUrl, Stored, Telemetry, open,
    script::ScriptCheck,
};
use tokio::sync::{Semaphore, watch};

use super::{PATIENCE, publish};

/// A memory store whose calls can be held back, counted and made to fail.
#[derive(Debug)]
pub struct Scripted {
    inner: Arc<dyn Store>,
    gate: Semaphore,
    script: Mutex<Script>,
}

#[derive(Debug, Default)]
struct Script {
    /// Checks of each call that came through the gate, and whether it was forced.
    calls: Vec<(usize, bool)>,
    /// Calls that came to the gate.
    entered: usize,
    /// Errors for the calls to come; `None`: the check is decided.
    errors: VecDeque<Vec<Option<CheckError>>>,
    heads_error: Option<StoreError>,
    record_error: Option<StoreError>,
    write_error: Option<StoreError>,
    /// A domain whose edits fail, and its reads if the error is one of reads.
    refused: Option<(Name, EditError)>,
    /// No report gets an answer.
    takes_no_report: bool,
    /// The call that panics.
    panics: Option<&'static str>,
}

impl Scripted {
    /// With these limits in `shop`, the gate open for `calls` calls of `check`.
    pub async fn with(limits: &str, calls: usize) -> Result<Arc<Self>> {
        let inner = open(&StoreUrl::Memory, Options::default())?;
        publish(&inner, limits).await?;
        Ok(Arc::new(Self {
            inner,
            gate: Semaphore::new(calls),
            script: Mutex::default(),
        }))
    }

    /// The memory store behind it.
    pub fn inner(&self) -> &Arc<dyn Store> {
        &self.inner
    }

    /// Lets this many more calls through.
    pub fn let_through(&self, calls: usize) {
        self.gate.add_permits(calls);
    }

    /// The calls that came through: how many checks, and whether forced.
    pub fn calls(&self) -> Vec<(usize, bool)> {
        self.script.lock().unwrap().calls.clone()
    }

    /// Waits until this many calls came to the gate in all.
    pub async fn entered(&self, calls: usize) -> Result<()> {
        let what = format!("{calls} calls of the store");
        until(&what, PATIENCE, async || {
            (self.script.lock().unwrap().entered == calls).then_some(())
        })
        .await
    }

    /// The next calls fail, each with the next of these errors for all its checks.
    pub fn fail(&self, errors: impl IntoIterator<Item = CheckError>) {
        let errors = errors.into_iter().map(|error| vec![Some(error)]);
        self.script.lock().unwrap().errors.extend(errors);
    }

    /// The next call fails, each of its checks with its own error.
    pub fn fail_each(&self, errors: impl Into<Vec<CheckError>>) {
        self.fail_some(errors.into().into_iter().map(Some));
    }

    /// As [`Self::fail_each`], except for the checks that have no error.
    pub fn fail_some(&self, errors: impl IntoIterator<Item = Option<CheckError>>) {
        let mut script = self.script.lock().unwrap();
        script.errors.push_back(errors.into_iter().collect());
    }

    /// Makes polls fail.
    pub fn fail_heads(&self, error: Option<StoreError>) {
        self.script.lock().unwrap().heads_error = error;
    }

    /// Makes reads of records fail.
    pub fn fail_records(&self, error: Option<StoreError>) {
        self.script.lock().unwrap().record_error = error;
    }

    /// Makes edits of one domain fail, and its reads if they can fail so.
    pub fn refuse(&self, domain: Option<(Name, EditError)>) {
        self.script.lock().unwrap().refused = domain;
    }

    /// Makes this call panic: `heads` or `count_proxies`.
    pub fn panic_in(&self, call: &'static str) {
        self.script.lock().unwrap().panics = Some(call);
    }

    /// Leaves reports without an answer.
    pub fn take_no_report(&self) {
        self.script.lock().unwrap().takes_no_report = true;
    }

    fn called(&self, call: &str) {
        let panics = self.script.lock().unwrap().panics;
        assert_ne!(panics, Some(call), "as the test says");
    }

    fn refusal(&self, domain: &Name) -> Option<EditError> {
        let refused = self.script.lock().unwrap().refused.clone();
        let (_, error) = refused.filter(|(refused, _)| refused == domain)?;
        Some(error)
    }

    /// Makes edits fail.
    pub fn fail_writes(&self, error: Option<StoreError>) {
        self.script.lock().unwrap().write_error = error;
    }
}

#[async_trait]
impl Checks for Scripted {
    async fn check(
        &self,
        policy: &Compiled,
        checks: &[Check],
        force: bool,
    ) -> Vec<Result<Answer, CheckError>> {
        self.script.lock().unwrap().entered += 1;
        self.gate.acquire().await.unwrap().forget();
        let errors = {
            let mut script = self.script.lock().unwrap();
            script.calls.push((checks.len(), force));
            script.errors.pop_front()
        };
        let errors = errors.unwrap_or_else(|| vec![None]);
        let sent = || checks.iter().zip(errors.iter().cycle());
        let decided = sent().filter(|(_, error)| error.is_none());
        let decided: Vec<Check> = decided.map(|(check, _)| check.clone()).collect();
        let mut decisions = self.inner.check(policy, &decided, force).await.into_iter();
        sent()
            .map(|(_, error)| match error {
                Some(error) => Err(error.clone()),
                None => decisions.next().unwrap(),
            })
            .collect()
    }

    async fn simulate(
        &self,
        run: u64,
        check: &ScriptCheck<'_>,
        now_ms: u64,
    ) -> Result<Verdict, CheckError> {
        self.inner.simulate(run, check, now_ms).await
    }

    async fn end_simulation(&self, run: u64, buckets: &[&str]) -> Result<(), StoreError> {
        self.inner.end_simulation(run, buckets).await
    }
}

#[async_trait]
impl Policies for Scripted {
    async fn heads(&self) -> Result<Vec<Head>, StoreError> {
        self.called("heads");
        let error = self.script.lock().unwrap().heads_error.clone();
        match error {
            Some(error) => Err(error),
            None => self.inner.heads().await,
        }
    }

    fn watch_edits(&self) -> watch::Receiver<u64> {
        self.inner.watch_edits()
    }

    async fn read(&self, domain: &Name, overrides: Overrides) -> Result<Stored, StoreError> {
        if let Some(EditError::Store(error)) = self.refusal(domain) {
            return Err(error);
        }
        let error = self.script.lock().unwrap().record_error.clone();
        match error {
            Some(error) => Err(error),
            None => self.inner.read(domain, overrides).await,
        }
    }

    async fn read_override(
        &self,
        limit: &LimitOf<'_>,
        values: &[Option<Vec<u8>>],
    ) -> Result<Option<Override>, StoreError> {
        self.inner.read_override(limit, values).await
    }

    async fn override_counts(
        &self,
        domain: &Name,
        limits: &[&Name],
    ) -> Result<Vec<u64>, StoreError> {
        self.inner.override_counts(domain, limits).await
    }

    async fn scan_overrides(
        &self,
        limit: &LimitOf<'_>,
        cursor: OverrideCursor,
    ) -> Result<OverridePage, StoreError> {
        self.inner.scan_overrides(limit, cursor).await
    }

    async fn write(&self, edit: &Edit<'_>) -> Result<Revision, EditError> {
        if let Some(error) = self.refusal(edit.domain) {
            return Err(error);
        }
        let error = self.script.lock().unwrap().write_error.clone();
        match error {
            Some(error) => Err(error.into()),
            None => self.inner.write(edit).await,
        }
    }

    async fn history(&self, domain: &Name, max: usize) -> Result<Vec<HistoryEntry>, StoreError> {
        self.inner.history(domain, max).await
    }
}

#[async_trait]
impl Buckets for Scripted {
    async fn inspect(
        &self,
        policy: &Compiled,
        limit: &Name,
        values: &[Option<Vec<u8>>],
        cost: u64,
    ) -> Result<Inspection, CheckError> {
        self.inner.inspect(policy, limit, values, cost).await
    }

    async fn list(
        &self,
        domain: &Name,
        limit: Option<&Name>,
        cursor: Cursor,
    ) -> Result<Page, StoreError> {
        self.inner.list(domain, limit, cursor).await
    }

    async fn reset(
        &self,
        limit: &LimitOf<'_>,
        which: ResetScope<'_>,
        by: &Signature,
    ) -> Result<ResetReport, EditError> {
        self.inner.reset(limit, which, by).await
    }

    async fn credit(&self, credit: &Credit<'_>, by: &Signature) -> Result<CreditReport, EditError> {
        self.inner.credit(credit, by).await
    }
}

#[async_trait]
impl Telemetry for Scripted {
    async fn count_proxies(
        &self,
        domain: &Name,
        seen: &ActiveProxies,
    ) -> Result<ProxyCounts, StoreError> {
        self.called("count_proxies");
        self.inner.count_proxies(domain, seen).await
    }

    async fn report(&self, limiter: &str, reports: &[Report<'_>]) -> Result<(), StoreError> {
        if self.script.lock().unwrap().takes_no_report {
            std::future::pending::<()>().await;
        }
        self.inner.report(limiter, reports).await
    }
}

#[async_trait]
impl Diagnostics for Scripted {
    fn address(&self) -> String {
        self.inner.address()
    }

    fn fault(&self) -> Option<StoreError> {
        self.inner.fault()
    }

    async fn now_ms(&self) -> Result<u64, StoreError> {
        self.inner.now_ms().await
    }

    async fn key_count(&self) -> Result<Option<u64>, StoreError> {
        self.inner.key_count().await
    }

    async fn ping(&self) -> Result<PingReply, StoreError> {
        self.inner.ping().await
    }

    async fn scripts(&self) -> Result<Vec<ScriptStatus>, StoreError> {
        self.inner.scripts().await
    }

    async fn load_scripts(&self) -> Result<(), StoreError> {
        self.inner.load_scripts().await
    }

    async fn health(&self) -> Result<Vec<Health>, StoreError> {
        self.inner.health().await
    }
}
