//! What the workers of this process share: in place of Envoy's shared data values by key, each with a
//! version, written by compare-and-swap; and the limits of snapshots.
//!
//! filter-core writes a fixed set of keys, so nothing is ever removed. The map outlives configurations:
//! the module is never unloaded.

use std::{
    collections::{HashMap, VecDeque},
    hash::{BuildHasher, RandomState},
    sync::{LazyLock, Mutex, PoisonError},
};

use filter_core::{CasMismatch, Host, Version, Versioned};
use policy::{Compiled, SnapshotError};

/// Parts of the map with a lock each. Workers rarely meet in one of so many.
const SHARDS: usize = 64;

type Shard = Mutex<HashMap<Box<[u8]>, (Vec<u8>, u32)>>;

static SHARED: LazyLock<(RandomState, [Shard; SHARDS])> = LazyLock::new(|| {
    (
        RandomState::new(),
        std::array::from_fn(|_| Mutex::default()),
    )
});

/// Bound: snapshots that workers share as read, one for each domain. Beyond it, the one that was read first goes, and a
/// worker that still needs it reads it again.
const SNAPSHOTS: usize = 16;

/// The limits of the last snapshot of each domain, by a hash of its bytes. Workers that took changes since share with
/// it what did not change.
static SNAPSHOTS_READ: Mutex<VecDeque<(u64, Compiled)>> = Mutex::new(VecDeque::new());

/// The map of this process.
#[derive(Clone, Copy, Debug)]
pub struct SharedMap;

fn with<R>(key: &[u8], act: impl FnOnce(&mut HashMap<Box<[u8]>, (Vec<u8>, u32)>) -> R) -> R {
    let (hasher, shards) = &*SHARED;
    let hash = usize::try_from(hasher.hash_one(key) % SHARDS as u64).unwrap_or(0);
    let [first, ..] = shards;
    let shard = shards.get(hash).unwrap_or(first);
    // A panic under the lock leaves a whole value behind: each is replaced at once.
    act(&mut shard.lock().unwrap_or_else(PoisonError::into_inner))
}

impl Host for SharedMap {
    fn load(&self, key: &[u8]) -> Option<Versioned> {
        with(key, |shard| {
            let (bytes, version) = shard.get(key)?;
            Some(Versioned {
                bytes: bytes.clone(),
                version: Version(*version),
            })
        })
    }

    fn swap(&self, key: &[u8], value: &[u8], expected: Version) -> Result<(), CasMismatch> {
        with(key, |shard| match shard.get_mut(key) {
            Some((bytes, version)) if Version(*version) == expected => {
                bytes.clear();
                bytes.extend_from_slice(value);
                // Neither 0 nor `Version::ABSENT`.
                *version = version.wrapping_add(1) % u32::MAX;
                *version = (*version).max(1);
                Ok(())
            }
            None if expected == Version::ABSENT => {
                shard.insert(key.into(), (value.to_vec(), 1));
                Ok(())
            }
            _ => Err(CasMismatch),
        })
    }

    fn read_snapshot(&self, bytes: &[u8]) -> Result<Compiled, SnapshotError> {
        // Its key is random, so that nobody makes two snapshots of one hash.
        let hash = SHARED.0.hash_one(bytes);
        // Held meanwhile: others that need the same wait no longer than they would take to read it.
        let mut read = SNAPSHOTS_READ
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if let Some((_, same)) = read.iter().find(|(of, _)| *of == hash) {
            return Ok(same.clone());
        }
        let compiled = Compiled::from_snapshot(bytes)?;
        read.retain(|(_, before)| before.domain() != compiled.domain());
        if read.len() == SNAPSHOTS {
            read.pop_front();
        }
        read.push_back((hash, compiled.clone()));
        Ok(compiled)
    }
}
