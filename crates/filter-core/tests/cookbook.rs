//! The pairs of docs/cookbook.md are filter configurations and limits that fit together.
#![expect(clippy::unwrap_used, reason = "a test fails loudly")]

#[cfg(target_arch = "wasm32")]
#[macro_use]
extern crate wasm_test;

use std::collections::HashSet;

use filter_core::Config;
use limits_file::Surroundings;
use policy::{BUILT_IN, Compiled};

const COOKBOOK: &str = include_str!("../../../docs/cookbook.md");

/// The fenced blocks of a language, in order.
fn blocks(language: &str) -> Vec<&'static str> {
    let fence = format!("```{language}\n");
    let parts = COOKBOOK.split(fence.as_str()).skip(1);
    parts
        .map(|part| part.split("```").next().unwrap())
        .collect()
}

#[test]
fn each_cookbook_configuration_supplies_what_its_limits_need() {
    let (configs, files) = (blocks("json"), blocks("yaml"));
    assert_eq!(configs.len(), files.len());
    assert!(configs.len() >= 5);
    for (config, file) in configs.into_iter().zip(files) {
        let config = Config::from_json(config.as_bytes()).unwrap();
        let around = Surroundings::default();
        let read = limits_file::read_with_warnings("cookbook", file.as_bytes(), |_| around);
        let (policy, warnings) = read.unwrap();
        assert!(warnings.is_none(), "{warnings:?}");
        assert_eq!(policy.domain, config.domain);
        let supplied = config.sources.iter().map(|(key, _)| key.as_str());
        let supplied: HashSet<&str> = supplied.chain(BUILT_IN).collect();
        for key in Compiled::new(policy).needed_keys() {
            assert!(supplied.contains(key.as_str()), "nothing supplies {key}");
        }
    }
}
