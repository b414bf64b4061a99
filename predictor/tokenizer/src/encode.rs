//! Text to token ids, with what was tokenized before used again.
//!
//! Hugging Face tokenizers first cut a text at the added tokens that are matched in it as it is written (`<|im_start|>`, `[INST]`);
//! normalizer, pre-tokenizer and model then see one piece at a time. So a text may be cut in front of any such token, each part
//! tokenized by itself, and the ids strung together: [`Encoder::encode`] does that and looks every part up first. It holds only
//! where matching does not look across the cut, hence:
//! - the search is the same one (leftmost, longest, over the same tokens), so no match spans a cut;
//! - a token that takes white space on its left is no place for a cut, and one that takes it on its right has it in its own part;
//! - a tokenizer with a token that must stand as a word by itself is not cut at all: its match looks at its neighbours.

use std::collections::HashSet;
use std::sync::Arc;

use aho_corasick::{AhoCorasick, MatchKind};
use tokenizers::{AddedToken, Tokenizer as HfTokenizer};

use crate::cache::{Cache, Key};
use crate::json::Json;

/// Bytes of a tokenizer's cache: about eight million tokens.
const CACHE_BYTES_MAX: usize = 32 << 20;
/// Special tokens that a text is cut at. Those of real models are at most a few thousand, most of them reserved.
const CUTS_MAX: usize = 100_000;

/// A tokenizer with its cache.
#[derive(Debug)]
pub(crate) struct Encoder {
    model: HfTokenizer,
    cuts: Cuts,
    /// Ids of the added tokens.
    added: HashSet<u32>,
    cache: Cache,
    /// Ids that go before and after a text that asks for special tokens; `None` where they are not a frame around it.
    frame: Option<(Vec<u32>, Vec<u32>)>,
}

/// Where a text may be cut.
#[derive(Debug)]
enum Cuts {
    Nowhere,
    /// In front of the matches of these patterns that are marked `true`.
    Before(AhoCorasick, Vec<bool>),
}

impl Encoder {
    /// Reads `tokenizer.json`, completed by what `tokenizer_config.json` says of special tokens.
    ///
    /// # Errors
    /// Says what is wrong.
    pub(crate) fn new(tokenizer_json: &[u8], config: &Json) -> Result<Self, String> {
        let mut model = HfTokenizer::from_bytes(tokenizer_json).map_err(|error| error.to_string())?;
        model.with_truncation(None).map_err(|error| error.to_string())?;
        model.with_padding(None);
        add_tokens(&mut model, config)?;
        let cuts = cuts(&model)?;
        let frame = frame(&model);
        let added = model.get_added_tokens_decoder().into_keys().collect();
        Ok(Self { model, cuts, added, cache: Cache::new(CACHE_BYTES_MAX), frame })
    }

    /// The id of a token; `None` for a text that is none.
    pub(crate) fn token(&self, text: &str) -> Option<u32> {
        self.model.token_to_id(text)
    }

    /// Whether an id is that of an added token.
    pub(crate) fn is_added(&self, id: u32) -> bool {
        self.added.contains(&id)
    }

    /// Bytes that the cache holds, estimated.
    pub(crate) fn cache_bytes(&self) -> usize {
        self.cache.bytes()
    }

    /// Ids of a text without special tokens around it; `None` when the tokenizer fails.
    pub(crate) fn encode(&self, text: &str) -> Option<Vec<u32>> {
        let parts = self.parts(text);
        let keys: Vec<Key> = parts.iter().map(|part| Key::of(part)).collect();
        let mut found = self.cache.find(&keys);
        let mut fresh = Vec::new();
        for (index, ids) in found.iter_mut().enumerate() {
            if ids.is_none() {
                let made: Arc<[u32]> = Arc::from(self.encode_whole(parts[index])?);
                fresh.push((keys[index], made.clone()));
                *ids = Some(made);
            }
        }
        if !fresh.is_empty() {
            self.cache.keep(fresh.into_iter());
        }
        let mut all = Vec::with_capacity(found.iter().flatten().map(|ids| ids.len()).sum());
        found.iter().flatten().for_each(|ids| all.extend_from_slice(ids));
        Some(all)
    }

    /// Ids of a text with the special tokens that the tokenizer puts around one; `None` when that is not known.
    pub(crate) fn encode_framed(&self, text: &str) -> Option<Vec<u32>> {
        let (before, after) = self.frame.as_ref()?;
        let ids = self.encode(text)?;
        Some(before.iter().chain(&ids).chain(after).copied().collect())
    }

    /// Ids of a text at once, as the library gives them.
    pub(crate) fn encode_whole(&self, text: &str) -> Option<Vec<u32>> {
        if text.is_empty() {
            return Some(Vec::new());
        }
        self.model.encode_fast(text, false).ok().map(|encoding| encoding.get_ids().to_vec())
    }

    fn parts<'t>(&self, text: &'t str) -> Vec<&'t str> {
        let Cuts::Before(search, may_cut) = &self.cuts else { return vec![text] };
        let mut parts = Vec::new();
        let mut start = 0;
        for found in search.find_iter(text) {
            if may_cut[found.pattern().as_usize()] && found.start() > start {
                parts.push(&text[start..found.start()]);
                start = found.start();
            }
        }
        parts.push(&text[start..]);
        parts
    }
}

/// Adds the tokens that only `tokenizer_config.json` names, as transformers does when it loads a tokenizer.
fn add_tokens(model: &mut HfTokenizer, config: &Json) -> Result<(), String> {
    let mut known: Vec<String> = model.get_added_tokens_decoder().into_values().map(|token| token.content).collect();
    let mut listed: Vec<(u32, AddedToken)> = config
        .member("added_tokens_decoder")
        .and_then(Json::map)
        .unwrap_or_default()
        .iter()
        .filter_map(|(id, token)| Some((id.parse().ok()?, added_token(token)?)))
        .collect();
    listed.sort_by_key(|(id, _)| *id);
    let named = special_tokens(config).map(|(_, text)| AddedToken::from(text.to_owned(), true));
    let more = ["additional_special_tokens", "extra_special_tokens"].into_iter();
    let more = more.filter_map(|key| config.member(key)).flat_map(|tokens| match tokens {
        Json::List(list) => list.iter().filter_map(added_token).collect::<Vec<_>>(),
        Json::Map(members) => members.iter().filter_map(|(_, token)| added_token(token)).collect(),
        Json::Null | Json::Bool(_) | Json::Int(_) | Json::Float(_) | Json::Text(_) => Vec::new(),
    });
    let all: Vec<AddedToken> = listed.into_iter().map(|(_, token)| token).chain(named).chain(more).collect();
    for token in all {
        if token.content.is_empty() || known.contains(&token.content) {
            continue;
        }
        known.push(token.content.clone());
        model.add_tokens([token]).map_err(|error| error.to_string())?;
    }
    Ok(())
}

/// A token as configurations write one: its text, or an object with its text and how it is matched.
fn added_token(written: &Json) -> Option<AddedToken> {
    if let Some(text) = written.text() {
        return Some(AddedToken::from(text.to_owned(), true));
    }
    let is = |key: &str, otherwise: bool| written.member(key).map_or(otherwise, Json::is_true);
    let special = is("special", true);
    let token = AddedToken::from(written.member("content")?.text()?.to_owned(), special);
    Some(
        token
            .single_word(is("single_word", false))
            .lstrip(is("lstrip", false))
            .rstrip(is("rstrip", false))
            .normalized(is("normalized", !special)),
    )
}

/// Names and texts of the special tokens that templates know: `bos_token`, `eos_token`, ...
pub(crate) fn special_tokens(config: &Json) -> impl Iterator<Item = (&'static str, &str)> {
    const NAMES: [&str; 7] =
        ["bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"];
    NAMES.into_iter().filter_map(|name| {
        let token = config.given(name)?;
        Some((name, token.text().or_else(|| token.member("content")?.text())?))
    })
}

fn cuts(model: &HfTokenizer) -> Result<Cuts, String> {
    let tokens: Vec<AddedToken> =
        model.get_added_tokens_decoder().into_values().filter(|token| !token.content.is_empty()).collect();
    let as_written: Vec<&AddedToken> = tokens.iter().filter(|token| !token.normalized).collect();
    if tokens.iter().any(|token| token.single_word) || as_written.is_empty() || as_written.len() > CUTS_MAX {
        return Ok(Cuts::Nowhere);
    }
    let search = AhoCorasick::builder()
        .match_kind(MatchKind::LeftmostLongest)
        .build(as_written.iter().map(|token| &token.content))
        .map_err(|error| error.to_string())?;
    Ok(Cuts::Before(search, as_written.iter().map(|token| !token.lstrip).collect()))
}

/// What the tokenizer puts around a text that asks for special tokens. `add_bos_token` of the configuration says nothing beside a
/// `tokenizer.json`: transformers drops it.
fn frame(model: &HfTokenizer) -> Option<(Vec<u32>, Vec<u32>)> {
    let probe = |special: bool| model.encode_fast("a b", special).ok().map(|encoding| encoding.get_ids().to_vec());
    let (inner, outer) = (probe(false)?, probe(true)?);
    let before = (0..=outer.len().checked_sub(inner.len())?).find(|&at| outer[at..].starts_with(&inner))?;
    Some((outer[..before].to_vec(), outer[before + inner.len()..].to_vec()))
}
