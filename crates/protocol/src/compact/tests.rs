use policy::{Name, Revision};
use proptest::{collection::vec, option, prelude::*};

use super::*;
use crate::{
    Answer, CostSettlement, Debit, Decision, ErrorCode, Lease, LeaseRequest, LimitAnswer,
    LimitCost, LimitRequest, LimitVerdict, Mode, Pace, PenaltyStatus, Reservation, RetryAfter,
    Settlement, Slot, SlotAct, SlotOp,
};

fn any_name() -> impl Strategy<Value = Name> {
    "[a-z0-9][a-z0-9._-]{0,8}".prop_map(|text| text.parse().unwrap())
}

fn any_revision() -> impl Strategy<Value = Revision> {
    any::<(u64, u64)>().prop_map(|(number, digest)| Revision { number, digest })
}

fn any_lease_request() -> impl Strategy<Value = LeaseRequest> {
    (any::<u64>(), vec(any::<(u64, u64, u64)>(), 0..3)).prop_map(|(want, settle)| {
        let settle = settle.into_iter();
        let settle = settle.map(|(epoch, spent, returned)| Settlement {
            epoch,
            spent,
            returned,
        });
        LeaseRequest {
            want,
            settle: settle.collect(),
        }
    })
}

fn any_slot() -> impl Strategy<Value = Slot> {
    any::<(u64, u64, u64, u64)>().prop_map(|(start_ms, parts, since_ms, turn)| Slot {
        start_ms,
        parts,
        since_ms,
        turn,
    })
}

fn any_reservation() -> impl Strategy<Value = Reservation> {
    any::<(u64, u64, u64, u64)>().prop_map(|(secret, number, units, seal)| Reservation {
        secret,
        number,
        units,
        seal,
    })
}

fn any_slot_op() -> impl Strategy<Value = SlotOp> {
    let act = prop_oneof![
        any::<u64>().prop_map(SlotAct::Free),
        Just(SlotAct::Renew),
        Just(SlotAct::Enter),
        Just(SlotAct::Answered(Pace::InTime)),
        Just(SlotAct::Answered(Pace::Late)),
        Just(SlotAct::Answered(Pace::Slow)),
    ];
    (any_slot(), act).prop_map(|(slot, act)| SlotOp { slot, act })
}

prop_compose! {
    fn any_limit_request()(
        limit in any_name(),
        skip in any::<bool>(),
        cost in option::of(any::<(u64, bool)>()),
        debit in option::of(any::<(u64, Option<u64>)>()),
        lease in option::of(any_lease_request()),
        slots in vec(any_slot_op(), 0..3),
        settle in vec((any_reservation(), any::<u64>()), 0..3),
        denied in any::<u64>(),
    ) -> LimitRequest {
        let settle = settle.into_iter();
        let settle = settle.map(|(reservation, units)| CostSettlement { reservation, units });
        LimitRequest {
            limit,
            skip,
            cost: cost.map(|(units, reserve)| LimitCost { units, reserve }),
            debit: debit.map(|(units, serial)| Debit { units, serial }),
            lease,
            slots,
            settle: settle.collect(),
            denied,
        }
    }
}

prop_compose! {
    fn any_check(keys: usize)(
        values in vec(option::of(vec(any::<u8>(), 0..20)), 0..=keys),
        cost in any::<u64>(),
        mut limits in vec(any_limit_request(), 0..4),
        max_delay_ms in option::of(any::<u64>()),
        slot in option::of((any::<u64>(), any::<u64>())),
    ) -> BatchCheck {
        let mut names = HashSet::new();
        limits.retain(|entry| names.insert(entry.limit.clone()));
        let slot = slot.map(|(stamp, secret)| SlotId { stamp, secret });
        BatchCheck { values, cost, limits, max_delay_ms, slot }
    }
}

fn any_batch() -> impl Strategy<Value = Batch> {
    vec(any_name(), 0..5).prop_flat_map(|keys| {
        let checks = vec(any_check(keys.len()), 0..5);
        let rest = (any_name(), "[0-9a-f]{0,64}", option::of(any_revision()));
        (rest, checks).prop_map(move |((domain, proxy, revision), checks)| Batch {
            domain,
            proxy,
            revision,
            keys: keys.clone(),
            checks,
        })
    })
}

prop_compose! {
    fn any_limit()(
        name in any_name(),
        (generation, charged, limit) in any::<(u64, u64, Option<u64>)>(),
        mode in prop::sample::select(vec![Mode::Enforce, Mode::Shadow, Mode::Degrade]),
        (allowed, hidden) in any::<(bool, bool)>(),
        (window_ms, remaining, retry_after_ms) in any::<(u64, u64, Option<u64>)>(),
        (reset_after_ms, delay_ms) in any::<(u64, u64)>(),
        lease in option::of((1_u64.., any::<u64>(), any::<u64>())),
        slot in option::of(any_slot()),
        reservation in option::of(any_reservation()),
        left_ms in prop_oneof![Just(0), 0..1_u64 << 40],
    ) -> LimitAnswer {
        let lease = lease.map(|(units, epoch, ttl_ms)| Lease { units, epoch, ttl_ms });
        LimitAnswer {
            name, generation, bucket: Vec::new(), mode, limit, window_ms, hidden, reservation,
            verdict: LimitVerdict {
                decision: Decision {
                    allowed, remaining, retry_after: RetryAfter::from_millis(retry_after_ms), reset_after_ms, delay_ms,
                },
                charged, lease, slot, penalty: PenaltyStatus { left_ms, ..PenaltyStatus::default() },
                ..LimitVerdict::default()
            },
        }
    }
}

prop_compose! {
    fn any_answer()(
        revision in any_revision(),
        proxies in vec((any_name(), any::<u64>()), 0..4),
        results in vec(
            prop_oneof![
                (any::<(u64, bool)>(), vec(any_limit(), 0..4)).prop_map(Ok),
                (0..15_u64).prop_map(|n| Err(ErrorCode::from_number(n))),
            ],
            0..6,
        ),
    ) -> BatchAnswer {
        let results = results.into_iter().map(|result| {
            result.map(|((now_ms, allowed), limits)| Answer {
                revision: revision.clone(), now_ms, allowed, limits, parts: Vec::new(),
            })
        });
        BatchAnswer { results: results.collect(), revision: revision.clone(), proxies }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn batches_round_trip(batch in any_batch()) {
        prop_assert_eq!(Batch::decode(&batch.encode()), Ok(batch));
    }

    #[test]
    fn answers_round_trip(answer in any_answer()) {
        prop_assert_eq!(BatchAnswer::decode(&answer.encode()), Ok(answer));
    }

    #[test]
    fn decoding_damaged_messages_does_not_panic(
        batch in any_batch(), answer in any_answer(), at: prop::sample::Index, byte: u8,
    ) {
        for mut bytes in [batch.encode(), answer.encode()] {
            let at = at.index(bytes.len());
            let _ = (Batch::decode(&bytes[..at]), BatchAnswer::decode(&bytes[..at]));
            bytes[at] = byte;
            let _ = (Batch::decode(&bytes), BatchAnswer::decode(&bytes));
        }
    }

    #[test]
    fn a_message_cut_short_is_refused(batch in any_batch(), at: prop::sample::Index) {
        let bytes = batch.encode();
        prop_assert!(Batch::decode(&bytes[..at.index(bytes.len())]).is_err());
    }
}

fn batch() -> Batch {
    Batch {
        domain: "shop".parse().unwrap(),
        proxy: "00ff".to_owned(),
        revision: None,
        keys: vec!["path".parse().unwrap(), "user".parse().unwrap()],
        checks: vec![BatchCheck {
            values: vec![None, Some(b"\xff".to_vec())],
            cost: 1,
            ..BatchCheck::default()
        }],
    }
}

#[test]
fn the_encoding_does_not_change() {
    // Another version is at the other end: what is here may be added to, not changed.
    let hex = |bytes: Vec<u8>| {
        let digits = bytes.iter().map(|byte| format!("{byte:02x}"));
        digits.collect::<Vec<_>>().concat()
    };
    insta::assert_snapshot!(
        hex(batch().encode()),
        @"866473686f706430306666f6826470617468647573657280818582f641ff0180f6f6"
    );
    let answer = BatchAnswer {
        revision: Revision {
            number: 17,
            digest: 1,
        },
        proxies: vec![("per-user".parse().unwrap(), 3)],
        results: vec![
            Ok(Answer {
                revision: Revision {
                    number: 17,
                    digest: 1,
                },
                now_ms: 1000,
                allowed: true,
                limits: vec![crate::answer::tests::limit("per-user")],
                parts: Vec::new(),
            }),
            Err(ErrorCode::StoreUnavailable),
        ],
    };
    insta::assert_snapshot!(
        hex(answer.encode()),
        @"8482110181687065722d75736572818200038284f6f51903e8818a00000100141907d014000000840df40080"
    );
}

#[test]
fn fields_of_a_later_version_are_skipped() {
    let bytes = batch().encode();
    // An array of six becomes one of seven, with a nested value at the end.
    assert_eq!(bytes[0], 0x86);
    let mut later = vec![0x87];
    later.extend(&bytes[1..]);
    later.extend([0x82, 0x61, b'x', 0xa1, 0x01, 0xf6]);
    assert_eq!(Batch::decode(&later), Ok(batch()));
    // However deeply they nest.
    later.truncate(bytes.len());
    later.extend([0x81].repeat(1_000_000));
    later.push(0xf6);
    assert_eq!(Batch::decode(&later), Ok(batch()));
}

#[test]
fn the_values_of_a_check_make_its_descriptor() {
    let batch = batch();
    let check = batch.checks[0].clone().into_check(&batch.keys);
    assert_eq!(check.descriptor.get("path"), None);
    assert_eq!(check.descriptor.get("user"), Some(&b"\xff"[..]));
    assert_eq!(check.cost, 1);
}

#[test]
fn a_batch_beyond_any_bound_is_refused() {
    let with = |change: &dyn Fn(&mut Batch)| {
        let mut batch = batch();
        change(&mut batch);
        Batch::decode(&batch.encode()).unwrap_err()
    };
    let long = |batch: &mut Batch| batch.checks[0].values[1] = Some(vec![0; MAX_VALUE + 1]);
    assert_eq!(with(&long), DecodeError::Bounds("value"));
    let many = |batch: &mut Batch| batch.checks = vec![batch.checks[0].clone(); MAX_CHECKS + 1];
    assert_eq!(with(&many), DecodeError::Bounds("checks"));
    let wide = |batch: &mut Batch| batch.checks[0].values = vec![None; 3];
    assert_eq!(with(&wide), DecodeError::Bounds("values"));
    let proxy = |batch: &mut Batch| batch.proxy = "x".repeat(65);
    assert_eq!(with(&proxy), DecodeError::Bounds("proxy"));
    let named = |count: usize| {
        let names = (0..count).map(|n| format!("n{n}").parse().unwrap());
        names.map(LimitRequest::new).collect::<Vec<_>>()
    };
    let limits = |batch: &mut Batch| batch.checks[0].limits = named(MAX_LIMITS + 1);
    assert_eq!(with(&limits), DecodeError::Bounds("limits of checks"));
    let together = |batch: &mut Batch| {
        let checks = MAX_BATCH_LIMITS / 1000 + 1;
        batch.checks = vec![batch.checks[0].clone(); checks];
        for check in &mut batch.checks {
            check.limits = named(1000);
        }
    };
    assert_eq!(with(&together), DecodeError::Bounds("limits of checks"));
    let slots = |batch: &mut Batch| {
        batch.checks[0].limits = named(2);
        for entry in &mut batch.checks[0].limits {
            entry.slots = vec![SlotOp::free(Slot::default(), 1); MAX_FREE / 2 + 1];
        }
    };
    assert_eq!(with(&slots), DecodeError::Bounds("slots and settlements"));
    let twice = |batch: &mut Batch| batch.checks[0].limits = [named(2), named(1)].concat();
    assert_eq!(with(&twice), DecodeError::Twice);
    let keys = |batch: &mut Batch| batch.keys = vec!["k".parse().unwrap(); MAX_ENTRIES + 1];
    assert_eq!(with(&keys), DecodeError::Bounds("keys"));
}

#[test]
fn a_false_array_length_reserves_no_memory() {
    // An array that claims 2^60 elements.
    let claim = [0x9b, 0x10, 0, 0, 0, 0, 0, 0, 0];
    let mut bytes = vec![0x86, 0x61, b'a', 0x60, 0xf6];
    bytes.extend(claim);
    assert_eq!(Batch::decode(&bytes), Err(DecodeError::Short));
}
