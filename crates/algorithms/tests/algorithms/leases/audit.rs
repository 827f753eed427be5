//! Compares what was admitted with what may be.

/// Admissions of a bucket, in the order of their times: at most C + r·Δ in every interval.
///
/// With admissions of `u_1, u_2, …` parts at `t_1 ≤ t_2 ≤ …`, those from `i` to `j` are `A_j −
/// A_(i−1)`, and the promise for every `i ≤ j` is `(A_j − y·t_j) − (A_(i−1) − y·t_i) ≤ C`: one pass
/// that keeps the least of the second term.
pub struct Audit {
    /// C, in parts.
    pub capacity: i128,
    /// Parts refilled per millisecond.
    pub per_ms: i128,
    admitted: i128,
    least: i128,
    last_ms: u64,
    /// The most by which the promise was broken, in parts.
    pub worst: i128,
}

impl Audit {
    pub fn new(capacity: u64, per_ms: u64) -> Self {
        Self {
            capacity: capacity.into(),
            per_ms: per_ms.into(),
            admitted: 0,
            least: i128::MAX,
            last_ms: 0,
            worst: i128::MIN,
        }
    }

    pub fn admit(&mut self, now_ms: u64, parts: u64) {
        assert!(now_ms >= self.last_ms, "in the order of time");
        self.last_ms = now_ms;
        let refilled = self.per_ms * i128::from(now_ms);
        self.least = self.least.min(self.admitted - refilled);
        self.admitted += i128::from(parts);
        let over = self.admitted - refilled - self.least - self.capacity;
        self.worst = self.worst.max(over);
    }

    /// Units that an operator gave back may be admitted once more.
    pub fn credit(&mut self, parts: u64) {
        self.admitted -= i128::from(parts);
    }
}

#[test]
fn the_audit_finds_the_one_interval_that_is_too_full() {
    let mut audit = Audit::new(10, 1);
    for (now_ms, parts) in [(0, 4), (5, 6), (20, 10), (22, 2)] {
        audit.admit(now_ms, parts);
        assert!(audit.worst <= 0);
    }
    audit.admit(23, 2);
    assert_eq!(audit.worst, 1, "14 in 3 ms, where 13 may be");
}
