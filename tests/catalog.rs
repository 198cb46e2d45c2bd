//! What a server has on offer, and what a host shows of it: complete lists, and one namespace of
//! tools over many connections. `docs/catalog.md` tells what is promised.

#[path = "catalog/changes.rs"]
mod changes;
#[path = "catalog/lists.rs"]
mod lists;
mod support;
#[path = "catalog/toolbox.rs"]
mod toolbox;
