use std::sync::atomic::AtomicU64;

use futures_util::future::{BoxFuture, FutureExt, pending, ready};
use tracing::{
    Event, Level, Metadata, Subscriber,
    span::{Attributes, Id, Record},
};

use super::{super::Masters, *};

fn node(host: Option<&str>, port: i64) -> Value {
    let host = host.map_or(Value::Nil, |h| Value::BulkString(h.as_bytes().to_vec()));
    Value::Array(vec![
        host,
        Value::Int(port),
        Value::SimpleString("id".into()),
    ])
}

#[test]
fn a_slot_range_without_a_host_name_belongs_to_the_asked_node() {
    let range = |first, last, node| Value::Array(vec![Value::Int(first), Value::Int(last), node]);
    let answer = Value::Array(vec![
        range(0, 1, node(Some("10.0.0.1"), 7000)),
        range(2, 16383, node(None, 7001)),
        range(5, 5, node(Some("?"), 7002)),
    ]);
    let found = ranges(answer, "asked").unwrap();
    let address = |host: &str, port| (host.to_owned(), port);
    assert_eq!(
        found,
        [
            (0, 1, address("10.0.0.1", 7000)),
            (2, 16383, address("asked", 7001)),
            (5, 5, address("asked", 7002)),
        ]
    );
}

#[test]
fn nonsense_is_an_error_never_a_panic() {
    for answer in [
        Value::Okay,
        Value::Array(vec![]),
        Value::Array(vec![Value::Int(1)]),
        Value::Array(vec![Value::Array(vec![Value::Int(-1), Value::Int(70_000)])]),
        Value::Array(vec![Value::Array(vec![
            Value::Int(0),
            Value::Int(1),
            node(Some("a"), 70_000),
        ])]),
    ] {
        assert!(ranges(answer.clone(), "a").is_err(), "{answer:?}");
    }
}

type Answer = BoxFuture<'static, Result<Vec<Range>, Error>>;

fn map(host: &str) -> Answer {
    let map = vec![(0, 16383, (host.to_owned(), 6379))];
    ready(Ok(map)).boxed()
}

async fn first_host(answers: Vec<Answer>) -> Option<String> {
    let map = majority(answers.into_iter().collect()).await.ok()?;
    map.into_iter().next().map(|(_, _, (host, _))| host)
}

#[tokio::test]
async fn the_nearest_node_is_outvoted() {
    let answers = vec![map("old"), map("new"), map("new")];
    assert_eq!(first_host(answers).await.as_deref(), Some("new"));
}

#[tokio::test]
async fn nodes_that_hang_or_fail_do_not_count() {
    let failed = || ready(Err(closed())).boxed();
    let answers = vec![pending().boxed(), failed(), map("new")];
    assert_eq!(first_host(answers).await.as_deref(), Some("new"));
    assert_eq!(first_host(vec![failed(), failed()]).await, None);
}

#[test]
fn a_node_without_slots_makes_the_cluster_neither_faulty_nor_cold() {
    let settings = Settings {
        connect_timeout: Duration::from_secs(1),
        probe_timeout: Duration::from_secs(1),
        client_certificate: None,
        network: None,
        scripts: Arc::new([]),
    };
    let server = "redis-cluster://a:1".parse().unwrap();
    let dialer = Dialer::new(server, &settings).unwrap();
    let shared = Shared::new(dialer, settings);
    let connect = |address: &NodeAddress| shared.connect_to(address);
    let address = |host: &str| (host.to_owned(), 1);
    let ranges = [(0, 8191, address("a")), (8192, 16383, address("b"))];
    let map = Map::new(&ranges, &Map::default(), connect);
    assert_eq!(serving(&map).count(), 2);
    // As ASK names it.
    let asked = map.with_node(&address("::1"), connect);
    assert_eq!((asked.nodes().len(), serving(&asked).count()), (3, 2));
    let moved = asked.with_moved(7, &address("::1"), connect);
    assert_eq!(serving(&moved).count(), 3);
    let masters = Masters { map: moved.into() };
    let shown: Vec<String> = masters.all().map(|(address, _)| address).collect();
    assert_eq!(shown, ["a:1", "b:1", "[::1]:1"]);
}

/// Counts what is logged.
#[derive(Clone, Default)]
struct Lines(Arc<AtomicU64>);

impl Subscriber for Lines {
    fn enabled(&self, of: &Metadata<'_>) -> bool {
        *of.level() <= Level::INFO
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, _: &Event<'_>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

#[tokio::test]
async fn nodes_that_cannot_be_reached_are_logged_once() {
    let lines = Lines::default();
    let _counting = tracing::subscriber::set_default(lines.clone());
    let server = "redis-cluster://127.0.0.1:1,127.0.0.1:2".parse().unwrap();
    let settings = Settings {
        connect_timeout: Duration::from_millis(500),
        probe_timeout: Duration::from_millis(500),
        client_certificate: None,
        network: None,
        scripts: Arc::new([]),
    };
    let topology = Topology::new(Dialer::new(server, &settings).unwrap(), settings);
    assert!(topology.map().await.is_err());
    sleep(Duration::from_secs(2)).await;
    assert!(topology.map().await.is_err());
    // Of each node, and of the map; each may have failed for a second reason, such as a late answer.
    let logged = lines.0.load(Ordering::Relaxed);
    assert!((3..=6).contains(&logged), "{logged}");
}
