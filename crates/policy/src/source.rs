//! Reads documents into policies, and writes policies as documents.

use documents::{Field, Form, Node, Path, Problems, Report};

use crate::{
    Limit, Policy,
    read::{FORMAT, read_limit, read_policy},
};

impl Policy {
    /// Reads a limits file, YAML or JSON. `file` is what messages call it.
    ///
    /// # Errors
    /// Everything that is wrong with it, with its place.
    pub fn from_yaml(file: &str, text: &[u8]) -> Result<Self, Problems> {
        documents::from_text(file, text, |text| {
            let mut report = Report::new(Form::File);
            let node = documents::load(text, &mut report);
            let policy = node.and_then(|node| read_policy(&node, &mut report));
            report.finish(policy)
        })
    }

    /// As [`Policy::from_yaml`], with warnings about what is valid and probably not meant. `around`
    /// receives the policy, because what its proxies supply depends on its domain.
    ///
    /// # Errors
    /// Everything that is wrong with it, with its place.
    pub fn from_yaml_with_warnings<'a>(
        file: &str,
        text: &[u8],
        around: impl FnOnce(&Self) -> crate::Surroundings<'a>,
    ) -> Result<(Self, Option<Problems>), Problems> {
        documents::from_text(file, text, |text| {
            let mut report = Report::new(Form::File);
            let node = documents::load(text, &mut report);
            let policy = { node.as_ref() }.and_then(|node| read_policy(node, &mut report));
            let policy = report.finish(policy)?;
            let around = around(&policy);
            let warnings = node.and_then(|node| policy.warnings_in(&node, &around));
            let warnings = warnings.map(|warnings| warnings.in_file(file, text));
            Ok((policy, warnings))
        })
    }

    /// Reads a document that a person wrote.
    ///
    /// # Errors
    /// Everything that is wrong with it.
    pub fn from_node(node: &Node) -> Result<Self, Problems> {
        let mut report = Report::new(Form::File);
        let policy = read_policy(node, &mut report);
        report.finish(policy)
    }

    /// Reads a stored record: the limits file as JSON, with the generation of each limit.
    /// The revision is not in it.
    ///
    /// # Errors
    /// Everything that is wrong with it.
    pub fn from_record(json: &[u8]) -> Result<Self, Problems> {
        let node = Node::from_json(json).map_err(Problems::not_json)?;
        Self::from_record_node(&node)
    }

    /// As [`Policy::from_record`], from a document put together by the caller.
    ///
    /// # Errors
    /// Everything that is wrong with it.
    pub fn from_record_node(node: &Node) -> Result<Self, Problems> {
        let mut report = Report::new(Form::Record);
        let policy = read_policy(node, &mut report);
        report.finish(policy)
    }

    /// The record as a document: see [`Policy::from_record`].
    pub fn to_record(&self) -> Node {
        let mut node = self.to_node();
        node.set("format", Node::number(FORMAT));
        let limits = self.limits.iter().map(Limit::to_record);
        node.set("limits", Node::list(limits));
        node
    }
}

impl Limit {
    /// The limit as a stored record holds it: [`Limit::to_node`] and the generation.
    pub fn to_record(&self) -> Node {
        let mut node = self.to_node();
        if self.generation > 0 {
            node.set("generation", Node::number(self.generation));
        }
        node
    }

    /// Reads one limit on its own. What it `replaces` is not looked up.
    ///
    /// # Errors
    /// Everything that is wrong with it.
    pub fn from_node(node: &Node) -> Result<Self, Problems> {
        Self::read(node, Form::File)
    }

    /// As [`Limit::from_node`], for a limit taken from a record.
    ///
    /// # Errors
    /// Everything that is wrong with it.
    pub fn from_record(node: &Node) -> Result<Self, Problems> {
        Self::read(node, Form::Record)
    }

    pub(crate) fn read(node: &Node, form: Form) -> Result<Self, Problems> {
        let mut report = Report::new(form);
        let root = Field {
            node,
            path: Path::Root,
        };
        let limit = read_limit(root, &mut report);
        report.finish(limit)
    }
}
