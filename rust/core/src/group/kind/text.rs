//! Kinds as text: a name, then its numbers, as in `sliding_window(window=4096)`.

use std::fmt;
use std::str::FromStr;

use super::{GroupKind, MOST, Parameter, ROWS, Row};
use crate::error::Error;

impl GroupKind {
    /// Returns the kind's name, such as `sliding_window`.
    pub fn name(self) -> &'static str {
        self.row().name
    }

    /// Returns the kind's numbers by name.
    pub fn parameters(self) -> impl Iterator<Item = (&'static str, u32)> {
        let (row, values) = self.entry();
        ROWS[row].parameters.iter().map(|it| it.name).zip(values)
    }

    /// One of its numbers, if it has one of this name.
    pub fn parameter(self, name: &str) -> Option<u32> {
        self.parameters().find(|it| it.0 == name).map(|it| it.1)
    }

    /// The kind of a name and numbers.
    ///
    /// # Errors
    /// [`Error::InvalidConfig`] for an unknown kind, or for numbers that it has not or cannot have.
    pub fn parse(name: &str, given: &[(&str, u32)]) -> Result<Self, Error> {
        let row = ROWS.iter().find(|row| row.name == name).ok_or_else(|| unknown(name))?;
        let mut values = [0; MOST];
        let mut is_right =
            given.iter().all(|(name, _)| row.parameters.iter().any(|it| it.name == *name));
        for (parameter, value) in row.parameters.iter().zip(&mut values) {
            let own = given.iter().find(|it| it.0 == parameter.name).map(|it| it.1);
            let own = own.or(parameter.default).filter(|&own| own >= parameter.least);
            is_right &= own.is_some();
            *value = own.unwrap_or(0);
        }
        if is_right {
            return Ok((row.make)(values));
        }
        let with = if given.is_empty() { "" } else { " with " };
        let given: Vec<_> = given.iter().map(|(name, value)| format!("{name}={value}")).collect();
        Err(Error::InvalidConfig(format!(
            "kind '{name}'{with}{}: it takes {row}",
            given.join(", ")
        )))
    }
}

fn unknown(name: &str) -> Error {
    let known: Vec<_> = ROWS.iter().map(Row::to_string).collect();
    Error::InvalidConfig(format!("kind '{name}' is not known; there are {}", known.join(", ")))
}

impl fmt::Display for Parameter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.default {
            Some(default) => write!(f, "{}={default}", self.name),
            None => write!(f, "{} of at least {}", self.name, self.least),
        }
    }
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", with_numbers(self.name, self.parameters.iter()))
    }
}

impl fmt::Display for GroupKind {
    /// Without the numbers that are the default.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let row = self.row();
        let own = row.parameters.iter().zip(self.parameters());
        let own = own.filter(|(parameter, (_, value))| parameter.default != Some(*value));
        f.write_str(&with_numbers(
            row.name,
            own.map(|(_, (name, value))| format!("{name}={value}")),
        ))
    }
}

fn with_numbers(name: &str, numbers: impl Iterator<Item = impl fmt::Display>) -> String {
    let numbers: Vec<_> = numbers.map(|it| it.to_string()).collect();
    if numbers.is_empty() { name.to_owned() } else { format!("{name}({})", numbers.join(", ")) }
}

impl FromStr for GroupKind {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let (name, numbers) = match text.split_once('(') {
            None => (text, ""),
            Some((name, rest)) => (name, rest.strip_suffix(')').ok_or_else(|| unknown(text))?),
        };
        let number = |part: &'_ str| {
            let (name, value) = part.trim().split_once('=')?;
            Some((name.to_owned(), value.parse::<u32>().ok()?))
        };
        let parts = numbers.split(',').filter(|_| !numbers.is_empty());
        let given: Option<Vec<_>> = parts.map(number).collect();
        let given = given.ok_or_else(|| unknown(text))?;
        let given: Vec<_> = given.iter().map(|(name, value)| (name.as_str(), *value)).collect();
        Self::parse(name, &given)
    }
}
