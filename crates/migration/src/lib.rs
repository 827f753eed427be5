//! Other rate limiters' configurations, turned into limits files; and limits files as Kubernetes objects.
//!
//! [`convert`] reads the files of one [`System`] and returns a limits file for each domain, together
//! with a [`FileReport`] for each file: rules whose meaning changes, and what a limits file cannot
//! express. Nothing that was configured is dropped without a note.

mod assemble;
mod envoy;
mod kubernetes;
mod limitador;
mod report;
mod spring;

use documents::{Choice, Name, Node, Problems, Value};
use policy::Policy;

pub use ::kubernetes::{Key, ToObjects};
pub use kubernetes::to_objects;
pub use report::FileReport;

/// The system that the configuration is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum System {
    /// envoyproxy/ratelimit, the rate limit service that Envoy's documentation refers to.
    EnvoyRatelimit,
    /// Kuadrant's Limitador.
    Limitador,
    /// Spring Cloud Gateway's `RequestRateLimiter` over Redis.
    Spring,
    /// The project's own objects in Kubernetes.
    Kubernetes,
}

impl Choice for System {
    const CHOICES: &'static [(&'static str, Self)] = &[
        ("envoy-ratelimit", Self::EnvoyRatelimit),
        ("limitador", Self::Limitador),
        ("spring", Self::Spring),
        ("kubernetes", Self::Kubernetes),
    ];
}

/// A file, with its name for messages.
#[derive(Clone, Copy, Debug)]
pub struct File<'f> {
    /// The path as typed.
    pub name: &'f str,
    /// Its content.
    pub bytes: &'f [u8],
}

/// Settings that the files lack.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// The domain of limits that have none: Spring's configuration does not name any.
    pub domain: Option<Name>,
    /// The descriptor entry that stands for a Spring key resolver, by the name of its bean.
    pub keys: Vec<(String, Name)>,
}

/// A limits file.
#[derive(Clone, Debug)]
pub struct Domain {
    /// The limits file, with the fields as a person would write them.
    pub document: Node,
    /// The same, validated.
    pub policy: Policy,
}

impl Domain {
    /// Turns all of them into shadow limits: they deny nothing and count what they would deny.
    pub fn shadow(&mut self) {
        for limit in &mut self.policy.limits {
            if !limit.is_unlimited() {
                limit.enforce_percent = 0;
            }
        }
        let Value::Map(fields) = &mut self.document.value else {
            return;
        };
        for field in fields.iter_mut().filter(|field| field.key == "limits") {
            let Value::List(limits) = &mut field.value.value else {
                continue;
            };
            for limit in { limits.iter_mut() }.filter(|limit| limit.get("unlimited").is_none()) {
                limit.set("enforce", Node::text("0%"));
            }
        }
    }
}

/// The result of converting all files.
#[derive(Clone, Debug)]
pub struct Conversion {
    /// The limits files, in the order in which the domains appeared.
    pub domains: Vec<Domain>,
    /// Notes about the conversion, by file.
    pub reports: Vec<FileReport>,
}

impl Conversion {
    /// How many things could not be converted.
    pub fn lost(&self) -> usize {
        self.reports.iter().map(|report| report.lost().len()).sum()
    }
}

/// Reads the files of one system.
///
/// # Errors
/// The problems of each file that cannot be read, with their positions.
pub fn convert(
    system: System,
    files: &[File<'_>],
    options: &Options,
) -> Result<Conversion, Vec<Problems>> {
    match system {
        System::EnvoyRatelimit => envoy::convert(files),
        System::Limitador => limitador::convert(files),
        System::Spring => spring::convert(files, options),
        System::Kubernetes => kubernetes::convert(files),
    }
}

/// The name of a file for a domain's limits.
pub fn file_name(policy: &Policy) -> String {
    format!("{}.yaml", assemble::name_of(policy.domain.as_str()))
}
