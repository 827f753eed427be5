//! The nodes of a Cluster: each request goes to the one that has its slot, and follows redirects.
//!
//! Only a request that certainly did not run is sent again: a node that redirects has done nothing.
//! (Cluster client libraries also resend after a broken connection, which can run a request twice.)

mod topology;

use std::{collections::BTreeMap, future::pending, io, sync::Arc};

use futures_util::future::{BoxFuture, join_all};
use tokio::time::timeout_at;

use crate::{
    Deadline, Error, Lane, Node, Outcome, Refusal, Request, Settings,
    dial::{Dialer, Dialled},
    request::send,
    subscription::Publisher,
    url::{Host, host_text},
};
use topology::{Map, NodeAddress, Topology, named};

/// How many redirects a request follows: an outdated map leads to a node that may itself be
/// migrating the slot to a third one.
const REDIRECTIONS: usize = 3;
const UNSETTLED: &str = "the cluster's nodes do not agree who has a slot";

/// The nodes of a Cluster.
#[derive(Clone)]
pub struct Cluster {
    topology: Arc<Topology>,
}

/// The masters at one moment.
pub struct Masters {
    map: Arc<Map>,
}

impl Masters {
    /// The nth master.
    pub fn get(&self, n: usize) -> Option<&Node> {
        self.map.nodes().get(n).map(|(_, node)| &**node)
    }

    /// All masters with their addresses.
    pub fn all(&self) -> impl Iterator<Item = (String, &Node)> {
        let nodes = self.map.nodes().iter();
        nodes.map(|((host, port), node)| (host_text(host, *port), &**node))
    }

    /// The address of the master that has a slot.
    pub fn owner(&self, slot: u16) -> Option<String> {
        let ((host, port), _) = self.map.owner(slot)?;
        Some(host_text(host, *port))
    }

    /// Changes when slots move.
    pub fn fingerprint(&self) -> u64 {
        self.map.fingerprint()
    }
}

/// A request to be sent to a node.
struct Hop {
    /// Its index among all requests.
    request: usize,
    to: NodeAddress,
    node: Arc<Node>,
    asking: bool,
}

/// MOVED or ASK: the request belongs to another node; the one that replied did nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Redirect {
    /// The slot is at this node now.
    Moved { slot: u16, to: NodeAddress },
    /// The slot is migrating to this node, and these keys are no longer or never were here: ask
    /// there once.
    Ask { to: NodeAddress },
}

impl Redirect {
    /// The redirect in an answer; `None` if it is no redirect. `asked` is the host that gave it.
    fn from_answer(answer: &Outcome, asked: &str) -> Option<Self> {
        let Err(Error::Refused(Refusal { code, message })) = answer else {
            return None;
        };
        let (slot, address) = message.split_once(' ')?;
        let (host, port) = address.rsplit_once(':')?;
        let to = (named(Some(host), asked), port.parse().ok()?);
        match code.as_str() {
            "MOVED" => Some(Self::Moved {
                slot: slot.parse().ok()?,
                to,
            }),
            "ASK" => Some(Self::Ask { to }),
            _ => None,
        }
    }
}

/// Whether an outcome is a reason to query the map of slots again.
fn calls_for_refresh(answer: &Outcome) -> bool {
    match answer {
        Err(Error::Refused(refusal)) => matches!(
            refusal.code.as_str(),
            "MOVED" | "CLUSTERDOWN" | "READONLY" | "NOREPLICAS" | "LOADING" | "MASTERDOWN"
        ),
        Err(Error::Unreachable(_) | Error::Broken(_) | Error::Timeout(_)) => true,
        Ok(_) | Err(_) => false,
    }
}

/// Any node will do: a Cluster forwards publications to all nodes.
impl Publisher for Cluster {
    fn dial(&self) -> BoxFuture<'_, io::Result<Dialled>> {
        Box::pin(self.dial())
    }

    fn moved<'a>(&'a self, _from: Option<&'a Host>) -> BoxFuture<'a, ()> {
        Box::pin(pending())
    }
}

impl Cluster {
    /// `seeds` dials the nodes that the URL names.
    pub(crate) fn new(seeds: Dialer, settings: Settings) -> Self {
        Self {
            topology: Arc::new(Topology::new(seeds, settings)),
        }
    }

    pub(crate) fn start(&self) {
        self.topology.start_data();
    }

    pub(crate) fn is_warm(&self) -> bool {
        self.topology.is_warm()
    }

    pub(crate) fn fault(&self) -> Option<Error> {
        self.topology.fault()
    }

    /// A stream to any node.
    async fn dial(&self) -> io::Result<Dialled> {
        let map = self.topology.map().await.map_err(io::Error::other)?;
        let nodes = map.nodes();
        let any = nodes.get(fastrand::usize(..nodes.len().max(1)));
        let (_, node) = any.ok_or_else(|| io::Error::other("the cluster has no nodes"))?;
        // A node that is down or partitioned may have been replaced.
        self.topology.refresh();
        Publisher::dial(node.route()).await
    }

    /// The masters as last known, or (`fresh`) as queried now.
    pub async fn masters(&self, fresh: bool, deadline: Deadline) -> Result<Masters, Error> {
        let map = if fresh {
            timeout_at(deadline.at(), self.topology.fresh()).await
        } else {
            timeout_at(deadline.at(), self.topology.map()).await
        };
        let map = map.map_err(|_| no_map_yet())??;
        Ok(Masters { map })
    }

    /// Sends each request to the node of its slot; one answer each.
    pub(crate) async fn run(
        &self,
        lane: Lane,
        requests: &[Request],
        deadline: Deadline,
    ) -> Vec<Outcome> {
        let map = match self.masters(false, deadline).await {
            Ok(masters) => masters.map,
            Err(error) => return vec![Err(error); requests.len()],
        };
        let mut answers: Vec<Option<Outcome>> = vec![None; requests.len()];
        let mut hops = Vec::with_capacity(requests.len());
        for (i, request) in requests.iter().enumerate() {
            let slot = request.slot();
            if let Some((place, node)) = map.owner(slot) {
                hops.push(Hop {
                    request: i,
                    to: place.clone(),
                    node: Arc::clone(node),
                    asking: false,
                });
            } else if let Some(answer) = answers.get_mut(i) {
                self.topology.refresh();
                *answer = Some(Err(no_node_for(slot)));
            }
        }
        for _ in 0..=REDIRECTIONS {
            if hops.is_empty() {
                break;
            }
            hops = self
                .round(lane, requests, hops, &mut answers, deadline)
                .await;
        }
        // The remaining requests were only redirected, and have done nothing.
        let unsettled = || Err(Error::Unreachable(UNSETTLED.to_owned()));
        let answers = answers.into_iter();
        answers
            .map(|answer| answer.unwrap_or_else(unsettled))
            .collect()
    }

    /// Sends the hops, one pipeline per node; returns those that were redirected.
    async fn round(
        &self,
        lane: Lane,
        requests: &[Request],
        hops: Vec<Hop>,
        answers: &mut [Option<Outcome>],
        deadline: Deadline,
    ) -> Vec<Hop> {
        let mut groups: BTreeMap<(NodeAddress, bool), Vec<Hop>> = BTreeMap::new();
        for hop in hops {
            let key = (hop.to.clone(), hop.asking);
            groups.entry(key).or_default().push(hop);
        }
        let sent = groups.into_values().map(|group| async move {
            let sent = group.iter().filter_map(|hop| requests.get(hop.request));
            let sent: Vec<&Request> = sent.collect();
            let answers = match group.first() {
                Some(hop) => send(hop.node.link(lane), &sent, hop.asking, deadline).await,
                None => Vec::new(),
            };
            (group, answers)
        });
        let mut on = Vec::new();
        for (group, answered) in join_all(sent).await {
            for (hop, answer) in group.into_iter().zip(answered) {
                if let Some(hop) = self.redirected(&hop, &answer) {
                    on.push(hop);
                    continue;
                }
                if calls_for_refresh(&answer) {
                    self.topology.refresh();
                }
                if let Some(place) = answers.get_mut(hop.request) {
                    *place = Some(answer);
                }
            }
        }
        // Requests of one slot stay in their order.
        on.sort_by_key(|hop| hop.request);
        on
    }

    /// The next hop of a request whose reply is a redirect.
    fn redirected(&self, hop: &Hop, answer: &Outcome) -> Option<Hop> {
        let (to, node, asking) = match Redirect::from_answer(answer, &hop.to.0)? {
            Redirect::Moved { slot, to } => {
                let node = self.topology.moved(slot, &to)?;
                (to, node, false)
            }
            Redirect::Ask { to } => {
                let node = self.topology.add_node(&to)?;
                (to, node, true)
            }
        };
        Some(Hop {
            request: hop.request,
            to,
            node,
            asking,
        })
    }

    /// Sends the same requests to every master, as last known or (`fresh`) as queried now.
    pub(crate) async fn run_on_each(
        &self,
        requests: &[Request],
        fresh: bool,
        deadline: Deadline,
    ) -> Result<Vec<Vec<Outcome>>, Error> {
        let masters = self.masters(fresh, deadline).await?;
        let requests: Vec<&Request> = requests.iter().collect();
        let nodes = masters.map.nodes().iter();
        let sent =
            nodes.map(|(_, node)| send(node.link(Lane::Control), &requests, false, deadline));
        Ok(join_all(sent).await)
    }
}

fn no_map_yet() -> Error {
    Error::Unreachable("no node of the cluster has answered yet".to_owned())
}

fn no_node_for(slot: u16) -> Error {
    Error::Refused(Refusal {
        code: "CLUSTERDOWN".to_owned(),
        message: format!("no node has slot {slot}"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(code: &str, message: &str) -> Option<Redirect> {
        let refusal = Refusal {
            code: code.to_owned(),
            message: message.to_owned(),
        };
        Redirect::from_answer(&Err(Error::Refused(refusal)), "asked")
    }

    #[test]
    fn nodes_are_named_in_every_way_that_servers_do() {
        let to = |host: &str, port| (host.to_owned(), port);
        let moved = |slot, to| Some(Redirect::Moved { slot, to });
        assert_eq!(
            of("MOVED", "3999 127.0.0.1:6381"),
            moved(3999, to("127.0.0.1", 6381))
        );
        assert_eq!(of("MOVED", "0 ::1:6381"), moved(0, to("::1", 6381)));
        assert_eq!(of("MOVED", "7 :6381"), moved(7, to("asked", 6381)));
        let ask = Some(Redirect::Ask {
            to: to("cache-1.example", 7),
        });
        assert_eq!(of("ASK", "7 cache-1.example:7"), ask);
        for nonsense in ["", "7", "7 host", "7 host:port", "x host:70000"] {
            assert_eq!(of("MOVED", nonsense), None, "{nonsense}");
        }
        assert_eq!(of("ERR", "7 host:1"), None);
    }
}
