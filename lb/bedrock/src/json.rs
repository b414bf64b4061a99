//! Bodies as clients send them, read by name: every error names its place, never what stands there.
//!
//! Values stay the text they are until somebody asks for a string or a number, so that schemas and arguments pass with the
//! order of their keys and the digits of their numbers.

use std::borrow::Cow;
use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, Visitor};
use serde_json::error::Category;
use serde_json::value::RawValue;

use crate::refusal::{Refusal, Why};

/// Most members of one object that is read by name: OpenAI's largest has under forty. Schemas and arguments are not read.
const MEMBERS_MAX: usize = 256;

/// Where a value stands, told only when it is wrong.
#[derive(Clone, Copy)]
pub(crate) enum Place<'p> {
    Top,
    Field(&'p Place<'p>, &'static str),
    Item(&'p Place<'p>, usize),
}

impl fmt::Display for Place<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Top => Ok(()),
            Self::Field(Self::Top, name) => formatter.write_str(name),
            Self::Field(parent, name) => write!(formatter, "{parent}.{name}"),
            Self::Item(parent, index) => write!(formatter, "{parent}[{index}]"),
        }
    }
}

impl Place<'_> {
    pub(crate) fn expected(&self, what: &'static str) -> Refusal {
        Refusal::at(self, Why::Expected(what))
    }

    pub(crate) fn unsupported(&self, why: &'static str) -> Refusal {
        Refusal::at(self, Why::Unsupported(why))
    }
}

/// A value and where it stands.
#[derive(Clone, Copy)]
pub(crate) struct Value<'a, 'p> {
    raw: &'a RawValue,
    place: Place<'p>,
}

/// What a value may be where OpenAI allows a string or a list.
pub(crate) enum Shape {
    Text,
    List,
    Object,
    Other,
}

impl<'a, 'p> Value<'a, 'p> {
    pub(crate) fn place(&self) -> &Place<'p> {
        &self.place
    }

    pub(crate) fn raw(&self) -> &'a RawValue {
        self.raw
    }

    pub(crate) fn shape(&self) -> Shape {
        match self.raw.get().as_bytes().first() {
            Some(b'"') => Shape::Text,
            Some(b'[') => Shape::List,
            Some(b'{') => Shape::Object,
            _ => Shape::Other,
        }
    }

    pub(crate) fn object(self) -> Result<Object<'a, 'p>, Refusal> {
        Object::read(self.raw.get(), self.place)
    }

    pub(crate) fn list(&self) -> Result<Vec<&'a RawValue>, Refusal> {
        serde_json::from_str(self.raw.get()).map_err(|_| self.place.expected("a list"))
    }

    pub(crate) fn text(&self) -> Result<Cow<'a, str>, Refusal> {
        let text: Text<'a> = serde_json::from_str(self.raw.get()).map_err(|_| self.place.expected("a string"))?;
        Ok(text.0)
    }

    pub(crate) fn number(&self) -> Result<f64, Refusal> {
        serde_json::from_str(self.raw.get()).map_err(|_| self.place.expected("a number"))
    }

    pub(crate) fn whole_number(&self) -> Result<u64, Refusal> {
        serde_json::from_str(self.raw.get()).map_err(|_| self.place.expected("a whole number, not negative"))
    }

    pub(crate) fn truth(&self) -> Result<bool, Refusal> {
        serde_json::from_str(self.raw.get()).map_err(|_| self.place.expected("true or false"))
    }

    /// This value with no space between its parts is one of `texts`, which hold none within strings.
    pub(crate) fn is_one_of(&self, texts: &[&str]) -> bool {
        let compact = || self.raw.get().bytes().filter(|byte| !byte.is_ascii_whitespace());
        texts.iter().any(|text| compact().eq(text.bytes()))
    }
}

/// A string, borrowed where it has no escapes.
#[derive(Deserialize)]
struct Text<'a>(#[serde(borrow)] Cow<'a, str>);

/// An object's members; `null` is as good as absent.
pub(crate) struct Object<'a, 'p> {
    place: Place<'p>,
    members: Members<'a>,
}

impl<'a, 'p> Object<'a, 'p> {
    pub(crate) fn read(json: &'a str, place: Place<'p>) -> Result<Self, Refusal> {
        let refusal = |error: serde_json::Error| match error.classify() {
            Category::Io | Category::Syntax | Category::Eof => Refusal::not_json(),
            Category::Data => place.expected("an object with each name once, and at most 256 of them"),
        };
        Ok(Self { place, members: serde_json::from_str(json).map_err(refusal)? })
    }

    pub(crate) fn place(&self) -> &Place<'p> {
        &self.place
    }

    /// The value of this name, unless it is absent or `null`.
    pub(crate) fn value<'s>(&'s self, name: &'static str) -> Option<Value<'a, 's>> {
        let raw = self.members.0.iter().find(|(key, _)| key == name)?.1;
        let place = Place::Field(&self.place, name);
        (raw.get() != "null").then_some(Value { raw, place })
    }

    /// The value of this name, which must be there.
    pub(crate) fn needed<'s>(&'s self, name: &'static str) -> Result<Value<'a, 's>, Refusal> {
        self.value(name).ok_or_else(|| Refusal::at(&Place::Field(&self.place, name), Why::Missing))
    }

    /// The string of this name.
    pub(crate) fn text(&self, name: &'static str) -> Result<Option<Cow<'a, str>>, Refusal> {
        self.value(name).map(|value| value.text()).transpose()
    }
}

/// Element `index` of a list at `place`.
pub(crate) fn element<'a, 'p>(raw: &'a RawValue, place: &'p Place<'p>, index: usize) -> Value<'a, 'p> {
    Value { raw, place: Place::Item(place, index) }
}

/// In their order, as they stand.
struct Members<'a>(Vec<(Cow<'a, str>, &'a RawValue)>);

impl<'de: 'a, 'a> Deserialize<'de> for Members<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Reader;
        impl<'de> Visitor<'de> for Reader {
            type Value = Members<'de>;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut members: Vec<(Cow<'de, str>, &'de RawValue)> = Vec::new();
                while let Some(Text(key)) = map.next_key()? {
                    if members.len() == MEMBERS_MAX || members.iter().any(|(known, _)| *known == key) {
                        return Err(serde::de::Error::custom("a name twice, or too many"));
                    }
                    members.push((key, map.next_value()?));
                }
                Ok(Members(members))
            }
        }
        deserializer.deserialize_map(Reader)
    }
}
