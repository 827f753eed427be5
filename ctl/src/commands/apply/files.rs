//! The limits files of `apply` and `diff`: all are valid, and each is for a different domain.

use policy::Policy;

use crate::{
    error::Error,
    exit::Exit,
    input::{FilesArg, Source},
    printer::Printer,
    render::{counted, diagnostics},
    session::{LiveEntries, Session},
};

/// The limits in all files; an error in any of them ends the command before it changes anything.
pub async fn read(files: &FilesArg, session: &Session<'_>) -> Result<Vec<Policy>, Error> {
    let printer = session.printer;
    let sources = files.read().await?;
    // Without it some warnings are missing; the edit reports errors of Redis.
    let live = session.live_entries().await.unwrap_or_default();
    let mut policies: Vec<(String, Policy)> = Vec::with_capacity(sources.len());
    let mut wrong: Option<Error> = None;
    for source in sources {
        match policy(&source, &live, printer) {
            Ok(policy) => policies.push((source.name, policy)),
            Err(error) => {
                if let Some(earlier) = wrong.replace(error) {
                    printer.error(&earlier);
                }
            }
        }
    }
    if let Some(error) = wrong {
        return Err(error.hint("nothing was written"));
    }
    check_twice(&policies)?;
    Ok(policies.into_iter().map(|(_, policy)| policy).collect())
}

/// The limits in one file; warnings about them are printed.
fn policy(source: &Source, live: &LiveEntries, printer: &Printer) -> Result<Policy, Error> {
    let (policy, warnings) = source
        .policy(|domain| live.supply(domain))
        .map_err(|problems| {
            let count = counted(problems.count(), "problem");
            let text = diagnostics(&problems);
            Error::new(Exit::No, format!("{} has {count}\n{text}", source.name))
        })?;
    if let Some(warnings) = warnings {
        printer.warn_of(&warnings);
    }
    Ok(policy)
}

/// With --prune each of two files would delete the other's limits.
fn check_twice(policies: &[(String, Policy)]) -> Result<(), Error> {
    for (n, (file, policy)) in policies.iter().enumerate() {
        let mut earlier = policies.iter().take(n);
        if let Some((first, _)) = earlier.find(|(_, other)| other.domain == policy.domain) {
            let domain = &policy.domain;
            return Err(
                Error::usage(format!("{first} and {file} are both for domain {domain}"))
                    .hint("a domain belongs in one file"),
            );
        }
    }
    Ok(())
}

/// The file's domain must be the one named on the command line.
pub fn check_domain(session: &Session<'_>, file: &Policy) -> Result<(), Error> {
    match session
        .named_domain()
        .filter(|named| **named != file.domain)
    {
        None => Ok(()),
        Some(named) => Err(Error::usage(format!(
            "the file is for domain {}, but --domain or RLCTL_DOMAIN is {named}",
            file.domain
        ))),
    }
}
