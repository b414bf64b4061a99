//! The splices that make the client's body the upstream's: `model`, `stream_options.include_usage`, and the sampling
//! parameters that a rule changes; nothing else.

use std::borrow::Cow;
use std::ops::Range;

use policy::{Api, Rewrite};

use super::request::{Delivery, Request, Written};
use super::rewrite;
use super::scan::{self, Kind, push_json_string};
use crate::io::Out;

/// Who asked for the usage of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum UsageAsked {
    /// The client did, or there is none to ask for: everything is shown.
    #[default]
    ByClient,
    /// We did: the chunk that only carries it is not shown.
    ByUs,
}

/// One replacement in the body.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Splice {
    at: Range<usize>,
    with: Vec<u8>,
}

/// What changes in one body; empty for most requests.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct Edits {
    splices: Vec<Splice>,
}

impl Edits {
    /// The edits that send `request` to a server that knows the model as `upstream_model`.
    pub(crate) fn new(request: &Request, body: &[u8], upstream_model: &str, usage: UsageAsked) -> Self {
        let mut splices = Vec::new();
        if request.model != upstream_model {
            let mut with = Vec::with_capacity(upstream_model.len() + 2);
            match request.written {
                Written::Json => push_json_string(&mut with, upstream_model),
                Written::Form => with.extend_from_slice(upstream_model.as_bytes()),
            }
            splices.push(Splice { at: request.model_at.clone(), with });
        }
        if usage == UsageAsked::ByUs {
            splices.push(include_usage(request, body));
        }
        splices.sort_by_key(|splice| splice.at.start);
        Self { splices }
    }

    /// The same with the parameters that a rule changes.
    pub(crate) fn rewriting(mut self, rewrites: &[Rewrite], api: Api, request: &Request, body: &[u8]) -> Self {
        if rewrites.is_empty() {
            return self;
        }
        rewrite::changes(rewrites, api, request, body, |at, with| self.splices.push(Splice { at, with }));
        self.splices.sort_by_key(|splice| splice.at.start);
        self
    }

    /// Bytes of the edited body.
    pub(crate) fn body_bytes(&self, original: usize) -> usize {
        self.splices.iter().fold(original, |bytes, splice| bytes - splice.at.len() + splice.with.len())
    }

    /// The edited body in one piece.
    pub(crate) fn applied<'a>(&self, body: &'a [u8]) -> Cow<'a, [u8]> {
        if self.splices.is_empty() {
            return Cow::Borrowed(body);
        }
        Cow::Owned(self.pieces(body).concat())
    }

    /// The edited body in the pieces it is sent in.
    pub(crate) fn pieces<'a>(&'a self, body: &'a [u8]) -> Vec<&'a [u8]> {
        let mut pieces = Vec::with_capacity(2 * self.splices.len() + 1);
        let mut from = 0;
        for splice in &self.splices {
            pieces.push(&body[from..splice.at.start]);
            pieces.push(&splice.with);
            from = splice.at.end;
        }
        pieces.push(&body[from..]);
        pieces
    }

    /// Appends the edited body, which stands at `body` in the data of `out`.
    pub(crate) fn push(&self, out: &mut Out, body: Range<usize>) {
        let mut from = body.start;
        for splice in &self.splices {
            out.push_data(from..body.start + splice.at.start);
            out.push_small(&splice.with);
            from = body.start + splice.at.end;
        }
        out.push_data(from..body.end);
    }
}

/// Whether the usage of this request must be asked for on the client's behalf.
pub(crate) fn usage_asked(request: &Request, body: &[u8], streams_options: bool) -> UsageAsked {
    if streams_options && request.delivery == Delivery::Streamed && !request.includes_usage(body) {
        UsageAsked::ByUs
    } else {
        UsageAsked::ByClient
    }
}

fn include_usage(request: &Request, body: &[u8]) -> Splice {
    let Some(options) = &request.stream_options else {
        // The last of duplicate keys counts, and there is none after the last member.
        let end = request.object.end - 1;
        let with = b",\"stream_options\":{\"include_usage\":true}".to_vec();
        return Splice { at: end..end, with };
    };
    if options.kind != Kind::Object {
        return Splice { at: options.outer(), with: b"{\"include_usage\":true}".to_vec() };
    }
    let (mut present, mut empty) = (None, true);
    scan::members(body, options.range.clone(), |key, value| {
        empty = false;
        if key == b"include_usage" {
            present = Some(value.outer());
        }
    });
    match present {
        Some(at) => Splice { at, with: b"true".to_vec() },
        None => {
            let start = options.range.start + 1;
            let with: &[u8] = if empty { b"\"include_usage\":true" } else { b"\"include_usage\":true," };
            Splice { at: start..start, with: with.to_vec() }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn edited(body: &str, model: &str) -> String {
        let request = Request::parse(body.as_bytes()).unwrap();
        let usage = usage_asked(&request, body.as_bytes(), true);
        let edits = Edits::new(&request, body.as_bytes(), model, usage);
        let mut out = Out::default();
        out.data().extend(b"HEAD");
        out.data().extend(body.as_bytes());
        edits.push(&mut out, 4..4 + body.len());
        assert_eq!(out.len(), edits.body_bytes(body.len()));
        String::from_utf8(out.to_vec()).unwrap()
    }

    #[test]
    fn only_what_must_change_changes() {
        let same = r#"{"messages" : [ {"role":"user"} ], "model":"m", "x":1.50 , "x":2}"#;
        assert_eq!(edited(same, "m"), same);
        assert_eq!(
            edited(same, "org/\"M\""),
            r#"{"messages" : [ {"role":"user"} ], "model":"org/\"M\"", "x":1.50 , "x":2}"#
        );
    }

    #[test]
    fn usage_is_asked_for_where_the_client_did_not() {
        let cases = [
            (
                r#"{"model":"m","stream":true}"#,
                r#"{"model":"m","stream":true,"stream_options":{"include_usage":true}}"#,
            ),
            (
                r#"{"model":"m","stream":true,"stream_options":{}}"#,
                r#"{"model":"m","stream":true,"stream_options":{"include_usage":true}}"#,
            ),
            (
                r#"{"model":"m","stream_options":null,"stream":true}"#,
                r#"{"model":"m","stream_options":{"include_usage":true},"stream":true}"#,
            ),
            (
                r#"{"model":"m","stream":true,"stream_options":{"include_usage":false}}"#,
                r#"{"model":"m","stream":true,"stream_options":{"include_usage":true}}"#,
            ),
            (
                r#"{"model":"m","stream":true,"stream_options":{ "continuous_usage_stats":true}}"#,
                r#"{"model":"m","stream":true,"stream_options":{"include_usage":true, "continuous_usage_stats":true}}"#,
            ),
        ];
        for (body, want) in cases {
            assert_eq!(edited(body, "m"), want);
        }
        let asked = r#"{"model":"m","stream":true,"stream_options":{"include_usage":true}}"#;
        assert_eq!(edited(asked, "m"), asked);
        let whole = r#"{"model":"m","stream":false}"#;
        assert_eq!(edited(whole, "m"), whole);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(200))]
        #[test]
        fn the_rest_of_the_body_means_the_same(model in "[a-z/\"\\\\é]{1,8}", other in ".{0,20}", stream: bool, first: bool) {
            let mut object = serde_json::Map::new();
            if first { object.insert("other".into(), other.clone().into()); }
            object.insert("model".into(), "asked".into());
            object.insert("stream".into(), stream.into());
            object.insert("zother".into(), other.into());
            let body = serde_json::to_string(&object).unwrap();
            let after: serde_json::Value = serde_json::from_str(&edited(&body, &model)).unwrap();
            object.insert("model".into(), model.into());
            if stream { object.insert("stream_options".into(), serde_json::json!({"include_usage": true})); }
            prop_assert_eq!(after, serde_json::Value::Object(object));
        }
    }
}
