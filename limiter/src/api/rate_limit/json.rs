//! Requests and answers of `POST /json`, as proto3's JSON writes them.

use serde_json::{Map, Value, json};

use super::messages::{Code, Kind, RateLimitResponse, Struct};
use super::scalars::{UNITS, Unit};

fn code(code: i32) -> &'static str {
    match Code::try_from(code) {
        Ok(Code::Ok) => "OK",
        Ok(Code::OverLimit) => "OVER_LIMIT",
        Ok(Code::Unknown) | Err(_) => "UNKNOWN",
    }
}

/// The answer as JSON; fields at their defaults are left out.
pub(super) fn response(response: &RateLimitResponse) -> Value {
    let mut answer = Map::new();
    answer.insert("overallCode".to_owned(), code(response.overall_code).into());
    let statuses = response.statuses.iter().map(|status| {
        let mut fields = Map::new();
        fields.insert("code".to_owned(), code(status.code).into());
        if let Some(limit) = &status.current_limit {
            let unit = Unit::try_from(limit.unit).unwrap_or(Unit::Unknown);
            let mut units = UNITS.iter();
            let name = units
                .find(|(known, ..)| *known == unit)
                .map(|(_, name, _)| *name);
            let mut current = Map::new();
            current.insert("name".to_owned(), limit.name.as_str().into());
            current.insert("requestsPerUnit".to_owned(), limit.requests_per_unit.into());
            if let Some(name) = name {
                current.insert("unit".to_owned(), name.into());
            }
            fields.insert("currentLimit".to_owned(), current.into());
        }
        if status.limit_remaining > 0 {
            fields.insert("limitRemaining".to_owned(), status.limit_remaining.into());
        }
        if let Some(reset) = &status.duration_until_reset {
            let millis = reset.nanos / 1_000_000;
            let text = match millis {
                0 => format!("{}s", reset.seconds),
                _ => format!("{}.{millis:03}s", reset.seconds),
            };
            fields.insert("durationUntilReset".to_owned(), text.into());
        }
        Value::Object(fields)
    });
    let statuses: Vec<Value> = statuses.collect();
    if !statuses.is_empty() {
        answer.insert("statuses".to_owned(), statuses.into());
    }
    if !response.response_headers_to_add.is_empty() {
        let headers = response.response_headers_to_add.iter();
        let headers = headers.map(|header| json!({"key": header.key, "value": header.value}));
        let headers: Vec<Value> = headers.collect();
        answer.insert("responseHeadersToAdd".to_owned(), headers.into());
    }
    if let Some(metadata) = &response.dynamic_metadata {
        answer.insert("dynamicMetadata".to_owned(), of_struct(metadata));
    }
    Value::Object(answer)
}

fn of_struct(fields: &Struct) -> Value {
    let fields = fields.fields.iter();
    let fields = fields.map(|(key, value)| (key.clone(), of_kind(value.kind.as_ref())));
    Value::Object(fields.collect())
}

fn of_kind(kind: Option<&Kind>) -> Value {
    match kind {
        Some(Kind::Text(text)) => text.as_str().into(),
        Some(Kind::List(list)) => {
            let values = list.values.iter();
            values.map(|value| of_kind(value.kind.as_ref())).collect()
        }
        None => Value::Null,
    }
}
