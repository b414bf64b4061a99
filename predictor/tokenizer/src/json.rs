//! JSON as Python has it: members in the order written, and text as `json.dumps` writes it.
//!
//! Templates turn tools and arguments into text, so order, spacing and the form of numbers decide which tokens a prompt has.

use std::fmt;

use crate::python;
use minijinja::value::{Value, ValueKind};
use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use xxhash_rust::xxh3::Xxh3;

/// A JSON value. Integers beyond 64 bits become floats, which Python keeps whole: no tool schema has them.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Json {
    /// `null`
    Null,
    /// `true`, `false`
    Bool(bool),
    /// A number without point and exponent.
    Int(i128),
    /// Any other number.
    Float(f64),
    /// A string, unescaped.
    Text(String),
    /// An array.
    List(Vec<Json>),
    /// An object, its members in the order in which their names first came.
    Map(Vec<(String, Json)>),
}

impl Json {
    /// Reads a document.
    pub(crate) fn parse(bytes: &[u8]) -> Option<Self> {
        serde_json::from_slice(bytes).ok()
    }

    /// The member `key` of an object.
    pub(crate) fn member(&self, key: &str) -> Option<&Json> {
        match self {
            Json::Map(members) => members.iter().find(|(name, _)| name == key).map(|(_, value)| value),
            Json::Null | Json::Bool(_) | Json::Int(_) | Json::Float(_) | Json::Text(_) | Json::List(_) => None,
        }
    }

    /// The member `key`, unless it is `null`.
    pub(crate) fn given(&self, key: &str) -> Option<&Json> {
        self.member(key).filter(|value| **value != Json::Null)
    }

    /// A string's text.
    pub(crate) fn text(&self) -> Option<&str> {
        match self {
            Json::Text(text) => Some(text),
            Json::Null | Json::Bool(_) | Json::Int(_) | Json::Float(_) | Json::List(_) | Json::Map(_) => None,
        }
    }

    /// An array's elements.
    pub(crate) fn list(&self) -> Option<&[Json]> {
        match self {
            Json::List(list) => Some(list),
            Json::Null | Json::Bool(_) | Json::Int(_) | Json::Float(_) | Json::Text(_) | Json::Map(_) => None,
        }
    }

    /// An object's members.
    pub(crate) fn map(&self) -> Option<&[(String, Json)]> {
        match self {
            Json::Map(members) => Some(members),
            Json::Null | Json::Bool(_) | Json::Int(_) | Json::Float(_) | Json::Text(_) | Json::List(_) => None,
        }
    }

    /// `true`; anything else is not.
    pub(crate) fn is_true(&self) -> bool {
        *self == Json::Bool(true)
    }

    /// Adds everything in it to a hash, told apart by kind and length.
    pub(crate) fn hash_into(&self, hash: &mut Xxh3) {
        let mut text = |kind: u8, bytes: &[u8]| {
            hash.update(&[kind]);
            hash.update(&(bytes.len() as u64).to_le_bytes());
            hash.update(bytes);
        };
        match self {
            Json::Null => text(0, b""),
            Json::Bool(is) => text(1, &[u8::from(*is)]),
            Json::Int(int) => text(2, &int.to_le_bytes()),
            Json::Float(float) => text(3, &float.to_le_bytes()),
            Json::Text(said) => text(4, said.as_bytes()),
            Json::List(list) => {
                text(5, &(list.len() as u64).to_le_bytes());
                list.iter().for_each(|element| element.hash_into(hash));
            }
            Json::Map(members) => {
                text(6, &(members.len() as u64).to_le_bytes());
                for (key, value) in members {
                    Json::Text(key.clone()).hash_into(hash);
                    value.hash_into(hash);
                }
            }
        }
    }

    /// As templates see it.
    pub(crate) fn value(&self) -> Value {
        match self {
            Json::Null => Value::from(()),
            Json::Bool(is) => Value::from(*is),
            Json::Int(int) => i64::try_from(*int).map_or_else(|_| Value::from(*int), Value::from),
            Json::Float(float) => Value::from(*float),
            Json::Text(text) => Value::from(text.as_str()),
            Json::List(list) => Value::from(list.iter().map(Json::value).collect::<Vec<_>>()),
            Json::Map(members) => Value::from_pairs(members.iter().map(|(key, value)| (key.as_str(), value.value()))),
        }
    }
}

impl<'de> Deserialize<'de> for Json {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(JsonVisitor)
    }
}

struct JsonVisitor;

impl<'de> Visitor<'de> for JsonVisitor {
    type Value = Json;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<Json, E> {
        Ok(Json::Null)
    }

    fn visit_bool<E>(self, is: bool) -> Result<Json, E> {
        Ok(Json::Bool(is))
    }

    fn visit_i64<E>(self, int: i64) -> Result<Json, E> {
        Ok(Json::Int(int.into()))
    }

    fn visit_u64<E>(self, int: u64) -> Result<Json, E> {
        Ok(Json::Int(int.into()))
    }

    fn visit_f64<E>(self, float: f64) -> Result<Json, E> {
        Ok(Json::Float(float))
    }

    fn visit_str<E>(self, text: &str) -> Result<Json, E> {
        Ok(Json::Text(text.to_owned()))
    }

    fn visit_string<E>(self, text: String) -> Result<Json, E> {
        Ok(Json::Text(text))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut sequence: A) -> Result<Json, A::Error> {
        let mut list = Vec::new();
        while let Some(element) = sequence.next_element()? {
            list.push(element);
        }
        Ok(Json::List(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Json, A::Error> {
        let mut members: Vec<(String, Json)> = Vec::new();
        let mut places = std::collections::HashMap::new();
        while let Some((key, value)) = map.next_entry::<String, Json>()? {
            // As in a Python dict: the last value counts, at the place of the first.
            match places.get(&key) {
                Some(&place) => {
                    let (_, had): &mut (String, Json) = &mut members[place];
                    *had = value;
                }
                None => {
                    places.insert(key.clone(), members.len());
                    members.push((key, value));
                }
            }
        }
        Ok(Json::Map(members))
    }
}

/// How `json.dumps` is to write.
#[derive(Clone, Debug)]
pub(crate) struct Style {
    /// Whether what is not ASCII is escaped.
    pub(crate) ascii: Ascii,
    /// Text of one level of indentation; `None` is one line.
    pub(crate) indent: Option<String>,
    /// What stands between elements, and between a key and its value.
    pub(crate) separators: (String, String),
    /// Whether members stand in the order of their names.
    pub(crate) order: Order,
}

/// Whether what is not ASCII is escaped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ascii {
    /// Written as it is.
    Any,
    /// Written as `\uXXXX`.
    Only,
}

/// The order of members.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    /// As they came.
    Written,
    /// By their names.
    Sorted,
}

/// Nesting of a value that is written; beyond it Python gives up too.
const DEPTH_MAX: usize = 200;

/// `json.dumps(value)`; `None` for what is no JSON (an undefined value, a function).
pub(crate) fn dumps(value: &Value, style: &Style) -> Option<String> {
    let mut out = String::new();
    push(&mut out, value, style, 0)?;
    Some(out)
}

fn push(out: &mut String, value: &Value, style: &Style, depth: usize) -> Option<()> {
    if depth > DEPTH_MAX {
        return None;
    }
    match value.kind() {
        ValueKind::None => out.push_str("null"),
        ValueKind::Bool => out.push_str(if value.is_true() { "true" } else { "false" }),
        ValueKind::Number => push_number(out, value)?,
        ValueKind::String => push_string(out, value.as_str()?, style.ascii),
        ValueKind::Seq | ValueKind::Iterable => {
            let mut elements = value.try_iter().ok()?.peekable();
            if elements.peek().is_none() {
                out.push_str("[]");
                return Some(());
            }
            out.push('[');
            for (index, element) in elements.enumerate() {
                push_gap(out, index, style, depth);
                push(out, &element, style, depth + 1)?;
            }
            push_end(out, style, depth, ']');
        }
        ValueKind::Map => push_map(out, value, style, depth)?,
        // Undefined values, functions, bytes; the type may grow.
        ValueKind::Undefined | ValueKind::Bytes | ValueKind::Plain | ValueKind::Invalid | _ => return None,
    }
    Some(())
}

fn push_map(out: &mut String, value: &Value, style: &Style, depth: usize) -> Option<()> {
    let mut keys: Vec<(String, Value)> =
        value.try_iter().ok()?.map(|key| Some((key_text(&key)?, key))).collect::<Option<_>>()?;
    if keys.is_empty() {
        out.push_str("{}");
        return Some(());
    }
    if style.order == Order::Sorted {
        keys.sort_by(|(a, _), (b, _)| a.chars().cmp(b.chars()));
    }
    out.push('{');
    for (index, (text, key)) in keys.iter().enumerate() {
        push_gap(out, index, style, depth);
        push_string(out, text, style.ascii);
        out.push_str(&style.separators.1);
        push(out, &value.get_item(key).ok()?, style, depth + 1)?;
    }
    push_end(out, style, depth, '}');
    Some(())
}

/// A key as JSON has it: Python writes numbers, booleans and `None` as text.
fn key_text(key: &Value) -> Option<String> {
    match key.kind() {
        ValueKind::String => key.as_str().map(str::to_owned),
        ValueKind::None => Some(String::from("null")),
        ValueKind::Bool => Some(String::from(if key.is_true() { "true" } else { "false" })),
        ValueKind::Number => {
            let mut text = String::new();
            push_number(&mut text, key)?;
            Some(text)
        }
        // Nothing else can be a key in JSON; the type may grow.
        ValueKind::Undefined
        | ValueKind::Bytes
        | ValueKind::Seq
        | ValueKind::Map
        | ValueKind::Iterable
        | ValueKind::Plain
        | ValueKind::Invalid
        | _ => None,
    }
}

fn push_gap(out: &mut String, index: usize, style: &Style, depth: usize) {
    if index > 0 {
        out.push_str(&style.separators.0);
    }
    push_line(out, style, depth + 1);
}

fn push_end(out: &mut String, style: &Style, depth: usize, end: char) {
    push_line(out, style, depth);
    out.push(end);
}

fn push_line(out: &mut String, style: &Style, depth: usize) {
    if let Some(indent) = &style.indent {
        out.push('\n');
        (0..depth).for_each(|_| out.push_str(indent));
    }
}

fn push_number(out: &mut String, value: &Value) -> Option<()> {
    if value.is_integer() {
        out.push_str(&value.to_string());
        return Some(());
    }
    let float = f64::try_from(value.clone()).ok()?;
    match float {
        f64::INFINITY => out.push_str("Infinity"),
        f64::NEG_INFINITY => out.push_str("-Infinity"),
        _ if float.is_nan() => out.push_str("NaN"),
        _ => out.push_str(&python::float(float)),
    }
    Some(())
}

fn push_string(out: &mut String, text: &str, ascii: Ascii) {
    out.push('"');
    let mut plain = 0;
    for (at, c) in text.char_indices() {
        let escaped = match c {
            '"' => "\\\"",
            '\\' => "\\\\",
            '\n' => "\\n",
            '\r' => "\\r",
            '\t' => "\\t",
            '\u{8}' => "\\b",
            '\u{c}' => "\\f",
            c if c < ' ' || (ascii == Ascii::Only && !c.is_ascii()) => "",
            _ => continue,
        };
        out.push_str(&text[plain..at]);
        out.push_str(escaped);
        if escaped.is_empty() {
            c.encode_utf16(&mut [0; 2]).iter().for_each(|unit| out.push_str(&format!("\\u{unit:04x}")));
        }
        plain = at + c.len_utf8();
    }
    out.push_str(&text[plain..]);
    out.push('"');
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plain() -> Style {
        Style {
            ascii: Ascii::Any,
            indent: None,
            separators: (String::from(", "), String::from(": ")),
            order: Order::Written,
        }
    }

    fn dumped(json: &str, style: &Style) -> String {
        dumps(&Json::parse(json.as_bytes()).unwrap().value(), style).unwrap()
    }

    #[test]
    fn text_is_as_python_writes_it() {
        let json = r#"{"b":[1,-2,1.0,1e20,1e16,1e-5,0.0001,123456789.125,18446744073709551615],"a":{"x":null,"y":true},"e":[],"o":{},"t":"\u00e9\n\"\u0001\u007f<'"}"#;
        let expected = "{\"b\": [1, -2, 1.0, 1e+20, 1e+16, 1e-05, 0.0001, 123456789.125, 18446744073709551615], \
                        \"a\": {\"x\": null, \"y\": true}, \"e\": [], \"o\": {}, \"t\": \"é\\n\\\"\\u0001\u{7f}<'\"}";
        assert_eq!(dumped(json, &plain()), expected);
    }

    #[test]
    fn indentation_order_and_ascii_are_as_asked() {
        let style = Style {
            ascii: Ascii::Only,
            indent: Some(String::from("  ")),
            separators: (String::from(","), String::from(": ")),
            order: Order::Sorted,
        };
        assert_eq!(
            dumped(r#"{"b":["😀",{}],"a":1}"#, &style),
            "{\n  \"a\": 1,\n  \"b\": [\n    \"\\ud83d\\ude00\",\n    {}\n  ]\n}"
        );
    }

    #[test]
    fn of_two_members_of_one_name_the_last_value_counts_at_the_first_place() {
        assert_eq!(dumped(r#"{"a":1,"b":2,"a":3}"#, &plain()), r#"{"a": 3, "b": 2}"#);
    }

    #[test]
    fn what_is_no_json_is_not_read() {
        for text in ["", "{", "[1,]", "\"\\ud800\"", &"[".repeat(1_000)] {
            assert_eq!(Json::parse(text.as_bytes()), None, "{text}");
        }
    }
}
