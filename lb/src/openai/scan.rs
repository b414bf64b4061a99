//! A read-only scan of JSON: where the members of an object are, without building anything.
//!
//! It is lenient on purpose. What a strict parser refuses but an engine may take (lone surrogates, huge numbers, control
//! bytes in strings) passes; what it cannot follow ends the scan. It never recurses, and looks at each byte once.

use std::borrow::Cow;
use std::ops::Range;

/// What a value starts as.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Object,
    Array,
    String,
    /// A number, `true`, `false` or `null` (or something that only looks like one).
    Scalar,
}

/// A value inside the scanned bytes. For a string the range is that of its content, without the quotes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Value {
    pub(crate) kind: Kind,
    pub(crate) range: Range<usize>,
}

impl Value {
    /// The bytes of the value (of a string: its raw content).
    pub(crate) fn of<'a>(&self, json: &'a [u8]) -> &'a [u8] {
        json.get(self.range.clone()).unwrap_or_default()
    }

    /// The range with the quotes of a string.
    pub(crate) fn outer(&self) -> Range<usize> {
        match self.kind {
            Kind::String => self.range.start - 1..self.range.end + 1,
            Kind::Object | Kind::Array | Kind::Scalar => self.range.clone(),
        }
    }

    /// The decoded text of a string value.
    pub(crate) fn text<'a>(&self, json: &'a [u8]) -> Option<Cow<'a, str>> {
        (self.kind == Kind::String).then(|| unescape(self.of(json)))
    }

    /// A non-negative whole number.
    pub(crate) fn number(&self, json: &[u8]) -> Option<u64> {
        let digits = self.of(json);
        let good =
            self.kind == Kind::Scalar && (1..=18).contains(&digits.len()) && digits.iter().all(u8::is_ascii_digit);
        good.then(|| digits.iter().fold(0, |n, d| n * 10 + u64::from(d - b'0')))
    }

    /// Whether this is `true`.
    pub(crate) fn is_true(&self, json: &[u8]) -> bool {
        self.kind == Kind::Scalar && self.of(json) == b"true"
    }

    /// Whether this is `null`.
    pub(crate) fn is_null(&self, json: &[u8]) -> bool {
        self.kind == Kind::Scalar && self.of(json) == b"null"
    }
}

/// Calls `each(raw key, value)` for every member of the object at the start of `json` (white space before it allowed).
/// Returns the range of the object, or `None` when it is not an object or does not end.
pub(crate) fn members<'a>(
    json: &'a [u8],
    within: Range<usize>,
    mut each: impl FnMut(&'a [u8], Value),
) -> Option<Range<usize>> {
    let end = within.end.min(json.len());
    let start = skip_space(json, within.start, end);
    if json.get(start).filter(|_| start < end) != Some(&b'{') {
        return None;
    }
    let mut at = skip_space(json, start + 1, end);
    loop {
        match *json.get(at).filter(|_| at < end)? {
            b'}' => return Some(start..at + 1),
            b',' => at = skip_space(json, at + 1, end),
            b'"' => {
                let key = string_at(json, at, end)?;
                at = skip_space(json, key.end + 1, end);
                if json.get(at).filter(|_| at < end) != Some(&b':') {
                    return None;
                }
                let value = value_at(json, at + 1, end)?;
                at = skip_space(json, value.outer().end, end);
                each(&json[key], value);
            }
            _ => return None,
        }
    }
}

/// Calls `each(value)` for every element of the array that starts at `within.start`. `None` when it is not a whole array.
pub(crate) fn elements(json: &[u8], within: Range<usize>, mut each: impl FnMut(Value)) -> Option<()> {
    let end = within.end.min(json.len());
    let start = skip_space(json, within.start, end);
    if json.get(start).filter(|_| start < end) != Some(&b'[') {
        return None;
    }
    let mut at = skip_space(json, start + 1, end);
    loop {
        match *json.get(at).filter(|_| at < end)? {
            b']' => return Some(()),
            b',' => at = skip_space(json, at + 1, end),
            _ => {
                let value = value_at(json, at, end)?;
                at = skip_space(json, value.outer().end, end);
                each(value);
            }
        }
    }
}

fn skip_space(json: &[u8], mut at: usize, end: usize) -> usize {
    while at < end && matches!(json[at], b' ' | b'\n' | b'\r' | b'\t') {
        at += 1;
    }
    at
}

/// The content of the string whose quote is at `at`.
fn string_at(json: &[u8], at: usize, end: usize) -> Option<Range<usize>> {
    let start = at + 1;
    let mut from = start;
    loop {
        let found = from + memchr::memchr2(b'"', b'\\', json.get(from..end)?)?;
        if json[found] == b'"' {
            return Some(start..found);
        }
        from = found + 2;
    }
}

fn value_at(json: &[u8], at: usize, end: usize) -> Option<Value> {
    let at = skip_space(json, at, end);
    let (kind, range) = match *json.get(at).filter(|_| at < end)? {
        b'"' => (Kind::String, string_at(json, at, end)?),
        b'{' => (Kind::Object, at..container_end(json, at, end)?),
        b'[' => (Kind::Array, at..container_end(json, at, end)?),
        b',' | b'}' | b']' | b':' => return None,
        _ => (Kind::Scalar, at..scalar_end(json, at, end)),
    };
    Some(Value { kind, range })
}

fn scalar_end(json: &[u8], at: usize, end: usize) -> usize {
    let stop = |b: &u8| matches!(b, b',' | b'}' | b']' | b' ' | b'\n' | b'\r' | b'\t' | b'"' | b'{' | b'[');
    json[at..end].iter().position(stop).map_or(end, |n| at + n)
}

/// One past the bracket that closes the container at `at`. Kinds of brackets are not told apart: engines do that.
fn container_end(json: &[u8], at: usize, end: usize) -> Option<usize> {
    let mut depth = 0_usize;
    let mut i = at;
    while i < end {
        match json[i] {
            b'"' => i = string_at(json, i, end)?.end,
            b'{' | b'[' => depth += 1,
            b'}' | b']' => {
                depth -= 1;
                if depth == 0 {
                    return Some(i + 1);
                }
            }
            _ => {}
        }
        i += 1;
    }
    None
}

/// The text of a raw string content. Broken escapes and lone surrogates become U+FFFD.
pub(crate) fn unescape(raw: &[u8]) -> Cow<'_, str> {
    if memchr::memchr(b'\\', raw).is_none() {
        return String::from_utf8_lossy(raw);
    }
    let mut text = Vec::with_capacity(raw.len());
    unescape_pieces(raw, &mut |piece| text.extend_from_slice(piece));
    match String::from_utf8(text) {
        Ok(text) => Cow::Owned(text),
        Err(error) => Cow::Owned(String::from_utf8_lossy(error.as_bytes()).into_owned()),
    }
}

/// Calls `piece` with the decoded bytes of a raw string content, in pieces, without allocating.
pub(crate) fn unescape_pieces(raw: &[u8], piece: &mut impl FnMut(&[u8])) {
    let mut rest = raw;
    while let Some(at) = memchr::memchr(b'\\', rest) {
        if at > 0 {
            piece(&rest[..at]);
        }
        rest = &rest[at..];
        let (decoded, taken) = escape(rest);
        let mut utf8 = [0; 4];
        piece(decoded.encode_utf8(&mut utf8).as_bytes());
        rest = &rest[taken..];
    }
    if !rest.is_empty() {
        piece(rest);
    }
}

/// Decodes the escape at the start of `raw` (which starts with a backslash): the character and the bytes it took.
fn escape(raw: &[u8]) -> (char, usize) {
    let simple = match raw.get(1) {
        Some(b'n') => '\n',
        Some(b't') => '\t',
        Some(b'r') => '\r',
        Some(b'b') => '\u{8}',
        Some(b'f') => '\u{c}',
        Some(b'u') => return unicode_escape(raw),
        Some(&other) if other.is_ascii() => other as char,
        Some(_) | None => return (char::REPLACEMENT_CHARACTER, 1),
    };
    (simple, 2)
}

fn unicode_escape(raw: &[u8]) -> (char, usize) {
    let Some(first) = hex4(raw, 2) else { return (char::REPLACEMENT_CHARACTER, 2) };
    if let Some(character) = char::from_u32(first) {
        return (character, 6);
    }
    let low = (first < 0xDC00 && raw.get(6..8) == Some(b"\\u")).then(|| hex4(raw, 8)).flatten();
    match low {
        Some(low @ 0xDC00..=0xDFFF) => {
            let code = 0x10000 + ((first - 0xD800) << 10) + (low - 0xDC00);
            (char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER), 12)
        }
        Some(_) | None => (char::REPLACEMENT_CHARACTER, 6),
    }
}

fn hex4(raw: &[u8], at: usize) -> Option<u32> {
    let digits = raw.get(at..at + 4)?;
    digits.iter().try_fold(0, |n, &d| Some(n << 4 | (d as char).to_digit(16)?))
}

/// Appends `text` as a JSON string with its quotes.
pub(crate) fn push_json_string(to: &mut Vec<u8>, text: &str) {
    to.push(b'"');
    for byte in text.bytes() {
        match byte {
            b'"' => to.extend_from_slice(b"\\\""),
            b'\\' => to.extend_from_slice(b"\\\\"),
            b'\n' => to.extend_from_slice(b"\\n"),
            0..=0x1F => {
                const DIGITS: &[u8; 16] = b"0123456789abcdef";
                to.extend_from_slice(b"\\u00");
                to.push(DIGITS[usize::from(byte >> 4)]);
                to.push(DIGITS[usize::from(byte & 15)]);
            }
            other => to.push(other),
        }
    }
    to.push(b'"');
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn keys(json: &str) -> Option<Vec<(String, String)>> {
        let mut found = Vec::new();
        members(json.as_bytes(), 0..json.len(), |key, value| {
            found.push((unescape(key).into_owned(), String::from_utf8_lossy(value.of(json.as_bytes())).into_owned()));
        })?;
        Some(found)
    }

    #[test]
    fn members_are_found_whatever_is_in_them() {
        let json = r#" { "a" : "x\"}y" , "b":[{"c":"]"},[1,2]],"d" :{"a":{}}, "e":-1.5e900,"f":null } tail"#;
        let found = keys(json).unwrap();
        let names: Vec<&str> = found.iter().map(|(key, _)| key.as_str()).collect();
        assert_eq!(names, ["a", "b", "d", "e", "f"]);
        assert_eq!(found[0].1, r#"x\"}y"#);
        assert_eq!(found[1].1, r#"[{"c":"]"},[1,2]]"#);
        assert_eq!(found[3].1, "-1.5e900");
    }

    #[test]
    fn what_is_not_a_whole_object_is_refused() {
        for json in
            ["", "[]", "{", r#"{"a""#, r#"{"a":"#, r#"{"a":1"#, r#"{"a":"x}"#, r#"{"a":[1}"#, "{1:2}", r#"{"a":}"#]
        {
            assert_eq!(keys(json), None, "{json}");
        }
        assert_eq!(keys("{}").unwrap(), []);
    }

    #[test]
    fn lone_surrogates_do_not_stop_the_scan() {
        assert_eq!(unescape(br"a\ud83d\ude00b\ud83dc\u00e9\n\q"), "a\u{1F600}b\u{FFFD}c\u{e9}\nq");
        assert_eq!(unescape(br"\u12"), "\u{FFFD}12");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(400))]
        #[test]
        fn strings_come_back(text in ".{0,60}") {
            let mut json = Vec::new();
            push_json_string(&mut json, &text);
            prop_assert_eq!(serde_json::from_slice::<String>(&json).unwrap(), text.clone());
            let standard = serde_json::to_vec(&text).unwrap();
            prop_assert_eq!(unescape(&standard[1..standard.len() - 1]), text);
        }

        #[test]
        fn agrees_with_a_strict_parser(value in json_object()) {
            let text = serde_json::to_string_pretty(&value).unwrap();
            let mut seen = serde_json::Map::new();
            members(text.as_bytes(), 0..text.len(), |key, found| {
                let parsed = serde_json::from_slice(&text.as_bytes()[found.outer()]).unwrap();
                seen.insert(unescape(key).into_owned(), parsed);
            }).unwrap();
            prop_assert_eq!(serde_json::Value::Object(seen), value);
        }

        #[test]
        fn no_bytes_panic(bytes in proptest::collection::vec(
            prop_oneof![Just(b'"'), Just(b'\\'), Just(b'{'), Just(b'}'), Just(b'['), Just(b']'), Just(b':'), Just(b','), Just(b'u'), any::<u8>()], 0..60)) {
            let mut json = b"{".to_vec();
            json.extend(&bytes);
            let _ = members(&json, 0..json.len(), |key, value| { let _ = (unescape(key), value.text(&json), value.number(&json)); });
            let _ = elements(&bytes, 0..bytes.len(), |_| {});
            let _ = unescape(&bytes);
        }
    }

    fn json_object() -> impl Strategy<Value = serde_json::Value> {
        let leaf = prop_oneof![
            Just(serde_json::Value::Null),
            any::<bool>().prop_map(serde_json::Value::from),
            any::<i64>().prop_map(serde_json::Value::from),
            ".{0,12}".prop_map(serde_json::Value::from),
        ];
        let value = leaf.prop_recursive(3, 24, 4, |inner| {
            prop_oneof![
                proptest::collection::vec(inner.clone(), 0..4).prop_map(serde_json::Value::from),
                proptest::collection::vec((".{0,6}", inner), 0..4)
                    .prop_map(|members| serde_json::Value::Object(members.into_iter().collect())),
            ]
        });
        proptest::collection::vec((".{0,6}", value), 0..5)
            .prop_map(|members| serde_json::Value::Object(members.into_iter().collect()))
    }
}
