use std::fs;

use super::*;

#[test]
fn a_sign_in_never_leads_to_another_site() {
    for next in ["/", "/limits?q=a&page=2", "/bucket?v.user=%3Cb%3E"] {
        assert!(is_local(next), "{next}");
    }
    for next in [
        "",
        "//evil.example",
        "/\\evil.example",
        "https://evil.example",
        "/\t/evil",
        "/a\r\nset-cookie: a",
    ] {
        assert!(!is_local(next), "{next}");
    }
}

#[test]
fn an_address_is_refused_after_ten_wrong_tokens_and_others_are_not() {
    let attempts = Attempts::default();
    let guesser: IpAddr = "2001:db8::1".parse().unwrap();
    for _ in 0..WRONG_MAX {
        assert!(attempts.allows(guesser));
        attempts.failed(guesser);
    }
    assert!(!attempts.allows(guesser));
    assert!(
        !attempts.allows("2001:db8::2".parse().unwrap()),
        "the same network"
    );
    assert!(attempts.allows("2001:db8:0:1::1".parse().unwrap()));
    assert!(attempts.allows("192.0.2.1".parse().unwrap()));
}

#[test]
fn the_addresses_are_bounded() {
    let attempts = Attempts::default();
    for number in 0..3000_u32 {
        attempts.failed(std::net::Ipv4Addr::from(number).into());
    }
    assert_eq!(attempts.table().len(), ADDRESSES_MAX);
}

const TOKEN: &[u8] = b"0123456789abcdef";

fn tokens(text: &str) -> Tokens {
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(file.path(), text).unwrap();
    Tokens::load(file.path()).unwrap()
}

#[test]
fn a_session_lasts_until_its_end_and_as_long_as_its_token() {
    let ours = tokens("0123456789abcdef\nfedcba9876543210\n");
    let begun = session_cookie(TOKEN, 1000, false);
    let (pair, _) = begun.split_once(';').unwrap();
    assert!(is_valid_session(&ours, pair, 1000));
    assert!(is_valid_session(
        &ours,
        &format!("a=b; {pair}; c=d"),
        1000 + SESSION_S - 1
    ));
    assert!(!is_valid_session(&ours, pair, 1000 + SESSION_S));
    assert!(
        !is_valid_session(&ours, pair, 999),
        "it would last too long"
    );
    assert!(!is_valid_session(&tokens("fedcba9876543210\n"), pair, 1000));
}

#[test]
fn a_modified_session_cookie_is_rejected() {
    let ours = tokens("0123456789abcdef\n");
    let begun = session_cookie(TOKEN, 1000, false);
    let (pair, _) = begun.split_once(';').unwrap();
    let later = pair.replacen("44200", "44201", 1);
    assert_ne!(later, pair);
    for bad in [
        later.as_str(),
        "rl_page=",
        "rl_page=44200.",
        "rl_page=44200.zz",
        "",
        "=;;=",
        &pair[..pair.len() - 1],
    ] {
        assert!(!is_valid_session(&ours, bad, 1000), "{bad}");
    }
    assert!(begun.contains("; HttpOnly; SameSite=Strict"));
}

#[test]
fn any_bytes_survive_a_link() {
    let value: Vec<u8> = (0..=255).collect();
    let query = Query::parse(&format!("a=b&v.user={}", encode(&value)));
    let (name, read) = query.all().nth(1).unwrap();
    assert_eq!((name, read), ("v.user", value.as_slice()));
    assert_eq!(Query::parse("q=a+b%2Bc").text("q").unwrap(), "a b+c");
    assert_eq!(Query::parse("page=x").number("page", 1), 1);
    assert_eq!(
        Query::parse(&"a&".repeat(9999)).all().count(),
        PARAMETERS_MAX
    );
}
