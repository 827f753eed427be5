//! Which plugin a callback is about. All plugins of one VM share its statics.

use std::{cell::RefCell, rc::Rc};

use crate::plugin::Plugin;

thread_local! {
    static CONTEXTS: RefCell<Contexts> = RefCell::default();
}

/// The contexts of this VM, by the numbers that Envoy gives them.
#[derive(Default)]
struct Contexts {
    /// The oldest first. Almost always there is one.
    roots: Vec<Root>,
    /// The requests that came while there were several roots, each with its own. Envoy counts
    /// contexts up, so they come sorted.
    streams: Vec<(u32, u32)>,
}

struct Root {
    id: u32,
    plugin: Option<Rc<Plugin>>,
}

impl Contexts {
    fn root(&self, id: u32) -> Option<&Root> {
        self.roots.iter().find(|root| root.id == id)
    }

    /// The root of a request: one that is not listed came while there was but one.
    fn root_of(&self, stream_id: u32) -> Option<&Root> {
        match self.place_of(stream_id).map(|at| self.streams.get(at)) {
            Ok(Some((_, root_id))) => self.root(*root_id),
            _ => self.roots.first(),
        }
    }

    /// Where a request is among the streams, or belongs.
    fn place_of(&self, stream_id: u32) -> Result<usize, usize> {
        self.streams.binary_search_by_key(&stream_id, |(id, _)| *id)
    }
}

pub fn add_root(id: u32) {
    with(|contexts| contexts.roots.push(Root { id, plugin: None }));
}

pub fn add_stream(id: u32, root_id: u32) {
    with(|contexts| {
        if contexts.roots.len() > 1
            && let Err(at) = contexts.place_of(id)
        {
            contexts.streams.insert(at, (id, root_id));
        }
    });
}

pub fn set_plugin(root_id: u32, plugin: Plugin) {
    with(|contexts| {
        if let Some(root) = contexts.roots.iter_mut().find(|root| root.id == root_id) {
            root.plugin = Some(Rc::new(plugin));
        }
    });
}

/// The plugin of a root context, once it is configured.
pub fn plugin(root_id: u32) -> Option<Rc<Plugin>> {
    with(|contexts| contexts.root(root_id)?.plugin.clone())
}

/// The plugin that a request belongs to.
pub fn plugin_of(stream_id: u32) -> Option<Rc<Plugin>> {
    with(|contexts| contexts.root_of(stream_id)?.plugin.clone())
}

/// Forgets a request, or a plugin.
pub fn remove(id: u32) {
    with(|contexts| {
        if let Ok(at) = contexts.place_of(id) {
            contexts.streams.remove(at);
        }
        contexts.roots.retain(|root| root.id != id);
    });
}

/// The functions above neither call Envoy nor one another, so none finds the contexts in use.
fn with<T>(act: impl FnOnce(&mut Contexts) -> T) -> T {
    CONTEXTS.with_borrow_mut(act)
}
