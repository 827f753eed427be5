//! What the state machine wants done.

use std::{cell::RefCell, rc::Rc};

use filter_config::Config;

use crate::{
    call::CallId,
    random::Random,
    response::{Denial, LocalReply, ReplyCache},
};

/// One request, by the number the host gave it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StreamId(pub u32);

/// What the host is to do. Steps that concern requests that have gone may be dropped.
#[derive(Debug)]
pub enum Step {
    /// The request goes on.
    Continue {
        /// Which one.
        stream: StreamId,
        /// What its upstream is told.
        edits: Edits,
    },
    /// The request is answered here.
    Refuse {
        /// Which one.
        stream: StreamId,
        /// How.
        refusal: Refusal,
    },
    /// The limiter is called. What becomes of the call must be reported, whatever it is.
    Call(Call),
    /// [`Worker::on_turn_end`](super::Worker::on_turn_end) is to be called when all that has come by
    /// now was handed over; at once, if the host cannot tell.
    AtTurnEnd,
    /// People should know.
    Log(Level, String),
}

/// How much a message matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// Worth knowing.
    Info,
    /// Something works less well than it should.
    Warn,
}

/// Changes to a request on its way to the upstream.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Edits {
    /// The value of `x-ratelimit-degraded`: the limits that mark the request.
    pub degraded: Option<String>,
}

/// A call of the limiter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    /// To report by.
    pub id: CallId,
    /// The HTTP method.
    pub method: &'static str,
    /// The path, with its query.
    pub path: String,
    /// Further headers. None of them holds bytes of a client.
    pub headers: Vec<(&'static str, String)>,
    /// The body, if any.
    pub body: Option<Vec<u8>>,
    /// How long it may take, in milliseconds.
    pub timeout_ms: u64,
}

/// The answer to a call.
pub trait CallAnswer {
    /// The first value of a header.
    fn header(&self, name: &str) -> Option<&[u8]>;
    /// The body, or `None` if it is longer than `max_len` bytes.
    fn body(&self, max_len: usize) -> Option<Vec<u8>>;
}

/// A request that is answered here. How depends on whether it is a gRPC call, which is only
/// looked up now.
#[derive(Clone, Debug)]
pub struct Refusal {
    pub(crate) denial: Denial,
    pub(crate) config: Rc<Config>,
    pub(crate) random: Random,
    pub(crate) reply_cache: Rc<RefCell<ReplyCache>>,
}

impl Refusal {
    /// The response.
    pub fn reply(self, grpc: bool) -> LocalReply {
        let mut random = self.random;
        let (deny, styles) = (&self.config.deny, self.config.styles);
        let reply_cache = &mut *self.reply_cache.borrow_mut();
        self.denial
            .reply(deny, styles, grpc, &mut random, reply_cache)
    }
}
