//! What vLLM publishes about its KV cache: one msgpack payload becomes a [`Batch`] of [`Event`]s.
//!
//! A payload is `EventBatch` of `vllm/distributed/kv_events.py`: time, events, data-parallel rank. Batch and events come as
//! arrays (fields by place) or as maps (fields by name), in any mix: vLLM changed its events from one to the other in 2026, and
//! SGLang and others write the same structures. Fields that have their default are absent; fields and events that are not
//! known are passed over.
//!
//! Bounds: nothing is kept but what the payload has bytes for (a token id is four bytes here and at least one there), nothing
//! nests (what is passed over is counted, not descended into), and no byte makes it panic. A payload that breaks the format is
//! refused whole: who then goes on must take what it said as lost.

use xxhash_rust::xxh3::xxh3_64;

mod msgpack;

pub use msgpack::Fault;
use msgpack::{Reader, Value};

/// The engine's name for a block and everything before it. Wide hashes (byte strings) are brought to 64 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct EngineHash(pub u64);

/// Where a block lies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Medium {
    /// The accelerator's own memory; what is meant when nothing is said.
    #[default]
    Device,
    /// Host memory, a disk, a store shared with others: loaded from there, not computed again.
    Elsewhere,
}

/// Which layers a block serves, where a model has several kinds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Attention {
    /// Layers that need every block of a prefix; what is meant when nothing is said.
    #[default]
    Whole,
    /// Layers that look back a bounded way or keep a state (sliding window, Mamba): their blocks come and go while the prefix
    /// stays cached, and tell nothing about it.
    Bounded,
}

/// What one block's hash covers besides its tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extra<'a> {
    /// The texts among it, at most two; more count as neither.
    texts: [Option<&'a [u8]>; 2],
    items: u32,
    /// Everything, as it came.
    raw: &'a [u8],
}

impl<'a> Extra<'a> {
    /// Nothing.
    pub const NONE: Extra<'static> = Extra { texts: [None, None], items: 0, raw: &[] };

    /// Tells what it is, given the adapter that the event names: vLLM writes, in this order and untagged, the adapter's name,
    /// media items, the cache salt (first block only) and embeddings.
    #[must_use]
    pub fn beside(&self, lora: Option<&str>) -> Beside<'a> {
        let lora = lora.map(str::as_bytes);
        let rest = match self.texts {
            [first, second] if first.is_some() && first == lora => (self.items - 1, second),
            [first, _] => (self.items, first),
        };
        match rest {
            (0, _) => Beside::Nothing,
            (1, Some(text)) => Beside::Text(text),
            (_, _) => Beside::Other(xxh3_64(self.raw)),
        }
    }
}

/// What a block's hash covers besides tokens and adapter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Beside<'a> {
    /// Nothing.
    Nothing,
    /// One text: a cache salt when it is on the first block of a prompt.
    Text(&'a [u8]),
    /// Media or embeddings, told apart by this hash.
    Other(u64),
}

/// Blocks that the engine can now find again, one after the other in one prompt.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Stored<'a> {
    /// Their names.
    pub hashes: Vec<EngineHash>,
    /// The block before the first; `None`: the first begins a prompt.
    pub parent: Option<EngineHash>,
    /// Their tokens, `block_tokens` for each. Empty where the engine does not tell them (a copy moved elsewhere) or not as
    /// one number each.
    pub token_ids: Vec<u32>,
    /// Tokens in a block.
    pub block_tokens: u32,
    /// Where they lie.
    pub medium: Medium,
    /// The adapter they were computed with.
    pub lora: Option<&'a str>,
    /// What else each hash covers; empty: nothing in any.
    pub extras: Vec<Extra<'a>>,
    /// Group of layers.
    pub group: u32,
    /// Kind of that group.
    pub attention: Attention,
}

/// Blocks that can no longer be found, one copy of each.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Removed {
    /// Their names.
    pub hashes: Vec<EngineHash>,
    /// Where they lay.
    pub medium: Medium,
    /// Group of layers.
    pub group: u32,
}

/// One event.
#[derive(Clone, Debug, PartialEq)]
pub enum Event<'a> {
    /// `BlockStored`
    Stored(Stored<'a>),
    /// `BlockRemoved`
    Removed(Removed),
    /// `AllBlocksCleared`
    Cleared,
}

/// What one message says.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Batch<'a> {
    /// In the order they happened.
    pub events: Vec<Event<'a>>,
    /// `data_parallel_rank` of the engine that speaks, where it says so.
    pub rank: Option<u32>,
    /// Events of kinds that are not known here.
    pub unknown: u32,
}

/// Reads a payload.
///
/// # Errors
/// Where it is not msgpack, or not a batch of events.
pub fn decode(payload: &[u8]) -> Result<Batch<'_>, Fault> {
    let mut reader = Reader::new(payload);
    let mut batch = Batch::default();
    let head = reader.next()?;
    if let Value::Map(count) = head {
        for _ in 0..count {
            match reader.name()? {
                b"events" => events(&mut reader, &mut batch)?,
                b"data_parallel_rank" => batch.rank = small(reader.next()?)?,
                _ => reader.skip()?,
            }
        }
        return Ok(batch);
    }
    let Value::Array(count @ 2..) = head else {
        return Err(Fault::Unexpected("a batch of events"));
    };
    reader.skip()?;
    events(&mut reader, &mut batch)?;
    for place in 2..count {
        match place {
            2 => batch.rank = small(reader.next()?)?,
            _ => reader.skip()?,
        }
    }
    Ok(batch)
}

fn events<'a>(reader: &mut Reader<'a>, batch: &mut Batch<'a>) -> Result<(), Fault> {
    let Value::Array(count) = reader.next()? else {
        return Err(Fault::Unexpected("a list of events"));
    };
    for _ in 0..count {
        match event(reader)? {
            Some(event) => batch.events.push(event),
            None => batch.unknown = batch.unknown.saturating_add(1),
        }
    }
    Ok(())
}

/// Fields of any event, before it is known which are needed.
#[derive(Default)]
struct Fields<'a> {
    kind: Option<&'a [u8]>,
    hashes: Option<Vec<EngineHash>>,
    parent: Option<EngineHash>,
    token_ids: Option<Vec<u32>>,
    block_tokens: Option<u32>,
    medium: Medium,
    lora: Option<&'a str>,
    extras: Vec<Extra<'a>>,
    group: u32,
    attention: Attention,
}

const STORED: &[u8] = b"BlockStored";
const REMOVED: &[u8] = b"BlockRemoved";
const CLEARED: &[u8] = b"AllBlocksCleared";

/// Fields in the order of the array form, behind the kind.
const STORED_FIELDS: [&[u8]; 10] = [
    b"block_hashes",
    b"parent_block_hash",
    b"token_ids",
    b"block_size",
    b"lora_id",
    b"medium",
    b"lora_name",
    b"extra_keys",
    b"group_idx",
    b"kv_cache_spec_kind",
];
const REMOVED_FIELDS: [&[u8]; 3] = [b"block_hashes", b"medium", b"group_idx"];

fn event<'a>(reader: &mut Reader<'a>) -> Result<Option<Event<'a>>, Fault> {
    let mut fields = Fields::default();
    let head = reader.next()?;
    if let Value::Map(count) = head {
        for _ in 0..count {
            let name = reader.name()?;
            fields.read(name, reader)?;
        }
        return fields.event();
    }
    let Value::Array(count @ 1..) = head else {
        return Err(Fault::Unexpected("an event"));
    };
    fields.read(b"type", reader)?;
    let names: &[&[u8]] = match fields.kind {
        Some(STORED) => &STORED_FIELDS,
        Some(REMOVED) => &REMOVED_FIELDS,
        Some(_) | None => &[],
    };
    for place in 0..count as usize - 1 {
        fields.read(names.get(place).copied().unwrap_or_default(), reader)?;
    }
    fields.event()
}

impl<'a> Fields<'a> {
    fn read(&mut self, name: &[u8], reader: &mut Reader<'a>) -> Result<(), Fault> {
        match name {
            b"type" => self.kind = Some(reader.name()?),
            b"block_hashes" => self.hashes = Some(hashes(reader)?),
            b"parent_block_hash" => self.parent = hash(reader.next()?)?,
            b"token_ids" => self.token_ids = token_ids(reader)?,
            b"block_size" => self.block_tokens = small(reader.next()?)?,
            b"medium" => {
                self.medium = match text(reader)? {
                    None | Some("GPU" | "gpu") => Medium::Device,
                    Some(_) => Medium::Elsewhere,
                };
            }
            b"lora_name" => self.lora = text(reader)?,
            b"extra_keys" => self.extras = extras(reader)?,
            b"group_idx" => self.group = small(reader.next()?)?.unwrap_or(0),
            b"kv_cache_spec_kind" => {
                self.attention = match text(reader)? {
                    None | Some("full_attention" | "mla_attention" | "sink_full_attention" | "unknown") => {
                        Attention::Whole
                    }
                    Some(_) => Attention::Bounded,
                };
            }
            _ => reader.skip()?,
        }
        Ok(())
    }

    fn event(self) -> Result<Option<Event<'a>>, Fault> {
        match self.kind {
            Some(STORED) => self.stored().map(|stored| Some(Event::Stored(stored))),
            Some(REMOVED) => {
                let hashes = self.hashes.ok_or(Fault::Missing("block_hashes"))?;
                Ok(Some(Event::Removed(Removed { hashes, medium: self.medium, group: self.group })))
            }
            Some(CLEARED) => Ok(Some(Event::Cleared)),
            Some(_) => Ok(None),
            None => Err(Fault::Missing("type")),
        }
    }

    fn stored(self) -> Result<Stored<'a>, Fault> {
        let hashes = self.hashes.ok_or(Fault::Missing("block_hashes"))?;
        let block_tokens = self.block_tokens.ok_or(Fault::Missing("block_size"))?;
        let tokens = hashes.len() as u64 * u64::from(block_tokens);
        let mut token_ids = self.token_ids.unwrap_or_default();
        // A last block that is not full has no hash of its own: its tokens belong to none.
        match token_ids.len() as u64 >= tokens {
            true => token_ids.truncate(tokens as usize),
            false => token_ids.clear(),
        }
        let extras = if self.extras.len() == hashes.len() { self.extras } else { Vec::new() };
        Ok(Stored {
            hashes,
            parent: self.parent,
            token_ids,
            block_tokens,
            medium: self.medium,
            lora: self.lora,
            extras,
            group: self.group,
            attention: self.attention,
        })
    }
}

/// A number that fits; nil is none.
fn small(value: Value<'_>) -> Result<Option<u32>, Fault> {
    if let Value::Unsigned(number) = value
        && let Ok(number) = u32::try_from(number)
    {
        return Ok(Some(number));
    }
    if value == Value::Nil { Ok(None) } else { Err(Fault::Unexpected("a 32-bit number")) }
}

fn text<'a>(reader: &mut Reader<'a>) -> Result<Option<&'a str>, Fault> {
    let value = reader.next()?;
    if let Value::Text(bytes) = value {
        return std::str::from_utf8(bytes).map(Some).map_err(|_| Fault::Unexpected("text in UTF-8"));
    }
    if value == Value::Nil { Ok(None) } else { Err(Fault::Unexpected("text")) }
}

fn hash(value: Value<'_>) -> Result<Option<EngineHash>, Fault> {
    match value {
        Value::Nil => Ok(None),
        Value::Unsigned(number) => Ok(Some(EngineHash(number))),
        Value::Negative(number) => Ok(Some(EngineHash(number as u64))),
        Value::Bytes(bytes) | Value::Text(bytes) => Ok(Some(EngineHash(xxh3_64(bytes)))),
        Value::Other | Value::Array(_) | Value::Map(_) => Err(Fault::Unexpected("a block's hash")),
    }
}

fn hashes(reader: &mut Reader<'_>) -> Result<Vec<EngineHash>, Fault> {
    let count = reader.list("a list of hashes")?.ok_or(Fault::Unexpected("a list of hashes"))?;
    let mut hashes = Vec::with_capacity(reader.room(count));
    for _ in 0..count {
        hashes.push(hash(reader.next()?)?.ok_or(Fault::Unexpected("a block's hash"))?);
    }
    Ok(hashes)
}

/// `None` where tokens are not one number each (pairs of a speculative decoder).
fn token_ids(reader: &mut Reader<'_>) -> Result<Option<Vec<u32>>, Fault> {
    let Some(count) = reader.list("a list of tokens")? else {
        return Ok(None);
    };
    let mut ids = Vec::with_capacity(reader.room(count));
    for read in 1..=count {
        let value = reader.next()?;
        if let Value::Unsigned(id) = value
            && let Ok(id) = u32::try_from(id)
        {
            ids.push(id);
        } else {
            reader.skip_items(value.items() + u64::from(count - read))?;
            return Ok(None);
        }
    }
    Ok(Some(ids))
}

fn extras<'a>(reader: &mut Reader<'a>) -> Result<Vec<Extra<'a>>, Fault> {
    let count = reader.list("a list of extra keys")?.unwrap_or(0);
    let mut extras = Vec::with_capacity(reader.room(count));
    for _ in 0..count {
        extras.push(extra(reader)?);
    }
    Ok(extras)
}

fn extra<'a>(reader: &mut Reader<'a>) -> Result<Extra<'a>, Fault> {
    let before = reader.rest();
    let Some(items) = reader.list("a block's extra keys")? else {
        return Ok(Extra::NONE);
    };
    let mut texts = [None, None];
    for place in 0..items {
        let value = reader.next()?;
        if let (Value::Text(text), Some(slot)) = (value, texts.get_mut(place as usize)) {
            *slot = Some(text);
        }
        reader.skip_items(value.items())?;
    }
    let raw = &before[..before.len() - reader.rest().len()];
    Ok(Extra { texts, items, raw })
}

#[cfg(test)]
mod tests;
