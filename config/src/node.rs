//! A YAML document as a tree in which every node and every key knows where it stands.

use std::fmt::{self, Write as _};
use std::sync::Arc;

use policy::{Code, Diagnostic, Span};
use serde_json::{Map, Number, Value};

/// A stretch of one file; lines and columns count from 1, columns in characters, the end is exclusive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// First line.
    pub line: u32,
    /// First column.
    pub column: u32,
    /// Line of the end.
    pub end_line: u32,
    /// Column just past the end.
    pub end_column: u32,
}

impl Place {
    /// The place as a span of a named file.
    #[must_use]
    pub fn in_file(self, file: &Arc<str>) -> Span {
        Span {
            file: Arc::clone(file),
            line: self.line,
            column: self.column,
            end_line: self.end_line,
            end_column: self.end_column,
        }
    }
}

/// One node.
#[derive(Clone, Debug, PartialEq)]
pub struct Node {
    /// Where it stands. For an alias, where the alias stands.
    pub place: Place,
    /// What it is.
    pub content: Content,
}

/// What a node is, by YAML 1.2's core schema.
#[derive(Clone, Debug, PartialEq)]
pub enum Content {
    /// Nothing, `~` or `null`.
    Null,
    /// `true` or `false`.
    Bool(bool),
    /// A whole number.
    Integer(i64),
    /// A number with a fraction or an exponent, or too large for an integer.
    Float(f64),
    /// Text.
    Text(String),
    /// A list.
    List(Vec<Node>),
    /// A mapping, in the order written.
    Mapping(Vec<Entry>),
}

/// One entry of a mapping.
#[derive(Clone, Debug, PartialEq)]
pub struct Entry {
    /// The key.
    pub key: String,
    /// Where the key stands.
    pub key_place: Place,
    /// The value.
    pub value: Node,
}

/// One step of a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// A field.
    Key(String),
    /// An item of a list.
    Index(usize),
}

/// A path from a document's root to a node. Prints as `spec.rules[0].name`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Path(pub Vec<Step>);

/// Fields below which people may write a secret by mistake.
const SECRETIVE: [&str; 2] = ["auth", "apiKeys"];

impl Path {
    /// Whether a value there may be a secret that was written in the wrong place.
    #[must_use]
    pub fn may_hold_secret(&self) -> bool {
        self.0.iter().any(|step| match step {
            Step::Key(key) => SECRETIVE.contains(&key.as_str()),
            Step::Index(_) => false,
        })
    }

    /// The path of a field below this one.
    #[must_use]
    pub fn key(&self, key: &str) -> Path {
        let mut steps = self.0.clone();
        steps.push(Step::Key(key.to_owned()));
        Path(steps)
    }

    /// The path of an item below this one.
    #[must_use]
    pub fn index(&self, index: usize) -> Path {
        let mut steps = self.0.clone();
        steps.push(Step::Index(index));
        Path(steps)
    }

    /// The path of `spec`.
    #[must_use]
    pub fn spec() -> Path {
        Path::default().key("spec")
    }
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, step) in self.0.iter().enumerate() {
            match step {
                Step::Key(key) if i == 0 => f.write_str(key)?,
                Step::Key(key) => write!(f, ".{key}")?,
                Step::Index(index) => write!(f, "[{index}]")?,
            }
        }
        Ok(())
    }
}

impl Node {
    /// The value of a field, when the node is a mapping that has it.
    #[must_use]
    pub fn field(&self, key: &str) -> Option<&Node> {
        self.entry(key).map(|e| &e.value)
    }

    /// The entry of a field, when the node is a mapping that has it.
    #[must_use]
    pub fn entry(&self, key: &str) -> Option<&Entry> {
        match &self.content {
            Content::Mapping(entries) => entries.iter().find(|e| e.key == key),
            Content::Null
            | Content::Bool(_)
            | Content::Integer(_)
            | Content::Float(_)
            | Content::Text(_)
            | Content::List(_) => None,
        }
    }

    /// The node's text, when it is text.
    #[must_use]
    pub fn text(&self) -> Option<&str> {
        match &self.content {
            Content::Text(text) => Some(text),
            Content::Null
            | Content::Bool(_)
            | Content::Integer(_)
            | Content::Float(_)
            | Content::List(_)
            | Content::Mapping(_) => None,
        }
    }

    /// Where the node at `path` stands, or the nearest node above it that is there.
    #[must_use]
    pub fn place_of(&self, path: &Path) -> Place {
        let mut node = self;
        let mut place = self.place;
        for step in &path.0 {
            let next = match (step, &node.content) {
                (Step::Key(key), Content::Mapping(entries)) => entries.iter().find(|e| e.key == *key).map(|e| {
                    // A long value is named by its key, as one line of it says nothing; so is one that is not there.
                    let whole = matches!(e.value.content, Content::List(_) | Content::Mapping(_) | Content::Null);
                    (&e.value, if whole { e.key_place } else { e.value.place })
                }),
                (Step::Index(index), Content::List(items)) => items.get(*index).map(|n| (n, n.place)),
                (Step::Key(_) | Step::Index(_), _) => None,
            };
            match next {
                Some((below, at)) => (node, place) = (below, at),
                None => break,
            }
        }
        place
    }

    /// A JSON value as a node that stands nowhere.
    #[must_use]
    pub fn from_value(value: &Value) -> Self {
        let content = match value {
            Value::Null => Content::Null,
            Value::Bool(b) => Content::Bool(*b),
            Value::Number(number) => match number.as_i64() {
                Some(integer) => Content::Integer(integer),
                None => Content::Float(number.as_f64().unwrap_or(f64::NAN)),
            },
            Value::String(text) => Content::Text(text.clone()),
            Value::Array(items) => Content::List(items.iter().map(Self::from_value).collect()),
            Value::Object(fields) => Content::Mapping(
                fields
                    .iter()
                    .map(|(key, value)| Entry {
                        key: key.clone(),
                        key_place: Place::default(),
                        value: Self::from_value(value),
                    })
                    .collect(),
            ),
        };
        Self { place: Place::default(), content }
    }

    /// The node as a JSON value, positions left out. Numbers JSON cannot hold become null.
    #[must_use]
    pub fn to_value(&self) -> Value {
        match &self.content {
            Content::Null => Value::Null,
            Content::Bool(b) => Value::Bool(*b),
            Content::Integer(i) => Value::Number((*i).into()),
            Content::Float(f) => Number::from_f64(*f).map_or(Value::Null, Value::Number),
            Content::Text(text) => Value::String(text.clone()),
            Content::List(items) => Value::Array(items.iter().map(Node::to_value).collect()),
            Content::Mapping(entries) => {
                Value::Object(entries.iter().map(|e| (e.key.clone(), e.value.to_value())).collect::<Map<_, _>>())
            }
        }
    }

    /// What the node is, for a person: `the text "auto"`, `a list`.
    #[must_use]
    pub fn describe(&self) -> String {
        let mut out = String::new();
        let _ = match &self.content {
            Content::Null => write!(out, "nothing"),
            Content::Bool(b) => write!(out, "`{b}`"),
            Content::Integer(i) => write!(out, "the number {i}"),
            Content::Float(f) => write!(out, "the number {f}"),
            Content::Text(text) => {
                let shown: String = text.chars().take(40).collect();
                let more = if shown.len() < text.len() { "…" } else { "" };
                write!(out, "the text {shown:?}{more}")
            }
            Content::List(_) => write!(out, "a list"),
            Content::Mapping(_) => write!(out, "a mapping"),
        };
        out
    }
}

/// One document of a file.
#[derive(Clone, Debug, PartialEq)]
pub struct RawDocument {
    /// The file it stands in.
    pub file: Arc<str>,
    /// Its root.
    pub root: Node,
}

impl RawDocument {
    /// A finding about the node at `path`.
    #[must_use]
    pub fn finding(&self, code: Code, path: &Path, message: impl Into<String>) -> Diagnostic {
        Diagnostic::new(code, message).at(path.to_string(), Some(self.root.place_of(path).in_file(&self.file)))
    }
}
