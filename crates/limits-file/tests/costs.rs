//! The `cost` of a limit: every form, and every way to get it wrong.

#![expect(clippy::unwrap_used, reason = "a test may fail loudly")]

use limits_file::{ToNode as _, limit_from_node};
use policy::Limit;

fn limit(cost: &str) -> Result<Limit, String> {
    let text = format!("{{name: a, rate: 100/1m, cost: {cost}}}");
    let node = limits_file::yaml::read("limit", text.as_bytes()).unwrap();
    limit_from_node(&node).map_err(|problems| problems.to_string())
}

#[test]
fn every_form_is_read_and_written_back() {
    for cost in [
        "3",
        "{from: {request_header: X-Cost, min: 1, max: 100}, default: 1}",
        "{table: [{match: {path: [/a, '!/b']}, units: 50}, {match: {method: GET}, units: 0}], default: 1}",
        "{from: {response_json: /usage/total_tokens}, reserve: 1000}",
        "{from: [{response_json: /a}, {sum: [{response_json: /b}, {response_header: x, weight: 4}]}, \
          {response_trailer: y}, {metadata: [io.envoy.ai_gateway, llm_total_token]}], \
          reserve: {from: [{request_json: /max_tokens, max: 9}, {request_header: x-max}], default: 1000, cap: 10%}, on_error: 5, \
          if_absent: reserved, max: 32000}",
        "{from: {response_json: /a}, max: 32000, if_absent: 7}",
        "{from: {response_json: /a}, max: 32000, if_absent: max}",
        "{from: {status: [401]}, if_absent: max}",
        "{from: {status: [401]}, if_absent: estimate}",
        "{from: {status: [401, 4xx]}, units: 2, reserve: 1}",
        "{from: {status: [401]}}",
    ] {
        let read = limit(cost).unwrap();
        let again = limit_from_node(&read.to_node()).unwrap();
        assert_eq!(again, read, "{cost}");
        let json = read.to_node().get("cost").is_some();
        assert!(json, "{cost}");
    }
}

/// Invalid costs, and behind `=>` a part of the message about each.
const WRONG: &str = "
0 => at least 1
2000000000000 => more than
{} => `from` or `table`
{from: {request_header: x}} => needs a `default`
{from: {response_json: /a}} => needs a `reserve`
{from: {response_json: a}, reserve: 1} => JSON pointer
{from: {response_json: /a}, reserve: 0} => at least 1
{from: {response_json: /a}, reserve: 1, default: 1} => `default` of a cost
{from: {response_json: /a}, reserve: 1, units: 1} => `units` without `status`
{from: {status: [401]}, on_error: 1} => `on_error` beside `status`
{from: {status: [4]}} => a status like 401
{from: [{status: [401]}, {response_json: /a}], reserve: 1} => beside other sources
{from: [{request_header: x}, {response_json: /a}], reserve: 1} => sources of the request
{from: {request_json: /a}, default: 1} => `request_json` outside of `reserve`
{from: {response_json: /a}, reserve: {from: {response_header: x}, default: 1}} => a reserve from
{from: {response_json: /a, min: 1}, reserve: 1} => `min` beside
{from: {response_json: /a, response_header: b}, reserve: 1} => a source
{from: {sum: [{status: [401]}]}, reserve: 1} => not a number
{from: {metadata: [one]}, reserve: 1} => a list of the namespace
{from: {request_header: 'a b'}, default: 1} => name of a header
{from: {request_header: x, min: 5, max: 2}, default: 1} => `min` is 5
{table: [], default: 1} => a list of rows
{table: [{units: 1}], default: 1} => needs `match`
{table: [{match: {path: /a}, units: 1}], from: {response_json: /a}, reserve: 1} => `table` beside
{from: {response_json: /a}, reserve: 1, if_absent: perhaps} => estimate, reserved, max or
{from: {response_json: /a}, reserve: 1, max: 2000000000000} => more than
{form: {response_json: /a}, reserve: 1} => did you mean `from`
{from: {response_json: /a}, reserve: 1}, over_limit: queue, algorithm: leaky_bucket => a queue with
{from: {response_json: /a}, reserve: 1}, scope: proxy => kept in a proxy
{from: {response_json: /a}, reserve: 1}, precheck: 120% => `precheck` with
{table: [{match: {path: /a}, units: 1}], default: 1}, lease: {ttl: 100ms} => `lease` on
";

#[test]
fn an_invalid_cost_is_refused_with_its_problem() {
    for line in WRONG.trim().lines() {
        let (cost, problem) = line.split_once(" => ").unwrap();
        let said = limit(cost).unwrap_err();
        assert!(said.contains(problem), "{cost}: {said}");
    }
    // A filter finds no more of them.
    let sum = |count: usize| format!("{{sum: [{}]}}", "{response_json: /a}, ".repeat(count));
    let cost = |last| {
        format!(
            "{{from: [{}{}], reserve: 1}}",
            (sum(8) + ", ").repeat(3),
            sum(last)
        )
    };
    assert!(limit(&cost(6)).is_ok());
    let said = limit(&cost(7)).unwrap_err();
    assert!(said.contains("more than 30 `response_json`"), "{said}");
}
