//! The answers to a batch.

use minicbor::{Decode, Encode};
use policy::{Name, Revision};

use super::{DecodeError, Table, WireRevision, encode, look_up, name};
use crate::{Answer, ErrorCode, LimitAnswer, MAX_CHECKS, Mode};

/// The answers to a [`super::Batch`].
///
/// They come without [`LimitAnswer::bucket`]: the proxy knows what it asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BatchAnswer {
    /// The policy that decided. One that the proxy does not have is a reason to ask for it.
    pub revision: Revision,
    /// How many live proxies asked for a limit lately, where that is known.
    pub proxies: Vec<(Name, u64)>,
    /// A decision or an error for each check, in order.
    pub results: Vec<Result<Answer, ErrorCode>>,
}

#[derive(Encode, Decode)]
#[cbor(array)]
struct WireAnswer<'b> {
    #[n(0)]
    revision: WireRevision,
    /// Limits that the rest refers to.
    #[b(1)]
    limits: Vec<&'b str>,
    #[n(2)]
    proxies: Vec<WireProxies>,
    #[n(3)]
    results: Vec<WireResult>,
}

#[derive(Encode, Decode)]
#[cbor(array)]
struct WireProxies {
    #[n(0)]
    limit: u32,
    #[n(1)]
    count: u64,
}

#[derive(Encode, Decode)]
#[cbor(array)]
struct WireResult {
    /// The number of an [`ErrorCode`]; the rest then means nothing.
    #[n(0)]
    error: Option<u16>,
    #[n(1)]
    allowed: bool,
    #[n(2)]
    now_ms: u64,
    #[n(3)]
    limits: Vec<WireLimit>,
}

#[derive(Encode, Decode)]
#[cbor(array)]
struct WireLimit {
    #[n(0)]
    name: u32,
    #[n(1)]
    generation: u64,
    #[n(2)]
    flags: u8,
    #[n(3)]
    charged: u64,
    #[n(4)]
    limit: Option<u64>,
    #[n(5)]
    window_ms: u64,
    #[n(6)]
    remaining: u64,
    #[n(7)]
    retry_after_ms: Option<u64>,
    #[n(8)]
    reset_after_ms: u64,
    #[n(9)]
    delay_ms: u64,
}

const ALLOWED: u8 = 1;
const HIDDEN: u8 = 2;
const SHADOW: u8 = 4;
const DEGRADE: u8 = 8;

impl BatchAnswer {
    /// The answers as bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut table = Table::default();
        let proxies = self.proxies.iter().map(|(limit, count)| WireProxies {
            limit: table.index(limit),
            count: *count,
        });
        let proxies = proxies.collect();
        let results = self.results.iter().map(|result| match result {
            Ok(answer) => WireResult {
                error: None,
                allowed: answer.allowed,
                now_ms: answer.now_ms,
                limits: answer
                    .limits
                    .iter()
                    .map(|limit| WireLimit::new(limit, table.index(&limit.name)))
                    .collect(),
            },
            Err(code) => WireResult {
                error: Some(code.number()),
                allowed: false,
                now_ms: 0,
                limits: Vec::new(),
            },
        });
        let results = results.collect();
        encode(&WireAnswer {
            revision: (&self.revision).into(),
            limits: table.names,
            proxies,
            results,
        })
    }

    /// Reads the answers.
    ///
    /// # Errors
    /// What is wrong with the bytes.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let wire: WireAnswer<'_> = minicbor::decode(bytes)?;
        if wire.results.len() > MAX_CHECKS {
            return Err(DecodeError::Bounds("results"));
        }
        let limits = wire.limits.into_iter().map(name);
        let limits: Vec<Name> = limits.collect::<Result<_, _>>()?;
        let revision = Revision::from(wire.revision);
        let proxies = wire.proxies.into_iter();
        let proxies = proxies.map(|p| Ok((look_up(&limits, p.limit)?, p.count)));
        let results = wire.results.into_iter();
        let results = results.map(|result| result.read(&revision, &limits));
        Ok(Self {
            proxies: proxies.collect::<Result<_, DecodeError>>()?,
            results: results.collect::<Result<_, _>>()?,
            revision,
        })
    }
}

impl WireResult {
    fn read(
        self,
        revision: &Revision,
        limits: &[Name],
    ) -> Result<Result<Answer, ErrorCode>, DecodeError> {
        if let Some(number) = self.error {
            return Ok(Err(ErrorCode::from_number(number)));
        }
        let answers = self.limits.into_iter().map(|limit| limit.read(limits));
        Ok(Ok(Answer {
            revision: revision.clone(),
            now_ms: self.now_ms,
            allowed: self.allowed,
            limits: answers.collect::<Result<_, _>>()?,
        }))
    }
}

impl WireLimit {
    fn new(limit: &LimitAnswer, name: u32) -> Self {
        let mut flags = match limit.mode {
            Mode::Enforce => 0,
            Mode::Shadow => SHADOW,
            Mode::Degrade => DEGRADE,
        };
        if limit.allowed {
            flags |= ALLOWED;
        }
        if limit.hidden {
            flags |= HIDDEN;
        }
        Self {
            name,
            generation: limit.generation,
            flags,
            charged: limit.charged,
            limit: limit.limit,
            window_ms: limit.window_ms,
            remaining: limit.remaining,
            retry_after_ms: limit.retry_after_ms,
            reset_after_ms: limit.reset_after_ms,
            delay_ms: limit.delay_ms,
        }
    }

    fn read(self, limits: &[Name]) -> Result<LimitAnswer, DecodeError> {
        Ok(LimitAnswer {
            name: look_up(limits, self.name)?,
            generation: self.generation,
            bucket: Vec::new(),
            mode: match self.flags & (SHADOW | DEGRADE) {
                0 => Mode::Enforce,
                DEGRADE => Mode::Degrade,
                _ => Mode::Shadow,
            },
            allowed: self.flags & ALLOWED != 0,
            charged: self.charged,
            limit: self.limit,
            window_ms: self.window_ms,
            remaining: self.remaining,
            retry_after_ms: self.retry_after_ms,
            reset_after_ms: self.reset_after_ms,
            delay_ms: self.delay_ms,
            hidden: self.flags & HIDDEN != 0,
        })
    }
}
