//! The key of the seals of reservations, which all limiters of the store share.

use std::time::Duration;

use redis_link::value;
use store_plan::Seal;
use tokio::{
    sync::Mutex,
    time::{Instant, timeout},
};

use super::RedisStore;
use crate::{StoreError, slot_id::random_key};

/// The key is read again after this time, in case the store lost it and another limiter drew a new one.
/// Until then, an excess counts only while the bucket has the record of its reservation.
const FOR: Duration = Duration::from_secs(5);

/// The seal, once a check has needed it.
#[derive(Default)]
pub(super) struct SharedSeal(Mutex<Option<Known>>);

struct Known {
    key: String,
    seal: Seal,
    read_at: Instant,
}

impl RedisStore {
    /// The seal of reservations. The first store that needs it draws the key.
    pub(super) async fn seal(&self) -> Result<Seal, StoreError> {
        let mut known = self.seal.0.lock().await;
        let fresh = known.as_ref().filter(|of| of.read_at.elapsed() < FOR);
        if let Some(Known { seal, .. }) = fresh {
            return Ok(seal.clone());
        }
        // A store that lost the key gets it back.
        let mut key = known.as_ref().map_or_else(random_key, |of| of.key.clone());
        let exchange = self.exchange_seal_key(&key);
        let exchanged = if known.is_some() {
            // Checks wait for this, and need it only after the store lost the key.
            let limit = self.options.timeout;
            let late = |_| Err(StoreError::Timeout(limit));
            timeout(limit, exchange).await.unwrap_or_else(late)
        } else {
            exchange.await
        };
        match exchanged {
            Ok(stored) => key = stored,
            // The check goes on with the key that it has; if the store does not answer, that fails anyway.
            Err(_) if known.is_some() => {}
            Err(error) => return Err(error),
        }
        let seal = Seal::new(key.as_bytes());
        *known = Some(Known {
            key,
            seal: seal.clone(),
            read_at: Instant::now(),
        });
        Ok(seal)
    }

    /// Stores a key if there is none; returns the stored one.
    async fn exchange_seal_key(&self, drawn: &str) -> Result<String, StoreError> {
        let name = self.keys().seal();
        let mut set = redis_link::cmd("SET");
        set.arg(&name).arg(drawn).arg("NX");
        let mut get = redis_link::cmd("GET");
        get.arg(&name);
        let mut answers = self.control_each([set, get]).await.into_iter();
        let set = answers.next().ok_or_else(value::short)?;
        let stored = value::optional_text(answers.next().ok_or_else(value::short)??)?;
        match stored {
            Some(key) => Ok(key),
            // The server accepts no writes.
            None => set.and_then(|_| Err(value::short())),
        }
    }
}
