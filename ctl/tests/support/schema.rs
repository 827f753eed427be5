//! Whether output is as docs/rlctl-output.schema.json says.

use anyhow::Result;
use serde_json::Value;

/// An error names the first place that is not as the definition says.
pub fn validate(definition: &str, value: &Value) -> Result<()> {
    json_schema::validate(
        &format!("rlctl-output.schema.json#/$defs/{definition}"),
        value,
    )
}
