//! Spring Cloud Gateway: routes with a `RequestRateLimiter`, in `application.yml` or in properties.
//!
//! Its buckets refill at `replenishRate` a second up to `burstCapacity`, as a token bucket here does.

mod arguments;
mod predicates;
mod properties;
mod tree;

use documents::{Name, Node, Place, Problems, Value};

use crate::{
    Conversion, File, Options,
    assemble::{DomainDraft, Draft, Fields, assemble},
    names::{Unique, name_of},
    report::{Reading, load_all, yaml},
};

use arguments::{Defaults, Limiter, read_limiter};
use tree::{At, canonical};

pub(crate) fn convert(files: &[File<'_>], options: &Options) -> Result<Conversion, Vec<Problems>> {
    let mut readings = load_all(files, |name, text, report| {
        let extension = std::path::Path::new(name).extension();
        if extension.is_some_and(|extension| extension == "properties") {
            properties::load(text, report)
        } else {
            yaml(name, text, report)
        }
    })?;
    let mut domains = Vec::new();
    for (file, reading) in readings.iter_mut().enumerate() {
        if reading.errors.problems.is_empty() {
            let node = in_force(reading);
            one_file(file, &node, reading, options, &mut domains);
        }
    }
    assemble(domains, readings)
}

/// All documents of a file as one: of two values for a property the later one is in force. A document
/// for a profile is left out.
fn in_force(reading: &mut Reading) -> Node {
    let mut whole = Node::from(Value::Map(Vec::new()));
    for node in std::mem::take(&mut reading.nodes) {
        let document = tree::nested(node);
        let root = At::root(&document);
        let conditions: [&[&str]; 3] = [
            &["spring", "config", "activate", "on-profile"],
            &["spring", "config", "activate", "on-cloud-platform"],
            &["spring", "profiles"],
        ];
        let condition = conditions.iter().find_map(|names| {
            let at = root.at(names)?;
            let text = at.text()?.to_owned();
            Some((text, at.place()))
        });
        match condition {
            Some((profile, place)) if gateway(&root).is_some() => {
                let message =
                    format!("this document, which applies to `{profile}` only, is left out");
                reading
                    .lost
                    .add(&documents::Path::Root, place, message)
                    .push_hint("convert a file with the configuration that is in force there");
            }
            Some(_) => {}
            None => tree::merge(&mut whole, document),
        }
    }
    whole
}

fn one_file(
    file: usize,
    node: &Node,
    reading: &mut Reading,
    options: &Options,
    domains: &mut Vec<DomainDraft>,
) {
    let root = At::root(node);
    let Some(gateway) = gateway(&root) else {
        let message = "there is no `spring.cloud.gateway` here";
        reading.errors.add(&documents::Path::Root, None, message);
        return;
    };
    let drafts = limits(file, &gateway, reading, options);
    if drafts.is_empty() {
        let message = "no route has a `RequestRateLimiter`, so there is nothing to convert";
        reading.changed.add(&documents::Path::Root, None, message);
        return;
    }
    let name = domain_name(&root, options, reading);
    match domains.iter_mut().find(|domain| domain.name == name) {
        Some(domain) => domain.limits.extend(drafts),
        None => domains.push(DomainDraft {
            name,
            limits: drafts,
        }),
    }
}

/// The routes' parent: since version 5 below `server.webflux`.
fn gateway<'n>(root: &At<'n>) -> Option<At<'n>> {
    let gateway = root.at(&["spring", "cloud", "gateway"])?;
    gateway.at(&["server", "webflux"]).or(Some(gateway))
}

/// Spring has no domains: the given domain, or else the application's name.
fn domain_name(root: &At<'_>, options: &Options, reading: &mut Reading) -> String {
    if let Some(domain) = &options.domain {
        return domain.to_string();
    }
    let application = root.at(&["spring", "application", "name"]);
    let name = application
        .as_ref()
        .and_then(At::text)
        .map_or("gateway".to_owned(), name_of);
    reading
        .changed
        .add(
            &documents::Path::Root,
            application.and_then(|at| at.place()),
            format!("Spring has no domains; this one is called `{name}`"),
        )
        .push_hint("--domain gives another; the filter's configuration has to name the same");
    name
}

fn limits(file: usize, gateway: &At<'_>, reading: &mut Reading, options: &Options) -> Vec<Draft> {
    let defaults = Defaults::read(gateway, reading);
    let mut names = Unique::default();
    let mut drafts = Vec::new();
    let everywhere = gateway.at(&["default-filters"]);
    for filter in everywhere.iter().flat_map(At::items).filter(is_limiter) {
        let limiter = read_limiter(&filter, "default", &defaults, options, reading);
        drafts.extend(limiter.map(|limiter| Draft {
            node: draft("default-filter", None, &limiter, &mut names),
            file,
            place: filter.place(),
        }));
    }
    let routes: Vec<At<'_>> = gateway.at(&["routes"]).iter().flat_map(At::items).collect();
    for (nth, route) in routes.iter().enumerate() {
        let id = route
            .at(&["id"])
            .as_ref()
            .and_then(At::text)
            .map(str::to_owned);
        let id = id.unwrap_or_else(|| format!("route-{nth}"));
        let filters = route.at(&["filters"]);
        for filter in filters.iter().flat_map(At::items).filter(is_limiter) {
            let lost = reading.lost.problems.len();
            let matchers = predicates::read(route, reading);
            let limiter = read_limiter(&filter, &id, &defaults, options, reading);
            // Without one of its predicates the limiter would apply to more requests.
            if reading.lost.problems.len() > lost {
                let message = format!("the limiter of route `{id}` is left out");
                reading.lost.add(&filter.path(), filter.place(), message);
                continue;
            }
            drafts.extend(limiter.map(|limiter| Draft {
                node: draft(&id, matchers, &limiter, &mut names),
                file,
                place: filter.place(),
            }));
        }
    }
    if routes.len() > 1 && !drafts.is_empty() {
        first_route_wins(&routes, reading);
    }
    drafts
}

fn first_route_wins(routes: &[At<'_>], reading: &mut Reading) {
    let place: Option<Place> = routes.first().and_then(At::place);
    let path = documents::Path::Root;
    reading
        .changed
        .add(&path, place, "a request takes the first route that matches, but every limit that matches")
        .push_hint("where routes overlap, exclude the earlier one's path: `path: [\"/a/**\", \"!/a/b/**\"]`");
}

fn is_limiter(filter: &At<'_>) -> bool {
    let name = filter.at(&["name"]).as_ref().and_then(At::text);
    // Spring itself cannot use the short form `RequestRateLimiter=…`.
    let name = name.or(filter.text()).unwrap_or_default();
    let name = name.split('=').next().unwrap_or_default();
    canonical(name) == "requestratelimiter"
}

fn draft(route: &str, matchers: Option<Node>, limiter: &Limiter, names: &mut Unique) -> Node {
    let mut fields = Fields::default();
    fields.text("name", names.name(route));
    fields.description(&format!("Spring Cloud Gateway, route {route}"));
    if let Some(matchers) = matchers {
        fields.set("match", matchers);
    }
    fields.names("per", std::slice::from_ref::<Name>(&limiter.key));
    fields.text(
        "if_missing",
        if limiter.deny_empty_key {
            "deny"
        } else {
            "skip"
        },
    );
    fields.text("algorithm", "token_bucket");
    fields.text("rate", format!("{}/s", limiter.replenish_rate));
    fields.set("burst", Node::number(limiter.burst_capacity));
    if limiter.requested_tokens != 1 {
        fields.set("cost", Node::number(limiter.requested_tokens));
    }
    // Spring lets requests pass while Redis does not answer.
    fields.text("on_failure", "allow");
    fields.finish()
}
