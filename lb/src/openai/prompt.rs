//! The prompt of a request as the chat template sees it: tools, system, then the messages in order.
//!
//! One walk serves the prefix chain and the classifiers. It builds nothing: pieces are ranges of the body.

use std::borrow::Cow;
use std::ops::Range;

use predictor::prefix::chain::{Chain, ChainBuilder, MEDIA_WEIGHT_BYTES, Seed, TOKEN_ID_BYTES};
use tokenizer::Tokens;
use xxhash_rust::xxh3::Xxh3;

use super::request::{Purpose, Request};
use super::scan::{self, Cursor, Kind, Value};
use crate::pace::Breath;

/// Who speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    /// Definitions of tools: raw JSON.
    Tools,
    /// `system` and `developer`.
    System,
    /// `user`, and prompts without roles.
    User,
    /// `assistant`.
    Assistant,
    /// `tool` and `function`: results of tools.
    Tool,
}

impl Role {
    fn of(name: &[u8]) -> Self {
        match name {
            b"system" | b"developer" => Self::System,
            b"assistant" => Self::Assistant,
            b"tool" | b"function" => Self::Tool,
            _ => Self::User,
        }
    }
}

/// A piece of a prompt, in order.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Piece<'a> {
    /// What follows is said by this role.
    Turn(Role),
    /// The turn goes on, by this role again: what was said in between was a tool's.
    Again(Role),
    /// The raw content of a JSON string: text once unescaped.
    Text(&'a [u8]),
    /// Text as it is.
    Plain(&'a [u8]),
    /// Raw JSON that is not shown as it is, but in some form the template makes of it (a tool, a tool call).
    Json(&'a [u8]),
    /// An image, audio or another item: one unit, told apart by its full content.
    Media(Media, &'a [u8]),
    /// A raw JSON array of token ids.
    TokenIds(&'a [u8]),
}

/// What kind of item.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Media {
    /// `image_url`, `image`, `input_image`
    Image,
    /// `input_audio`, `audio_url`
    Audio,
    /// Anything else.
    Other,
}

/// Most bytes of a first message that tell conversations apart.
const FIRST_MESSAGE_BYTES_MAX: usize = 2 << 10;

/// A number that the requests of one conversation share: that of the user's first message, which comes back with every turn,
/// and of the caller. `None` when there is no text of a user.
pub(crate) fn conversation(request: &Request, body: &[u8], tenant: &str) -> Option<u64> {
    let mut hash = Xxh3::new();
    hash.update(tenant.as_bytes());
    let (mut speaker, mut left, mut spoken) = (Role::User, FIRST_MESSAGE_BYTES_MAX, false);
    walk(request, body, &mut |piece| match piece {
        Piece::Turn(role) | Piece::Again(role) => {
            // What follows the first message is not looked at.
            left = if spoken { 0 } else { left };
            speaker = role;
        }
        Piece::Text(said) | Piece::Plain(said) | Piece::Json(said) | Piece::Media(_, said) | Piece::TokenIds(said) => {
            if speaker == Role::User && left > 0 {
                let said = &said[..said.len().min(left)];
                hash.update(said);
                left -= said.len();
                spoken = true;
            }
        }
    });
    spoken.then(|| hash.digest())
}

/// Calls `each` with the pieces of the prompt.
pub(crate) fn walk<'a>(request: &'a Request, body: &'a [u8], each: &mut impl FnMut(Piece<'a>)) {
    let mut walk = Walk::new(request, body);
    while walk.step(each).is_some() {}
}

/// A message takes as long as searching so many bytes, whatever its length: some 200 ns.
pub(crate) const MESSAGE_SEARCHED_BYTES: usize = 640;

/// A walk over the pieces of a prompt, a message at a time.
#[derive(Debug)]
pub(crate) struct Walk<'a> {
    request: &'a Request,
    body: &'a [u8],
    /// Which part is next: tools, system, instructions, each text, messages, prompt, input, tokens, the prompt of a form.
    part: usize,
    /// In the array of a part.
    array: Option<Cursor<'a>>,
    /// What is left of the message that was begun, the next one first.
    left: Vec<Left<'a>>,
}

/// What is left of a message.
#[derive(Debug)]
enum Left<'a> {
    /// What a role says, within so many results of tools.
    Content { value: Value, role: Role, depth: u32 },
    /// In the list of parts of what a role says.
    Parts { parts: Cursor<'a>, role: Role, depth: u32 },
    /// A piece.
    Piece(Piece<'a>),
}

/// Results of tools are looked into so deep in each other; what lies deeper is taken as it is written. Each level is passed over
/// once more, so that endless ones would take endless time.
const DEPTH_MAX: u32 = 4;

impl<'a> Walk<'a> {
    pub(crate) fn new(request: &'a Request, body: &'a [u8]) -> Self {
        Self { request, body, part: 0, array: None, left: Vec::new() }
    }

    /// Calls `each` with the pieces of the next message, of the next part of one, or of another part of the body. How many bytes of the body that was; `None` behind the last.
    pub(crate) fn step(&mut self, each: &mut impl FnMut(Piece<'a>)) -> Option<usize> {
        if let Some(left) = self.left.pop() {
            return Some(self.go_on(left, each));
        }
        if let Some(array) = &mut self.array {
            let (body, before, left) = (self.body, array.at(), &mut self.left);
            // What is not a whole array is the engine's to refuse.
            if array.element(|cursor| element(body, cursor, left, each)) == Some(true) {
                return Some(array.at() - before);
            }
            self.array = None;
        }
        let (part, request) = (self.part, self.request);
        self.part += 1;
        const FIRST_TEXT: usize = 3;
        let texts = request.texts.len();
        match part {
            0 => self.tools(each),
            1 => self.system(request.system.as_ref(), each),
            2 => self.system(request.instructions.as_ref(), each),
            part if part < FIRST_TEXT + texts => self.turns(Some(&request.texts[part - FIRST_TEXT].1), each),
            part => match part - FIRST_TEXT - texts {
                0 => self.turns(request.messages.as_ref(), each),
                1 => self.turns(request.prompt.as_ref(), each),
                2 => self.turns(request.input.as_ref(), each),
                3 => self.token_ids(each),
                4 => self.form_prompt(each),
                _ => return None,
            },
        }
        Some(0)
    }

    fn tools(&self, each: &mut impl FnMut(Piece<'a>)) {
        if let Some(tools) = self.request.tools.as_ref().filter(|tools| tools.range.len() > 2) {
            each(Piece::Turn(Role::Tools));
            each(Piece::Json(tools.of(self.body)));
        }
    }

    fn system(&mut self, value: Option<&Value>, each: &mut impl FnMut(Piece<'a>)) {
        if let Some(system) = value.filter(|system| !system.is_null(self.body)) {
            each(Piece::Turn(Role::System));
            self.left.push(Left::Content { value: system.clone(), role: Role::System, depth: 0 });
        }
    }

    /// The next piece of a message, or the next of its parts. How many bytes that was.
    fn go_on(&mut self, left: Left<'a>, each: &mut impl FnMut(Piece<'a>)) -> usize {
        let body = self.body;
        match left {
            Left::Piece(piece) => {
                each(piece);
                0
            }
            Left::Content { value, role, depth } => match value.kind {
                Kind::String => {
                    each(Piece::Text(value.of(body)));
                    value.range.len()
                }
                Kind::Array if depth < DEPTH_MAX => {
                    let mut parts = Cursor::new(body, value.range);
                    if parts.enter_array().is_some() {
                        self.left.push(Left::Parts { parts, role, depth });
                    }
                    0
                }
                Kind::Array | Kind::Object => {
                    each(Piece::Json(value.of(body)));
                    value.range.len()
                }
                Kind::Scalar => 0,
            },
            Left::Parts { mut parts, role, depth } => {
                let (before, mut part) = (parts.at(), None);
                let more = parts.element(|cursor| {
                    part = Some(cursor.value()?);
                    Some(())
                });
                let passed = parts.at() - before;
                if more == Some(true) {
                    self.left.push(Left::Parts { parts, role, depth });
                }
                match part {
                    None => {}
                    Some(part) if part.kind == Kind::String => each(Piece::Text(part.of(body))),
                    Some(part) if part.kind == Kind::Object => {
                        content_part(body, part.range, (role, depth), &mut self.left, each);
                    }
                    Some(part) => each(Piece::Json(part.of(body))),
                }
                passed
            }
        }
    }

    fn token_ids(&self, each: &mut impl FnMut(Piece<'a>)) {
        if let Some(tokens) = &self.request.tokens {
            each(Piece::Turn(Role::User));
            each(Piece::TokenIds(tokens.of(self.body)));
        }
    }

    fn form_prompt(&self, each: &mut impl FnMut(Piece<'a>)) {
        if let Some(prompt) = &self.request.form_prompt {
            each(Piece::Turn(Role::User));
            each(Piece::Plain(self.body.get(prompt.clone()).unwrap_or_default()));
        }
    }

    /// Messages, or a prompt: a string, token ids, or an array of any of them, whose elements are the steps that follow.
    fn turns(&mut self, value: Option<&Value>, each: &mut impl FnMut(Piece<'a>)) {
        let body = self.body;
        let Some(value) = value else { return };
        match value.kind {
            Kind::String => {
                each(Piece::Turn(Role::User));
                each(Piece::Text(value.of(body)));
            }
            Kind::Array if starts_with_number(value.of(body)) => {
                each(Piece::Turn(Role::User));
                each(Piece::TokenIds(value.of(body)));
            }
            Kind::Array => {
                let mut array = Cursor::new(body, value.range.clone());
                self.array = array.enter_array().map(|()| array);
            }
            Kind::Object => {
                let _ = message(body, &mut Cursor::new(body, value.range.clone()), &mut self.left, each);
            }
            Kind::Scalar => {}
        }
    }
}

/// One of messages or prompts.
fn element<'a>(
    body: &'a [u8],
    cursor: &mut Cursor<'a>,
    left: &mut Vec<Left<'a>>,
    each: &mut impl FnMut(Piece<'a>),
) -> Option<()> {
    if cursor.kind()? == Kind::Object {
        return message(body, cursor, left, each);
    }
    let element = cursor.value()?;
    match element.kind {
        Kind::Array if starts_with_number(element.of(body)) => {
            each(Piece::Turn(Role::User));
            each(Piece::TokenIds(element.of(body)));
        }
        Kind::String => {
            each(Piece::Turn(Role::User));
            each(Piece::Text(element.of(body)));
        }
        Kind::Object | Kind::Array | Kind::Scalar => each(Piece::Json(element.of(body))),
    }
    Some(())
}

fn starts_with_number(array: &[u8]) -> bool {
    array.iter().skip(1).find(|b| !b.is_ascii_whitespace()).is_some_and(u8::is_ascii_digit)
}

/// The message that begins at the cursor.
fn message<'a>(
    body: &'a [u8],
    cursor: &mut Cursor<'a>,
    left: &mut Vec<Left<'a>>,
    each: &mut impl FnMut(Piece<'a>),
) -> Option<()> {
    let (mut role, mut said, mut output) = (Role::User, None, None);
    // One for each name: which one an engine reads is for its interface to say.
    let mut calls = [None, None, None];
    let range = cursor.members(|key, cursor| {
        match key {
            b"role" => role = Role::of(scan::unescape(cursor.value()?.of(body)).as_bytes()),
            b"content" => said = Some(cursor.value()?),
            b"tool_calls" => calls[0] = Some(cursor.value()?),
            b"function_call" => calls[1] = Some(cursor.value()?),
            b"arguments" => calls[2] = Some(cursor.value()?),
            b"output" => output = Some(cursor.value()?),
            _ => {}
        }
        Some(())
    })?;
    let whole = body.get(range).unwrap_or_default();
    let output = output.filter(|output| !output.is_null(body));
    if output.is_some() {
        role = Role::Tool;
    }
    each(Piece::Turn(role));
    if said.is_none() && output.is_none() && calls.iter().all(Option::is_none) {
        each(Piece::Json(whole));
    }
    // The last one first.
    let calls = calls.into_iter().flatten().filter(|calls| !calls.is_null(body));
    left.extend(calls.rev().map(|calls| Left::Piece(Piece::Json(calls.of(body)))));
    let said = [output, said].into_iter().flatten();
    left.extend(said.map(|value| Left::Content { value, role, depth: 0 }));
    Some(())
}

/// A part of what a role says, within so many results of tools.
fn content_part<'a>(
    body: &'a [u8],
    range: Range<usize>,
    (role, depth): (Role, u32),
    left: &mut Vec<Left<'a>>,
    each: &mut impl FnMut(Piece<'a>),
) {
    let whole = body.get(range.clone()).unwrap_or_default();
    let (mut kind, mut texts, mut nested) = (Cow::Borrowed(""), [None, None], None);
    let _ = scan::members(body, range, |key, value| match key {
        b"type" => kind = scan::unescape(value.of(body)),
        b"text" => texts[0] = Some(value),
        b"thinking" => texts[1] = Some(value),
        b"content" => nested = Some(value),
        _ => {}
    });
    let media = match &*kind {
        "image_url" | "image" | "input_image" => Some(Media::Image),
        "input_audio" | "audio_url" | "audio" => Some(Media::Audio),
        _ => None,
    };
    if let Some(media) = media {
        return each(Piece::Media(media, whole));
    }
    // Whatever may be meant is read.
    let mut texts = texts.into_iter().flatten().filter(|text| text.kind == Kind::String).peekable();
    if texts.peek().is_none() && nested.is_none() {
        return each(if kind == "tool_use" { Piece::Json(whole) } else { Piece::Media(Media::Other, whole) });
    }
    texts.for_each(|text| each(Piece::Text(text.of(body))));
    // Anthropic's tool_result.
    if let Some(nested) = nested.filter(|nested| !nested.is_null(body)) {
        each(Piece::Turn(Role::Tool));
        left.push(Left::Piece(Piece::Again(role)));
        left.push(Left::Content { value: nested, role: Role::Tool, depth: depth + 1 });
    }
}

/// The prefix chain of a request that goes to `upstream_model`, in the allocations of `recycled`.
pub(crate) fn chain(request: &Request, body: &[u8], upstream_model: &str, block_bytes: u32, recycled: Chain) -> Chain {
    let mut builder = ChainBuilder::new(&seed(request, body, upstream_model), block_bytes, recycled).growing();
    let mut unescaped = Vec::new();
    walk(request, body, &mut |piece| {
        let mut left = Some(piece);
        while let Some(piece) = left {
            left = hash(&mut builder, piece, &mut unescaped);
        }
    });
    builder.finish()
}

/// The prefix chain of a long prompt, made in turns and not yet that of a model: [`chain_for`] makes it one.
pub(crate) async fn chain_in_turns(request: &Request, body: &[u8], block_bytes: u32, breath: &mut Breath<'_>) -> Chain {
    let mut builder = ChainBuilder::unseeded(block_bytes, Chain::default());
    let mut unescaped = Vec::new();
    let mut walk = Walk::new(request, body);
    let mut pieces = Vec::new();
    while let Some(bytes) = walk.step(&mut |piece| pieces.push(piece)) {
        for piece in pieces.drain(..) {
            let mut left = Some(piece);
            while let Some(piece) = left {
                unescaped.clear();
                left = hash(&mut builder, piece, &mut unescaped);
                if left.is_some() {
                    // Each escape costs about as much as a byte that is classified.
                    breath.after_search(HASHED_BYTES_MAX).await;
                    breath.after(unescaped.len()).await;
                }
            }
        }
        breath.after_search(bytes + MESSAGE_SEARCHED_BYTES).await;
    }
    builder.finish()
}

/// The chain of a request that goes to `upstream_model`, of one that was made in turns.
pub(crate) fn chain_for(upstream_model: &str, request: &Request, body: &[u8], made: &Chain, recycled: Chain) -> Chain {
    let mut chain = recycled;
    chain.copy_from(made);
    chain.seed(&seed(request, body, upstream_model));
    chain
}

fn seed<'a>(request: &Request, body: &'a [u8], upstream_model: &'a str) -> Seed<'a> {
    let salt = request.cache_salt.as_ref().filter(|salt| salt.kind == Kind::String).map(|salt| salt.of(body));
    Seed { model: upstream_model, lora: None, cache_salt: salt }
}

/// Bytes of a piece that are hashed in one go.
const HASHED_BYTES_MAX: usize = 16 << 10;

/// Takes a piece, or the beginning of a long one, into a chain; gives what is left of it.
fn hash<'a>(builder: &mut ChainBuilder, piece: Piece<'a>, unescaped: &mut Vec<u8>) -> Option<Piece<'a>> {
    let cut = |raw: &'a [u8]| raw.split_at(raw.len().min(HASHED_BYTES_MAX));
    let more = |left: &'a [u8], form: fn(&'a [u8]) -> Piece<'a>| (!left.is_empty()).then(|| form(left));
    match piece {
        Piece::Turn(role) | Piece::Again(role) => builder.separator(role as u8),
        Piece::Media(_, raw) => builder.media(raw),
        Piece::TokenIds(raw) => {
            // Behind a number that ends there, not within one.
            let (now, _) = cut(raw);
            let end = raw[now.len()..].iter().position(|byte| !byte.is_ascii_digit());
            let (now, left) = raw.split_at(end.map_or(raw.len(), |more| now.len() + more));
            builder.token_ids(token_ids(now));
            return more(left, Piece::TokenIds);
        }
        Piece::Plain(raw) | Piece::Json(raw) => {
            let (now, left) = cut(raw);
            builder.text(now);
            return more(left, Piece::Plain);
        }
        Piece::Text(raw) => {
            let (now, mut left) = cut(raw);
            if memchr::memchr(b'\\', now).is_none() {
                builder.text(now);
            } else {
                unescaped.clear();
                unescaped.reserve(now.len());
                left = scan::unescape_bytes(raw, now.len(), unescaped);
                builder.text(unescaped);
            }
            return more(left, Piece::Text);
        }
    }
    None
}

/// The prefix chain of a prompt whose tokens are known, in blocks of `block_tokens` as the engine keeps them, and how many tokens it
/// has. Behind the first image the engine puts tokens that are not known: from there on the chain tells prompts apart and no more.
pub(crate) fn engine_blocks(
    request: &Request,
    body: &[u8],
    upstream_model: &str,
    tokens: &Tokens,
    block_tokens: u32,
    recycled: Chain,
) -> (Chain, u32) {
    let salt = request.cache_salt.as_ref().filter(|salt| salt.kind == Kind::String);
    let salt = salt.map(|salt| scan::unescape(salt.of(body)));
    let seed = Seed { model: upstream_model, lora: None, cache_salt: salt.as_ref().map(|salt| salt.as_bytes()) };
    let mut builder = ChainBuilder::new(&seed, block_tokens.saturating_mul(TOKEN_ID_BYTES), recycled);
    let first = tokens.media.map_or(tokens.ids.len(), |media| media.first.min(tokens.ids.len()));
    let mut done = 0;
    for &end in tokens.turns.iter().filter(|&&end| end <= first) {
        builder.token_ids(tokens.ids[done..end].iter().copied());
        builder.end_turn();
        done = end;
    }
    builder.token_ids(tokens.ids[done..first].iter().copied());
    let mut count = u32::try_from(tokens.ids.len()).unwrap_or(u32::MAX);
    if let Some(media) = tokens.media {
        let items = media.items.min(MEDIA_ITEMS_MAX);
        (0..items).for_each(|item| builder.media(&(media.digest ^ u64::from(item)).to_le_bytes()));
        builder.token_ids(tokens.ids[first..].iter().copied());
        count = count.saturating_add(items * (MEDIA_WEIGHT_BYTES / TOKEN_ID_BYTES));
    }
    builder.end_turn();
    (builder.finish_engine_blocks(), count)
}

/// Media items of a prompt that are counted one by one.
const MEDIA_ITEMS_MAX: u32 = 1_000;

/// The numbers of a raw JSON array; what is not a number is passed over.
fn token_ids(raw: &[u8]) -> impl Iterator<Item = u32> + '_ {
    raw.split(|b| !b.is_ascii_digit())
        .filter(|digits| !digits.is_empty())
        .map(|digits| digits.iter().fold(0_u32, |n, d| n.wrapping_mul(10).wrapping_add(u32::from(d - b'0'))))
}

/// Whether a prompt fills an engine's prefix cache.
pub(crate) fn uses_prefix_cache(request: &Request) -> bool {
    request.purpose == Purpose::Generate
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn chain_of(body: &str) -> Chain {
        let request = Request::parse(body.as_bytes()).unwrap();
        chain(&request, body.as_bytes(), "m", 16, Chain::default())
    }

    fn shared(a: &str, b: &str) -> usize {
        let (a, b) = (chain_of(a), chain_of(b));
        a.blocks().iter().zip(b.blocks()).take_while(|(x, y)| x == y).count()
    }

    fn chat(messages: &[(&str, &str)]) -> String {
        let messages: Vec<_> =
            messages.iter().map(|(role, text)| serde_json::json!({"role": role, "content": text})).collect();
        serde_json::json!({"model": "m", "messages": messages}).to_string()
    }

    const LONG: &str =
        "a sentence that fills a good many of the sixteen byte blocks, to be seen again in the next turn";

    #[test]
    fn a_growing_conversation_shares_all_it_had() {
        let first = chat(&[("system", LONG), ("user", LONG)]);
        let second = chat(&[("system", LONG), ("user", LONG), ("assistant", "yes"), ("user", "more")]);
        assert!(shared(&first, &second) >= 2 * LONG.len() / 16);
    }

    #[test]
    fn spacing_order_of_keys_and_escapes_do_not_matter() {
        let plain = r#"{"model":"m","messages":[{"role":"user","content":"näive /path \" end of it all"}]}"#;
        let odd = r#"{"messages": [ {"content" : "n\u00e4ive \/path \u0022 end of it all", "role":"user"} ],  "stream":true, "model":"m"}"#;
        assert_eq!(chain_of(plain), chain_of(odd));
        let parts = r#"{"model":"m","messages":[{"role":"user","content":[{"type":"text","text":"näive /path \" end of it all"}]}]}"#;
        assert_eq!(chain_of(plain), chain_of(parts));
    }

    #[test]
    fn roles_and_types_are_read_as_an_engine_reads_them() {
        let plain = r#"{"model":"m","messages":[{"role":"system","content":[{"type":"image_url","image_url":"x"}]}]}"#;
        let odd = r#"{"model":"m","messages":[{"r\u006fle":"\u0073ystem","content":[{"type":"image\u005furl","image_url":"x"}]}]}"#;
        let walked = |body: &str| {
            let request = Request::parse(body.as_bytes()).unwrap();
            let mut seen = Vec::new();
            walk(&request, body.as_bytes(), &mut |piece| {
                seen.push(match piece {
                    Piece::Turn(role) => format!("{role:?}"),
                    Piece::Again(role) => format!("again {role:?}"),
                    Piece::Media(media, _) => format!("{media:?}"),
                    Piece::Text(_) | Piece::Plain(_) | Piece::Json(_) | Piece::TokenIds(_) => String::from("text"),
                });
            });
            seen
        };
        assert_eq!(walked(odd), ["System", "Image"]);
        assert_eq!(walked(odd), walked(plain));
    }

    #[test]
    fn what_engines_keep_apart_is_kept_apart() {
        let base = chat(&[("user", LONG)]);
        let other_role = chat(&[("assistant", LONG)]);
        assert_eq!(shared(&base, &other_role), 0);
        let salted = base.replace("\"model\"", "\"cache_salt\":\"s\",\"model\"");
        assert_eq!(shared(&base, &salted), 0);
        let tools = base.replace("\"model\"", "\"tools\":[{\"type\":\"function\"}],\"model\"");
        assert_eq!(shared(&base, &tools), 0);
    }

    #[test]
    fn an_image_is_one_unit_by_its_content() {
        let with = |image: &str| {
            format!(
                r#"{{"model":"m","messages":[{{"role":"user","content":[{{"type":"text","text":"{LONG}"}},{{"type":"image_url","image_url":{{"url":"data:{image}"}}}}]}}]}}"#
            )
        };
        let (one, same, other) = (with(&"x".repeat(5000)), with(&"x".repeat(5000)), with(&"y".repeat(5000)));
        assert_eq!(chain_of(&one), chain_of(&same));
        assert_eq!(shared(&one, &other), chain_of(&one).blocks().len() - 1);
    }

    #[test]
    fn token_id_prompts_share_by_ids() {
        let ids = |n: u32| {
            format!(r#"{{"model":"m","prompt":[{}]}}"#, (0..n).map(|i| i.to_string()).collect::<Vec<_>>().join(", "))
        };
        assert!(shared(&ids(64), &ids(80)) >= 15);
        assert_eq!(shared(&ids(64), r#"{"model":"m","prompt":[9,8,7,6,5,4,3,2,1]}"#), 0);
    }

    #[test]
    fn known_tokens_are_cut_into_the_blocks_that_engines_publish() {
        let body = r#"{"model":"m","cache_salt":"s\u0061lt","messages":[]}"#;
        let request = Request::parse(body.as_bytes()).unwrap();
        let blocks = |tokens: &Tokens| engine_blocks(&request, body.as_bytes(), "m", tokens, 32, Chain::default());
        let text = Tokens { ids: (0..70).collect(), media: None, turns: vec![40, 66] };
        let (chain, count) = blocks(&text);
        let seed = Seed { model: "m", lora: None, cache_salt: Some(b"salt") };
        let first = predictor::prefix::chain::token_block(seed.root(), 0..32);
        let second = predictor::prefix::chain::token_block(first, 32..64);
        assert_eq!((chain.blocks(), chain.bytes(), count), ([first, second].as_slice(), 70 * 4, 70));
        assert_eq!(chain.turn_ends().iter().map(|end| end.bytes / 4).collect::<Vec<_>>(), [40, 66, 70]);
        let image = |digest: u64| {
            let media = tokenizer::Placeholders { first: 40, items: 2, digest };
            blocks(&Tokens { ids: (0..70).collect(), media: Some(media), turns: vec![66] })
        };
        let ((one, count), (other, _)) = (image(1), image(2));
        assert_eq!((count, one.bytes()), (70 + 2 * 512, (70 + 2 * 512) * 4));
        assert_eq!(one.blocks()[0], first);
        assert_ne!(one.blocks()[2..], other.blocks()[2..]);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(200))]
        #[test]
        fn any_json_can_be_walked(
            key in prop_oneof![Just("messages"), Just("prompt"), Just("input"), Just("system"), Just("tools")],
            value in prop_oneof![Just("["), Just("[["), Just("[{}]"), Just("[1,2]"), Just("[[1],[2]]"), Just("{}"), Just("null"), Just("7"), Just("[{\"content\":[[]]}]"), Just("[{\"content\":[{\"type\":\"image\"}],\"tool_calls\":null}]"), Just("\"a\"")],
        ) {
            let body = format!("{{\"model\":\"m\",\"{key}\":{value}}}");
            if let Ok(request) = Request::parse(body.as_bytes()) {
                let _ = chain(&request, body.as_bytes(), "m", 16, Chain::default());
            }
        }
    }
}
