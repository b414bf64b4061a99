//! Images and sound inside a request: base64 passes as it is, after a check that it is base64.

use std::borrow::Cow;

use super::wire::{Block, Media, Source};
use crate::json::{Object, Shape, Value};
use crate::refusal::Refusal;

const IMAGES: [(&str, &str); 5] =
    [("image/png", "png"), ("image/jpeg", "jpeg"), ("image/jpg", "jpeg"), ("image/gif", "gif"), ("image/webp", "webp")];

/// An `image_url` part: `{"image_url": {"url": "data:image/png;base64,..."}}`.
pub(super) fn image<'a>(part: &Object<'a, '_>) -> Result<Block<'a>, Refusal> {
    let image = part.needed("image_url")?;
    match image.shape() {
        Shape::Object => image_of(&image.object()?.needed("url")?),
        // Not OpenAI's shape, but sent, and taken by vLLM.
        Shape::Text => image_of(&image),
        Shape::List | Shape::Other => Err(image.place().expected("an object with a url")),
    }
}

fn image_of<'a>(url: &Value<'a, '_>) -> Result<Block<'a>, Refusal> {
    let text = url.text()?;
    let Some(data) = text.strip_prefix("data:") else {
        return Err(url
            .place()
            .unsupported("Bedrock fetches no URLs; send the image itself as a data: URL with base64"));
    };
    let parsed = data.split_once(',').and_then(|(kind, data)| Some((kind.strip_suffix(";base64")?, data)));
    let Some((kind, data)) = parsed else {
        return Err(url.place().expected("data:image/TYPE;base64,DATA"));
    };
    let kind = kind.split(';').next().unwrap_or_default();
    let Some((_, format)) = IMAGES.iter().find(|(known, _)| known.eq_ignore_ascii_case(kind)) else {
        return Err(url
            .place()
            .unsupported("Bedrock takes images of type image/png, image/jpeg, image/gif and image/webp"));
    };
    checked_base64(data, url)?;
    let from = text.len() - data.len();
    Ok(Block::Image(Media { format, source: Source { bytes: tail(text, from) } }))
}

/// An `input_audio` part: `{"input_audio": {"data": "...", "format": "wav"}}`.
pub(super) fn audio<'a>(part: &Object<'a, '_>) -> Result<Block<'a>, Refusal> {
    let value = part.needed("input_audio")?;
    let audio = value.object()?;
    let format = audio.needed("format")?;
    let format = match &*format.text()? {
        "wav" => "wav",
        "mp3" => "mp3",
        _ => return Err(format.place().expected("wav or mp3")),
    };
    let data = audio.needed("data")?;
    let bytes = data.text()?;
    checked_base64(&bytes, &data)?;
    Ok(Block::Audio(Media { format, source: Source { bytes } }))
}

/// The text from this place on.
fn tail(text: Cow<'_, str>, from: usize) -> Cow<'_, str> {
    match text {
        Cow::Borrowed(text) => Cow::Borrowed(&text[from..]),
        Cow::Owned(mut text) => Cow::Owned(text.split_off(from)),
    }
}

/// RFC 4648, section 4: the usual alphabet, padded, not empty.
fn checked_base64(data: &str, value: &Value<'_, '_>) -> Result<(), Refusal> {
    let content = data.strip_suffix("==").or_else(|| data.strip_suffix('=')).unwrap_or(data);
    let whole = !content.is_empty() && data.len().is_multiple_of(4);
    let letters = content.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'+' || byte == b'/');
    if whole && letters { Ok(()) } else { Err(value.place().expected("base64, padded with =")) }
}
