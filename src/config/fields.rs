//! Reading a value as what it has to be, with its place at hand for the error.

use std::{collections::BTreeSet, time::Duration};

use super::{
    document::{Member, Node, Shape},
    expand::{Variables, lacks_braces},
    problem::{ConfigProblem, Fault, Position},
};

/// How alike two names are, from 0 to 1, before one is offered for the other.
const ALIKE: f64 = 0.85;

/// The name among `known` that was probably meant.
pub(super) fn nearest<'k>(name: &str, known: impl IntoIterator<Item = &'k str>) -> Option<&'k str> {
    // No name is this long; comparing one would take long.
    if name.len() > 64 {
        return None;
    }
    let likeness = |other: &str| strsim::jaro_winkler(&name.to_lowercase(), &other.to_lowercase());
    known
        .into_iter()
        .map(|other| (likeness(other), other))
        .filter(|(likeness, _)| *likeness >= ALIKE)
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .map(|(_, other)| other)
}

/// A value and the way to it.
#[derive(Clone)]
pub(super) struct Field<'a> {
    node: &'a Node,
    named_at: Position,
    path: String,
    variables: &'a Variables,
}

impl<'a> Field<'a> {
    /// The root of a file, or of a server.
    pub(super) fn root(node: &'a Node, named_at: Position, variables: &'a Variables) -> Self {
        Self {
            node,
            named_at,
            path: String::new(),
            variables,
        }
    }

    /// The same value, with pointers that begin here.
    pub(super) fn as_root(&self) -> Self {
        Self {
            path: String::new(),
            ..self.clone()
        }
    }

    pub(super) fn path(&self) -> &str {
        &self.path
    }

    pub(super) fn named_at(&self) -> Position {
        self.named_at
    }

    pub(super) fn fault(&self, problem: ConfigProblem) -> Fault {
        Fault {
            field: (!self.path.is_empty()).then(|| self.path.clone()),
            position: Some(self.node.at),
            problem,
        }
    }

    /// A problem with the name of this field and not with its value.
    pub(super) fn fault_of_name(&self, problem: ConfigProblem) -> Fault {
        Fault {
            position: Some(self.named_at),
            ..self.fault(problem)
        }
    }

    fn wrong_type(&self, expected: &'static str) -> Fault {
        self.fault(ConfigProblem::WrongType {
            expected,
            found: self.node.shape.describe(),
        })
    }

    pub(super) fn is_null(&self) -> bool {
        matches!(self.node.shape, Shape::Null)
    }

    pub(super) fn is_text(&self) -> bool {
        matches!(self.node.shape, Shape::Text(_))
    }

    pub(super) fn is_list(&self) -> bool {
        matches!(self.node.shape, Shape::List(_))
    }

    pub(super) fn is_false(&self) -> bool {
        matches!(self.node.shape, Shape::Flag(false))
    }

    /// The text as it stands in the file.
    pub(super) fn written(&self) -> Option<&'a str> {
        match &self.node.shape {
            Shape::Text(text) => Some(text),
            _ => None,
        }
    }

    pub(super) fn lacks_braces(&self) -> bool {
        self.written().is_some_and(lacks_braces)
    }

    fn expanded(&self, text: &str) -> Result<String, Fault> {
        self.variables.expand(text).map_err(|p| self.fault(p))
    }

    /// A string.
    pub(super) fn text(&self) -> Result<String, Fault> {
        match &self.node.shape {
            Shape::Text(text) => self.expanded(text),
            _ => Err(self.wrong_type("a string")),
        }
    }

    /// A string, or a number or boolean that stands for its own text: many files say `"PORT": 3000`.
    pub(super) fn word(&self) -> Result<String, Fault> {
        match &self.node.shape {
            Shape::Text(text) => self.expanded(text),
            Shape::Number(number) => Ok(number.clone()),
            Shape::Flag(flag) => Ok(flag.to_string()),
            _ => Err(self.wrong_type("a string")),
        }
    }

    /// `true` or `false`, also as a string, so that a variable can decide.
    pub(super) fn flag(&self) -> Result<bool, Fault> {
        const EXPECTED: &str = "true or false";
        match &self.node.shape {
            Shape::Flag(flag) => Ok(*flag),
            Shape::Text(text) => match self.expanded(text)?.as_str() {
                "true" => Ok(true),
                "false" => Ok(false),
                _ => Err(self.wrong_type(EXPECTED)),
            },
            _ => Err(self.wrong_type(EXPECTED)),
        }
    }

    /// A whole number that is not negative, also as a string, so that a variable can decide.
    pub(super) fn count(&self) -> Result<u64, Fault> {
        const EXPECTED: &str = "a whole number that is not negative";
        let digits = match &self.node.shape {
            Shape::Number(number) => number.clone(),
            Shape::Text(text) => self.expanded(text)?,
            _ => return Err(self.wrong_type(EXPECTED)),
        };
        let is_whole = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit());
        if !is_whole {
            return Err(self.wrong_type(EXPECTED));
        }
        digits
            .parse()
            .map_err(|_| self.fault(ConfigProblem::TooLarge))
    }

    /// A whole number of either sign.
    pub(super) fn whole(&self) -> Result<i64, Fault> {
        let digits = match &self.node.shape {
            Shape::Number(number) => number.clone(),
            Shape::Text(text) => self.expanded(text)?,
            _ => return Err(self.wrong_type("a whole number")),
        };
        digits
            .parse()
            .map_err(|_| self.wrong_type("a whole number"))
    }

    /// A number with its unit.
    pub(super) fn duration(&self) -> Result<Duration, Fault> {
        let no_duration = || self.fault(ConfigProblem::Duration);
        let text = match &self.node.shape {
            Shape::Text(text) => self.expanded(text)?,
            _ => return Err(no_duration()),
        };
        humantime::parse_duration(text.trim()).map_err(|_| no_duration())
    }

    /// One of a few words.
    pub(super) fn one_of<T: Clone>(&self, words: &[(&str, T)]) -> Result<T, Fault> {
        let word = self.text()?;
        if let Some((_, meaning)) = words.iter().find(|(known, _)| *known == word) {
            return Ok(meaning.clone());
        }
        let known = || words.iter().map(|(known, _)| *known);
        let allowed: Vec<String> = known().map(|w| format!("{w:?}")).collect();
        Err(self.fault(ConfigProblem::NotOneOf {
            allowed: allowed.join(", "),
            did_you_mean: nearest(&word, known()).map(str::to_owned),
        }))
    }

    /// The items of a list.
    pub(super) fn list(&self) -> Result<Vec<Field<'a>>, Fault> {
        let Shape::List(items) = &self.node.shape else {
            return Err(self.wrong_type("a list"));
        };
        let item = |(at, node): (usize, &'a Node)| Field {
            node,
            named_at: node.at,
            path: format!("{}/{at}", self.path),
            variables: self.variables,
        };
        Ok(items.iter().enumerate().map(item).collect())
    }

    /// The members of an object, in their order.
    pub(super) fn members(&self) -> Result<Vec<(&'a str, Field<'a>)>, Fault> {
        let Shape::Object(members) = &self.node.shape else {
            return Err(self.wrong_type("an object"));
        };
        let member = |member: &'a Member| {
            // As RFC 6901 writes names.
            let name = member.name.replace('~', "~0").replace('/', "~1");
            let field = Field {
                node: &member.value,
                named_at: member.at,
                path: format!("{}/{name}", self.path),
                variables: self.variables,
            };
            (member.name.as_str(), field)
        };
        Ok(members.iter().map(member).collect())
    }

    /// An object in which no name stands twice.
    pub(super) fn object(&self) -> Result<Object<'a>, Fault> {
        let members = self.members()?;
        let mut seen = BTreeSet::new();
        for (name, field) in &members {
            if !seen.insert(*name) {
                return Err(field.fault_of_name(ConfigProblem::Duplicate));
            }
        }
        Ok(Object { members })
    }
}

/// An object in which no name stands twice.
pub(super) struct Object<'a> {
    members: Vec<(&'a str, Field<'a>)>,
}

impl<'a> Object<'a> {
    pub(super) fn find(&self, name: &str) -> Option<&Field<'a>> {
        let member = self.members.iter().find(|(known, _)| *known == name);
        member.map(|(_, field)| field)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&'a str, &Field<'a>)> {
        self.members.iter().map(|(name, field)| (*name, field))
    }

    /// The members that are not in `known`.
    pub(super) fn besides<'s>(
        &'s self,
        known: &'s [&'s str],
    ) -> impl Iterator<Item = (&'a str, &'s Field<'a>)> {
        self.iter().filter(|(name, _)| !known.contains(name))
    }

    /// Refuses a setting that does not exist.
    pub(super) fn only(&self, known: &[&str]) -> Result<(), Fault> {
        match self.besides(known).next() {
            None => Ok(()),
            Some((name, field)) => {
                let did_you_mean = nearest(name, known.iter().copied()).map(str::to_owned);
                Err(field.fault_of_name(ConfigProblem::NoSuchSetting { did_you_mean }))
            }
        }
    }

    /// Reads a member into `place`, if it is there.
    pub(super) fn set<T>(
        &self,
        name: &str,
        place: &mut T,
        read: impl FnOnce(&Field<'a>) -> Result<T, Fault>,
    ) -> Result<(), Fault> {
        if let Some(field) = self.find(name) {
            *place = read(field)?;
        }
        Ok(())
    }
}
