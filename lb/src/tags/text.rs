//! What the classifiers read of a body: the pieces of the prompt, and after them everything that is no piece of it.
//!
//! A prompt can hide in any field: a message's `name`, the `reasoning` of an earlier turn, `metadata`, a field this version does not know.
//! So the bytes of the JSON object that the walk over the prompt did not name are read too, as one piece. What is no text (images, audio,
//! token ids, bytes that do not decode) is told, so that the prompt counts as unread.

use std::borrow::Cow;
use std::ops::Range;

use policy::Api;
use predictor::classify::{Scope, Shape};

use crate::openai::Request;
use crate::openai::prompt::{MESSAGE_SEARCHED_BYTES, Media, Piece, Role, Walk};
use crate::openai::request::Written;
use crate::openai::scan::{Decoded, unescape_some};
use crate::pace::Breath;

/// How the bytes of a piece become text. The number is part of what a remembered piece is known by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Form {
    /// With the escapes of JSON.
    Escaped,
    /// As they are.
    Plain,
}

/// Where a piece stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Origin {
    /// In the prompt.
    Prompt,
    /// Outside of it.
    Rest,
}

/// A piece before it is text.
#[derive(Debug, Clone)]
pub(super) struct Source<'a> {
    pub(super) origin: Origin,
    pub(super) scope: Scope,
    pub(super) form: Form,
    pub(super) bytes: Cow<'a, [u8]>,
}

/// Everything that is read of a body.
#[derive(Debug)]
pub(super) struct Sources<'a> {
    pub(super) pieces: Vec<Source<'a>>,
    pub(super) shape: Shape,
}

/// Most bytes of a part between two pieces that is left out where it holds nothing but names and punctuation.
const PLAIN_GAP_BYTES_MAX: usize = 64;

/// Most pieces of a body that are read each by itself: they take about 160 bytes each, however short they are, and a body of a few
/// kilobytes may be decoded to millions. Those behind them are read too, as one, and the prompt counts as unread besides.
const PIECES_MAX: usize = 16 << 10;

impl<'a> Sources<'a> {
    /// Of one request.
    pub(super) async fn of(api: Api, request: &'a Request, body: &'a [u8], breath: &mut Breath<'_>) -> Self {
        let mut shape = Shape {
            json_schema: request
                .response_format
                .as_ref()
                .is_some_and(|format| memchr::memmem::find(format.of(body), b"json_schema").is_some()),
            // Nothing is known of the text of a path that is only passed on.
            unscannable: api == Api::Other && !body.is_empty(),
            audio: matches!(api, Api::Transcriptions | Api::Translations),
            ..Shape::default()
        };
        // The model's name is the operator's, not the prompt's.
        let (mut pieces, mut named) = (Vec::new(), vec![request.model_at.clone()]);
        let mut scope = Scope::User;
        let mut take = |piece| {
            // What has no room as a piece of its own is not named, and read with the rest; but services and scopes pass the rest by, so
            // that all of it counts as unread.
            let has_room = named.len() < PIECES_MAX;
            shape.unscannable |= !has_room;
            let mut push = |scope, form, bytes: &'a [u8]| {
                if has_room {
                    named.push(place(body, bytes));
                    pieces.push(Source { origin: Origin::Prompt, scope, form, bytes: Cow::Borrowed(bytes) });
                }
            };
            match piece {
                Piece::Turn(role) => {
                    scope = scope_of(role);
                    shape.tools |= role == Role::Tools;
                    shape.turns += u32::from(matches!(role, Role::User | Role::Assistant));
                }
                Piece::Text(raw) => push(scope, Form::Escaped, raw),
                Piece::Plain(raw) => push(scope, Form::Plain, raw),
                Piece::Again(role) => scope = scope_of(role),
                // Strings inside keep their escapes; identifiers have none but in disguise, which is looked through by decoding. What a
                // user says in a shape that is not known is still said by the user.
                Piece::Json(raw) => {
                    let by_user = scope == Scope::User;
                    push(if by_user { Scope::User } else { Scope::Tool }, Form::Escaped, raw);
                }
                Piece::Media(media, raw) => {
                    shape.image |= media == Media::Image;
                    shape.audio |= media == Media::Audio;
                    shape.unscannable |= media == Media::Other;
                    if has_room {
                        named.push(place(body, raw));
                    }
                }
                Piece::TokenIds(raw) => {
                    shape.unscannable = true;
                    if has_room {
                        named.push(place(body, raw));
                    }
                }
            }
        };
        let mut walk = Walk::new(request, body);
        while let Some(bytes) = walk.step(&mut take) {
            breath.after_search(bytes + MESSAGE_SEARCHED_BYTES).await;
        }
        if request.written == Written::Json
            && let Some(rest) = rest(body, &request.object, named, breath).await
        {
            // First, so that it stands between no two parts of a turn.
            let (origin, scope, form) = (Origin::Rest, Scope::Rest, Form::Escaped);
            pieces.insert(0, Source { origin, scope, form, bytes: Cow::Owned(rest) });
        }
        Self { pieces, shape }
    }

    /// For each piece, whether it belongs to the last turn of its scope.
    pub(super) fn in_last_turn(&self) -> Vec<bool> {
        let mut first = [0; 5];
        for (at, piece) in self.pieces.iter().enumerate() {
            let begins = at == 0 || self.pieces[at - 1].scope != piece.scope;
            if begins {
                first[piece.scope as usize] = at;
            }
        }
        self.pieces.iter().enumerate().map(|(at, piece)| at >= first[piece.scope as usize]).collect()
    }
}

fn scope_of(role: Role) -> Scope {
    match role {
        Role::Tools | Role::System => Scope::System,
        Role::User => Scope::User,
        Role::Assistant => Scope::Assistant,
        Role::Tool => Scope::Tool,
    }
}

/// Where a part of the body is in it.
fn place(body: &[u8], part: &[u8]) -> Range<usize> {
    let start = (part.as_ptr() as usize).saturating_sub(body.as_ptr() as usize).min(body.len());
    start..(start + part.len()).min(body.len())
}

/// What stands in `object` outside of `named`, one part a line; none when that is only names and punctuation.
async fn rest(
    body: &[u8],
    object: &Range<usize>,
    mut named: Vec<Range<usize>>,
    breath: &mut Breath<'_>,
) -> Option<Vec<u8>> {
    named.sort_unstable_by_key(|range| range.start);
    let mut rest = Vec::new();
    let mut at = object.start;
    let end = object.end..object.end;
    for range in named.into_iter().chain(std::iter::once(end)) {
        if range.start > at {
            let gap = body.get(at..range.start).unwrap_or_default();
            if gap.len() > PLAIN_GAP_BYTES_MAX || gap.iter().any(|byte| telling(*byte)) {
                rest.extend_from_slice(gap);
                rest.push(b'\n');
            }
        }
        at = at.max(range.end);
        breath.after_search(MESSAGE_SEARCHED_BYTES).await;
    }
    (!rest.is_empty()).then_some(rest)
}

/// Whether a byte may belong to something personal: short names of fields and roles hold none of these.
const fn telling(byte: u8) -> bool {
    byte.is_ascii_digit() || byte >= 0x80 || matches!(byte, b'@' | b'\\' | b'%' | b'&')
}

/// The text of a piece, and whether all of it is text.
pub(super) async fn decode<'t>(source: &'t Source<'_>, breath: &mut Breath<'_>) -> (Cow<'t, str>, Decoded) {
    let raw = &*source.bytes;
    let plain = match source.form {
        Form::Escaped => memchr::memchr(b'\\', raw).is_none(),
        Form::Plain => true,
    };
    if plain && let Ok(text) = simdutf8::basic::from_utf8(raw) {
        breath.after_search(raw.len()).await;
        return (Cow::Borrowed(text), Decoded::Wholly);
    }
    match source.form {
        Form::Escaped => unescape(raw, breath).await,
        Form::Plain => (Cow::Owned(replace(raw, breath).await), Decoded::InPart),
    }
}

async fn unescape(raw: &[u8], breath: &mut Breath<'_>) -> (Cow<'static, str>, Decoded) {
    let (mut rest, mut text, mut all) = (raw, String::with_capacity(raw.len()), Decoded::Wholly);
    while !rest.is_empty() {
        let (left, part) = unescape_some(rest, DECODED_BYTES_MAX, &mut text);
        breath.after(rest.len() - left.len()).await;
        rest = left;
        if part == Decoded::InPart {
            all = part;
        }
    }
    (Cow::Owned(text), all)
}

/// The text of bytes that are not all text.
async fn replace(bytes: &[u8], breath: &mut Breath<'_>) -> String {
    let mut text = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        text.push_str(chunk.valid());
        if !chunk.invalid().is_empty() {
            text.push(char::REPLACEMENT_CHARACTER);
        }
        breath.after(chunk.valid().len() + chunk.invalid().len()).await;
    }
    text
}

/// Escaped bytes that are decoded in one go: about 100 us where every character is an escape.
const DECODED_BYTES_MAX: usize = 16 << 10;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pace::{Pace, at_once};

    fn decode<'t>(source: &'t Source<'_>) -> (Cow<'t, str>, Decoded) {
        at_once(super::decode(source, &mut Breath::new(Pace::AtOnce))).expect("nothing to wait for")
    }

    fn sources_of<'a>(request: &'a Request, body: &'a str) -> Sources<'a> {
        let mut breath = Breath::new(Pace::AtOnce);
        at_once(Sources::of(Api::ChatCompletions, request, body.as_bytes(), &mut breath)).expect("nothing to wait for")
    }

    fn read(body: &str) -> (String, Shape) {
        let request = Request::parse(body.as_bytes()).expect("a request");
        let sources = sources_of(&request, body);
        let texts: Vec<String> = sources.pieces.iter().map(|piece| decode(piece).0.into_owned()).collect();
        (texts.join("\u{1}"), sources.shape)
    }

    #[test]
    fn no_string_of_a_body_is_left_unread() {
        let bodies = [
            r#"{"model":"m","messages":[{"role":"user","name":"SECRET1","content":"hi"}]}"#,
            r#"{"model":"m","messages":[{"role":"assistant","reasoning_content":"SECRET1","content":"x"},{"role":"user","content":"y"}]}"#,
            r#"{"model":"m","messages":[{"role":"assistant","reasoning":[{"text":"SECRET1"}],"content":"x"}]}"#,
            r#"{"model":"m","user":"SECRET1","messages":[]}"#,
            r#"{"model":"m","metadata":{"a":{"b":["SECRET1"]}},"prompt":"x"}"#,
            r#"{"model":"m","prompt":["a","SECRET1"]}"#,
            r#"{"model":"m","suffix":"SECRET1","prompt":"a"}"#,
            r#"{"model":"m","input":[{"type":"message","role":"user","content":[{"type":"input_text","text":"SECRET1"}]}]}"#,
            r#"{"model":"m","input":[{"type":"function_call_output","output":"SECRET1"}]}"#,
            r#"{"model":"m","instructions":"SECRET1","input":"x"}"#,
            r#"{"model":"m","system":[{"type":"text","text":"SECRET1"}],"messages":[]}"#,
            r#"{"model":"m","messages":[{"role":"user","content":[{"type":"tool_result","content":[{"type":"text","text":"SECRET1"}]}]}]}"#,
            r#"{"model":"m","messages":[{"role":"user","content":[{"type":"text","text":"a","citations":[{"cited_text":"SECRET1"}]}]}]}"#,
            r#"{"model":"m","messages":[{"role":"assistant","tool_calls":[{"function":{"arguments":"SECRET1"}}]}]}"#,
            r#"{"model":"m","tools":[{"function":{"description":"SECRET1"}}],"messages":[]}"#,
            r#"{"model":"m","messages":[{"role":"user","content":"SECRET1"}],"messages":[]}"#,
            r#"{"model":"m","chat_template_kwargs":{"x":"SECRET1"},"messages":[]}"#,
            r#"{"model":"m","unknown_field":"SECRET1","messages":[{"role":"user","content":"hi"}]}"#,
            r#"{"model":"m","messages":[{"role":"user","content":{"text":"SECRET1"}}]}"#,
            r#"{"model":"m","response_format":{"type":"json_schema","json_schema":{"description":"SECRET1"}},"messages":[]}"#,
        ];
        for body in bodies {
            assert!(read(body).0.contains("SECRET1"), "{body}");
        }
    }

    #[test]
    fn what_is_no_text_is_told() {
        let unread = |body: &str| {
            let shape = read(body).1;
            shape.unscannable || shape.image || shape.audio
        };
        assert!(unread(r#"{"model":"m","prompt":[1,2,3]}"#));
        assert!(unread(
            r#"{"model":"m","messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:x"}}]}]}"#
        ));
        assert!(unread(
            r#"{"model":"m","messages":[{"role":"user","content":[{"type":"file","file":{"file_data":"x"}}]}]}"#
        ));
        assert!(!unread(r#"{"model":"m","messages":[{"role":"user","content":"x"}]}"#));
        let piece = |bytes: &'static [u8]| Source {
            origin: Origin::Prompt,
            scope: Scope::User,
            form: Form::Escaped,
            bytes: Cow::Borrowed(bytes),
        };
        assert_eq!(decode(&piece(b"a\\ud800b")).1, Decoded::InPart);
        for whole in ["a\u{fffd}b".as_bytes(), b"a\\ufffdb\\uFfFD", "\\uFFFD\u{fffd}".as_bytes(), b"\\\\ufffd"] {
            assert_eq!(decode(&piece(whole)).1, Decoded::Wholly, "{}", String::from_utf8_lossy(whole));
        }
        // One that was sent does not stand for another that was not.
        for part in [
            &b"\\ufffd 4111\\ud800 1111"[..],
            b"\xef\xbf\xbd 4111\xff 1111",
            b"\\\\ufffd 4111\\ud800",
            b"\xe2\xef\xbf\xbd",
        ] {
            assert_eq!(decode(&piece(part)).1, Decoded::InPart, "{}", String::from_utf8_lossy(part));
        }
    }

    /// The scopes of the pieces that hold `text`.
    fn scopes(body: &str, text: &str) -> Vec<Scope> {
        let request = Request::parse(body.as_bytes()).expect("a request");
        let sources = sources_of(&request, body);
        sources.pieces.iter().filter(|piece| decode(piece).0.contains(text)).map(|piece| piece.scope).collect()
    }

    #[test]
    fn what_a_user_says_is_the_users_in_whatever_shape() {
        let said = [
            r#""content":"SAID""#,
            r#""content":["SAID"]"#,
            r#""content":[["SAID"]]"#,
            r#""content":{"text":"SAID"}"#,
            r#""text":"SAID""#,
            r#""output":null,"content":"SAID""#,
            r#""content":[{"type":"tool_result","content":"ok"},{"type":"text","text":"SAID"}]"#,
            r#""content":[{"type":"tool_result","content":[{"type":"text","text":"ok"}]},"SAID"]"#,
            r#""content":[{"type":"text","text":"x","content":null},{"type":"text","text":"SAID"}]"#,
        ];
        for said in said {
            let body = format!(r#"{{"model":"m","messages":[{{"role":"user",{said}}}]}}"#);
            assert_eq!(scopes(&body, "SAID"), [Scope::User], "{body}");
        }
        let result =
            r#"{"model":"m","messages":[{"role":"user","content":[{"type":"tool_result","content":"SAID"},"x"]}]}"#;
        assert_eq!(scopes(result, "SAID"), [Scope::Tool]);
    }

    #[test]
    fn more_pieces_than_there_is_room_for_are_read_as_one() {
        let many = |item: &str, last: &str| format!("[{}{last}]", item.repeat(3 * PIECES_MAX));
        let bodies = [
            format!(r#"{{"model":"m","prompt":{}}}"#, many(r#""a","#, r#""SAID""#)),
            format!(r#"{{"model":"m","messages":[{{"role":"user","content":{}}}]}}"#, many(r#""a","#, r#""SAID""#)),
            format!(r#"{{"model":"m","messages":{}}}"#, many(r#"{"content":"a"},"#, r#"{"content":"SAID"}"#)),
        ];
        for body in bodies {
            let request = Request::parse(body.as_bytes()).expect("a request");
            let sources = sources_of(&request, &body);
            assert!(sources.pieces.len() <= PIECES_MAX + 1 && sources.shape.unscannable);
            assert_eq!(sources.pieces.iter().filter(|piece| decode(piece).0.contains("SAID")).count(), 1);
        }
    }

    #[test]
    fn endless_depth_takes_no_endless_time() {
        let depth = 200_000;
        let nested = format!("{}\"SAID\"{}", r#"[{"content":"#.repeat(depth), "}]".repeat(depth));
        let body = format!(r#"{{"model":"m","messages":[{{"role":"user","content":{nested}}}]}}"#);
        assert!(!scopes(&body, "SAID").is_empty());
    }

    #[test]
    fn an_ordinary_chat_has_no_rest() {
        let body = r#"{"model":"m","messages":[{"role":"system","content":"a"},{"role":"user","content":"b"}]}"#;
        let request = Request::parse(body.as_bytes()).expect("a request");
        assert_eq!(sources_of(&request, body).pieces.len(), 2);
    }
}
