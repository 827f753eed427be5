//! The connection to the API server.
//!
//! Whoever may write an object of a kind whose definition leaves a field open may nest what is in it as deeply as the API
//! server allows, 10,000 levels, and `serde_json` reads 128. A list with such an object could not be read at all, so one object
//! of one namespace would keep the controller from all. What is deeper than any valid object is cut from answers before.

use std::{future::pending, mem::replace, path::Path, time::Duration};

use http_body_util::BodyExt as _;
use hyper::{Response, body::Bytes};
use insight::with_causes;
use kube::{
    Client, Config,
    client::{ClientBuilder, DynBody},
};
use store::PemFile;
use tokio::time::sleep;
use tower::{
    BoxError,
    util::{MapErrLayer, MapResponseLayer},
};

use super::cluster::{REQUEST_TIME, SILENCE};
use crate::error::{Error, Exit};

/// Bound: levels of nesting in an object of Kubernetes that the controller reads. Beyond it, `null` is read.
///
/// A valid object has about 20, with its status and a list around it.
const DEPTH_MAX: usize = 64;

/// The pause between two reads of [`AUTHORITY`].
const AUTHORITY_PACE: Duration = Duration::from_secs(10);

/// The certificate authority of the cluster, as the service account of a Pod has it.
pub(super) const AUTHORITY: &str = "/var/run/secrets/kubernetes.io/serviceaccount/ca.crt";

/// A client by the service account of the Pod, or by KUBECONFIG or ~/.kube/config.
pub(super) async fn connect() -> Result<Client, Error> {
    let failed = |error: &dyn std::fmt::Display| {
        Error::new(
            Exit::Usage,
            format!("cannot find a Kubernetes cluster: {error}"),
        )
        .hint("outside a cluster, KUBECONFIG names a file with its address")
    };
    let mut config = Config::infer().await.map_err(|error| failed(&error))?;
    config.connect_timeout = Some(REQUEST_TIME);
    config.read_timeout = Some(SILENCE);
    let builder = ClientBuilder::try_from(config).map_err(|error| failed(&error))?;
    let cut = MapResponseLayer::new(|response: Response<Box<DynBody>>| {
        response.map(|body| {
            let mut cut = Cut::default();
            body.map_frame(move |frame| frame.map_data(|data| cut.take(&data)))
        })
    });
    let reasons = MapErrLayer::new(with_reason);
    Ok(builder.with_layer(&cut).with_layer(&reasons).build())
}

/// An error that says all that caused it, as of kube and hyper only the outermost does: a certificate that expired, or that
/// another authority signed, would be "client error (Connect)".
fn with_reason(error: BoxError) -> BoxError {
    // Kube tests whether an error is its own.
    if error.is::<kube::Error>() {
        return error;
    }
    with_causes(&*error).into()
}

/// Waits until a file has other bytes than at the start. kube reads [`AUTHORITY`] once.
pub(super) async fn changed(file: &Path) {
    let read = || PemFile::read(file).map(|file| file.bytes);
    let Ok(before) = read() else {
        return pending().await;
    };
    loop {
        sleep(AUTHORITY_PACE).await;
        // While it is being replaced, it may be absent.
        if read().is_ok_and(|now| now != before) {
            return;
        }
    }
}

/// Where the reading of a stream of JSON documents is.
#[derive(Debug, Default)]
struct Cut {
    depth: usize,
    in_text: bool,
    is_escaped: bool,
}

impl Cut {
    /// The next bytes, without what is too deep.
    fn take(&mut self, data: &[u8]) -> Bytes {
        let mut kept = Vec::with_capacity(data.len());
        for &byte in data {
            let before = self.depth;
            match byte {
                _ if replace(&mut self.is_escaped, false) => {}
                b'\\' => self.is_escaped = self.in_text,
                b'"' => self.in_text = !self.in_text,
                b'[' | b'{' if !self.in_text => {
                    self.depth = before.saturating_add(1);
                    if before == DEPTH_MAX {
                        kept.extend(b"null");
                    }
                }
                b']' | b'}' if !self.in_text => self.depth = before.saturating_sub(1),
                _ => {}
            }
            // Neither what is within, nor the bracket that ends it.
            if before.max(self.depth) <= DEPTH_MAX {
                kept.push(byte);
            }
        }
        kept.into()
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use serde_json::{Value, json};
    use tokio::time::{Instant, timeout};

    use super::*;

    fn nested(levels: usize, inner: &Value) -> Value {
        (0..levels).fold(inner.clone(), |inner, at| match at % 2 {
            0 => json!([inner, "]}\\\"[{"]),
            _ => json!({"\\\"[": inner, "after": [1]}),
        })
    }

    #[test]
    fn an_error_says_what_caused_it_once() {
        #[derive(Debug, thiserror::Error)]
        #[error("{0}")]
        struct Outer(&'static str, #[source] std::io::Error);
        let cause = || std::io::Error::other("the certificate has expired");
        for (outer, said) in [
            (
                "cannot connect",
                "cannot connect: the certificate has expired",
            ),
            ("the certificate has expired", "the certificate has expired"),
        ] {
            assert_eq!(with_reason(Outer(outer, cause()).into()).to_string(), said);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn another_certificate_authority_is_noticed() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("ca.crt");
        let ever = Duration::from_hours(1);
        assert!(
            timeout(ever, changed(&file)).await.is_err(),
            "outside a cluster"
        );
        fs::write(&file, "one").unwrap();
        let replaced = async {
            sleep(ever).await;
            fs::remove_file(&file).unwrap();
            sleep(ever).await;
            fs::write(&file, "another").unwrap();
            Instant::now()
        };
        let noticed = async {
            changed(&file).await;
            Instant::now()
        };
        let (replaced, noticed) = tokio::join!(replaced, noticed);
        assert!(replaced <= noticed && noticed <= replaced + AUTHORITY_PACE);
    }

    #[test]
    fn what_is_too_deep_is_null_wherever_the_bytes_are_split() {
        let fits = nested(DEPTH_MAX, &json!(1));
        let wanted = nested(DEPTH_MAX, &json!(null));
        for deeper in [nested(1, &json!(1)), nested(200, &json!({"a": "}"}))] {
            // A watch sends one document after the other.
            let text = format!("{}\n{fits}\n", nested(DEPTH_MAX, &deeper));
            for size in [1, 2, 7, text.len()] {
                let mut cut = Cut::default();
                let kept: Vec<u8> = { text.as_bytes().chunks(size) }
                    .flat_map(|part| cut.take(part))
                    .collect();
                let kept = String::from_utf8(kept).unwrap();
                let read: Vec<Value> = { kept.lines() }
                    .map(|line| serde_json::from_str(line).unwrap())
                    .collect();
                assert_eq!(read, [wanted.clone(), fits.clone()]);
            }
        }
    }
}
