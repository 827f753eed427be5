//! The steps that the state machine returns to its host.

use std::{cell::RefCell, collections::VecDeque, rc::Rc};

use filter_config::Config;

use crate::{
    call::CallId,
    random::Random,
    response::{Denial, LocalReply, ReplyCache},
};

/// A request, by the host's id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StreamId(pub u32);

/// A step for the host. Steps of requests that ended may be dropped.
#[derive(Debug)]
pub enum Step {
    /// The request continues.
    Continue {
        /// The request.
        stream: StreamId,
        /// Changes of its headers.
        edits: Edits,
    },
    /// The filter answers the request.
    Refuse {
        /// The request.
        stream: StreamId,
        /// How.
        refusal: Refusal,
    },
    /// The body that a request waits for did not arrive in time: the host calls
    /// [`Worker::on_request_read`](super::Worker::on_request_read).
    DecideWithoutBody(StreamId),
    /// A call to the limiter. The host must report the outcome of each call.
    Call(Call),
    /// An operation on the check stream.
    Stream(StreamStep),
    /// The host calls [`Worker::on_turn_end`](super::Worker::on_turn_end) when the current turn of
    /// its event loop ends; at once, if it cannot find out when.
    AtTurnEnd,
    /// A message for the log.
    Log(Level, String),
}

impl Step {
    /// The request that continues or is answered by this step.
    pub(crate) fn ends_pause(&self) -> Option<StreamId> {
        match self {
            Self::Continue { stream, .. } | Self::Refuse { stream, .. } => Some(*stream),
            _ => None,
        }
    }
}

/// Bound: requests that one callback resumes or answers. Beyond it, the others continue at the end
/// of the turn or at a tick.
///
/// Envoy continues a request at the end of the callback that resumed it. If its route answers at
/// once, Envoy calls the filter for the response, and continues the next request at the end of that
/// call: the stack grows with each of them, by four kilobytes or so, until V8 ends the VM at one
/// megabyte. Other filters and access loggers make it grow faster, so this is a sixth of what fits.
const MAX_RESUMED: usize = 32;

/// A callback of the host, while it carries out steps.
#[derive(Debug)]
pub struct Callback {
    /// The request that it is about.
    pub(crate) request: Option<StreamId>,
    /// How many other requests it may still resume.
    left: usize,
    /// Whether it leaves some to the next callback, and has requested that.
    leaves: bool,
}

impl Callback {
    /// A callback about no request.
    pub fn of_root() -> Self {
        Self {
            request: None,
            left: MAX_RESUMED,
            leaves: false,
        }
    }

    /// A callback about a request. Other requests continue in a callback of the root.
    pub fn of_request(stream: StreamId) -> Self {
        Self {
            request: Some(stream),
            left: 0,
            leaves: false,
        }
    }
}

/// Requests that are decided and continue in a later callback, the oldest first: at most as many as
/// waited for a decision.
#[derive(Debug, Default)]
pub(crate) struct Resumptions(VecDeque<Step>);

impl Resumptions {
    pub(super) fn add(&mut self, step: Step) {
        self.0.push_back(step);
    }

    /// The next one that a callback may carry out, or a request for the next callback.
    pub(super) fn poll(&mut self, callback: &mut Callback) -> Option<Step> {
        if callback.left > 0 {
            let step = self.0.pop_front()?;
            callback.left -= 1;
            return Some(step);
        }
        let leaves = !self.is_empty() && !std::mem::replace(&mut callback.leaves, true);
        leaves.then_some(Step::AtTurnEnd)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether a request is decided and still paused.
    pub(crate) fn contains(&self, stream: StreamId) -> bool {
        self.position(stream).is_some()
    }

    /// Removes a request that is gone; returns whether it was still paused.
    pub(super) fn remove(&mut self, stream: StreamId) -> bool {
        let at = self.position(stream);
        at.is_some_and(|at| self.0.remove(at).is_some())
    }

    fn position(&self, stream: StreamId) -> Option<usize> {
        let mut waiting = self.0.iter();
        waiting.position(|step| step.ends_pause() == Some(stream))
    }
}

/// The severity of a log message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// For information.
    Info,
    /// Something works less well than it should.
    Warn,
}

/// Changes to a request on its way to the upstream.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Edits {
    /// The value of `x-ratelimit-degraded`: the limits that mark the request.
    pub degraded: Option<String>,
    /// What the response must have, whatever the client asked for, so that its cost can be read.
    pub needs: ResponseNeeds,
}

/// What a response must have so that its cost can be read. The client pays, so it must not decide that.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ResponseNeeds {
    /// The body, whole and not compressed: the host replaces or removes the headers of the request that
    /// ask for something else.
    pub body: bool,
    /// The trailers: the request must accept them.
    pub trailers: bool,
}

/// A call to the limiter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    /// The id to report the outcome by.
    pub id: CallId,
    /// The HTTP method.
    pub method: &'static str,
    /// The path, with its query.
    pub path: String,
    /// Further headers. None contains client bytes.
    pub headers: Vec<(&'static str, String)>,
    /// The body, if any.
    pub body: Option<Vec<u8>>,
    /// The timeout, in milliseconds.
    pub timeout_ms: u64,
}

/// An operation on the check stream, of which there is one at a time. The host passes its messages to
/// [`Worker::on_stream_message`](super::Worker::on_stream_message) and reports its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StreamStep {
    /// Opens a stream to `protocol::CHECK_STREAM`, with this value of `authorization`.
    Open(Option<String>),
    /// Sends a call. The host reports it as refused if there is no stream.
    Send(CallId, Vec<u8>),
    /// Closes this side: it sends nothing more.
    Close,
    /// Gives the stream up.
    Cancel,
}

/// The answer to a call.
pub trait CallAnswer {
    /// The first value of a header.
    fn header(&self, name: &str) -> Option<&[u8]>;
    /// The body, or `None` if it is longer than `max_len` bytes.
    fn body(&self, max_len: usize) -> Option<Vec<u8>>;
}

/// The answer to a denied request. Whether the request is a gRPC call is looked up only when it is
/// written.
#[derive(Clone, Debug)]
pub struct Refusal {
    pub(crate) denial: Denial,
    pub(crate) config: Rc<Config>,
    pub(crate) random: Random,
    pub(crate) reply_cache: Rc<RefCell<ReplyCache>>,
}

impl Refusal {
    /// The response, for a gRPC call or any other request.
    pub fn reply(self, grpc: bool) -> LocalReply {
        let mut random = self.random;
        let (deny, styles) = (&self.config.deny, self.config.styles);
        let reply_cache = &mut *self.reply_cache.borrow_mut();
        self.denial
            .reply(deny, styles, grpc, &mut random, reply_cache)
    }
}
