//! A document's nodes against the schema of its kind: every finding at once, each at its place.

use ahash::AHashMap;
use policy::{Code, Diagnostic};
use regex_automata::meta::Regex;
use serde_json::{Map, Value};

use crate::node::{Content, Entry, Node, Path, RawDocument};
use crate::url::{check_host, parse_base_url};

/// Checks documents against schemas in the plain form of `crds::schema`.
#[derive(Default)]
pub struct Checker {
    /// The compiled `pattern`s met so far; `None` for one that does not compile, which checks nothing.
    patterns: AHashMap<String, Option<Regex>>,
}

/// What one walk carries down.
struct Walk<'w> {
    document: &'w RawDocument,
    findings: &'w mut Vec<Diagnostic>,
}

impl Checker {
    /// Adds a finding for everything in `document` that `schema` does not allow.
    pub fn check(&mut self, document: &RawDocument, schema: &Value, findings: &mut Vec<Diagnostic>) {
        let mut walk = Walk { document, findings };
        self.node(&document.root, schema, &Path::default(), &mut walk);
    }

    fn node(&mut self, node: &Node, schema: &Value, path: &Path, walk: &mut Walk<'_>) {
        if let Some(branches) = schema.get("anyOf").and_then(Value::as_array) {
            match branches.iter().find(|b| is_type(node, type_of(b))) {
                Some(branch) => self.node(node, branch, path, walk),
                None => walk.wrong_type(node, schema, path),
            }
            return;
        }
        if !is_type(node, type_of(schema)) {
            walk.wrong_type(node, schema, path);
            return;
        }
        match &node.content {
            Content::Mapping(entries) => self.mapping(node, entries, schema, path, walk),
            Content::List(items) => self.list(node, items, schema, path, walk),
            Content::Text(text) => self.text(node, text, schema, path, walk),
            Content::Integer(i) => {
                #[expect(clippy::cast_precision_loss, reason = "bounds are small; a rounded giant stays beyond them")]
                let value = *i as f64;
                range(node, value, schema, path, walk);
            }
            Content::Float(value) => range(node, *value, schema, path, walk),
            Content::Bool(_) => one_of_values(node, schema, path, walk),
            Content::Null => {}
        }
    }

    fn mapping(&mut self, node: &Node, entries: &[Entry], schema: &Value, path: &Path, walk: &mut Walk<'_>) {
        let none = Map::new();
        let properties = schema.get("properties").and_then(Value::as_object).unwrap_or(&none);
        let others = schema.get("additionalProperties");
        let mut suggested = Vec::new();
        for entry in entries {
            let below = path.key(&entry.key);
            match (properties.get(&entry.key), others) {
                (Some(property), _) => self.node(&entry.value, property, &below, walk),
                (None, Some(Value::Object(_))) => {
                    self.node(&entry.value, others.unwrap_or(&Value::Null), &below, walk);
                }
                (None, Some(Value::Bool(false))) => {
                    let nearest = nearest(&entry.key, properties.keys().map(String::as_str));
                    suggested.extend(nearest.clone());
                    let finding =
                        Diagnostic::new(Code::UnknownField, format!("there is no field `{}` here", entry.key))
                            .at(below.to_string(), Some(entry.key_place.in_file(&walk.document.file)))
                            .expected(listing(properties.keys().map(String::as_str)))
                            .suggest(nearest);
                    walk.findings.push(finding);
                }
                (None, _) => {}
            }
        }
        let has = |name: &str| entries.iter().any(|e| e.key == name);
        for name in strings(schema.get("required")) {
            // A misspelt field has been reported already.
            if !has(name) && !suggested.iter().any(|s| s == name) {
                let what = properties.get(name).map_or_else(|| "a value".to_owned(), expected);
                let message = format!("the field `{name}` is missing");
                walk.push(node, Code::MissingField, &path.key(name), message, Some(what));
            }
        }
        let exactly: Vec<&str> = strings(schema.get("x-exactly-one-of")).collect();
        let given: Vec<&str> = exactly.iter().copied().filter(|n| has(n)).collect();
        if !exactly.is_empty() && given.len() != 1 && !exactly.iter().any(|n| suggested.iter().any(|s| s == n)) {
            let found = if given.is_empty() { "none is".to_owned() } else { format!("{} are", given.join(" and ")) };
            let message = format!("exactly one of {} must be given, but {found}", listing(exactly.iter().copied()));
            walk.push(node, Code::ExactlyOneOf, path, message, None);
        }
        let at_least: Vec<&str> = strings(schema.get("x-at-least-one-of")).collect();
        if !at_least.is_empty() && !at_least.iter().any(|n| has(n)) {
            let message = format!("at least one of {} must be given", listing(at_least.iter().copied()));
            walk.push(node, Code::MissingField, path, message, None);
        }
        if entries.is_empty() && schema.get("minProperties").is_some() {
            let what = listing(properties.keys().map(String::as_str));
            walk.push(node, Code::EmptyList, path, "the mapping must not be empty".to_owned(), Some(what));
        }
    }

    fn list(&mut self, node: &Node, items: &[Node], schema: &Value, path: &Path, walk: &mut Walk<'_>) {
        let bound = |key: &str| schema.get(key).and_then(Value::as_u64).and_then(|n| usize::try_from(n).ok());
        if items.len() < bound("minItems").unwrap_or(0) {
            walk.push(node, Code::EmptyList, path, "the list must not be empty".to_owned(), None);
        }
        if let Some(most) = bound("maxItems").filter(|m| items.len() > *m) {
            let message = format!("the list has {} items; at most {most} are possible", items.len());
            walk.push(node, Code::OverLimit, path, message, None);
        }
        if let Some(schema) = schema.get("items") {
            for (i, item) in items.iter().enumerate() {
                self.node(item, schema, &path.index(i), walk);
            }
        }
    }

    fn text(&mut self, node: &Node, text: &str, schema: &Value, path: &Path, walk: &mut Walk<'_>) {
        if schema.get("enum").is_some() {
            one_of_values(node, schema, path, walk);
            return;
        }
        if text.is_empty() && schema.get("minLength").is_some() {
            walk.push(node, Code::BadFormat, path, "the text must not be empty".to_owned(), None);
            return;
        }
        let most = schema.get("maxLength").and_then(Value::as_u64);
        if let Some(most) = most.filter(|m| u64::try_from(text.chars().count()).is_ok_and(|n| n > *m)) {
            walk.push(node, Code::OutOfRange, path, format!("the text is longer than {most} characters"), None);
        }
        if let Some(format) = schema.get("format").and_then(Value::as_str) {
            if let Err(reason) = check_format(format, text) {
                walk.push(node, Code::BadFormat, path, reason, Some(expected(schema)));
            }
            return;
        }
        let Some(pattern) = schema.get("pattern").and_then(Value::as_str) else { return };
        let compiled = self.patterns.entry(pattern.to_owned()).or_insert_with(|| Regex::new(pattern).ok());
        if compiled.as_ref().is_some_and(|regex| !regex.is_match(text)) {
            let message = format!("{} does not have the form of this field", shown(node, path));
            let what = schema.get("x-expected").and_then(Value::as_str).map(str::to_owned);
            walk.push(node, Code::BadFormat, path, message, what.or(Some(format!("text matching {pattern}"))));
        }
    }
}

impl Walk<'_> {
    fn push(&mut self, node: &Node, code: Code, path: &Path, message: String, expected: Option<String>) {
        let mut place = self.document.root.place_of(path);
        // What is missing has no place of its own: the mapping it should stand in has.
        if code == Code::MissingField {
            place = node.place;
        }
        let mut finding = Diagnostic::new(code, message).at(path.to_string(), Some(place.in_file(&self.document.file)));
        finding.expected = expected;
        self.findings.push(finding);
    }

    fn wrong_type(&mut self, node: &Node, schema: &Value, path: &Path) {
        let what = expected(schema);
        let message = format!("expected {what}, found {}", shown(node, path));
        let may_show = !path.may_hold_secret();
        let scalar = matches!(node.content, Content::Integer(_) | Content::Float(_) | Content::Bool(_));
        let free_text =
            type_of(schema) == Some("string") && schema.get("format").is_none() && schema.get("enum").is_none();
        let quoted = (free_text && scalar).then(|| format!("\"{}\"", node.to_value()));
        let meant = match node.text() {
            Some("yes" | "Yes" | "YES" | "on" | "On" | "ON") => Some("true"),
            Some("no" | "No" | "NO" | "off" | "Off" | "OFF") => Some("false"),
            Some(_) | None => None,
        };
        let meant = meant.filter(|_| type_of(schema) == Some("boolean")).map(str::to_owned);
        let listed = (type_of(schema) == Some("array")).then(|| node.text().map(|text| format!("[{text}]"))).flatten();
        let place = self.document.root.place_of(path);
        let finding = Diagnostic::new(Code::WrongType, message)
            .at(path.to_string(), Some(place.in_file(&self.document.file)))
            .expected(what)
            .suggest(quoted.or(listed).or(meant).filter(|_| may_show));
        self.findings.push(finding);
    }
}

/// A value as a finding may show it: whoever writes a secret where its name or its hash belongs must not find it in a log.
fn shown(node: &Node, path: &Path) -> String {
    match (&node.content, path.may_hold_secret()) {
        (Content::Text(_) | Content::Integer(_) | Content::Float(_), true) => {
            "a value that is not shown, as it may be a secret".to_owned()
        }
        (Content::Text(_) | Content::Integer(_) | Content::Float(_), false)
        | (Content::Null | Content::Bool(_) | Content::List(_) | Content::Mapping(_), _) => node.describe(),
    }
}

/// A value that must be one of a few.
fn one_of_values(node: &Node, schema: &Value, path: &Path, walk: &mut Walk<'_>) {
    let Some(values) = schema.get("enum").and_then(Value::as_array) else { return };
    let value = node.to_value();
    if values.contains(&value) {
        return;
    }
    let names: Vec<&str> = values.iter().filter_map(Value::as_str).collect();
    let nearest = node.text().and_then(|text| nearest(text, names.iter().copied()));
    let finding = Diagnostic::new(Code::UnknownValue, format!("{} is not possible here", node.describe()))
        .at(path.to_string(), Some(node.place.in_file(&walk.document.file)))
        .expected(expected(schema))
        .suggest(nearest);
    walk.findings.push(finding);
}

fn range(node: &Node, value: f64, schema: &Value, path: &Path, walk: &mut Walk<'_>) {
    let low = schema.get("minimum").and_then(Value::as_f64).unwrap_or(f64::NEG_INFINITY);
    let high = schema.get("maximum").and_then(Value::as_f64).unwrap_or(f64::INFINITY);
    // Written so that NaN is out of every range; infinity is no number JSON could hold.
    if !(value.is_finite() && value >= low && value <= high) {
        let message = format!("{} is out of range", node.describe());
        walk.push(node, Code::OutOfRange, path, message, Some(expected(schema)));
    }
}

fn check_format(format: &str, text: &str) -> Result<(), String> {
    match format {
        "duration" => crds::value::Duration::parse(text).map(|_| ()),
        "bytes" => crds::value::Bytes::parse(text).map(|_| ()),
        "url" => parse_base_url(text).map(|_| ()),
        // An IPv6 address may stand in brackets, as in a URL.
        "host" => check_host(text.strip_prefix('[').and_then(|t| t.strip_suffix(']')).unwrap_or(text)),
        "sha256" => {
            let plain = text.len() == 64 && text.bytes().all(|b| b.is_ascii_hexdigit());
            // The text may be the key itself: it is not repeated.
            if plain { Ok(()) } else { Err(format!("the text has {} characters and is no hash", text.chars().count())) }
        }
        "socket-address" => text
            .parse::<std::net::SocketAddr>()
            .map(|_| ())
            .map_err(|_| format!("`{text}` is not an address and a port")),
        _ => Ok(()),
    }
}

fn type_of(schema: &Value) -> Option<&str> {
    schema.get("type").and_then(Value::as_str)
}

/// Whether the node is of a schema's type; a schema without a type takes everything.
fn is_type(node: &Node, wanted: Option<&str>) -> bool {
    let Some(wanted) = wanted else { return true };
    match &node.content {
        Content::Null => false,
        Content::Bool(_) => wanted == "boolean",
        Content::Integer(_) => matches!(wanted, "integer" | "number"),
        Content::Float(_) => wanted == "number",
        Content::Text(_) => wanted == "string",
        Content::List(_) => wanted == "array",
        Content::Mapping(_) => wanted == "object",
    }
}

/// What a schema asks for, for a person.
/// Many first write the key itself.
const EXPECTED_SHA256: &str =
    "64 hexadecimal digits: write the hash of the key, `printf %s KEY | sha256sum`, or use `fromEnv`";

fn expected(schema: &Value) -> String {
    if let Some(branches) = schema.get("anyOf").and_then(Value::as_array) {
        return branches.iter().map(expected).collect::<Vec<_>>().join(", or ");
    }
    if let Some(values) = schema.get("enum").and_then(Value::as_array) {
        let names: Vec<String> =
            values.iter().map(|v| v.as_str().map_or_else(|| v.to_string(), str::to_owned)).collect();
        return listing(names.iter().map(String::as_str));
    }
    match schema.get("format").and_then(Value::as_str) {
        Some("duration") => return crds::value::Duration::EXPECTED.to_owned(),
        Some("bytes") => return crds::value::Bytes::EXPECTED.to_owned(),
        Some("url") => return "a URL such as `https://host/path`".to_owned(),
        Some("host") => return "an IP address or a DNS name; the port stands in `port`".to_owned(),
        Some("sha256") => return EXPECTED_SHA256.to_owned(),
        Some("socket-address") => return "an IP address and a port, such as `0.0.0.0:8080`".to_owned(),
        Some(_) | None => {}
    }
    let bounds = match (schema.get("minimum"), schema.get("maximum")) {
        (Some(low), Some(high)) => format!(" from {low} to {high}"),
        (Some(low), None) => format!(" from {low} up"),
        (None, Some(high)) => format!(" up to {high}"),
        (None, None) => String::new(),
    };
    match type_of(schema) {
        Some("object") if schema.pointer("/properties/greaterThan").is_some() => {
            let sample = match schema.pointer("/properties/greaterThan/format").and_then(Value::as_str) {
                Some("duration") => "500ms",
                Some(_) | None if schema.pointer("/properties/greaterThan/maximum").is_some() => "0.5",
                Some(_) | None => "3",
            };
            format!("e.g. `{{ greaterThan: {sample} }}`")
        }
        Some("object") => "a mapping".to_owned(),
        Some("array") => "a list".to_owned(),
        Some("string") => "text".to_owned(),
        Some("integer") => format!("a whole number{bounds}"),
        Some("number") => format!("a number{bounds}"),
        Some("boolean") => "`true` or `false`".to_owned(),
        Some(other) => other.to_owned(),
        None => "a value".to_owned(),
    }
}

fn strings(value: Option<&Value>) -> impl Iterator<Item = &str> {
    value.and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str)
}

/// `` `a`, `b` or `c` ``
pub(crate) fn listing<'a>(names: impl Iterator<Item = &'a str>) -> String {
    let quoted: Vec<String> = names.map(|n| format!("`{n}`")).collect();
    match quoted.split_last() {
        None => "nothing".to_owned(),
        Some((only, [])) => only.clone(),
        Some((last, rest)) => format!("{} or {last}", rest.join(", ")),
    }
}

/// The name nearest to a misspelt one, when one is near enough to be meant: a third of its letters wrong at most.
#[must_use]
pub fn nearest<'a>(written: &str, names: impl Iterator<Item = &'a str>) -> Option<String> {
    let lower = written.to_lowercase();
    let room = (written.chars().count() / 3).max(1);
    names
        .map(|name| (strsim::damerau_levenshtein(&lower, &name.to_lowercase()), name))
        .filter(|(distance, _)| *distance <= room)
        .min_by_key(|(distance, name)| (*distance, *name))
        .map(|(_, name)| name.to_owned())
}
