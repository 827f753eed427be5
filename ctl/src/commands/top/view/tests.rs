use std::collections::BTreeMap;

use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use policy::Name;
use protocol::{DecidedBy, Outcome};
use ratatui::{Terminal, backend::TestBackend, style::Color};
use store::{Activity, ActivitySummary, BucketActivity, Denial, LimitActivity};

use super::*;
use crate::{
    commands::{
        stats::Span,
        top::{Action, Data},
    },
    error::{Error, Exit},
};

fn name(text: &str) -> Name {
    text.parse().unwrap()
}

fn bucket(limit: &str, user: &str, requests: u64, denied: u64) -> BucketActivity {
    BucketActivity {
        limit: name(limit),
        bucket: vec![(name("user"), Some(user.as_bytes().to_vec()))],
        requests,
        denied,
        over: 0,
        last: (denied > 0).then(|| Denial {
            at_ms: 1,
            outcome: Outcome::Denied,
            by: DecidedBy::DenyCache,
            proxy: None,
            descriptor: vec![
                (name("path"), b"/api/orders/4711".to_vec()),
                (name("remote_address"), b"2001:db8::1".to_vec()),
            ],
        }),
    }
}

fn data(buckets: Vec<BucketActivity>) -> Data {
    let mut per_user = LimitActivity::default();
    per_user.add(Outcome::Allowed, DecidedBy::Limiter, 1200);
    per_user.add(Outcome::Denied, DecidedBy::DenyCache, 42_000);
    let mut trial = LimitActivity::default();
    trial.add(Outcome::Allowed, DecidedBy::Limiter, 30_000);
    trial.add(Outcome::WouldDeny, DecidedBy::Limiter, 7);
    Data {
        limits: vec![name("trial"), name("idle"), name("per-user")],
        observed: ActivitySummary {
            activity: Activity {
                limits: [(name("per-user"), per_user), (name("trial"), trial)].into(),
                errors: 3,
                buckets,
                ..Activity::default()
            },
            covered_ms: 10_000,
            ..ActivitySummary::default()
        },
        sharing: [(name("per-user"), 2)].into(),
        in_use: BTreeMap::new(),
        limiters: 2,
        proxies: 1,
        latency_us: 213,
    }
}

fn model() -> Model {
    let mut model = Model::new(
        &name("shop"),
        "redis://127.0.0.1:6379",
        Span::TenSeconds,
        "",
    );
    model.show(Ok(data(vec![
        bucket("trial", "carol", 9000, 0),
        bucket("per-user", "b\u{1b}[2Job", 30, 20),
        bucket("per-user", "alice", 41_990, 41_980),
    ])));
    model
}

fn screen(model: &mut Model, width: u16, height: u16) -> Terminal<TestBackend> {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| draw(frame, model)).unwrap();
    terminal
}

fn shown(model: &mut Model) -> String {
    screen(model, 80, 20).backend().to_string()
}

fn press(model: &mut Model, keys: &str) -> Action {
    let mut action = Action::Stay;
    for key in keys.chars() {
        let code = match key {
            '\n' => KeyCode::Enter,
            '\u{1b}' => KeyCode::Esc,
            '\u{8}' => KeyCode::Backspace,
            '↓' => KeyCode::Down,
            key => KeyCode::Char(key),
        };
        action = model.press(KeyEvent::new(code, KeyModifiers::NONE));
    }
    action
}

/// The users of the buckets shown, from above.
fn users(model: &Model) -> Vec<String> {
    let rows = model.buckets().into_iter();
    rows.map(|row| row.bucket.replace("user=", "")).collect()
}

#[test]
fn it_fits_eighty_columns() {
    insta::assert_snapshot!(shown(&mut model()));
}

#[test]
fn help_is_over_it_until_a_key_is_pressed() {
    let mut model = model();
    press(&mut model, "?");
    insta::assert_snapshot!(shown(&mut model));
    press(&mut model, "q");
    assert!(shown(&mut model).contains("user=alice"));
}

#[test]
fn no_terminal_is_too_small_or_too_large() {
    for (width, height) in [(1, 1), (5, 2), (20, 3), (80, 5), (79, 24), (500, 200)] {
        let mut model = model();
        screen(&mut model, width, height);
        press(&mut model, "?");
        screen(&mut model, width, height);
        screen(
            &mut Model::new(&name("a"), "", Span::Minute, "x"),
            width,
            height,
        );
    }
}

#[test]
fn keys_sort_and_filter() {
    let mut model = model();
    let bob = "b\\u{1b}[2Job";
    assert_eq!(users(&model), ["alice", bob, "carol"]);
    press(&mut model, "n");
    assert_eq!(users(&model), ["alice", bob, "carol"]);
    press(&mut model, "r");
    assert_eq!(users(&model), ["alice", "carol", bob]);
    // While the user types a filter, letters are text.
    assert_eq!(press(&mut model, "/carolq\u{8}"), Action::Stay);
    assert!(shown(&mut model).contains("filter: carol_"));
    assert_eq!(users(&model), ["carol"]);
    press(&mut model, "\n");
    assert!(shown(&mut model).contains("filter: carol "));
    press(&mut model, "\u{1b}/nobody\n");
    assert!(shown(&mut model).contains("no bucket matches the filter"));
    press(&mut model, "\u{1b}/2001:db8\n");
    assert_eq!(users(&model), ["alice", bob], "by what was requested");
    press(&mut model, "/\u{1b}");
    assert_eq!(users(&model).len(), 3);
    let first = |model: &Model| model.limits()[0].name.clone();
    assert_eq!(first(&model), "trial", "most requests");
    press(&mut model, "d");
    assert_eq!(first(&model), "per-user");
    press(&mut model, "n");
    assert_eq!(first(&model), "idle");
    assert_eq!(press(&mut model, "2"), Action::Fetch);
    assert_eq!(model.span, Span::Minute);
    assert_eq!(press(&mut model, "q"), Action::Quit);
    let control_c = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
    assert_eq!(model.press(control_c), Action::Interrupt);
}

#[test]
fn what_would_be_denied_comes_after_what_is() {
    let mut model = model();
    let mut shadow = bucket("trial", "shadow", 90_000, 80_000);
    shadow.last.as_mut().unwrap().outcome = Outcome::WouldDeny;
    (shadow.denied, shadow.over) = (0, shadow.denied);
    let real = bucket("per-user", "real", 30, 2);
    model.show(Ok(data(vec![shadow, bucket("trial", "fine", 9, 0), real])));
    assert_eq!(users(&model), ["real", "shadow", "fine"]);
    let text = shown(&mut model);
    let row = text
        .lines()
        .find(|line| line.contains("user=shadow"))
        .unwrap();
    assert!(row.contains("would deny"), "{text}");
}

#[test]
fn many_buckets_are_scrolled_through_to_the_last() {
    let mut model = model();
    let many = (0..100).map(|n| bucket("per-user", &format!("u{n:02}"), 200 - n, 100 - n));
    model.show(Ok(data(many.collect())));
    assert!(shown(&mut model).contains("user=u00"));
    press(&mut model, "↓↓");
    let text = shown(&mut model);
    assert!(
        text.contains("user=u00"),
        "it scrolls no further than it has to"
    );
    assert_eq!(model.buckets()[model.selected].bucket, "user=u02");
    press(&mut model, " ");
    let text = shown(&mut model);
    let selected = model.buckets()[model.selected].bucket.clone();
    assert!(
        !text.contains("user=u00") && text.contains(&selected),
        "{text}"
    );
    for _ in 0..50 {
        press(&mut model, " ");
        shown(&mut model);
    }
    let text = shown(&mut model);
    assert!(text.contains("user=u99"), "{text}");
    assert_eq!(text.matches("user=").count(), model.fits);
}

#[test]
fn costs_slots_and_penalties_have_columns_where_there_are_any() {
    let mut model = model();
    let wide = |model: &mut Model| screen(model, 120, 20).backend().to_string();
    assert!(!wide(&mut model).contains("COST/S"));
    let mut data = data(Vec::new());
    let tokens = LimitActivity {
        settled_units: 50_000,
        slots_taken: 30,
        penalties: 2,
        ..LimitActivity::default()
    };
    let covered_s = data.observed.covered_ms / 1000;
    data.observed.activity.limits.insert(name("trial"), tokens);
    model.show(Ok(data));
    let text = wide(&mut model);
    let row = text.lines().find(|line| line.contains("trial")).unwrap();
    for (title, value) in [
        ("COST/S", Rate::new(50_000, covered_s * 1000).text()),
        ("SLOTS/S", Rate::new(30, covered_s * 1000).text()),
        ("PENALTIES", "2".to_owned()),
    ] {
        assert!(
            text.contains(title) && row.contains(&value),
            "{title} {value}\n{text}"
        );
    }
}

#[test]
fn enter_opens_the_selected_bucket_and_esc_closes_it() {
    let mut model = model();
    assert_eq!(press(&mut model, "↓"), Action::Stay);
    assert_eq!(press(&mut model, "\n"), Action::Open);
    assert!(shown(&mut model).contains("asking"));
    let of = model.opened.clone().unwrap().0;
    assert_eq!(of.0.as_str(), "per-user");
    assert_eq!(of.1, [Some(b"b\x1b[2Job".to_vec())]);
    // What was asked for another bucket is not shown.
    model.show_opened(&(name("trial"), Vec::new()), Ok("of another".to_owned()));
    assert!(shown(&mut model).contains("asking"));
    model.show_opened(&of, Ok("5 of 10 left".to_owned()));
    assert!(shown(&mut model).contains("5 of 10 left"));
    assert_eq!(press(&mut model, "d"), Action::Stay);
    assert!(shown(&mut model).contains("5 of 10 left"));
    press(&mut model, "\u{1b}");
    assert!(!shown(&mut model).contains("5 of 10 left"));
    // Without a bucket there is nothing to open.
    let mut model = with_limits(3, Vec::new());
    assert_eq!(press(&mut model, "\n"), Action::Stay);
}

#[test]
fn what_a_key_asks_for_is_read_also_while_it_is_paused() {
    let mut model = model();
    assert!(model.is_due());
    assert_eq!(press(&mut model, "p"), Action::Stay);
    assert!(!model.is_due());
    assert_eq!(press(&mut model, "3"), Action::Fetch);
    assert_eq!((model.is_due(), model.is_due()), (true, false));
    assert_eq!(press(&mut model, "p"), Action::Fetch);
    assert!(model.is_due());
}

#[test]
fn what_was_known_stays_while_redis_is_away() {
    let mut model = model();
    model.show(Err(Error::new(Exit::Unreachable, "cannot reach redis://x")));
    let text = shown(&mut model);
    assert!(text.contains("cannot reach redis://x") && text.contains("user=alice"));
    press(&mut model, "p");
    assert!(shown(&mut model).contains("PAUSED"));
}

#[test]
fn without_color_there_is_none() {
    for color in [true, false] {
        let mut model = model();
        model.color = color;
        let terminal = screen(&mut model, 80, 20);
        let cells = terminal.backend().buffer().content().iter();
        let any = cells.map(|cell| cell.fg).any(|fg| fg != Color::Reset);
        assert_eq!(any, color);
    }
}

#[test]
fn slots_in_use_are_shown_where_a_limit_has_some() {
    let mut model = model();
    assert!(!shown(&mut model).contains("IN USE"));
    model.show(Ok(Data {
        in_use: [(name("trial"), (17, 20))].into(),
        ..data(Vec::new())
    }));
    let text = shown(&mut model);
    assert!(
        text.contains("IN USE") && text.contains("17 of 20"),
        "{text}"
    );
}

/// This many limits, with names of one length.
fn with_limits(count: usize, buckets: Vec<BucketActivity>) -> Model {
    let mut model = model();
    let limits = (0..count).map(|n| name(&format!("limit-{n:02}"))).collect();
    model.show(Ok(Data {
        limits,
        ..data(buckets)
    }));
    press(&mut model, "n");
    model
}

#[test]
fn limits_have_the_room_that_buckets_leave() {
    let mut few = with_limits(18, Vec::new());
    let text = screen(&mut few, 80, 30).backend().to_string();
    assert_eq!(text.matches("limit-").count(), 18, "{text}");
    let many = (0..100).map(|n| bucket("per-user", &format!("u{n:02}"), 200, 100));
    let mut both = with_limits(18, many.collect());
    let text = screen(&mut both, 80, 30).backend().to_string();
    assert!(text.contains("LIMIT 1-7 of 18"), "{text}");
    assert_eq!(text.matches("user=").count(), both.fits, "{text}");
    assert_eq!(both.fits + both.limits_fit, 24);
}

#[test]
fn tab_moves_through_the_limits() {
    let many = (0..100).map(|n| bucket("per-user", &format!("u{n:02}"), 200, 100));
    let mut model = with_limits(18, many.collect());
    let shown = |model: &mut Model| screen(model, 80, 30).backend().to_string();
    shown(&mut model);
    model.press(KeyEvent::new(KeyCode::Tab, KeyModifiers::NONE));
    press(&mut model, "↓↓");
    let text = shown(&mut model);
    assert!(
        text.contains("LIMIT 3-9 of 18") && text.contains("user=u00"),
        "{text}"
    );
    model.press(KeyEvent::new(KeyCode::End, KeyModifiers::NONE));
    assert!(shown(&mut model).contains("limit-17"));
    // Without buckets there is nothing else to move through.
    let mut model = with_limits(40, Vec::new());
    shown(&mut model);
    press(&mut model, "↓");
    assert!(shown(&mut model).contains("LIMIT 2-"));
}

#[test]
fn a_narrow_terminal_has_fewer_columns_and_none_that_is_cut() {
    let titles = [
        "LIMIT",
        "ALLOWED/S",
        "DENIED/S",
        "OVER/S",
        "PROXIES",
        "BUCKET",
        "REQ/S",
        "BY",
        "LAST REQUEST DENIED",
    ];
    for width in 25..=100 {
        let mut model = model();
        let text = screen(&mut model, width, 20).backend().to_string();
        let headers = text.lines().filter(|line| line.contains("DENIED/S"));
        let headers: Vec<&str> = headers.collect();
        assert_eq!(headers.len(), 2, "{width}:\n{text}");
        let mut rest = headers.join(" ").replace(['▼', '"'], " ");
        let mut titles = titles;
        titles.sort_by_key(|title| std::cmp::Reverse(title.len()));
        for title in titles {
            rest = rest.replace(title, "");
        }
        assert_eq!(rest.trim(), "", "{width}:\n{text}");
    }
    insta::assert_snapshot!(screen(&mut model(), 40, 20).backend().to_string());
}
