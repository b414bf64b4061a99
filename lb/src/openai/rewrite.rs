//! Sampling parameters changed by a rule: which bytes of a body become which.
//!
//! Every member that means the parameter is looked at, duplicates and names with escapes included: which of them an engine
//! reads must not decide whether a bound holds.

use std::ops::Range;

use policy::{Api, Parameter, Rewrite};

use super::request::{Purpose, Request, Written};
use super::scan::{self, Kind, Value};

/// Calls `splice(at, with)` for every change of `body`, whose object stands at `request.object`.
pub(crate) fn changes(
    rewrites: &[Rewrite],
    api: Api,
    request: &Request,
    body: &[u8],
    mut splice: impl FnMut(Range<usize>, Vec<u8>),
) {
    if request.written != Written::Json || request.purpose != Purpose::Generate {
        return;
    }
    // A policy has a few parameters at most, each once.
    let mut written = vec![false; rewrites.len()];
    scan::members(body, request.object.clone(), |key, value| {
        let means = |r: &Rewrite| r.parameter.members().iter().any(|name| name.as_bytes() == key);
        let rewrite = rewrites.iter().zip(&mut written).find(|(r, _)| means(r));
        let Some((rewrite, written)) = rewrite else { return };
        if value.is_null(body) {
            // Written, and as good as not.
            if let Some(number) = rewrite.value(None) {
                splice(value.outer(), text(number));
                *written = true;
            }
            return;
        }
        *written = true;
        match number(&value, body) {
            Some(number) => {
                if let Some(changed) = rewrite.value(Some(number)) {
                    splice(value.outer(), text(changed));
                }
            }
            // No number: only what holds whatever is written can replace it; the engine says what is wrong with the rest.
            None => {
                if let Some(set) = rewrite.set.and_then(|_| rewrite.value(None)) {
                    splice(value.outer(), text(set));
                }
            }
        }
    });
    let end = request.object.end.saturating_sub(1);
    for (rewrite, _) in rewrites.iter().zip(written).filter(|(_, written)| !written) {
        if let Some(number) = rewrite.value(None) {
            let mut with = format!(",\"{}\":", member_to_add(rewrite.parameter, api)).into_bytes();
            with.extend(text(number));
            splice(end..end, with);
        }
    }
}

/// The name under which an interface takes a parameter that the client did not write.
fn member_to_add(parameter: Parameter, api: Api) -> &'static str {
    match (parameter, api) {
        (Parameter::MaxTokens, Api::ChatCompletions) => "max_completion_tokens",
        (Parameter::MaxTokens, Api::Responses) => "max_output_tokens",
        (parameter, _) => parameter.members().first().copied().unwrap_or_default(),
    }
}

/// A number, or a text that engines take for one.
fn number(value: &Value, body: &[u8]) -> Option<f64> {
    let text = match value.kind {
        Kind::Scalar | Kind::String => scan::unescape(value.of(body)),
        Kind::Object | Kind::Array => return None,
    };
    text.trim().parse().ok().filter(|n: &f64| n.is_finite())
}

fn text(number: f64) -> Vec<u8> {
    number.to_string().into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::io::Out;
    use crate::openai::edit::{Edits, UsageAsked};

    fn rewrite(parameter: Parameter) -> Rewrite {
        Rewrite { parameter, set: None, default: None, at_least: None, at_most: None }
    }

    fn changed(rewrites: &[Rewrite], api: Api, body: &str) -> String {
        let request = Request { purpose: Purpose::Generate, ..Request::parse(body.as_bytes()).unwrap() };
        let edits = Edits::new(&request, body.as_bytes(), "m", UsageAsked::ByClient);
        let edits = edits.rewriting(rewrites, api, &request, body.as_bytes());
        let mut out = Out::default();
        out.data().extend(body.as_bytes());
        edits.push(&mut out, 0..body.len());
        assert_eq!(out.len(), edits.body_bytes(body.len()));
        String::from_utf8(out.to_vec()).unwrap()
    }

    #[test]
    fn bounds_change_only_values_outside_of_them() {
        let bounds = [
            Rewrite { at_most: Some(1.0), ..rewrite(Parameter::Temperature) },
            Rewrite { at_most: Some(100.0), ..rewrite(Parameter::MaxTokens) },
        ];
        let chat = |body: &str| changed(&bounds, Api::ChatCompletions, body);
        assert_eq!(
            chat(r#"{"model":"m","temperature" : 1.7,"max_tokens":4000,"x":[1.50]}"#),
            r#"{"model":"m","temperature" : 1,"max_tokens":100,"x":[1.50]}"#
        );
        let inside = r#"{"model":"m","temperature":0.50,"max_completion_tokens":100}"#;
        assert_eq!(chat(inside), inside);
        let without = r#"{"model":"m","temperature":null}"#;
        assert_eq!(chat(without), without);
    }

    #[test]
    fn neither_duplicates_nor_escapes_nor_texts_get_past_a_bound() {
        let bound = [Rewrite { at_most: Some(1.0), ..rewrite(Parameter::Temperature) }];
        assert_eq!(
            changed(
                &bound,
                Api::ChatCompletions,
                r#"{"temperature":9,"temp\u0065rature":8,"model":"m","temperature":"7"}"#
            ),
            r#"{"temperature":1,"temp\u0065rature":1,"model":"m","temperature":1}"#
        );
    }

    #[test]
    fn defaults_are_added_under_the_name_of_the_interface() {
        let default = [Rewrite { default: Some(256.0), at_most: Some(512.0), ..rewrite(Parameter::MaxTokens) }];
        for (api, member) in [
            (Api::ChatCompletions, "max_completion_tokens"),
            (Api::Completions, "max_tokens"),
            (Api::Messages, "max_tokens"),
            (Api::Responses, "max_output_tokens"),
        ] {
            assert_eq!(changed(&default, api, r#"{"model":"m" }"#), format!(r#"{{"model":"m" ,"{member}":256}}"#));
        }
        let own = r#"{"model":"m","max_tokens":10}"#;
        assert_eq!(changed(&default, Api::ChatCompletions, own), own);
        assert_eq!(
            changed(&default, Api::ChatCompletions, r#"{"max_tokens":null,"model":"m"}"#),
            r#"{"max_tokens":256,"model":"m"}"#
        );
    }

    #[test]
    fn a_set_value_stands_whatever_was_written() {
        let set = [Rewrite { set: Some(0.0), ..rewrite(Parameter::Seed) }];
        for (body, want) in [
            (r#"{"model":"m","seed":7}"#, r#"{"model":"m","seed":0}"#),
            (r#"{"model":"m","seed":{"a":1}}"#, r#"{"model":"m","seed":0}"#),
            (r#"{"model":"m"}"#, r#"{"model":"m","seed":0}"#),
        ] {
            assert_eq!(changed(&set, Api::ChatCompletions, body), want);
        }
    }

    #[test]
    fn what_generates_nothing_is_left_alone() {
        let set = [Rewrite { set: Some(0.0), ..rewrite(Parameter::Temperature) }];
        let body = br#"{"model":"m","temperature":1}"#;
        let request = Request { purpose: Purpose::Read, ..Request::parse(body).unwrap() };
        changes(&set, Api::Embeddings, &request, body, |at, _| panic!("{at:?}"));
    }
}
