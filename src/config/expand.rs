//! Variables in texts. They are expanded after the file was parsed, so that no value can add to the
//! file's structure; and once, so that no value is taken for a reference.

use std::{path::PathBuf, sync::Arc};

use super::problem::ConfigProblem;

/// Looks up a name.
pub(super) type Lookup = Arc<dyn Fn(&str) -> Option<String> + Send + Sync>;

/// Where the values come from.
#[derive(Clone)]
pub(super) struct Variables {
    pub(super) environment: Lookup,
    pub(super) inputs: Lookup,
    pub(super) workspace: Option<PathBuf>,
}

const UNCLOSED: &str = "a ${ has no }";
const EMPTY: &str = "there is no name between the braces";
const NO_NAME: &str = "a name is made of letters, digits and _, and does not begin with a digit";
const NESTED: &str = "a default cannot hold another variable";
const NO_SUCH_KIND: &str = "there are ${NAME}, ${env:NAME} and ${input:ID}";

impl Variables {
    /// The text with its variables in place.
    pub(super) fn expand(&self, text: &str) -> Result<String, ConfigProblem> {
        let mut done = String::with_capacity(text.len());
        let mut rest = text;
        while let Some(at) = rest.find("${") {
            let (before, reference) = rest.split_at(at);
            if let Some(before) = before.strip_suffix('$') {
                done.push_str(before);
                done.push_str("${");
                rest = &reference[2..];
                continue;
            }
            done.push_str(before);
            let (reference, after) = reference[2..]
                .split_once('}')
                .ok_or(ConfigProblem::Reference(UNCLOSED))?;
            done.push_str(&self.value(reference)?);
            rest = after;
        }
        done.push_str(rest);
        Ok(done)
    }

    fn value(&self, reference: &str) -> Result<String, ConfigProblem> {
        let wrong = |why| Err(ConfigProblem::Reference(why));
        if reference.contains("${") {
            return wrong(NESTED);
        }
        if let Some(id) = reference.strip_prefix("input:") {
            let not_supplied = || ConfigProblem::InputNotSupplied {
                id: id.chars().take(80).collect(),
            };
            return (self.inputs)(id).ok_or_else(not_supplied);
        }
        if let Some(value) = self.predefined(reference) {
            return value;
        }
        let reference = reference.strip_prefix("env:").unwrap_or(reference);
        let (name, default) = match reference.split_once(":-") {
            Some((name, default)) => (name, Some(default)),
            None => (reference, None),
        };
        let begins_well = match name.bytes().next() {
            None => return wrong(EMPTY),
            Some(first) => !first.is_ascii_digit(),
        };
        if default.is_none() && name.contains(':') {
            return wrong(NO_SUCH_KIND);
        }
        if !begins_well || !name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_') {
            return wrong(NO_NAME);
        }
        match ((self.environment)(name), default) {
            // As in a shell: a default also stands in for what is set to nothing.
            (Some(value), Some(default)) if value.is_empty() => Ok(default.to_owned()),
            (Some(value), _) => Ok(value),
            (None, Some(default)) => Ok(default.to_owned()),
            (None, None) => Err(ConfigProblem::VariableNotSet { name: name.into() }),
        }
    }

    /// What editors define beside the environment.
    fn predefined(&self, name: &str) -> Option<Result<String, ConfigProblem>> {
        let workspace = || self.workspace.as_ref().ok_or(ConfigProblem::NoWorkspace);
        Some(match name {
            "workspaceFolder" => workspace().map(|path| path.to_string_lossy().into_owned()),
            "workspaceFolderBasename" => workspace().map(|path| {
                let last = path.file_name().unwrap_or_default();
                last.to_string_lossy().into_owned()
            }),
            "userHome" => {
                let name = "HOME".to_owned();
                (self.environment)("HOME").ok_or(ConfigProblem::VariableNotSet { name })
            }
            "pathSeparator" | "/" => Ok("/".to_owned()),
            _ => return None,
        })
    }
}

/// Whether a whole text is a variable without braces, which some hosts expand.
pub(super) fn lacks_braces(text: &str) -> bool {
    text.strip_prefix('$').is_some_and(|name| {
        let begins_well = name.bytes().next().is_some_and(|b| !b.is_ascii_digit());
        begins_well && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn variables() -> Variables {
        let environment = |name: &str| match name {
            "SET" => Some("value".to_owned()),
            "EMPTY" => Some(String::new()),
            "TRICK" => Some("${SET} \"}, {".to_owned()),
            "HOME" => Some("/home/me".to_owned()),
            _ => None,
        };
        Variables {
            environment: Arc::new(environment),
            inputs: Arc::new(|id| (id == "key").then(|| "typed".to_owned())),
            workspace: Some("/src/shop".into()),
        }
    }

    #[test]
    fn each_form_of_a_variable_has_its_value() {
        for (text, expanded) in [
            ("plain", "plain"),
            ("${SET}", "value"),
            ("a${SET}b${SET}c", "avaluebvaluec"),
            ("${env:SET}", "value"),
            ("${UNSET:-other}", "other"),
            ("${UNSET:-}", ""),
            ("${UNSET:-a:-b}", "a:-b"),
            ("${env:UNSET:-other}", "other"),
            ("${EMPTY:-other}", "other"),
            ("[${EMPTY}]", "[]"),
            ("${input:key}", "typed"),
            ("${workspaceFolder}/x", "/src/shop/x"),
            ("${workspaceFolderBasename}", "shop"),
            ("${userHome}${/}x", "/home/me/x"),
            // Values are not read again.
            ("${TRICK}", "${SET} \"}, {"),
            // What is not a reference stays as it is.
            ("$SET $ $$ {SET} pa$$word$", "$SET $ $$ {SET} pa$$word$"),
            ("$${SET}", "${SET}"),
            ("$$${SET}", "$${SET}"),
            ("$${A}${SET}", "${A}value"),
        ] {
            let found = variables().expand(text);
            assert_eq!(found.as_deref(), Ok(expanded), "{text}");
        }
    }

    #[test]
    fn a_reference_that_cannot_be_read_is_an_error() {
        let wrong = |why| ConfigProblem::Reference(why);
        for (text, problem) in [
            ("${SET", wrong(UNCLOSED)),
            ("${", wrong(UNCLOSED)),
            ("${}", wrong(EMPTY)),
            ("${:-x}", wrong(EMPTY)),
            ("${env:}", wrong(EMPTY)),
            ("${1A}", wrong(NO_NAME)),
            ("${A-B}", wrong(NO_NAME)),
            ("${A B}", wrong(NO_NAME)),
            ("${A:-${SET}}", wrong(NESTED)),
            ("${command:x}", wrong(NO_SUCH_KIND)),
            (
                "${UNSET}",
                ConfigProblem::VariableNotSet {
                    name: "UNSET".into(),
                },
            ),
            (
                "${input:other}",
                ConfigProblem::InputNotSupplied { id: "other".into() },
            ),
        ] {
            assert_eq!(variables().expand(text), Err(problem), "{text}");
        }
        let mut homeless = variables();
        homeless.workspace = None;
        let problem = homeless.expand("${workspaceFolder}");
        assert_eq!(problem, Err(ConfigProblem::NoWorkspace));
    }

    #[test]
    fn a_variable_without_braces_is_noticed() {
        assert!(lacks_braces("$TOKEN"));
        for other in ["$", "$1", "$a-b", "a$TOKEN", "${TOKEN}", "pa$$word"] {
            assert!(!lacks_braces(other), "{other}");
        }
    }
}
