//! Values of flags: durations, sizes, URLs.

use std::{str::FromStr, time::Duration};

use store::{StoreUrl, UrlError};

/// A store's URL as given. The caller that opens it reports a parse error: clap's message would
/// show the URL with its password.
#[derive(Clone, Debug)]
pub struct StoreArgument(pub Result<StoreUrl, UrlError>);

impl FromStr for StoreArgument {
    type Err = std::convert::Infallible;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(Self(text.parse()))
    }
}

/// An address with the scheme replaced by HTTP's.
pub(super) fn grpc_url(text: &str) -> Result<String, String> {
    for (grpc, http) in [("grpc://", "http://"), ("grpcs://", "https://")] {
        if let Some(address) = text.strip_prefix(grpc) {
            return Ok(format!("{http}{address}"));
        }
    }
    Err("a URL, grpc://HOST:PORT or grpcs://HOST:PORT".to_owned())
}

pub(super) fn xds_url(text: &str) -> Result<String, String> {
    if text.starts_with("http://") || text.starts_with("https://") {
        return Ok(text.to_owned());
    }
    Err("a URL, http://HOST:PORT or https://HOST:PORT".to_owned())
}

pub(super) fn duration(text: &str) -> Result<Duration, String> {
    let ms = policy::parse_duration(text).map_err(|error| error.to_string())?;
    if ms == 0 {
        return Err("at least 1ms".to_owned());
    }
    Ok(Duration::from_millis(ms))
}

pub(super) fn at_least_one(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(0) => Err("at least 1".to_owned()),
        Ok(n) => Ok(n),
        Err(_) => Err("a whole number".to_owned()),
    }
}

pub(super) fn bytes(text: &str) -> Result<usize, String> {
    let wanted = "a number of bytes, like 65536, 256KiB or 1MiB";
    let at = text
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(text.len());
    let (digits, unit) = text.split_at(at);
    let factor = match unit {
        "" | "B" => 1,
        "KiB" | "K" | "k" => 1024,
        "MiB" | "M" | "m" => 1024 * 1024,
        _ => return Err(wanted.to_owned()),
    };
    let number: usize = digits.parse().map_err(|_| wanted.to_owned())?;
    match number.checked_mul(factor) {
        Some(0) | None => Err(wanted.to_owned()),
        Some(bytes) => Ok(bytes),
    }
}
