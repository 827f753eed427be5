//! Converts the client library's answers and errors.

use redis::{ErrorKind, RedisError, ServerError, Value};

use crate::{Error, Refusal};

/// The answer to one command.
pub(crate) type Reply = Result<Value, Refusal>;

pub(crate) fn of(value: Value) -> Reply {
    match value {
        Value::ServerError(error) => Err(refusal(&error)),
        value => Ok(value),
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
            "NOAUTH" | "WRONGPASS" => Self::Auth(refusal.message),
            _ => Self::Refused(refusal),
        }
    }
}

/// A failure of the connection itself while an answer was awaited.
pub(crate) fn transport(error: &RedisError) -> Error {
    Error::Broken(error.to_string())
}

/// A failure of AUTH or SELECT.
pub(crate) fn login(error: &RedisError) -> Error {
    match error.kind() {
        ErrorKind::AuthenticationFailed => Error::Auth("wrong user name or password".to_owned()),
        ErrorKind::Io => Error::Unreachable(error.to_string()),
        _ => Error::Refused(Refusal {
            code: error.code().unwrap_or("ERR").to_owned(),
            message: error.detail().unwrap_or(error.category()).to_owned(),
        }),
    }
}

/// The answer to the first PING. NOPERM is a missing permission, not a failed login.
pub(crate) fn greeting(answer: Value) -> Result<(), Error> {
    match of(answer) {
        Err(refusal) if refusal.code != "NOPERM" => Err(refusal.into()),
        Ok(_) | Err(_) => Ok(()),
    }
}
