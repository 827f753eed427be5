use std::net::Ipv4Addr;

use super::*;

fn connections() -> Arc<Connections> {
    let bounds = ConnectionBounds {
        max: 8,
        max_unauthenticated: 8,
        max_health_checkers: 0,
        idle: Duration::from_mins(1),
        max_age: None,
        max_body: 0,
    };
    Connections::new(bounds, Arc::new(Metrics::new()))
}

fn client(connections: &Arc<Connections>) -> Arc<Peer> {
    let Admission::Serve(peer) = connections.open(Ipv4Addr::LOCALHOST.into()) else {
        panic!("refused");
    };
    peer.authenticated_as(AuthState::Authenticated);
    peer
}

fn running(connections: &Connections, peer: &Arc<Peer>, requests: usize) -> Vec<Running> {
    let start = |_| Running::start(peer, &connections.unsent);
    (0..requests).map(start).collect()
}

/// In a dynamic module the check streams of all workers are on one connection, beside their callouts.
#[test]
fn check_streams_close_no_connection_where_all_others_have_many_streams() {
    let connections = connections();
    let (others, proxy) = (client(&connections), client(&connections));
    let mut streams = running(&connections, &proxy, 500);
    let open: Vec<_> = streams.iter().map(|_| proxy.follow(512)).collect();
    assert!(open.iter().all(Option::is_some));
    assert!(!connections.unsent.is_crowded());
    let crowd = running(&connections, &others, STREAMS_CROWDED);
    streams.extend(running(&connections, &proxy, STREAMS_MAX));
    assert!(connections.unsent.is_crowded());
    proxy.bound_streams(&connections.unsent);
    assert!(!proxy.is_to_close());
    // Once it has more callouts than another connection, too.
    streams.extend(running(&connections, &proxy, 1));
    proxy.bound_streams(&connections.unsent);
    assert!(proxy.is_to_close());
    drop((open, streams, crowd));
    assert_eq!(connections.unsent.streams.load(Ordering::Relaxed), 0);
}

#[test]
fn check_streams_alone_are_no_crowd() {
    let connections = connections();
    let proxies: Vec<_> = (0..8).map(|_| client(&connections)).collect();
    let open = proxies.iter().map(|proxy| {
        let streams = running(&connections, proxy, STREAMS_CROWDED / 8);
        let open: Vec<_> = (0..STREAMS_CROWDED / 8)
            .map(|_| proxy.follow(usize::MAX))
            .collect();
        (streams, open)
    });
    let open: Vec<_> = open.collect();
    let _callouts = running(&connections, &proxies[0], STREAMS_MAX + 1);
    proxies[0].bound_streams(&connections.unsent);
    assert!(!proxies[0].is_to_close());
    drop(open);
}
