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
