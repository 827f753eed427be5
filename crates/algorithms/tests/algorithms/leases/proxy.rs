//! A proxy's grants, and its clock.

use algorithms::{Lease, PROXY_MARKS};

use super::Random;

pub struct Grant {
    pub lease: Lease,
    pub left: u64,
    pub spent: u64,
    /// By the proxy's clock.
    pub dies_us: u64,
}

pub struct Proxy {
    pub mark: u8,
    pub alive: bool,
    /// How much too fast its clock runs, in millionths.
    pub drift: i64,
    pub held: Vec<Grant>,
    /// It leases all it can get and spends it at the last moment.
    pub hoards: bool,
}

impl Proxy {
    pub fn new(random: &mut Random) -> Self {
        Self {
            mark: u8::try_from(random.below(PROXY_MARKS.into())).unwrap(),
            alive: true,
            drift: i64::try_from(random.below(1001)).unwrap() - 500,
            held: Vec::new(),
            hoards: random.one_in(2),
        }
    }

    pub fn clock_us(&self, now_us: u64) -> u64 {
        let drift = i64::try_from(now_us).unwrap() * self.drift / 1_000_000;
        now_us.checked_add_signed(drift).unwrap()
    }
}
