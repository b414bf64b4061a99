//! Requests to the token ids that an engine makes of them: the exact mode of a worker set.
//!
//! A [`Tokenizer`] is what lies beside a model: `tokenizer.json`, `tokenizer_config.json` and a chat template. It renders the
//! messages of a request as vLLM does and cuts the text into the same tokens, so that prompts are counted and recognised in the
//! engine's own blocks. What it cannot say exactly it does not say: the request is then estimated by its bytes ([`Unfit`]).
//!
//! Reading order: `json` (values in Python's order and form), `template` and `format` (Jinja as transformers has it), `chat` (a
//! request to variables), `encode` and `cache` (text to ids, once a piece).
//!
//! Pure: files are given as bytes, the time as a number. Everything here may run on several threads at once.
#![forbid(unsafe_code)]

mod cache;
mod chat;
mod encode;
mod format;
mod json;
mod python;
mod template;

use std::fmt;

use chat::Media;
use encode::Encoder;
use json::Json;
use template::Template;

pub use template::TEMPLATE_BYTES_MAX;

/// Longest `tokenizer.json` that is read. The largest known ones have 33 MiB.
pub const TOKENIZER_BYTES_MAX: usize = 128 << 20;

/// What lies beside a model.
#[derive(Clone, Copy, Debug, Default)]
pub struct Files<'a> {
    /// `tokenizer.json`
    pub tokenizer: &'a [u8],
    /// `tokenizer_config.json`, where there is one.
    pub config: Option<&'a [u8]>,
    /// The chat template, when it stands in a file: `chat_template.jinja`, or one that was named.
    pub chat_template: Option<&'a str>,
}

/// Which of the files is at fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// `tokenizer.json`
    Tokenizer,
    /// `tokenizer_config.json`
    Config,
    /// The chat template.
    ChatTemplate,
}

/// Why a tokenizer cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unusable {
    /// Where it stands.
    pub part: Part,
    /// What it is.
    pub why: String,
}

impl fmt::Display for Unusable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let part = match self.part {
            Part::Tokenizer => "the tokenizer",
            Part::Config => "tokenizer_config.json",
            Part::ChatTemplate => "the chat template",
        };
        write!(f, "{part}: {}", self.why)
    }
}

/// Why a request has no exact tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unfit {
    /// It is no JSON, or not one that an engine would take.
    NotAChat,
    /// It brings its own template.
    OwnTemplate,
    /// There is no chat template, or the request would be refused by it.
    Refused,
    /// It has images or sounds whose place among the tokens is not known.
    Media,
    /// It has several prompts, or one of another kind.
    NotOnePrompt,
    /// The tokenizer fails on it.
    NoTokens,
}

impl Unfit {
    /// In a word.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::NotAChat => "not_a_chat",
            Self::OwnTemplate => "own_template",
            Self::Refused => "refused_by_template",
            Self::Media => "media",
            Self::NotOnePrompt => "not_one_prompt",
            Self::NoTokens => "no_tokens",
        }
    }
}

/// The tokens of a prompt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tokens {
    /// Their ids.
    pub ids: Vec<u32>,
    /// Images, sounds and videos, where there are some. The engine puts as many tokens in the place of each as it takes.
    pub media: Option<Placeholders>,
    /// Places where earlier requests of the conversation may have ended, ascending: behind each opening of an answer that is like the
    /// one at the end; at most [`TURNS_MAX`], the last ones.
    pub turns: Vec<usize>,
}

/// Most places of [`Tokens::turns`].
pub const TURNS_MAX: usize = 8;
/// Most ids that open an answer (`<|im_start|>`, `assistant`, a line feed).
const OPENING_IDS_MAX: usize = 8;

/// What is not text in a prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placeholders {
    /// Place of the first one among the ids.
    pub first: usize,
    /// How many there are.
    pub items: u32,
    /// A hash of what they stand for.
    pub digest: u64,
}

/// A model's tokenizer and chat template.
#[derive(Debug)]
pub struct Tokenizer {
    encoder: Encoder,
    /// By default, and for requests with tools where that is another.
    templates: Templates,
    /// Names and texts of special tokens.
    specials: Vec<(String, String)>,
    /// Tokens that stand for an item that is not text.
    placeholders: Vec<u32>,
}

#[derive(Debug, Default)]
struct Templates {
    default: Option<Template>,
    with_tools: Option<Template>,
}

/// Texts that models have for an item in a prompt; those that are a token of a tokenizer count.
const PLACEHOLDERS: [&str; 18] = [
    "<|image_pad|>",
    "<|video_pad|>",
    "<|audio_pad|>",
    "<|vision_start|>",
    "<|image|>",
    "<|audio|>",
    "<|video|>",
    "<|AUDIO|>",
    "<image>",
    "<video>",
    "<audio>",
    "[IMG]",
    "[AUDIO]",
    "<start_of_image>",
    "<image_soft_token>",
    "<audio_soft_token>",
    "<IMG_CONTEXT>",
    "<|image_1|>",
];

impl Tokenizer {
    /// Reads the files. Takes up to a second and as many bytes of memory as some ten times the files': not for a thread that
    /// answers requests.
    ///
    /// # Errors
    /// When one of them cannot be used.
    pub fn new(files: &Files<'_>) -> Result<Self, Unusable> {
        let unusable = |part: Part| move |why: String| Unusable { part, why };
        let config = match files.config {
            None => Json::Map(Vec::new()),
            Some(bytes) => Json::parse(bytes)
                .filter(|config| config.map().is_some())
                .ok_or_else(|| unusable(Part::Config)(String::from("is not a JSON object")))?,
        };
        let templates = Templates::find(files.chat_template, &config).map_err(unusable(Part::ChatTemplate))?;
        let encoder = Encoder::new(files.tokenizer, &config).map_err(unusable(Part::Tokenizer))?;
        let placeholders = PLACEHOLDERS.iter().filter_map(|text| encoder.token(text)).collect();
        let specials = encode::special_tokens(&config).map(|(name, text)| (name.to_owned(), text.to_owned())).collect();
        Ok(Self { encoder, templates, specials, placeholders })
    }

    /// Whether there is a chat template.
    #[must_use]
    pub fn has_chat_template(&self) -> bool {
        self.templates.default.is_some()
    }

    /// Bytes that the cache of tokens holds, estimated.
    #[must_use]
    pub fn cache_bytes(&self) -> usize {
        self.encoder.cache_bytes()
    }

    /// The tokens of the body of a chat request. `now_unix_s` is the date that templates may show.
    ///
    /// # Errors
    /// When they cannot be told.
    pub fn chat(&self, body: &[u8], now_unix_s: i64) -> Result<Tokens, Unfit> {
        let body = Json::parse(body).ok_or(Unfit::NotAChat)?;
        let (text, media) = self.render(&body, now_unix_s)?;
        let ids = match body.member("add_special_tokens").is_some_and(Json::is_true) {
            true => self.encoder.encode_framed(&text),
            false => self.encoder.encode(&text),
        }
        .ok_or(Unfit::NoTokens)?;
        let media = match media.items {
            0 => None,
            items => {
                let first = ids.iter().position(|id| self.placeholders.contains(id)).ok_or(Unfit::Media)?;
                Some(Placeholders { first, items, digest: media.digest })
            }
        };
        let turns = self.turns(&ids);
        Ok(Tokens { ids, media, turns })
    }

    /// The text that a chat request becomes before it is cut into tokens.
    ///
    /// # Errors
    /// When it cannot be told.
    pub fn chat_text(&self, body: &[u8], now_unix_s: i64) -> Result<String, Unfit> {
        let body = Json::parse(body).ok_or(Unfit::NotAChat)?;
        self.render(&body, now_unix_s).map(|(text, _)| text)
    }

    fn render(&self, body: &Json, now_unix_s: i64) -> Result<(String, Media), Unfit> {
        let with_tools = self.templates.with_tools.as_ref().filter(|_| body.given("tools").is_some());
        let template = with_tools.or(self.templates.default.as_ref()).ok_or(Unfit::Refused)?;
        chat::render(template, &self.specials, body, now_unix_s)
    }

    /// The tokens of the body of a completion request: one text, or one list of ids.
    ///
    /// # Errors
    /// When they cannot be told.
    pub fn completion(&self, body: &[u8]) -> Result<Tokens, Unfit> {
        let body = Json::parse(body).ok_or(Unfit::NotAChat)?;
        if body.given("suffix").is_some() || body.given("prompt_embeds").is_some() {
            return Err(Unfit::NotOnePrompt);
        }
        let framed = body.member("add_special_tokens").is_none_or(Json::is_true);
        let ids = match body.given("prompt").ok_or(Unfit::NotOnePrompt)? {
            Json::Text(text) => self.text(text, framed)?,
            Json::List(list) => match list.as_slice() {
                [Json::Text(text)] => self.text(text, framed)?,
                [Json::List(ids)] => token_ids(ids)?,
                ids => token_ids(ids)?,
            },
            Json::Null | Json::Bool(_) | Json::Int(_) | Json::Float(_) | Json::Map(_) => {
                return Err(Unfit::NotOnePrompt);
            }
        };
        Ok(Tokens { ids, media: None, turns: Vec::new() })
    }

    /// See [`Tokens::turns`].
    fn turns(&self, ids: &[u32]) -> Vec<usize> {
        let last = &ids[ids.len().saturating_sub(OPENING_IDS_MAX)..];
        let places = |opening: &[u32]| {
            let same = ids.windows(opening.len()).enumerate().rev().filter(|(_, window)| *window == opening);
            let mut ends: Vec<usize> = same.map(|(at, _)| at + opening.len()).take(TURNS_MAX).collect();
            ends.reverse();
            ends
        };
        let specials = last.iter().enumerate().rev().filter(|(_, id)| self.encoder.is_added(**id));
        let starts: Vec<usize> = specials.map(|(start, _)| start).take(2).collect();
        // From the last but one special token on it is this role's opening and not anyone's, unless what was asked lies in between.
        let found = starts.iter().rev().map(|&start| places(&last[start..])).find(|ends| ends.len() > 1);
        found.unwrap_or_else(|| if starts.is_empty() { Vec::new() } else { vec![ids.len()] })
    }

    fn text(&self, text: &str, framed: bool) -> Result<Vec<u32>, Unfit> {
        match framed {
            true => self.encoder.encode_framed(text),
            false => self.encoder.encode(text),
        }
        .ok_or(Unfit::NoTokens)
    }
}

fn token_ids(list: &[Json]) -> Result<Vec<u32>, Unfit> {
    let id = |value: &Json| match value {
        Json::Int(id) => u32::try_from(*id).ok(),
        Json::Null | Json::Bool(_) | Json::Float(_) | Json::Text(_) | Json::List(_) | Json::Map(_) => None,
    };
    list.iter().map(id).collect::<Option<Vec<u32>>>().filter(|ids| !ids.is_empty()).ok_or(Unfit::NotOnePrompt)
}

impl Templates {
    /// The template of a file, or those of the configuration: one text, or several by name.
    fn find(file: Option<&str>, config: &Json) -> Result<Self, String> {
        if let Some(source) = file {
            return Ok(Self { default: Some(Template::compile(source)?), with_tools: None });
        }
        match config.given("chat_template") {
            None => Ok(Self::default()),
            Some(Json::Text(source)) => Ok(Self { default: Some(Template::compile(source)?), with_tools: None }),
            Some(Json::List(list)) => {
                let named = |name: &str| {
                    let found = list.iter().find(|one| one.member("name").and_then(Json::text) == Some(name))?;
                    Some(Template::compile(found.member("template")?.text()?))
                };
                Ok(Self { default: named("default").transpose()?, with_tools: named("tool_use").transpose()? })
            }
            Some(Json::Null | Json::Bool(_) | Json::Int(_) | Json::Float(_) | Json::Map(_)) => {
                Err(String::from("`chat_template` is neither a text nor a list of named texts"))
            }
        }
    }
}
