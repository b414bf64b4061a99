//! Values with a syntax of their own: durations, sizes, numbers with bounds.

use std::borrow::Cow;
use std::fmt;
use std::time::Duration as StdDuration;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{self, Deserializer, Visitor};
use serde::{Deserialize, Serialize, Serializer};

/// Longest duration a document may hold: a week. Longer ones are mistakes in the unit.
pub const DURATION_MAX: StdDuration = StdDuration::from_secs(7 * 24 * 3600);

/// A length of time: a number and one of the units `us`, `ms`, `s`, `m`, `h`, as `250ms`, `1.5s`, `2m`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Duration(pub StdDuration);

impl Duration {
    /// What a value of this type looks like, for error messages.
    pub const EXPECTED: &'static str =
        "a duration: a number and one of the units us, ms, s, m, h, such as `250ms`, `1.5s` or `2m`";

    /// A duration of whole milliseconds.
    #[must_use]
    pub const fn from_millis(ms: u64) -> Self {
        Self(StdDuration::from_millis(ms))
    }

    /// A duration of whole seconds.
    #[must_use]
    pub const fn from_secs(s: u64) -> Self {
        Self(StdDuration::from_secs(s))
    }

    /// Reads the text form.
    ///
    /// # Errors
    /// What is wrong with it, for the person who wrote it.
    pub fn parse(text: &str) -> Result<Self, String> {
        let digits = text.bytes().take_while(|b| b.is_ascii_digit() || *b == b'.').count();
        let (number, unit) = text.split_at(digits);
        let unit_us = match unit {
            "us" => 1.0,
            "ms" => 1e3,
            "s" => 1e6,
            "m" => 60e6,
            "h" => 3600e6,
            "" => return Err(format!("`{text}` has no unit")),
            other => return Err(format!("`{other}` is not a unit of time")),
        };
        let us = decimal(number).ok_or_else(|| format!("`{number}` is not a number"))? * unit_us;
        // The bound is far below 2^53, so the product is exact enough and the cast cannot wrap.
        let max_us = DURATION_MAX.as_secs_f64() * 1e6;
        if us > max_us {
            return Err(format!("`{text}` is longer than {}", Duration(DURATION_MAX)));
        }
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "bounded above and not negative")]
        let us = us.round() as u64;
        Ok(Self(StdDuration::from_micros(us)))
    }

    /// The length in microseconds, as policies compare it.
    #[must_use]
    pub fn as_us(self) -> f64 {
        self.0.as_secs_f64() * 1e6
    }
}

impl fmt::Display for Duration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let us = self.0.as_micros();
        for (unit, unit_us) in [("h", 3_600_000_000), ("m", 60_000_000), ("s", 1_000_000), ("ms", 1_000)] {
            if us >= unit_us && us.is_multiple_of(unit_us) {
                return write!(f, "{}{unit}", us / unit_us);
            }
        }
        write!(f, "{us}us")
    }
}

/// A size in bytes: a whole number, alone or with one of `B`, `KiB`, `MiB`, `GiB`, `KB`, `MB`, `GB`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Bytes(pub u64);

impl Bytes {
    /// What a value of this type looks like, for error messages.
    pub const EXPECTED: &'static str = "a size: a number and one of the units B, KiB, MiB, GiB (powers of 1024) or \
                                        KB, MB, GB (powers of 1000), such as `32MiB`";

    /// Reads the text form.
    ///
    /// # Errors
    /// What is wrong with it, for the person who wrote it.
    pub fn parse(text: &str) -> Result<Self, String> {
        let digits = text.bytes().take_while(|b| b.is_ascii_digit() || *b == b'.').count();
        let (number, unit) = text.split_at(digits);
        let unit_bytes = match unit {
            "" | "B" => 1_u64,
            "KiB" => 1 << 10,
            "MiB" => 1 << 20,
            "GiB" => 1 << 30,
            "KB" => 1_000,
            "MB" => 1_000_000,
            "GB" => 1_000_000_000,
            other => return Err(format!("`{other}` is not a unit of size")),
        };
        let number: u64 = number.parse().map_err(|_| format!("`{number}` is not a whole number"))?;
        number.checked_mul(unit_bytes).map(Self).ok_or_else(|| format!("`{text}` is too large"))
    }
}

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (unit, bytes) in [("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)] {
            if self.0 >= bytes && self.0.is_multiple_of(bytes) {
                return write!(f, "{}{unit}", self.0 / bytes);
            }
        }
        write!(f, "{}B", self.0)
    }
}

/// A plain decimal number; no sign, no exponent.
fn decimal(text: &str) -> Option<f64> {
    let plain = text.bytes().all(|b| b.is_ascii_digit() || b == b'.') && text.starts_with(|c: char| c.is_ascii_digit());
    if plain && !text.ends_with('.') { text.parse().ok() } else { None }
}

macro_rules! text_form {
    ($type:ident, $format:literal, $pattern:literal) => {
        impl Serialize for $type {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> Deserialize<'de> for $type {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                struct Text;
                impl Visitor<'_> for Text {
                    type Value = $type;
                    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                        f.write_str($type::EXPECTED)
                    }
                    fn visit_str<E: de::Error>(self, text: &str) -> Result<$type, E> {
                        $type::parse(text).map_err(E::custom)
                    }
                }
                deserializer.deserialize_str(Text)
            }
        }

        impl JsonSchema for $type {
            fn inline_schema() -> bool {
                true
            }
            fn schema_name() -> Cow<'static, str> {
                stringify!($type).into()
            }
            fn json_schema(_: &mut SchemaGenerator) -> Schema {
                json_schema!({ "type": "string", "format": $format, "pattern": $pattern })
            }
        }
    };
}

text_form!(Duration, "duration", r"^[0-9]+(\.[0-9]+)?(us|ms|s|m|h)$");
text_form!(Bytes, "bytes", "^[0-9]+(B|KiB|MiB|GiB|KB|MB|GB)?$");

/// Bounds of a number, all of which must hold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schemars(extend("minProperties" = 1))]
pub struct NumberCondition {
    /// The value is above this.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub greater_than: Option<f64>,
    /// The value is this or above.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at_least: Option<f64>,
    /// The value is below this.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub less_than: Option<f64>,
    /// The value is this or below.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at_most: Option<f64>,
}

/// Bounds of a share between 0 and 1, all of which must hold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schemars(extend("minProperties" = 1))]
pub struct RatioCondition {
    /// The value is above this.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0.0, max = 1.0))]
    pub greater_than: Option<f64>,
    /// The value is this or above.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0.0, max = 1.0))]
    pub at_least: Option<f64>,
    /// The value is below this.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0.0, max = 1.0))]
    pub less_than: Option<f64>,
    /// The value is this or below.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0.0, max = 1.0))]
    pub at_most: Option<f64>,
}

/// Bounds of a length of time, all of which must hold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schemars(extend("minProperties" = 1))]
pub struct DurationCondition {
    /// The value is above this.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub greater_than: Option<Duration>,
    /// The value is this or above.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at_least: Option<Duration>,
    /// The value is below this.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub less_than: Option<Duration>,
    /// The value is this or below.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at_most: Option<Duration>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_read_as_written() {
        assert_eq!(Duration::parse("250ms"), Ok(Duration::from_millis(250)));
        assert_eq!(Duration::parse("1.5s"), Ok(Duration::from_millis(1500)));
        assert_eq!(Duration::parse("2m"), Ok(Duration::from_secs(120)));
        assert_eq!(Duration::parse("10us"), Ok(Duration(StdDuration::from_micros(10))));
    }

    #[test]
    fn durations_say_what_is_wrong() {
        for (text, reason) in [
            ("5", "`5` has no unit"),
            ("5 s", "` s` is not a unit of time"),
            ("fast", "`fast` is not a unit of time"),
            ("-1s", "`-1s` is not a unit of time"),
            ("1.s", "`1.` is not a number"),
            ("s", "`` is not a number"),
            ("400h", "`400h` is longer than 168h"),
        ] {
            assert_eq!(Duration::parse(text), Err(reason.to_owned()));
        }
    }

    #[test]
    fn durations_print_in_the_largest_whole_unit() {
        for text in ["250ms", "1500ms", "2m", "10us", "168h", "0us"] {
            assert_eq!(Duration::parse(text).map(|d| d.to_string()), Ok(text.to_owned()));
        }
    }

    #[test]
    fn sizes_read_and_print() {
        for (text, bytes) in [("32MiB", 32 << 20), ("1GB", 1_000_000_000), ("512", 512), ("64KiB", 65536)] {
            assert_eq!(Bytes::parse(text), Ok(Bytes(bytes)));
        }
        assert_eq!(Bytes(32 << 20).to_string(), "32MiB");
        assert!(Bytes::parse("1.5MiB").is_err() && Bytes::parse("32 MiB").is_err());
        assert!(Bytes::parse("99999999999999GiB").is_err());
    }
}
