//! A chat completion request in Converse's words.
//!
//! What Converse has is translated, what the answer does not depend on is left out, and what would make the answer another than
//! was asked for is refused with the way out ([`crate::FIELDS`]). Schemas and arguments keep the order of their keys and the
//! digits of their numbers. Nothing is fetched: images come in the request.

mod media;
mod messages;
mod tools;
mod wire;

use std::borrow::Cow;

use serde_json::value::RawValue;

use crate::fields;
use crate::json::{Object, Place, Shape, Value, element};
use crate::refusal::Refusal;
use crate::sigv4::{Slash, encoded};
use wire::{Inference, JsonSchema, Output, Structure, TextFormat};

/// A request to send.
#[derive(Clone, PartialEq, Eq)]
pub struct Converse {
    /// JSON, with `content-type: application/json`.
    pub body: Vec<u8>,
    /// How the answer is wanted; part of the path.
    pub delivery: Delivery,
    /// Fields that were left out, of those in [`crate::FIELDS`].
    pub left_out: Vec<&'static str>,
}

/// Not the prompt.
impl std::fmt::Debug for Converse {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "Converse({} bytes, {:?}, without {:?})", self.body.len(), self.delivery, self.left_out)
    }
}

/// How the client wants the answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Delivery {
    /// One document.
    Whole,
    /// Server-sent events.
    Streamed,
    /// Server-sent events, and a last one with usage.
    StreamedWithUsage,
}

/// Path of a request for the model that Bedrock knows by this id, profile or ARN: percent-encoded as botocore does, `:` and
/// `/` of an ARN too.
#[must_use]
pub fn path(model_id: &str, delivery: Delivery) -> String {
    let operation = match delivery {
        Delivery::Whole => "converse",
        Delivery::Streamed | Delivery::StreamedWithUsage => "converse-stream",
    };
    format!("/model/{}/{operation}", encoded(model_id.as_bytes(), Slash::Encoded))
}

/// Translates the body of a chat completion request.
///
/// # Errors
/// A body that is no such request, or asks for what Converse does not have.
pub fn converse(body: &[u8]) -> Result<Converse, Refusal> {
    let body = std::str::from_utf8(body).map_err(|_| Refusal::not_json())?;
    let top = Object::read(body, Place::Top)?;
    let left_out = fields::check(&top)?;
    let delivery = delivery(&top)?;
    let conversation = messages::conversation(&top.needed("messages")?)?;
    let tools = tools::configuration(&top, &conversation)?;
    let request = wire::Request {
        messages: conversation.turns,
        system: conversation.system,
        inference_config: inference(&top)?,
        tool_config: tools,
        output_config: output(&top)?,
    };
    let mut json = Vec::with_capacity(body.len() + body.len() / 8);
    // Strings, lists and JSON that was read from a request: there is nothing here that cannot be written.
    serde_json::to_writer(&mut json, &request).map_err(|_| Refusal::not_json())?;
    Ok(Converse { body: json, delivery, left_out })
}

fn delivery(top: &Object<'_, '_>) -> Result<Delivery, Refusal> {
    let truth = |value: Option<Value<'_, '_>>| value.map_or(Ok(false), |value| value.truth());
    let streamed = truth(top.value("stream"))?;
    let usage = match top.value("stream_options") {
        Some(options) => truth(options.object()?.value("include_usage"))?,
        None => false,
    };
    Ok(match (streamed, usage) {
        (false, _) => Delivery::Whole,
        (true, false) => Delivery::Streamed,
        (true, true) => Delivery::StreamedWithUsage,
    })
}

fn inference<'a>(top: &Object<'a, '_>) -> Result<Option<Inference<'a>>, Refusal> {
    let inference = Inference {
        max_tokens: match top.value("max_completion_tokens").or_else(|| top.value("max_tokens")) {
            None => None,
            Some(value) => match value.whole_number()? {
                0 => return Err(value.place().unsupported("Bedrock writes at least one token")),
                tokens => Some(tokens),
            },
        },
        temperature: share(top.value("temperature"))?,
        top_p: share(top.value("top_p"))?,
        stop_sequences: top.value("stop").map_or(Ok(Vec::new()), |value| stop_sequences(&value))?,
    };
    Ok((inference != Inference::default()).then_some(inference))
}

/// A number that Converse takes from 0 to 1, in the client's digits.
fn share<'a>(value: Option<Value<'a, '_>>) -> Result<Option<Number<'a>>, Refusal> {
    let Some(value) = value else { return Ok(None) };
    if !(0.0..=1.0).contains(&value.number()?) {
        return Err(value.place().unsupported("Bedrock takes 0 to 1; send a number in this range"));
    }
    Ok(Some(Number(value.raw())))
}

/// A number as the client wrote it.
#[derive(Debug, Clone, Copy, serde::Serialize)]
#[serde(transparent)]
struct Number<'a>(&'a RawValue);

impl PartialEq for Number<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.0.get() == other.0.get()
    }
}

/// Converse takes no empty ones; they would stop nothing.
fn stop_sequences<'a>(value: &Value<'a, '_>) -> Result<Vec<Cow<'a, str>>, Refusal> {
    let mut sequences = match value.shape() {
        Shape::Text => vec![value.text()?],
        Shape::List => {
            let texts = value.list()?;
            let texts = texts.iter().enumerate().map(|(index, raw)| element(raw, value.place(), index).text());
            texts.collect::<Result<Vec<_>, _>>()?
        }
        Shape::Object | Shape::Other => return Err(value.place().expected("a string or a list of strings")),
    };
    sequences.retain(|sequence| !sequence.is_empty());
    Ok(sequences)
}

/// `response_format`. A JSON schema is text to Converse.
fn output<'a>(top: &Object<'a, '_>) -> Result<Option<Output<'a>>, Refusal> {
    let Some(format) = top.value("response_format") else { return Ok(None) };
    let format = format.object()?;
    let kind = format.needed("type")?;
    match &*kind.text()? {
        "text" => Ok(None),
        "json_schema" => {
            let value = format.needed("json_schema")?;
            let definition = value.object()?;
            let schema = definition.needed("schema")?;
            let Shape::Object = schema.shape() else { return Err(schema.place().expected("a JSON schema object")) };
            let json_schema = JsonSchema {
                schema: schema.raw().get(),
                name: definition.text("name")?,
                description: definition.text("description")?,
            };
            Ok(Some(Output { text_format: TextFormat { kind: "json_schema", structure: Structure { json_schema } } }))
        }
        "json_object" => Err(kind.place().unsupported("Bedrock has no JSON mode without a schema; send json_schema")),
        _ => Err(kind.place().expected("text, json_schema or json_object")),
    }
}
