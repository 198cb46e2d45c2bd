//! Configuration files: what is read from them, what is wrong in them, and what a reload does.
//!
//! The files in `tests/config/` are of the kind that people publish for other hosts.

#[path = "config/dialects.rs"]
mod dialects;
#[path = "config/errors.rs"]
mod errors;
#[path = "config/mangled.rs"]
mod mangled;
#[path = "config/reload.rs"]
mod reload;
#[path = "config/run.rs"]
mod run;
#[path = "config/schema.rs"]
mod schema;
mod support;

use std::{collections::BTreeMap, path::PathBuf};

use mcp_supervisor::{
    Configuration,
    config::{ConfigError, ConfigReader, ServerConfig},
};

/// Every file, by its name.
fn files() -> BTreeMap<String, String> {
    let directory = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/config");
    let files: BTreeMap<_, _> = std::fs::read_dir(directory)
        .expect("the directory is there")
        .map(|entry| entry.expect("it can be read").path())
        .filter(|path| path.extension().is_some_and(|e| e == "json"))
        .map(|path| {
            let name = path
                .file_name()
                .expect("a name")
                .to_string_lossy()
                .into_owned();
            (name, std::fs::read_to_string(path).expect("it is text"))
        })
        .collect();
    assert!(files.len() >= 10, "the files are gone: {:?}", files.keys());
    files
}

/// A reader whose variables are these and no others.
fn reader(variables: &[(&str, &str)]) -> ConfigReader {
    let variables: BTreeMap<String, String> = variables
        .iter()
        .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
        .collect();
    Configuration::reader().environment(move |name| variables.get(name).cloned())
}

/// The one server of a file with this object in it.
fn server(object: &str) -> Result<ServerConfig, ConfigError> {
    let file = format!("{{ \"mcpServers\": {{ \"one\": {object} }} }}");
    let mut configuration = reader(&[]).parse("mcp.json", file).expect("a file");
    configuration.servers.remove("one").expect("a server")
}
