//! The slow obvious JSON: a strict parser's tree with members in the order written, repeated ones included.

use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};

/// A value.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Json {
    /// `null`
    Null,
    /// `true` or `false`
    Bool(bool),
    /// A number.
    Number(serde_json::Number),
    /// A string, decoded.
    String(String),
    /// An array.
    Array(Vec<Json>),
    /// An object.
    Object(Vec<(String, Json)>),
}

impl Json {
    /// Parses a whole text; `None` when a strict parser refuses it.
    pub(crate) fn parse(text: &[u8]) -> Option<Self> {
        serde_json::from_slice(text).ok()
    }

    /// The members of an object.
    pub(crate) fn members(&self) -> Option<&[(String, Json)]> {
        match self {
            Self::Object(members) => Some(members),
            Self::Null | Self::Bool(_) | Self::Number(_) | Self::String(_) | Self::Array(_) => None,
        }
    }

    /// The elements of an array.
    pub(crate) fn elements(&self) -> Option<&[Json]> {
        match self {
            Self::Array(elements) => Some(elements),
            Self::Null | Self::Bool(_) | Self::Number(_) | Self::String(_) | Self::Object(_) => None,
        }
    }

    /// The member that counts: the last one of this name.
    pub(crate) fn member(&self, name: &str) -> Option<&Json> {
        self.members()?.iter().rev().find(|(key, _)| key == name).map(|(_, value)| value)
    }

    /// The text of a string.
    pub(crate) fn text(&self) -> Option<&str> {
        match self {
            Self::String(text) => Some(text),
            Self::Null | Self::Bool(_) | Self::Number(_) | Self::Array(_) | Self::Object(_) => None,
        }
    }

    /// A whole number that is written in at most 18 digits.
    pub(crate) fn whole(&self) -> Option<u64> {
        match self {
            Self::Number(number) => number.as_u64().filter(|n| *n < 1_000_000_000_000_000_000),
            Self::Null | Self::Bool(_) | Self::String(_) | Self::Array(_) | Self::Object(_) => None,
        }
    }

    /// Only the members that count, at this level.
    pub(crate) fn effective(&self) -> Vec<(&str, &Json)> {
        let members = self.members().unwrap_or_default();
        let last = |(at, (key, _)): &(usize, &(String, Json))| !members[at + 1..].iter().any(|(later, _)| later == key);
        members.iter().enumerate().filter(last).map(|(_, (key, value))| (key.as_str(), value)).collect()
    }
}

impl<'de> Deserialize<'de> for Json {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Tree)
    }
}

struct Tree;

impl<'de> Visitor<'de> for Tree {
    type Value = Json;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_unit<E>(self) -> Result<Json, E> {
        Ok(Json::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Json, E> {
        Ok(Json::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Json, E> {
        Ok(Json::Number(value.into()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Json, E> {
        Ok(Json::Number(value.into()))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Json, E> {
        Ok(serde_json::Number::from_f64(value).map_or(Json::Null, Json::Number))
    }

    fn visit_str<E>(self, value: &str) -> Result<Json, E> {
        Ok(Json::String(value.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut elements: A) -> Result<Json, A::Error> {
        let mut list = Vec::new();
        while let Some(element) = elements.next_element()? {
            list.push(element);
        }
        Ok(Json::Array(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Json, A::Error> {
        let mut list = Vec::new();
        while let Some(member) = members.next_entry()? {
            list.push(member);
        }
        Ok(Json::Object(list))
    }
}
