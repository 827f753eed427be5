//! Reads the values of replies; an unexpected shape is [`Error::Corrupt`].

use std::collections::BTreeMap;

use redis::Value;

use crate::Error;

/// The error for a reply of an unexpected shape.
pub fn short() -> Error {
    Error::Corrupt("an answer of the wrong shape".to_owned())
}

/// A list; nil is an empty one.
pub fn items(value: Value) -> Result<Vec<Value>, Error> {
    match value {
        Value::Array(items) | Value::Set(items) => Ok(items),
        Value::Nil => Ok(Vec::new()),
        _ => Err(short()),
    }
}

/// A text.
pub fn text(value: Value) -> Result<String, Error> {
    optional_text(value)?.ok_or_else(short)
}

/// A text, or nil.
pub fn optional_text(value: Value) -> Result<Option<String>, Error> {
    match value {
        Value::Nil => Ok(None),
        Value::BulkString(bytes) => String::from_utf8(bytes).map(Some).map_err(|_| short()),
        Value::SimpleString(text) => Ok(Some(text)),
        Value::Int(number) => Ok(Some(number.to_string())),
        Value::Okay => Ok(Some("OK".to_owned())),
        _ => Err(short()),
    }
}

/// A string that need not be text.
pub fn bytes(value: Value) -> Result<Vec<u8>, Error> {
    match value {
        Value::BulkString(bytes) => Ok(bytes),
        _ => Err(short()),
    }
}

/// A list of texts.
pub fn texts(value: Value) -> Result<Vec<String>, Error> {
    items(value)?.into_iter().map(text).collect()
}

/// An integer.
pub fn integer(value: Value) -> Result<i64, Error> {
    match value {
        Value::Int(number) => Ok(number),
        Value::BulkString(_) => text(value)?.parse().map_err(|_| short()),
        _ => Err(short()),
    }
}

/// A list of integers.
pub fn integers(value: Value) -> Result<Vec<i64>, Error> {
    items(value)?.into_iter().map(integer).collect()
}

/// A number without a sign, as text.
pub fn number(text: &str) -> Result<u64, Error> {
    text.parse().map_err(|_| short())
}

/// Field, value, field, value, ...
pub fn pairs(value: Value) -> Result<BTreeMap<String, String>, Error> {
    if let Value::Map(pairs) = value {
        return pairs
            .into_iter()
            .map(|(field, value)| Ok((text(field)?, text(value)?)))
            .collect();
    }
    let mut all = texts(value)?.into_iter();
    let mut pairs = BTreeMap::new();
    while let Some(field) = all.next() {
        pairs.insert(field, all.next().ok_or_else(short)?);
    }
    Ok(pairs)
}

/// The pairs of a reply, as of [`pairs`], in which both are text.
pub fn readable_pairs(value: Value) -> impl Iterator<Item = (String, String)> {
    let pairs: Vec<(Value, Value)> = match value {
        Value::Map(pairs) => pairs,
        other => {
            let mut all = items(other).unwrap_or_default().into_iter();
            std::iter::from_fn(|| Some((all.next()?, all.next()?))).collect()
        }
    };
    let readable = |(field, value)| Some((text(field).ok()?, text(value).ok()?));
    pairs.into_iter().filter_map(readable)
}

/// The answer to SCAN or HSCAN: the next cursor (0: the end) and what was found.
pub fn scan(value: Value) -> Result<(u64, Value), Error> {
    let mut parts = items(value)?.into_iter();
    let mut next = || parts.next().ok_or_else(short);
    Ok((number(&text(next()?)?)?, next()?))
}

/// A value for display: texts joined by spaces; `None` if it is empty.
pub fn shown(value: Value) -> Option<String> {
    match value {
        Value::Nil => None,
        Value::BulkString(bytes) => Some(String::from_utf8_lossy(&bytes).into_owned()),
        Value::Array(items) => {
            let texts: Vec<String> = items.into_iter().filter_map(shown).collect();
            (!texts.is_empty()).then(|| texts.join(" "))
        }
        other => Some(format!("{other:?}")),
    }
}
