use clap::CommandFactory;

use super::{bytes, *};

#[test]
fn every_flag_is_also_a_variable_and_explained() {
    let command = Flags::command();
    command.clone().debug_assert();
    for arg in command.get_arguments() {
        let id = arg.get_id().as_str();
        if matches!(id, "help" | "version" | "man") {
            continue;
        }
        let variable = format!("RL_{}", id.to_uppercase());
        assert_eq!(
            arg.get_env().and_then(|name| name.to_str()),
            Some(&*variable)
        );
        assert!(arg.get_help().is_some(), "{id} has no help");
    }
}

#[test]
fn the_manual_names_every_flag_and_its_default() {
    let manual = include_str!("../../../docs/limiter.md");
    for arg in Flags::command().get_arguments() {
        let Some(flag) = arg.get_long().filter(|flag| *flag != "version") else {
            continue;
        };
        let line = manual
            .lines()
            .find(|line| line.starts_with('|') && line.contains(&format!("`--{flag}`")));
        let line = line.unwrap_or_else(|| panic!("no --{flag}"));
        for default in arg.get_default_values() {
            let default = default.to_str().unwrap();
            assert!(line.contains(&format!("`{default}`")), "{default}: {line}");
        }
    }
}

#[test]
fn the_pages_about_migrating_start_it_with_flags_that_exist() {
    let pages = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/migrating");
    let mut started = 0;
    for page in std::fs::read_dir(pages).unwrap() {
        let page = page.unwrap().path();
        if page.is_dir() {
            continue;
        }
        let text = std::fs::read_to_string(page).unwrap();
        for line in text.lines().map(str::trim_start) {
            let words = line.split(' ').skip_while(|word| word.contains("RL_"));
            let words: Vec<&str> = words.collect();
            if words.first() == Some(&"limiter")
                && words.get(1).is_some_and(|w| w.starts_with("--"))
            {
                started += 1;
                if let Err(error) = Flags::try_parse_from(words) {
                    panic!("{line}: {error}");
                }
            }
        }
    }
    assert!(started > 1);
}

#[test]
fn sizes_are_read_with_their_unit() {
    assert_eq!(bytes("65536"), Ok(65536));
    assert_eq!(bytes("256KiB"), Ok(256 * 1024));
    assert_eq!(bytes("1MiB"), Ok(1024 * 1024));
    for bad in [
        "",
        "KiB",
        "0",
        "-1",
        "1.5MiB",
        "1GB",
        "99999999999999999999",
    ] {
        assert!(bytes(bad).is_err(), "{bad}");
    }
}

#[test]
fn a_key_without_its_certificate_is_refused() {
    for half in [
        ["limiter", "--tls-cert", "a"],
        ["limiter", "--tls-key", "a"],
        ["limiter", "--client-ca", "a"],
    ] {
        assert!(Flags::try_parse_from(half).is_err());
    }
}

#[test]
fn an_address_that_cannot_be_read_is_answered_with_one_that_can() {
    for wrong in ["localhost:8090", "8090", ":8090", "127.0.0.1", ""] {
        for flag in ["--listen", "--admin"] {
            let error = Flags::try_parse_from(["limiter", flag, wrong]).unwrap_err();
            assert!(error.to_string().contains("0.0.0.0:8090"), "{error}");
        }
    }
    let flags = Flags::parse_from(["limiter", "--admin", "127.0.0.1:1,[::1]:2"]);
    assert_eq!(flags.admin.len(), 2);
}

#[test]
fn a_memory_store_without_a_source_of_limits_is_told_from_others() {
    let has_none =
        |words: &[&str]| Flags::parse_from([&["limiter"], words].concat()).has_no_limits();
    assert!(has_none(&[]));
    for words in [
        ["--store", "redis://a"],
        ["--limits", "a.yaml"],
        ["--rls-config", "a"],
        ["--xds-server", "http://a:1"],
    ] {
        assert!(!has_none(&words), "{words:?}");
    }
}
