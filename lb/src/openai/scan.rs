//! A read-only scan of JSON: where the members of an object are, without building anything.
//!
//! It is lenient on purpose. What a strict parser refuses but an engine may take (lone surrogates, huge numbers, control
//! bytes in strings) passes; what it cannot follow ends the scan. It never recurses by itself: [`Cursor`] goes as deep as its
//! caller does.

use std::borrow::Cow;
use std::ops::Range;

use super::quote::closing_quote;

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

/// Calls `each(key, value)` for every member of the object at the start of `json` (white space before it allowed).
/// Returns the range of the object, or `None` when it is not an object or does not end.
pub(crate) fn members(json: &[u8], within: Range<usize>, mut each: impl FnMut(&[u8], Value)) -> Option<Range<usize>> {
    Cursor::new(json, within).members(|key, cursor| {
        each(key, cursor.value()?);
        Some(())
    })
}

/// Calls `each(value)` for every element of the array that starts at `within.start`. `None` when it is not a whole array.
pub(crate) fn elements(json: &[u8], within: Range<usize>, mut each: impl FnMut(Value)) -> Option<()> {
    Cursor::new(json, within).elements(|cursor| {
        each(cursor.value()?);
        Some(())
    })
}

/// A place in JSON. It goes down into a container, or passes over it: each byte is looked at once.
#[derive(Debug)]
pub(crate) struct Cursor<'a> {
    /// Up to the end of what may be read.
    json: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'a> {
    /// At the start of `within`, and not beyond its end.
    pub(crate) fn new(json: &'a [u8], within: Range<usize>) -> Self {
        Self { json: json.get(..within.end).unwrap_or(json), at: within.start }
    }

    /// The bytes that positions are into.
    pub(crate) fn json(&self) -> &'a [u8] {
        self.json
    }

    /// Goes into the object that begins here and calls `each(key, cursor at the value)` for its members. What `each` leaves
    /// is passed over. Gives the object's range; `None` when here is no whole object, or `each` gives it.
    pub(crate) fn members(&mut self, mut each: impl FnMut(&[u8], &mut Self) -> Option<()>) -> Option<Range<usize>> {
        let start = self.enter(b'{')?;
        loop {
            match self.next()? {
                b'}' => return Some(start..self.leave()),
                b',' => self.at += 1,
                b'"' => {
                    let key = self.key()?;
                    if self.next()? != b':' {
                        return None;
                    }
                    self.at += 1;
                    self.one(|cursor| each(&key, cursor))?;
                }
                _ => return None,
            }
        }
    }

    /// Goes into the array that begins here and calls `each(cursor at the element)`. What `each` leaves is passed over.
    pub(crate) fn elements(&mut self, mut each: impl FnMut(&mut Self) -> Option<()>) -> Option<()> {
        self.enter_array()?;
        while self.element(&mut each)? {}
        Some(())
    }

    /// Goes into the array that begins here.
    pub(crate) fn enter_array(&mut self) -> Option<()> {
        self.enter(b'[').map(|_| ())
    }

    /// Calls `each(cursor at the element)` for the next one of an array that was gone into; `false` behind its end.
    pub(crate) fn element(&mut self, each: impl FnOnce(&mut Self) -> Option<()>) -> Option<bool> {
        loop {
            match self.next()? {
                b']' => {
                    self.leave();
                    return Some(false);
                }
                b',' => self.at += 1,
                _ => return self.one(each).map(|()| true),
            }
        }
    }

    /// The place.
    pub(crate) fn at(&self) -> usize {
        self.at
    }

    /// What kind of value begins here.
    pub(crate) fn kind(&mut self) -> Option<Kind> {
        match self.next()? {
            b'"' => Some(Kind::String),
            b'{' => Some(Kind::Object),
            b'[' => Some(Kind::Array),
            b',' | b'}' | b']' | b':' => None,
            _ => Some(Kind::Scalar),
        }
    }

    /// Passes over the value that begins here, and tells where it is.
    pub(crate) fn value(&mut self) -> Option<Value> {
        let kind = self.kind()?;
        let start = self.at;
        let range = match kind {
            Kind::String => self.string()?,
            Kind::Object | Kind::Array => {
                self.at = container_end(self.json, start)?;
                start..self.at
            }
            Kind::Scalar => {
                self.at = scalar_end(self.json, start);
                start..self.at
            }
        };
        Some(Value { kind, range })
    }

    /// Passes over a value that `each` may have gone over already.
    fn one(&mut self, each: impl FnOnce(&mut Self) -> Option<()>) -> Option<()> {
        // A look at its kind moves over the white space before it, and is not yet a step over the value.
        self.next()?;
        let before = self.at;
        each(self)?;
        if self.at == before {
            self.value()?;
        }
        Some(())
    }

    fn enter(&mut self, bracket: u8) -> Option<usize> {
        (self.next()? == bracket).then(|| {
            self.at += 1;
            self.at - 1
        })
    }

    fn leave(&mut self) -> usize {
        self.at += 1;
        self.at
    }

    /// The key whose quote is here, decoded: to an engine `"mod\u0065l"` is `"model"`.
    fn key(&mut self) -> Option<Cow<'a, [u8]>> {
        let raw = &self.json[self.string()?];
        if !raw.contains(&b'\\') {
            return Some(Cow::Borrowed(raw));
        }
        Some(Cow::Owned(unescape(raw).into_owned().into_bytes()))
    }

    /// The content of the string whose quote is here.
    fn string(&mut self) -> Option<Range<usize>> {
        let range = string_at(self.json, self.at)?;
        self.at = range.end + 1;
        Some(range)
    }

    /// The next byte that is no white space.
    fn next(&mut self) -> Option<u8> {
        loop {
            match *self.json.get(self.at)? {
                b' ' | b'\n' | b'\r' | b'\t' => self.at += 1,
                byte => return Some(byte),
            }
        }
    }
}

/// The content of the string whose quote is at `at`.
fn string_at(json: &[u8], at: usize) -> Option<Range<usize>> {
    let start = at + 1;
    Some(start..start + closing_quote(json.get(start..)?)?)
}

fn scalar_end(json: &[u8], at: usize) -> usize {
    let stop = |b: &u8| matches!(b, b',' | b'}' | b']' | b' ' | b'\n' | b'\r' | b'\t' | b'"' | b'{' | b'[');
    json[at..].iter().position(stop).map_or(json.len(), |n| at + n)
}

/// What a byte outside of strings means to the end of a container.
const STEPS: [i8; 256] = {
    let mut steps = [0; 256];
    steps[b'{' as usize] = 1;
    steps[b'[' as usize] = 1;
    steps[b'}' as usize] = -1;
    steps[b']' as usize] = -1;
    steps[b'"' as usize] = i8::MAX;
    steps
};

/// One past the bracket that closes the container at `at`. Kinds of brackets are not told apart: engines do that.
fn container_end(json: &[u8], at: usize) -> Option<usize> {
    let mut depth = 0_usize;
    let mut i = at;
    while let Some(&byte) = json.get(i) {
        match STEPS[usize::from(byte)] {
            0 => {}
            i8::MAX => i = string_at(json, i)?.end,
            1 => depth += 1,
            _ => {
                depth -= 1;
                if depth == 0 {
                    return Some(i + 1);
                }
            }
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
    unescape_bytes(raw, usize::MAX, &mut text);
    match String::from_utf8(text) {
        Ok(text) => Cow::Owned(text),
        Err(error) => Cow::Owned(String::from_utf8_lossy(error.as_bytes()).into_owned()),
    }
}

/// Whether bytes became text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Decoded {
    Wholly,
    /// U+FFFD stands for some that did not.
    InPart,
}

/// Appends the decoded bytes of about `bytes` bytes of a raw string content to `to`, and gives what is left. The bytes
/// are the same in however many calls.
pub(crate) fn unescape_bytes<'a>(raw: &'a [u8], bytes: usize, to: &mut Vec<u8>) -> &'a [u8] {
    let mut rest = raw;
    while !rest.is_empty() && raw.len() - rest.len() < bytes {
        let run = memchr::memchr(b'\\', rest).unwrap_or(rest.len()).min(bytes);
        to.extend_from_slice(&rest[..run]);
        rest = &rest[run..];
        if rest.first() == Some(&b'\\') {
            let (decoded, taken) = escape(rest);
            to.extend_from_slice(decoded.encode_utf8(&mut [0; 4]).as_bytes());
            rest = &rest[taken..];
        }
    }
    rest
}

/// Appends the text of about `bytes` bytes of a raw string content to `to`, and gives what is left: long strings are decoded in turns.
pub(crate) fn unescape_some<'a>(raw: &'a [u8], bytes: usize, to: &mut String) -> (&'a [u8], Decoded) {
    let (mut rest, mut all) = (raw, Decoded::Wholly);
    while !rest.is_empty() && raw.len() - rest.len() < bytes {
        let run = memchr::memchr(b'\\', rest).unwrap_or(rest.len());
        let (plain, after) = rest.split_at(char_boundary(&rest[..run], run.min(bytes)));
        rest = after;
        match simdutf8::basic::from_utf8(plain) {
            Ok(plain) => to.push_str(plain),
            Err(_) => {
                to.push_str(&String::from_utf8_lossy(plain));
                all = Decoded::InPart;
            }
        }
        if rest.first() == Some(&b'\\') {
            let (decoded, taken) = escape(rest);
            // The replacement character may also be what was sent.
            let sent = || rest.get(1..6).is_some_and(|escape| escape.eq_ignore_ascii_case(b"ufffd"));
            if decoded == char::REPLACEMENT_CHARACTER && !sent() {
                all = Decoded::InPart;
            }
            to.push(decoded);
            rest = &rest[taken..];
        }
    }
    (rest, all)
}

/// A place close to `at` that is within no character, before it if possible; `at` itself where there is none and the bytes are no text.
fn char_boundary(bytes: &[u8], at: usize) -> usize {
    let within = |at: &usize| bytes.get(*at).is_some_and(|byte| byte & 0xC0 == 0x80);
    let before = (at.saturating_sub(3).max(1)..=at).rev();
    before.chain(at + 1..=bytes.len().min(at + 3)).find(|at| !within(at)).unwrap_or(at)
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
    let bytes = text.as_bytes();
    let is_plain = |byte: u8| byte >= 0x20 && byte != b'"' && byte != b'\\';
    to.push(b'"');
    // Without an early end the compiler looks at many bytes at once.
    if bytes.iter().fold(true, |plain, &byte| plain & is_plain(byte)) {
        to.extend_from_slice(bytes);
    } else {
        for &byte in bytes {
            if is_plain(byte) { to.push(byte) } else { push_escaped(to, byte) }
        }
    }
    to.push(b'"');
}

#[cold]
fn push_escaped(to: &mut Vec<u8>, byte: u8) {
    match byte {
        b'"' => to.extend_from_slice(b"\\\""),
        b'\\' => to.extend_from_slice(b"\\\\"),
        b'\n' => to.extend_from_slice(b"\\n"),
        control => {
            const DIGITS: &[u8; 16] = b"0123456789abcdef";
            to.extend_from_slice(b"\\u00");
            to.push(DIGITS[usize::from(control >> 4)]);
            to.push(DIGITS[usize::from(control & 15)]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn keys(json: &str) -> Option<Vec<(String, String)>> {
        let mut found = Vec::new();
        members(json.as_bytes(), 0..json.len(), |key, value| {
            found.push((
                String::from_utf8_lossy(key).into_owned(),
                String::from_utf8_lossy(value.of(json.as_bytes())).into_owned(),
            ));
        })?;
        Some(found)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(100))]
        #[test]
        fn a_string_decoded_in_turns_is_the_same(raw in "([a-zé€ ]{0,5}|\\\\n|\\\\u00e9|\\\\ud83d\\\\ude00|\\\\\\\\){0,12}", bytes in 1usize..9) {
            let (mut rest, mut in_turns) = (raw.as_bytes(), String::new());
            while !rest.is_empty() {
                rest = unescape_some(rest, bytes, &mut in_turns).0;
            }
            prop_assert_eq!(in_turns, unescape(raw.as_bytes()));
        }
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
    fn a_value_that_was_only_looked_at_is_passed_over_whatever_stands_before_it() {
        for json in [r#"{"a":1,"b":2}"#, "{\"a\" : 1, \"b\":\n\t{} }", r#"{"a": "x", "b": "y"}"#] {
            let mut seen = Vec::new();
            let whole = Cursor::new(json.as_bytes(), 0..json.len()).members(|key, cursor| {
                seen.push((key.to_vec(), cursor.kind()? == Kind::Array));
                Some(())
            });
            assert_eq!(whole, Some(0..json.len()), "{json}");
            assert_eq!(seen, [(b"a".to_vec(), false), (b"b".to_vec(), false)], "{json}");
        }
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
                seen.insert(String::from_utf8_lossy(key).into_owned(), parsed);
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
