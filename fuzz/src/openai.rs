//! Bodies: the scan of JSON, the fields of requests, forms, splices, the documents of answers.

use lb::probe::openai::{self, Routing};
use policy::{Api, Parameter, Rewrite};

use crate::input::line_of;
use crate::json::Json;

/// The scan of an object or array: in bounds and in order whatever the bytes, and where a strict parser takes them, the same
/// members with the same values.
pub fn json_scan(data: &[u8]) {
    if let Some((whole, members)) = openai::members(data) {
        let mut at = whole.start + 1;
        for (_, value) in &members {
            assert!(at < value.start && value.start < value.end && value.end < whole.end, "out of order");
            at = value.end;
        }
        assert_eq!((data[whole.start], data[whole.end - 1]), (b'{', b'}'));
    }
    if let Some(elements) = openai::elements(data) {
        assert!(elements.windows(2).all(|pair| pair[0].end <= pair[1].start), "out of order");
    }
    let text = openai::unescape(data);
    let json = openai::json_string(&text);
    assert_eq!(serde_json::from_slice::<String>(&json).expect("what is written is JSON"), text);
    assert_eq!(openai::unescape(&json[1..json.len() - 1]), text);
    match Json::parse(data) {
        Some(Json::Object(want)) => {
            let (_, found) = openai::members(data).expect("what a strict parser takes is scanned");
            let found: Vec<(String, Json)> = found
                .into_iter()
                .map(|(key, at)| {
                    (String::from_utf8_lossy(&key).into_owned(), Json::parse(&data[at]).expect("a value is a value"))
                })
                .collect();
            assert_eq!(found, want);
        }
        Some(Json::Array(want)) => {
            let found = openai::elements(data).expect("what a strict parser takes is scanned");
            let found: Vec<Json> = found.into_iter().filter_map(|at| Json::parse(&data[at])).collect();
            assert_eq!(found, want);
        }
        Some(Json::String(want)) => {
            let inner = data.trim_ascii();
            assert_eq!(openai::unescape(&inner[1..inner.len() - 1]), want);
        }
        Some(Json::Null | Json::Bool(_) | Json::Number(_)) | None => {}
    }
}

/// The fields of a JSON request and the splices: a strict parser reads the same fields, and the edited body says the same
/// but for `model` and `stream_options`.
pub fn request(data: &[u8]) {
    let strict = Json::parse(data).filter(|json| json.members().is_some());
    for api in [Api::ChatCompletions, Api::Embeddings] {
        let routing = openai::routing(api, b"application/json", data);
        if let Some(json) = &strict {
            assert_eq!(routing.clone().ok().map(Fields::of), fields(json), "the fields of {api:?}");
        }
        let Ok(routing) = routing else { continue };
        for model in [routing.model.as_str(), "org/\"M\"\u{e9}\\"] {
            let (body, told) = openai::edited(api, b"application/json", data, model).expect("what was read is edited");
            assert_eq!(body.len(), told, "the length that is told");
            let asks = api == Api::ChatCompletions && routing.streamed && !routing.includes_usage;
            assert!(asks || model != routing.model || body == data, "a body without edits changes");
            let again = openai::routing(api, b"application/json", &body).expect("an edited body is read");
            assert_eq!((again.model.as_str(), again.streamed), (model, routing.streamed));
            if let Some(before) = &strict {
                check_edit(before, &Json::parse(&body).expect("an edited body is JSON"), model, asks);
            }
        }
    }
}

/// What is compared with a strict parser's reading.
#[derive(Debug, PartialEq)]
struct Fields {
    model: String,
    streamed: bool,
    includes_usage: bool,
    output_tokens_max: Option<u64>,
}

impl Fields {
    fn of(routing: Routing) -> Self {
        let Routing { model, model_at: _, streamed, includes_usage, output_tokens_max } = routing;
        Self { model, streamed, includes_usage, output_tokens_max }
    }
}

fn fields(json: &Json) -> Option<Fields> {
    let longest = |(key, value): &(String, Json)| match key.as_str() {
        "max_tokens" | "max_completion_tokens" | "max_output_tokens" => value.whole(),
        _ => None,
    };
    Some(Fields {
        model: json.member("model")?.text().filter(|name| !name.is_empty())?.to_owned(),
        streamed: json.member("stream") == Some(&Json::Bool(true)),
        includes_usage: asks_usage(json),
        output_tokens_max: json.members()?.iter().filter_map(longest).max(),
    })
}

fn asks_usage(json: &Json) -> bool {
    json.member("stream_options").and_then(|options| options.member("include_usage")) == Some(&Json::Bool(true))
}

fn check_edit(before: &Json, after: &Json, model: &str, asks: bool) {
    let rest = |json: &Json| -> Vec<(String, Json)> {
        let of_ours = |key: &str| key == "model" || (asks && key == "stream_options");
        let members = json.effective().into_iter().filter(|(key, _)| !of_ours(key));
        members.map(|(key, value)| (key.to_owned(), value.clone())).collect()
    };
    assert_eq!(rest(before), rest(after), "another field changed");
    assert_eq!(after.member("model").and_then(Json::text), Some(model));
    if asks {
        assert!(asks_usage(after), "usage is not asked for");
        let others = |json: &Json| -> Vec<(String, Json)> {
            let options = json.member("stream_options").map(Json::effective).unwrap_or_default();
            let kept = options.into_iter().filter(|(key, _)| *key != "include_usage");
            kept.map(|(key, value)| (key.to_owned(), value.clone())).collect()
        };
        assert_eq!(others(before), others(after), "another stream option changed");
    }
}

/// Sampling parameters changed by a rule: every member that means one is within the rule's bounds afterwards, whatever was
/// written; everything else stays, and a second time nothing changes.
pub fn rewrites(data: &[u8]) {
    let rule = |parameter| Rewrite { parameter, set: None, default: None, at_least: None, at_most: None };
    let sets = [
        vec![Rewrite { at_most: Some(100.0), ..rule(Parameter::MaxTokens) }],
        vec![
            Rewrite { set: Some(0.5), ..rule(Parameter::Temperature) },
            Rewrite { default: Some(64.0), at_most: Some(1e3), ..rule(Parameter::MaxTokens) },
            Rewrite { default: Some(0.9), at_least: Some(0.1), ..rule(Parameter::TopP) },
            Rewrite { set: Some(7.0), ..rule(Parameter::Seed) },
        ],
    ];
    for rewrites in sets {
        let Some(after) = openai::rewritten(data, &rewrites) else { return };
        let Some(before) = Json::parse(data).filter(|json| json.members().is_some()) else { continue };
        assert_eq!(openai::rewritten(&after, &rewrites), Some(after.clone()), "changed again");
        let after = Json::parse(&after).expect("a rewritten body is JSON");
        let rest = |json: &Json| -> Vec<(String, Json)> {
            let of_rule = |key: &str| rewrites.iter().any(|rewrite| rewrite.parameter.members().contains(&key));
            let members = json.members().unwrap_or_default().iter();
            members.filter(|(key, _)| !of_rule(key) && key != "stream_options").cloned().collect()
        };
        assert_eq!(rest(&before), rest(&after), "another field changed");
        for rewrite in &rewrites {
            check_rewrite(rewrite, &after);
        }
    }
}

fn check_rewrite(rewrite: &Rewrite, after: &Json) {
    let means = |(key, _): &&(String, Json)| rewrite.parameter.members().contains(&key.as_str());
    let mut written = 0;
    for (key, value) in after.members().unwrap_or_default().iter().filter(means) {
        let number = match value {
            Json::Number(number) => number.as_f64(),
            Json::String(text) => text.trim().parse().ok(),
            Json::Null | Json::Bool(_) | Json::Array(_) | Json::Object(_) => None,
        };
        written += usize::from(*value != Json::Null);
        match number.filter(|number: &f64| number.is_finite()) {
            Some(number) => assert_eq!(rewrite.value(Some(number)), None, "{key} is {number}"),
            None if *value == Json::Null => assert_eq!(rewrite.value(None), None, "{key} is nothing"),
            None => assert_eq!(rewrite.set, None, "{key} is {value:?}"),
        }
    }
    assert!(written > 0 || rewrite.value(None).is_none(), "{:?} is not there", rewrite.parameter);
}

/// Multipart forms: the fields that a slow reading finds; only the model changes. The first line is the `Content-Type`.
pub fn form(data: &[u8]) {
    let (content_type, body) = line_of(data);
    let boundary = openai::form_boundary(content_type);
    let fields = openai::form_fields(content_type, body);
    let Some(boundary) = boundary else { return assert_eq!(fields, None) };
    assert!(!boundary.is_empty() && boundary.len() <= 256);
    let found = fields.map(|fields| fields.into_iter().map(|(name, at)| (name, body[at].to_vec())).collect::<Vec<_>>());
    let slow = slow_form(boundary, body);
    assert_eq!(found, slow, "the fields of the form");
    let api = Api::Transcriptions;
    let Ok(routing) = openai::routing(api, content_type, body) else { return };
    assert_eq!(&body[routing.model_at], routing.model.as_bytes());
    let (edited, told) = openai::edited(api, content_type, body, "org/M").expect("what was read is edited");
    assert_eq!(edited.len(), told, "the length that is told");
    let after = openai::form_fields(content_type, &edited).expect("an edited form is a form");
    let mut want = found.expect("what was routed has fields");
    let last = want.iter().rposition(|(name, _)| name == b"model").expect("a form that was routed names a model");
    want[last].1 = b"org/M".to_vec();
    let after: Vec<_> = after.into_iter().map(|(name, at)| (name, edited[at].to_vec())).collect();
    assert_eq!(after, want, "another field changed");
}

type Values = Vec<(Vec<u8>, Vec<u8>)>;

/// The fields of a form by trying every place.
fn slow_form(boundary: &[u8], body: &[u8]) -> Option<Values> {
    const PARTS_MAX: usize = 2_000;
    let dashes = [b"--", boundary].concat();
    let mut places = Vec::new();
    let mut at = 0;
    let mut last = false;
    while at < body.len() && !last {
        let begins_line = at == 0 || body[..at].ends_with(b"\r\n");
        if begins_line && body[at..].starts_with(&dashes) {
            let behind = &body[at + dashes.len()..];
            if behind.starts_with(b"\r\n") || behind.starts_with(b"--") {
                last = behind.starts_with(b"--");
                places.push((at, at + dashes.len() + 2));
                at += dashes.len();
                continue;
            }
        }
        at += 1;
    }
    if !last || places.len() > PARTS_MAX {
        return None;
    }
    let part = |pair: &[(usize, usize)]| slow_field(body.get(pair[0].1..pair[1].0.saturating_sub(2))?);
    Some(places.windows(2).filter_map(part).collect())
}

fn slow_field(part: &[u8]) -> Option<(Vec<u8>, Vec<u8>)> {
    const HEAD_BYTES_MAX: usize = 8 << 10;
    let end = part.windows(4).position(|four| four == b"\r\n\r\n").filter(|end| end + 4 <= HEAD_BYTES_MAX)?;
    let line = part[..end].split(|byte| *byte == b'\n').find(|line| {
        let name = line.split(|byte| *byte == b':').next().unwrap_or_default();
        name.len() < line.len() && name.trim_ascii().eq_ignore_ascii_case(b"content-disposition")
    })?;
    let colon = line.iter().position(|byte| *byte == b':')?;
    let parameters = slow_parameters(line[colon + 1..].trim_ascii());
    let of = |name: &str| {
        let same = |(key, _): &&(Vec<u8>, Vec<u8>)| key.eq_ignore_ascii_case(name.as_bytes());
        parameters.iter().find(same).map(|(_, value)| value.clone())
    };
    if of("filename").is_some() || of("filename*").is_some() {
        return None;
    }
    Some((of("name")?, part[end + 4..].to_vec()))
}

/// `; key=value` and `; key="value"`, byte by byte; an open quote ends the reading.
fn slow_parameters(value: &[u8]) -> Values {
    let mut found = Values::new();
    let mut at = value.iter().position(|byte| *byte == b';').map_or(value.len(), |at| at + 1);
    while at < value.len() {
        let stop = at + value[at..].iter().position(|byte| matches!(byte, b'=' | b';')).unwrap_or(value.len() - at);
        if value.get(stop) != Some(&b'=') {
            at = stop + 1;
            continue;
        }
        let key = value[at..stop].trim_ascii().to_vec();
        at = stop + 1;
        while value.get(at).is_some_and(u8::is_ascii_whitespace) {
            at += 1;
        }
        if value.get(at) == Some(&b'"') {
            let start = at + 1;
            at = start;
            while value.get(at).is_some_and(|byte| *byte != b'"') {
                at += if value[at] == b'\\' { 2 } else { 1 };
            }
            if at >= value.len() {
                return found;
            }
            found.push((key, value[start..at].to_vec()));
        } else {
            let end = at + value[at..].iter().position(|byte| *byte == b';').unwrap_or(value.len() - at);
            found.push((key, value[at..end].trim_ascii().to_vec()));
            at = end;
        }
        at += value[at..].iter().position(|byte| *byte == b';').map_or(value.len() - at, |n| n + 1);
    }
    found
}

/// Documents of answers: usage, model and kind of content as a strict parser's tree has them.
pub fn document(data: &[u8]) {
    let found = openai::document(data);
    let Some(json) = Json::parse(data).filter(|json| json.members().is_some()) else { return };
    let found = found.expect("an object is a document");
    // The first that is found is enough there: the same where there is one.
    let once = |name: &str| json.members().into_iter().flatten().filter(|(key, _)| key == name).count() < 2;
    if once("model") && once("usage") && json.member("message").is_none() && json.member("response").is_none() {
        let frame = openai::frame(data).expect("an object is a document");
        assert_eq!((frame.model_at, frame.usage), (found.model_at.clone(), found.usage), "read without its output");
    }
    assert_eq!(found.model_at.clone().map(|at| Json::parse(&data[at])), slow_model(&json).map(|m| Some(m.clone())));
    assert_eq!(found.usage, slow_usage(&json));
    let mut choices = json.members().into_iter().flatten().filter(|(key, _)| key == "choices");
    let last = choices.rfind(|(_, choices)| choices.elements().is_some());
    let empty = last.is_some_and(|(_, choices)| *choices == Json::Array(Vec::new()));
    assert_eq!(found.choices_empty, empty, "empty choices");
    // Names of events are compared as they are written.
    if !data.contains(&b'\\') {
        let kind = json.member("type").and_then(Json::text).unwrap_or_default();
        let error = json.member("error").is_some_and(|error| *error != Json::Null);
        assert_eq!(found.is_error, error || kind == "error" || kind == "response.failed");
    }
    if matches!(json.member("choices"), None | Some(Json::Null)) && json.member("type").is_none() {
        assert!(!found.output || json.members().is_some_and(|m| m.iter().any(|(key, _)| key == "choices")));
    }
}

/// The last text called `model` at the top, else in the last `message` or `response` that has one.
fn slow_model(json: &Json) -> Option<&Json> {
    let last_text = |json: &'_ Json| -> Option<usize> {
        json.members()?.iter().rposition(|(key, value)| key == "model" && value.text().is_some())
    };
    let members = json.members()?;
    if let Some(at) = last_text(json) {
        return Some(&members[at].1);
    }
    let nested = members.iter().filter(|(key, _)| key == "message" || key == "response");
    nested.filter_map(|(_, value)| Some(&value.members()?[last_text(value)?].1)).next_back()
}

fn slow_usage(json: &Json) -> Option<[Option<u64>; 3]> {
    let mut usage = None;
    for (key, value) in json.members()? {
        match key.as_str() {
            "usage" => usage = slow_counts(value),
            "message" | "response" => {
                for (_, nested) in value.members().unwrap_or_default().iter().filter(|(key, _)| key == "usage") {
                    usage = slow_counts(nested).or(usage);
                }
            }
            _ => {}
        }
    }
    usage
}

fn slow_counts(usage: &Json) -> Option<[Option<u64>; 3]> {
    let mut counts = [None; 3];
    for (key, value) in usage.members()? {
        match key.as_str() {
            "prompt_tokens" | "input_tokens" => counts[0] = value.whole(),
            "completion_tokens" | "output_tokens" => counts[1] = value.whole(),
            "cache_read_input_tokens" => counts[2] = value.whole(),
            "prompt_tokens_details" | "input_tokens_details" => {
                for (_, cached) in value.members().unwrap_or_default().iter().filter(|(key, _)| key == "cached_tokens")
                {
                    counts[2] = cached.whole();
                }
            }
            _ => {}
        }
    }
    Some(counts)
}
