//! The permissions of the user that rlctl logs in as.

use super::{Finding, Node, Severity};

impl Node<'_> {
    pub(super) fn lacking_rights(&self) -> Option<Finding> {
        let rights = self.health.rights.as_ref()?;
        if rights.lacking.is_empty() {
            return None;
        }
        let finding = self.finding(
            Severity::Error,
            "rights",
            format!("this user may not use {}", rights.lacking.join(", ")),
            "some checks, edits or listings are refused; limiters that log in as another user \
             may have other permissions",
        );
        let grants: Vec<String> = rights
            .lacking
            .iter()
            .map(|command| format!("+{}", command.to_ascii_lowercase()))
            .collect();
        let prefix = self.prefix;
        let words = format!(
            "ACL SETUSER NAME '~{prefix}*' '&{prefix}*' {}",
            grants.join(" ")
        );
        Some(finding.mend(self.command(&words)))
    }

    pub(super) fn spare_rights(&self) -> Option<Finding> {
        let rights = self.health.rights.as_ref()?;
        if rights.spare.is_empty() {
            return None;
        }
        Some(self.finding(
            Severity::Info,
            "rights",
            format!(
                "this user has permissions it does not need: {}",
                rights.spare.join(", ")
            ),
            "a leaked password then exposes more than the limits; docs/rlctl.md lists the \
             permissions that are enough",
        ))
    }
}
