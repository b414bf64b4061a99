//! Tests over a request or a candidate. Everything that can fail to compile does so here, at load;
//! evaluation cannot fail, does not allocate, and takes time linear in the text it reads.

use std::fmt;

use regex_automata::meta;

use crate::decide::Candidate;
use crate::request::{Api, Request, Streaming};
use crate::rule::Backend;
use crate::signal::Signal;

/// Compiled size a header's regular expression may reach, in bytes: a policy is small, and a larger
/// automaton would cost every data thread that much memory.
pub const REGEX_BYTES_MAX: usize = 1 << 20;

/// A string to compare with, where `*` matches any run of characters (also none).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pattern {
    text: Box<str>,
    /// The runs between the stars; one run means no star.
    parts: Box<[Box<str>]>,
}

impl Pattern {
    /// Compiles `text`; every text is a pattern.
    #[must_use]
    pub fn new(text: &str) -> Self {
        Self { text: text.into(), parts: text.split('*').map(Into::into).collect() }
    }

    /// The pattern as written.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Whether the pattern has no star, and so matches one string only.
    #[must_use]
    pub fn is_exact(&self) -> bool {
        self.parts.len() == 1
    }

    /// Whether the whole of `text` matches. Greedy from the left, which finds a match whenever there
    /// is one, in one pass.
    #[must_use]
    pub fn matches(&self, text: &str) -> bool {
        let (Some(first), Some(last)) = (self.parts.first(), self.parts.last()) else { return false };
        if self.is_exact() {
            return **first == *text;
        }
        let Some(mut rest) = text.strip_prefix(&**first) else { return false };
        let Some(before_last) = rest.strip_suffix(&**last) else { return false };
        rest = before_last;
        let middle = self.parts.get(1..self.parts.len() - 1).unwrap_or_default();
        for part in middle {
            match rest.find(&**part) {
                Some(at) => rest = rest.get(at + part.len()..).unwrap_or_default(),
                None => return false,
            }
        }
        true
    }
}

/// Whether `text` matches one of `patterns`; an empty list asks nothing and so holds.
#[must_use]
pub fn any_pattern(patterns: &[Pattern], text: &str) -> bool {
    patterns.is_empty() || patterns.iter().any(|p| p.matches(text))
}

/// A test over the tags of a prompt; the default asks nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TagCondition {
    /// At least one of these, when the list is not empty.
    pub any: Vec<String>,
    /// Every one of these.
    pub all: Vec<String>,
    /// Not one of these.
    pub none: Vec<String>,
}

impl TagCondition {
    /// Whether the condition asks nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.any.is_empty() && self.all.is_empty() && self.none.is_empty()
    }

    /// Whether it holds for `request`.
    #[must_use]
    pub fn holds(&self, request: &Request<'_>) -> bool {
        (self.any.is_empty() || self.any.iter().any(|t| request.has_tag(t)))
            && self.all.iter().all(|t| request.has_tag(t))
            && !self.none.iter().any(|t| request.has_tag(t))
    }

    /// Every tag named, in the order written.
    pub fn tags(&self) -> impl Iterator<Item = &str> {
        self.any.iter().chain(&self.all).chain(&self.none).map(String::as_str)
    }
}

/// A range of numbers; the default asks nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct NumberRange {
    /// The value is above this.
    pub greater_than: Option<f64>,
    /// The value is this or above.
    pub at_least: Option<f64>,
    /// The value is below this.
    pub less_than: Option<f64>,
    /// The value is this or below.
    pub at_most: Option<f64>,
}

impl NumberRange {
    /// Whether the range asks nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Whether a known value lies in the range. NaN lies in no range but the empty one.
    #[must_use]
    pub fn contains(&self, value: f64) -> bool {
        self.greater_than.is_none_or(|bound| value > bound)
            && self.at_least.is_none_or(|bound| value >= bound)
            && self.less_than.is_none_or(|bound| value < bound)
            && self.at_most.is_none_or(|bound| value <= bound)
    }
}

impl fmt::Display for NumberRange {
    /// `above 4, at most 6`
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bounds = [
            ("above", self.greater_than),
            ("at least", self.at_least),
            ("below", self.less_than),
            ("at most", self.at_most),
        ];
        let given = bounds.into_iter().filter_map(|(word, bound)| bound.map(|b| format!("{word} {b}")));
        let given: Vec<String> = given.collect();
        if given.is_empty() { f.write_str("any") } else { f.write_str(&given.join(", ")) }
    }
}

impl fmt::Display for TagCondition {
    /// `any of [a, b], none of [c]`
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sets = [("any of", &self.any), ("all of", &self.all), ("none of", &self.none)];
        let given = sets.into_iter().filter(|(_, tags)| !tags.is_empty());
        let given: Vec<String> = given.map(|(word, tags)| format!("{word} [{}]", tags.join(", "))).collect();
        if given.is_empty() { f.write_str("any") } else { f.write_str(&given.join(", ")) }
    }
}

impl fmt::Display for HeaderCondition {
    /// `x-team begins with "search"`
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = &self.name;
        match &self.test {
            HeaderTest::Exact(text) => write!(f, "{name} is {text:?}"),
            HeaderTest::Prefix(text) => write!(f, "{name} begins with {text:?}"),
            HeaderTest::Regex(regex) => write!(f, "{name} matches {:?}", regex.text),
            HeaderTest::Present => write!(f, "{name} is there"),
            HeaderTest::Absent => write!(f, "{name} is not there"),
        }
    }
}

/// How a header's value is tested.
#[derive(Clone, Debug)]
pub enum HeaderTest {
    /// The value is this, byte for byte.
    Exact(String),
    /// The value begins with this.
    Prefix(String),
    /// The whole value matches; boxed, as the automaton is large beside the other variants.
    Regex(Box<HeaderRegex>),
    /// The header is there.
    Present,
    /// The header is not there.
    Absent,
}

/// A regular expression with the text it was written as.
#[derive(Clone, Debug)]
pub struct HeaderRegex {
    text: String,
    regex: meta::Regex,
}

impl HeaderRegex {
    /// The expression as written.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.text
    }
}

impl HeaderTest {
    /// Compiles a regular expression that must match the whole value. Linear time on every input.
    ///
    /// # Errors
    /// The reason, for the person who wrote it, when it does not compile or compiles to more than [`REGEX_BYTES_MAX`].
    pub fn regex(text: &str) -> Result<Self, String> {
        // Parsed alone first: `a)(?:b` is an error, though it would be balanced inside the group below.
        compile(text)?;
        let regex = compile(&format!("^(?:{text})$"))?;
        Ok(HeaderTest::Regex(Box::new(HeaderRegex { text: text.to_owned(), regex })))
    }
}

/// Compiles an expression within [`REGEX_BYTES_MAX`], or says in one line why not.
fn compile(pattern: &str) -> Result<meta::Regex, String> {
    let config = meta::Config::new().nfa_size_limit(Some(REGEX_BYTES_MAX));
    meta::Builder::new().configure(config).build(pattern).map_err(|error| match error.syntax_error() {
        Some(syntax) => syntax.to_string().lines().last().unwrap_or("does not compile").trim().to_owned(),
        None => error.to_string(),
    })
}

impl HeaderTest {
    /// Whether a header with this one value passes the test.
    #[must_use]
    pub fn accepts(&self, value: &[u8]) -> bool {
        match self {
            HeaderTest::Exact(text) => value == text.as_bytes(),
            HeaderTest::Prefix(text) => value.starts_with(text.as_bytes()),
            HeaderTest::Regex(r) => r.regex.is_match(value),
            HeaderTest::Present => true,
            HeaderTest::Absent => false,
        }
    }

    /// The text that is compared with.
    pub(crate) fn literal(&self) -> Option<&str> {
        match self {
            HeaderTest::Exact(text) | HeaderTest::Prefix(text) => Some(text),
            HeaderTest::Regex(r) => Some(&r.text),
            HeaderTest::Present | HeaderTest::Absent => None,
        }
    }
}

impl PartialEq for HeaderTest {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (HeaderTest::Exact(a), HeaderTest::Exact(b)) | (HeaderTest::Prefix(a), HeaderTest::Prefix(b)) => a == b,
            (HeaderTest::Regex(a), HeaderTest::Regex(b)) => a.text == b.text,
            (HeaderTest::Present, HeaderTest::Present) | (HeaderTest::Absent, HeaderTest::Absent) => true,
            (
                HeaderTest::Exact(_)
                | HeaderTest::Prefix(_)
                | HeaderTest::Regex(_)
                | HeaderTest::Present
                | HeaderTest::Absent,
                _,
            ) => false,
        }
    }
}

/// A test over one header; of a repeated header any value will do.
#[derive(Clone, Debug, PartialEq)]
pub struct HeaderCondition {
    /// The header's name, in lower case.
    pub name: String,
    /// What its value must be.
    pub test: HeaderTest,
}

impl HeaderCondition {
    /// Whether it holds for `request`.
    #[must_use]
    pub fn holds(&self, request: &Request<'_>) -> bool {
        let found = |test: &HeaderTest| request.headers.any_value(&self.name, &mut |value| test.accepts(value));
        match &self.test {
            HeaderTest::Absent => !found(&HeaderTest::Present),
            test @ (HeaderTest::Exact(_) | HeaderTest::Prefix(_) | HeaderTest::Regex(_) | HeaderTest::Present) => {
                found(test)
            }
        }
    }
}

/// One entry of a rule's `matches`: all its parts must hold; the default matches every request.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Match {
    /// Names the client may have asked for; empty asks nothing.
    pub models: Vec<Pattern>,
    /// Tenants that may be calling; empty asks nothing.
    pub tenants: Vec<Pattern>,
    /// Tags of the prompt.
    pub tags: TagCondition,
    /// Headers, all of which must hold.
    pub headers: Vec<HeaderCondition>,
    /// APIs; empty asks nothing.
    pub apis: Vec<Api>,
    /// Streamed or not.
    pub stream: Option<Streaming>,
    /// Estimated prompt length in tokens.
    pub prompt_tokens: NumberRange,
}

impl Match {
    /// Whether a request for `model` may hold.
    pub(crate) fn is_for_model(&self, model: &str) -> bool {
        any_pattern(&self.models, model)
    }

    /// Whether every part but the model holds for `request`.
    pub(crate) fn holds_but_model(&self, request: &Request<'_>) -> bool {
        self.first_failing_besides(request).is_none() && self.headers.iter().all(|h| h.holds(request))
    }

    /// The first part that does not hold for `request`, or `None` when all do.
    #[must_use]
    pub fn first_failing(&self, request: &Request<'_>) -> Option<MatchPart> {
        self.first_failing_but_headers(request)
            .or_else(|| (!self.headers.iter().all(|h| h.holds(request))).then_some(MatchPart::Headers))
    }

    /// The cheap parts first, as most rules are not for most requests.
    fn first_failing_but_headers(&self, request: &Request<'_>) -> Option<MatchPart> {
        if self.is_for_model(request.model) { self.first_failing_besides(request) } else { Some(MatchPart::Model) }
    }

    /// The first part besides model and headers that does not hold.
    fn first_failing_besides(&self, request: &Request<'_>) -> Option<MatchPart> {
        if !any_pattern(&self.tenants, request.tenant) {
            Some(MatchPart::Tenant)
        } else if !self.apis.is_empty() && !self.apis.contains(&request.api) {
            Some(MatchPart::Api)
        } else if self.stream.is_some_and(|s| s != request.stream) {
            Some(MatchPart::Stream)
        } else if !self.prompt_tokens.contains(request.prompt_tokens) {
            Some(MatchPart::PromptTokens)
        } else if !self.tags.holds(request) {
            Some(MatchPart::Tags)
        } else {
            None
        }
    }

    /// Whether every part but the headers holds for `request`.
    pub(crate) fn holds_but_headers(&self, request: &Request<'_>) -> bool {
        self.first_failing_but_headers(request).is_none()
    }

    /// Whether every part holds for `request`.
    #[must_use]
    pub fn holds(&self, request: &Request<'_>) -> bool {
        self.first_failing(request).is_none()
    }
}

/// A part of a [`Match`], to say which one failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MatchPart {
    /// `model` or `models`
    Model,
    /// `tenant` or `tenants`
    Tenant,
    /// `tags`
    Tags,
    /// `headers`
    Headers,
    /// `api`
    Api,
    /// `stream`
    Stream,
    /// `promptTokens`
    PromptTokens,
}

impl MatchPart {
    /// The field's name in a policy.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            MatchPart::Model => "model",
            MatchPart::Tenant => "tenant",
            MatchPart::Tags => "tags",
            MatchPart::Headers => "headers",
            MatchPart::Api => "api",
            MatchPart::Stream => "stream",
            MatchPart::PromptTokens => "promptTokens",
        }
    }
}

/// One condition over a candidate, of an exclude entry.
#[derive(Clone, Debug, PartialEq)]
pub enum DropCondition {
    /// The candidate is of this kind.
    Backend(Backend),
    /// The candidate belongs to one of these destinations (indices in the pool).
    Destinations(Vec<u16>),
    /// The signal is known and lies in the range.
    Number {
        /// Which signal.
        signal: Signal,
        /// Values that drop.
        range: NumberRange,
    },
    /// The model's context window is known and shorter than the prompt.
    ContextBelowPrompt,
}

impl DropCondition {
    /// Whether it holds; never for an unknown value.
    pub fn holds<C: Candidate>(&self, request: &Request<'_>, candidate: &C) -> bool {
        match self {
            DropCondition::Backend(backend) => candidate.backend() == *backend,
            DropCondition::Destinations(wanted) => wanted.contains(&candidate.target().destination),
            DropCondition::Number { signal, range } => {
                candidate.signal(*signal).is_some_and(|v| !v.is_nan() && range.contains(v))
            }
            DropCondition::ContextBelowPrompt => {
                // NaN compares false, so an unknown prompt length drops nothing.
                candidate.signal(Signal::ContextWindow).is_some_and(|window| window < request.prompt_tokens)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::HeaderMap;
    use proptest::prelude::*;

    /// The obvious matcher: try every split at every star.
    fn glob_slowly(pattern: &[u8], text: &[u8]) -> bool {
        match pattern.split_first() {
            None => text.is_empty(),
            Some((b'*', rest)) => (0..=text.len()).any(|skip| glob_slowly(rest, &text[skip..])),
            Some((c, rest)) => text.first() == Some(c) && glob_slowly(rest, &text[1..]),
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(400))]
        #[test]
        fn patterns_agree_with_the_obvious_matcher(pattern in "[ab*]{0,7}", text in "[ab]{0,8}") {
            prop_assert_eq!(Pattern::new(&pattern).matches(&text), glob_slowly(pattern.as_bytes(), text.as_bytes()));
        }
    }

    #[test]
    fn prefix_and_suffix_of_a_pattern_may_not_share_characters() {
        assert!(!Pattern::new("aa*aa").matches("aaa"));
        assert!(Pattern::new("aa*aa").matches("aaaa"));
    }

    #[test]
    fn unknown_values_lie_in_no_range() {
        let above = NumberRange { greater_than: Some(1.0), ..NumberRange::default() };
        assert!(!above.contains(f64::NAN));
        assert!(NumberRange::default().contains(f64::NAN));
    }

    #[test]
    fn bounds_are_open_or_closed_as_their_names_say() {
        let open = NumberRange { greater_than: Some(4.0), less_than: Some(6.0), ..NumberRange::default() };
        assert!(!open.contains(4.0) && open.contains(5.0) && !open.contains(6.0));
        let closed = NumberRange { at_least: Some(4.0), at_most: Some(6.0), ..NumberRange::default() };
        assert!(closed.contains(4.0) && closed.contains(6.0) && !closed.contains(6.1));
    }

    #[test]
    fn a_header_expression_must_match_the_whole_value() {
        let test = HeaderTest::regex("a|b+").expect("compiles");
        let condition = HeaderCondition { name: "x-team".into(), test };
        let holds = |value: &str| {
            let headers = HeaderMap(vec![("x-team".into(), value.into())]);
            condition.holds(&Request { headers: &headers, ..Request::chat("m", "t") })
        };
        assert!(holds("a") && holds("bbb"));
        assert!(!holds("ab") && !holds("xa"));
    }

    #[test]
    fn expressions_that_do_not_compile_or_are_too_large_are_refused() {
        assert!(HeaderTest::regex("a)(?:b").is_err());
        assert!(HeaderTest::regex("(").is_err());
        assert!(HeaderTest::regex(r"\w{5000}{50}").is_err());
    }
}
