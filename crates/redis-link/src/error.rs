//! Why a command has no usable reply, sorted by what the caller can do about it, and how the client
//! library's errors become that. Messages call the server or servers "the store".

use std::{fmt, time::Duration};

use redis::{ErrorKind, RedisError, ServerError, Value};

/// The store sent no reply, or none that can be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// No connection. Nothing was sent.
    #[error("the store is unreachable: {0}")]
    Unreachable(String),
    /// No answer in time. What was sent may or may not have run, so it is never sent again.
    #[error("the store did not answer within {} ms", .0.as_millis())]
    Timeout(Duration),
    /// The connection broke while an answer was awaited: as uncertain as a timeout.
    #[error("the connection to the store broke: {0}")]
    Broken(String),
    /// The store requires other credentials.
    #[error("the store refused our credentials: {0}")]
    Auth(String),
    /// The store answered with an error. In most cases nothing was charged; see
    /// [`Error::is_harmless`].
    #[error("{0}")]
    Refused(Refusal),
    /// An answer or a record that this version cannot read.
    #[error("unexpected data in the store: {0}")]
    Corrupt(String),
    /// This deployment of the store cannot do that.
    #[error("{0}")]
    Unsupported(String),
}

impl Error {
    /// Whether certainly nothing was charged: nothing was sent, or the server refused it before
    /// execution.
    pub fn is_harmless(&self) -> bool {
        match self {
            Self::Unreachable(_) | Self::Auth(_) | Self::Unsupported(_) => true,
            Self::Refused(refusal) => refusal.is_of_the_server(),
            Self::Timeout(_) | Self::Broken(_) | Self::Corrupt(_) => false,
        }
    }
}

/// An error answer, with the code that Redis and Valkey put first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// `READONLY`, `OOM`, `NOPERM`, `LOADING`, `BUSY`, ...; `ERR` when there is no better one.
    pub code: String,
    /// The rest of the line.
    pub message: String,
}

/// Codes of a server that currently accepts no writes or no scripts.
const SERVER_STATES: [&str; 8] = [
    "READONLY",
    "OOM",
    "LOADING",
    "BUSY",
    "MISCONF",
    "NOREPLICAS",
    "MASTERDOWN",
    "CLUSTERDOWN",
];

impl Refusal {
    /// Whether the server accepts no scripts or writes at all. Other errors can end a script after
    /// its first checks were charged: an ACL may permit the commands of one algorithm and not of
    /// another.
    fn is_of_the_server(&self) -> bool {
        let elsewhere = ["MOVED", "ASK", "CROSSSLOT", "TRYAGAIN", "NOSCRIPT"];
        let code = self.code.as_str();
        SERVER_STATES.contains(&code) || elsewhere.contains(&code)
    }

    /// Whether the refusal is a state of the server or of the user, so that the next command will be
    /// refused too.
    pub(crate) fn is_a_state(&self) -> bool {
        let code = self.code.as_str();
        SERVER_STATES.contains(&code) || ["NOPERM", "NOAUTH"].contains(&code)
    }

    /// Whether it is for what the keys of the command hold or where they are, so that one with other keys is
    /// served.
    pub fn is_of_the_keys(&self) -> bool {
        ["TRYAGAIN", "WRONGTYPE"].contains(&self.code.as_str())
    }

    /// Whether it may come from a primary that was deposed.
    pub(crate) fn may_be_a_demotion(&self) -> bool {
        matches!(self.code.as_str(), "READONLY" | "NOREPLICAS" | "MASTERDOWN")
    }

    /// What an operator can do about it, for codes where that is known.
    pub fn hint(&self) -> Option<&'static str> {
        Some(match self.code.as_str() {
            "READONLY" => "this node is a replica; point the URL at the primary",
            "OOM" => "the store is out of memory (maxmemory reached); free some or raise it",
            "NOPERM" => {
                "the ACL user lacks a permission; docs/stores.md lists those of limiters and of rlctl"
            }
            "MASTERDOWN" => {
                "this node is a replica without its primary; point the URL at the primary"
            }
            "WRONGTYPE" => "a key holds a value of another type",
            "LOADING" => "the store is still loading its data; try again in a moment",
            "BUSY" => "another script has been running for too long on the store",
            "MISCONF" => "the store cannot persist and refuses writes; see its log",
            "CLUSTERDOWN" => "the cluster has slots without a node",
            "MOVED" | "ASK" | "CROSSSLOT" => {
                "this node belongs to a cluster: use redis-cluster:// for it"
            }
            "TRYAGAIN" => "its keys are on their way to another node; try again in a moment",
            "NOREPLICAS" => "too few replicas are in sync (min-replicas-to-write)",
            "ERR" if self.message.starts_with("max number of clients") => {
                "the store has as many connections as it takes: raise its maxclients, or end some"
            }
            _ => return None,
        })
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the store refused: {} {}", self.code, self.message)?;
        match self.hint() {
            Some(hint) => write!(f, " ({hint})"),
            None => Ok(()),
        }
    }
}

/// The answer to one command.
pub(crate) type Reply = Result<Value, Refusal>;

pub(crate) fn reply_of(value: Value) -> Reply {
    match value {
        Value::ServerError(error) => Err(refusal(&error)),
        value => Ok(value),
    }
}

/// The refusal of a line, which begins with its code.
pub(crate) fn refusal_of(line: &str) -> Refusal {
    let (code, message) = line.split_once(' ').unwrap_or((line, ""));
    Refusal {
        code: code.to_owned(),
        message: message.to_owned(),
    }
}

fn refusal(error: &ServerError) -> Refusal {
    let message = error.details().unwrap_or_default();
    Refusal {
        code: code(error.code(), message).to_owned(),
        message: message.to_owned(),
    }
}

/// Servers report a command that a script may not run without the code NOPERM. The texts are those
/// of Redis 7.0, of later versions and of Valkey.
fn code<'a>(code: &'a str, message: &str) -> &'a str {
    let lacks_a_right = message.starts_with("The user executing the script can't run")
        || message.starts_with("The user executing the script can't access")
        || message.starts_with("ACL failure in script");
    if code == "ERR" && lacks_a_right {
        "NOPERM"
    } else {
        code
    }
}

impl From<Refusal> for Error {
    fn from(refusal: Refusal) -> Self {
        match refusal.code.as_str() {
            "WRONGPASS" => Self::Auth("wrong user name or password".to_owned()),
            "NOAUTH" => Self::Auth(refusal.message),
            // To AUTH, of a user without a password.
            "ERR" if refusal.message.starts_with("AUTH ") => Self::Auth(refusal.message),
            _ => Self::Refused(refusal),
        }
    }
}

/// A failure of the connection itself while an answer was awaited.
pub(crate) fn broken(error: &RedisError) -> Error {
    Error::Broken(error.to_string())
}

/// A failure of the connection during the login.
pub(crate) fn login_failed(error: &RedisError) -> Error {
    match error.kind() {
        ErrorKind::Io => Error::Unreachable(error.to_string()),
        _ => Error::Refused(Refusal {
            code: error.code().unwrap_or("ERR").to_owned(),
            message: error.detail().unwrap_or(error.category()).to_owned(),
        }),
    }
}

/// Checks the answer to AUTH or the first PING. NOPERM is a missing permission, not a failed login.
pub(crate) fn check_greeting(answer: Reply) -> Result<(), Error> {
    match answer {
        Err(refusal) if refusal.code != "NOPERM" => Err(refusal.into()),
        Ok(_) | Err(_) => Ok(()),
    }
}
