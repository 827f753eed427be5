//! Validates output against docs/rlctl-output.schema.json.

use anyhow::Result;
use serde_json::Value;

/// The error names the first place that violates the definition.
pub fn validate(definition: &str, value: &Value) -> Result<()> {
    json_schema::validate(
        &format!("rlctl-output.schema.json#/$defs/{definition}"),
        value,
    )
}
