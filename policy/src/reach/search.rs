//! Is there a request that one entry takes and none of some others does?
//!
//! A search led by counterexamples: make up a request that satisfies what is asked so far; where an entry takes it after all,
//! go on with each way in which that entry would not (another model, another tenant, one tag more or less, ...). What can be
//! asked of one part of a request is decided exactly, so a search that ends with nothing is a proof that there is no such
//! request, and what it finds is one.

use std::fmt;

use crate::condition::{HeaderCondition, HeaderTest, Match, NumberRange, Pattern, any_pattern};
use crate::request::{Api, HeaderMap, Request, Streaming};

/// A request that shows something.
#[derive(Clone, Debug, PartialEq)]
pub struct Example {
    /// The name asked for; empty for a path without a model.
    pub model: String,
    /// Who is calling.
    pub tenant: String,
    /// Tags of the prompt.
    pub tags: Vec<String>,
    /// The API.
    pub api: Api,
    /// Streamed or not.
    pub stream: Streaming,
    /// Length of the prompt; NaN when it does not matter.
    pub prompt_tokens: f64,
    /// Headers it must carry.
    pub headers: Vec<(String, String)>,
}

impl Example {
    /// Calls `with` with the example as a request.
    pub fn request<R>(&self, with: impl FnOnce(&Request<'_>) -> R) -> R {
        let tags: Vec<&str> = self.tags.iter().map(String::as_str).collect();
        let headers = HeaderMap(self.headers.clone());
        with(&Request {
            model: &self.model,
            tenant: &self.tenant,
            tags: &tags,
            api: self.api,
            stream: self.stream,
            prompt_tokens: self.prompt_tokens,
            headers: &headers,
            conversation: None,
        })
    }
}

impl fmt::Display for Example {
    /// `a request for \`m\` by the tenant \`t\`, tagged \`pii\``, then only what is not as in most requests.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.model.as_str() {
            "" => write!(f, "a request that names no model")?,
            model => write!(f, "a request for `{model}`")?,
        }
        write!(f, " by the tenant `{}`", self.tenant.replace(FRESH, "?"))?;
        if !self.tags.is_empty() {
            write!(f, ", tagged `{}`", self.tags.join("`, `"))?;
        }
        if self.api != Api::ChatCompletions {
            write!(f, ", of the API {}", self.api.as_str())?;
        }
        if self.stream == Streaming::Yes {
            write!(f, ", streamed")?;
        }
        if !self.prompt_tokens.is_nan() {
            write!(f, ", of {} prompt tokens", self.prompt_tokens)?;
        }
        for (name, value) in &self.headers {
            write!(f, ", with the header `{name}: {}`", value.replace(FRESH, "?"))?;
        }
        Ok(())
    }
}

/// What a search ends with.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Found {
    /// There is no such request.
    Nothing,
    /// This is one.
    Request(Box<Example>),
    /// There may be one.
    GaveUp,
}

/// What searches may still cost.
#[derive(Debug)]
pub(super) struct Steps {
    left: u64,
}

impl Steps {
    pub(super) fn new(left: u64) -> Self {
        Self { left }
    }
}

/// Looks for a request for one of `models`, tagged `tag`, that `entry` takes and none of `obstacles`.
pub(super) fn search(
    entry: &Match,
    tag: Option<&str>,
    models: &[&str],
    obstacles: &[&Match],
    steps: &mut Steps,
) -> Found {
    let open = Case {
        models: models.iter().copied().filter(|name| any_pattern(&entry.models, name)).collect(),
        tenants: &entry.tenants,
        not_tenants: Vec::new(),
        apis: Api::ALL.into_iter().filter(|api| entry.apis.is_empty() || entry.apis.contains(api)).collect(),
        streams: [Streaming::No, Streaming::Yes].into_iter().filter(|s| entry.stream.is_none_or(|e| e == *s)).collect(),
        tokens: entry.prompt_tokens,
        not_tokens: Vec::new(),
        with: entry.tags.all.iter().map(String::as_str).chain(tag).collect(),
        without: entry.tags.none.iter().map(String::as_str).collect(),
        headers: entry.headers.iter().collect(),
        not_headers: Vec::new(),
    };
    let cases: Vec<Case<'_>> = match entry.tags.any.as_slice() {
        [] => vec![open],
        any => any.iter().map(|tag| open.tagged(tag)).collect(),
    };
    first_found(cases, obstacles, steps)
}

/// The first request found in one of `cases`.
fn first_found(cases: Vec<Case<'_>>, obstacles: &[&Match], steps: &mut Steps) -> Found {
    let mut gave_up = false;
    for case in cases {
        match case.search(obstacles, steps) {
            Found::Nothing => {}
            Found::GaveUp => gave_up = true,
            Found::Request(example) => return Found::Request(example),
        }
    }
    if gave_up { Found::GaveUp } else { Found::Nothing }
}

/// What is asked of a request so far.
#[derive(Clone, Debug)]
struct Case<'m> {
    /// Names that are still possible; the same for APIs and streaming.
    models: Vec<&'m str>,
    apis: Vec<Api>,
    streams: Vec<Streaming>,
    /// One of these, when there are any, and none of the others.
    tenants: &'m [Pattern],
    not_tenants: Vec<&'m Pattern>,
    tokens: NumberRange,
    not_tokens: Vec<NumberRange>,
    with: Vec<&'m str>,
    without: Vec<&'m str>,
    headers: Vec<&'m HeaderCondition>,
    not_headers: Vec<&'m HeaderCondition>,
}

/// A made-up request, with the headers for which no value could be made up.
struct Made {
    example: Example,
    opaque: Vec<String>,
}

impl<'m> Case<'m> {
    fn tagged(&self, tag: &'m str) -> Self {
        let mut case = self.clone();
        case.with.push(tag);
        case
    }

    /// Each part of the recursion settles one thing more that some obstacle asks for, so its depth is bounded by what the
    /// obstacles ask for in all, and its work by `steps`.
    fn search(&self, obstacles: &[&'m Match], steps: &mut Steps) -> Found {
        let Some(made) = self.make() else { return Found::Nothing };
        let taker = self.first_taker(&made, obstacles);
        match steps.left.checked_sub(taker.map_or(obstacles.len(), |taker| taker + 1) as u64) {
            Some(left) => steps.left = left,
            None => return Found::GaveUp,
        }
        let Some(taker) = taker else { return Found::Request(Box::new(made.example)) };
        let ways = obstacles.get(taker).map(|taker| self.ways_past(taker)).unwrap_or_default();
        first_found(ways, obstacles, steps)
    }

    /// The first of `obstacles` that takes the made-up request. What is not known of a header is taken not to hold.
    fn first_taker(&self, made: &Made, obstacles: &[&Match]) -> Option<usize> {
        let header = |condition: &HeaderCondition, request: &Request<'_>| {
            if made.opaque.contains(&condition.name) {
                self.headers.contains(&condition)
            } else {
                condition.holds(request)
            }
        };
        made.example.request(|request| {
            let takes = |o: &&Match| o.holds_but_headers(request) && o.headers.iter().all(|h| header(h, request));
            obstacles.iter().position(takes)
        })
    }

    /// The parts of this case in which `obstacle` takes nothing.
    fn ways_past(&self, obstacle: &'m Match) -> Vec<Self> {
        let mut ways = Vec::new();
        let mut way = |change: &dyn Fn(&mut Self)| {
            let mut case = self.clone();
            change(&mut case);
            ways.push(case);
        };
        if !obstacle.models.is_empty() {
            way(&|case| case.models.retain(|name| !any_pattern(&obstacle.models, name)));
        }
        if !obstacle.tenants.is_empty() {
            way(&|case| case.not_tenants.extend(&obstacle.tenants));
        }
        if !obstacle.apis.is_empty() {
            way(&|case| case.apis.retain(|api| !obstacle.apis.contains(api)));
        }
        if let Some(stream) = obstacle.stream {
            way(&|case| case.streams.retain(|s| *s != stream));
        }
        if !obstacle.prompt_tokens.is_empty() {
            way(&|case| case.not_tokens.push(obstacle.prompt_tokens));
        }
        if !obstacle.tags.any.is_empty() {
            way(&|case| case.without.extend(obstacle.tags.any.iter().map(String::as_str)));
        }
        for tag in &obstacle.tags.all {
            way(&|case| case.without.push(tag));
        }
        for tag in &obstacle.tags.none {
            way(&|case| case.with.push(tag));
        }
        for header in &obstacle.headers {
            way(&|case| case.not_headers.push(header));
        }
        ways
    }

    /// A request of this case; `None` when there is none.
    fn make(&self) -> Option<Made> {
        let mut tags: Vec<&str> = self.with.clone();
        tags.sort_unstable();
        tags.dedup();
        let least = Request { tags: &tags, ..Request::chat("", "") };
        if self.without.iter().any(|tag| least.has_tag(tag)) {
            return None;
        }
        let mut made = Made {
            example: Example {
                model: (*self.models.first()?).to_owned(),
                tenant: self.make_tenant()?,
                tags: tags.into_iter().map(str::to_owned).collect(),
                api: *self.apis.first()?,
                stream: *self.streams.first()?,
                prompt_tokens: self.make_tokens()?,
                headers: Vec::new(),
            },
            opaque: Vec::new(),
        };
        self.make_headers(&mut made)?;
        Some(made)
    }

    fn make_tenant(&self) -> Option<String> {
        let free = |name: &String| !self.not_tenants.iter().any(|p| p.matches(name));
        if self.tenants.is_empty() {
            return ["anonymous", "someone", FRESH].into_iter().map(str::to_owned).find(free);
        }
        self.tenants.iter().flat_map(instances).find(free)
    }

    /// A number in the range and outside the others: if there is one, a bound, a number between two neighbouring bounds or
    /// beyond all of them is one.
    fn make_tokens(&self) -> Option<f64> {
        if self.tokens.is_empty() && self.not_tokens.is_empty() {
            return Some(f64::NAN);
        }
        let ranges = self.not_tokens.iter().chain([&self.tokens]);
        let bounds = ranges.flat_map(|r| [r.greater_than, r.at_least, r.less_than, r.at_most]).flatten();
        let mut bounds: Vec<f64> = bounds.filter(|b| *b >= 0.0).chain([0.0]).collect();
        bounds.sort_by(f64::total_cmp);
        let between = bounds.windows(2).map(|pair| match pair {
            [low, high] if high - low > 1.0 => (low + 1.0).floor(),
            [low, high] => f64::midpoint(*low, *high),
            _ => 0.0,
        });
        let beyond = bounds.last().map(|b| b + 1.0);
        let fits = |v: &f64| self.tokens.contains(*v) && !self.not_tokens.iter().any(|r| r.contains(*v));
        bounds.iter().copied().chain(between).chain(beyond).chain([f64::NAN]).find(fits)
    }

    /// Values for the headers that are asked for; `None` when there can be none.
    fn make_headers(&self, made: &mut Made) -> Option<()> {
        let mut names: Vec<&str> = self.headers.iter().chain(&self.not_headers).map(|h| h.name.as_str()).collect();
        names.sort_unstable();
        names.dedup();
        for name in names {
            let of_name = |list: &[&'m HeaderCondition]| -> Vec<&'m HeaderTest> {
                list.iter().filter(|h| h.name == name).map(|h| &h.test).collect()
            };
            match header_values(&of_name(&self.headers), &of_name(&self.not_headers)) {
                Values::These(values) => {
                    made.example.headers.extend(values.into_iter().map(|value| (name.to_owned(), value)));
                }
                Values::Unknown => made.opaque.push(name.to_owned()),
                Values::Impossible => return None,
            }
        }
        Some(())
    }
}

/// Texts a pattern matches. A pattern that matches the last of them, which has a new letter for each star, matches all that
/// this one does.
pub(super) fn instances(pattern: &Pattern) -> [String; 3] {
    ["", "1", FRESH].map(|run| pattern.as_str().replace('*', run))
}

/// A letter that stands in no policy.
const FRESH: &str = "\u{e000}";

/// Values of one header.
enum Values {
    These(Vec<String>),
    /// There may be some; they cannot be made up.
    Unknown,
    Impossible,
}

/// Values of one header for which every test of `hold` holds and none of `fail`.
fn header_values(hold: &[&HeaderTest], fail: &[&HeaderTest]) -> Values {
    let absent = hold.contains(&&HeaderTest::Absent) || fail.contains(&&HeaderTest::Present);
    let mut needed: Vec<&HeaderTest> = hold.iter().copied().filter(|t| **t != HeaderTest::Absent).collect();
    if fail.contains(&&HeaderTest::Absent) {
        needed.push(&HeaderTest::Present);
    }
    if absent {
        return if needed.is_empty() { Values::These(Vec::new()) } else { Values::Impossible };
    }
    let mut values = Vec::new();
    let mut unknown = false;
    for test in needed {
        let fits = |v: &String| test.accepts(v.as_bytes()) && !fail.iter().any(|f| f.accepts(v.as_bytes()));
        let written = hold.iter().chain(fail).filter_map(|t| t.literal()).map(str::to_owned);
        let made = test.literal().into_iter().flat_map(|text| [text.to_owned(), format!("{text}{FRESH}")]);
        match made.chain(written).chain([String::from("1"), FRESH.to_owned()]).find(fits) {
            Some(value) => values.push(value),
            None if is_proof(test, fail) => return Values::Impossible,
            None => unknown = true,
        }
    }
    values.dedup();
    if unknown { Values::Unknown } else { Values::These(values) }
}

/// Whether no value satisfies `test` and none of `fail`, when none of the made-up ones did.
fn is_proof(test: &HeaderTest, fail: &[&HeaderTest]) -> bool {
    match test {
        // Its only value was tried.
        HeaderTest::Exact(_) => true,
        // A new letter after it was tried; only an expression can tell new letters apart.
        HeaderTest::Prefix(_) | HeaderTest::Present => !fail.iter().any(|f| matches!(f, HeaderTest::Regex(_))),
        HeaderTest::Regex(_) => fail.contains(&test),
        HeaderTest::Absent => true,
    }
}
