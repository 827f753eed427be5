use super::*;

#[tokio::test(start_paused = true)]
async fn a_new_domain_is_no_fault_until_its_record_stays_away() {
    let reported = |domain: &Domain| domain.fault.as_ref().map(|fault| fault.reported);
    let missing = || "the record is gone".to_owned();
    let listed = Domain::default().faulty(missing(), None);
    assert_eq!(reported(&listed), Some(false));
    tokio::time::advance(RECORD_RETRY / 2).await;
    let listed = listed.faulty(missing(), None);
    assert_eq!(reported(&listed), Some(false));
    tokio::time::advance(RECORD_RETRY / 2).await;
    assert_eq!(reported(&listed.faulty(missing(), None)), Some(true));
    // A record that cannot be read is a fault at once.
    let revision = Revision {
        number: 1,
        digest: 1,
    };
    let unread = Domain::default().faulty("not JSON".to_owned(), Some(&revision));
    assert_eq!(reported(&unread), Some(true));
}

/// A domain that takes long to load, as a new one does that waits for its turn, delays no other's edits.
#[tokio::test(start_paused = true)]
async fn an_edit_is_in_force_while_another_domain_waits_to_be_loaded() -> anyhow::Result<()> {
    let store = store::open(&store::StoreUrl::Memory, store::Options::default())?;
    let [shop, other]: [Name; 2] = ["shop".parse()?, "other".parse()?];
    let put = async |domain: &Name, rate: u64| -> anyhow::Result<u64> {
        let limits = format!("domain: {domain}\nlimits:\n  - {{name: all, rate: {rate}/s}}\n");
        let limits =
            limits_file::read("test", limits.as_bytes()).map_err(|_| anyhow::anyhow!("limits"))?;
        let base = store.read(domain, Overrides::All).await?;
        let edit = store::Edit {
            domain,
            base: &base,
            change: store::Change::Limits(&limits),
            by: &store::Signature::default(),
        };
        Ok(store.write(&edit).await?.number)
    };
    put(&shop, 1).await?;
    let domains = Arc::new(Domains::new(Arc::clone(&store), Arc::new(Metrics::new())));
    let polling = Arc::clone(&domains);
    let _polls = tokio::spawn(async move { polling.poll_forever().await });
    assert!(domains.refreshed(None).await);
    let turn = alone().await;
    put(&other, 1).await?;
    let revision = put(&shop, 2).await?;
    assert!(domains.refreshed(Some(&shop)).await);
    let in_force = |name: &Name| {
        domains
            .all()
            .get(name)
            .and_then(|of| of.revision().cloned())
    };
    assert_eq!(in_force(&shop).map(|of| of.number), Some(revision));
    assert_eq!(in_force(&other), None);
    assert!(!domains.is_sure_of("other"));
    assert!(matches!(domains.find("other"), Lookup::NotLoaded(_)));
    drop(turn);
    assert!(domains.refreshed(Some(&other)).await);
    assert!(in_force(&other).is_some());
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn limits_that_cannot_be_read_are_logged_once_and_then_every_half_minute()
-> anyhow::Result<()> {
    let store = store::open(&store::StoreUrl::Memory, store::Options::default())?;
    let domains = Domains::new(store, Arc::new(Metrics::new()));
    let lines = tempfile::NamedTempFile::new()?;
    let log = tracing_subscriber::fmt().with_writer(Arc::new(lines.reopen()?));
    let _log = tracing::subscriber::set_default(log.finish());
    let logged = || std::fs::read_to_string(lines.path()).map(|text| text.lines().count());
    let error = StoreError::Unreachable("its node is down".to_owned());
    // As of 60 s of polls.
    for _ in 0..300 {
        domains.unread(&"shop".parse()?, &error, 300);
        domains.answered(true, false);
        tokio::time::advance(Duration::from_millis(200)).await;
    }
    assert_eq!(logged()?, 2);
    domains.answered(false, false);
    domains.unread(&"shop".parse()?, &error, 1);
    assert_eq!(logged()?, 3, "it could be read meanwhile");
    Ok(())
}
