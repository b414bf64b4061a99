//! The msgpack of one message.

use std::collections::HashMap;

use super::Content;
use crate::step::BlockChange;

/// `EventBatch` of vLLM 0.32.
pub(super) fn batch(
    changes: &[BlockChange],
    catalog: &HashMap<u64, Content>,
    block_tokens: u32,
    unix_s: f64,
) -> Vec<u8> {
    let mut events: Vec<Vec<u8>> = Vec::new();
    let mut run: Vec<u64> = Vec::new();
    for change in changes {
        let follows = match (change, run.last()) {
            (BlockChange::Stored(hash), Some(last)) => catalog.get(hash).is_some_and(|c| c.parent == Some(*last)),
            (BlockChange::Stored(_), None) => true,
            (BlockChange::Removed(_) | BlockChange::Cleared, _) => false,
        };
        if !follows {
            events.extend(stored(&std::mem::take(&mut run), catalog, block_tokens));
        }
        match change {
            BlockChange::Stored(hash) => run.push(*hash),
            BlockChange::Removed(hash) => events.push(removed(*hash)),
            BlockChange::Cleared => events.push(cleared()),
        }
    }
    events.extend(stored(&run, catalog, block_tokens));
    let mut out = Vec::new();
    array(&mut out, 3);
    out.push(0xcb);
    out.extend(unix_s.to_be_bytes());
    array(&mut out, events.len());
    events.iter().for_each(|event| out.extend(event));
    out.push(0);
    out
}

/// Blocks that follow each other; `None` when there is none, or it was never described.
fn stored(hashes: &[u64], catalog: &HashMap<u64, Content>, block_tokens: u32) -> Option<Vec<u8>> {
    let first = catalog.get(hashes.first()?)?;
    let contents: Vec<&Content> = hashes.iter().filter_map(|hash| catalog.get(hash)).collect();
    let mut out = Vec::new();
    map(&mut out, 11);
    text(&mut out, "type");
    text(&mut out, "BlockStored");
    text(&mut out, "block_hashes");
    array(&mut out, hashes.len());
    hashes.iter().for_each(|hash| number(&mut out, *hash));
    text(&mut out, "parent_block_hash");
    match first.parent {
        Some(parent) => number(&mut out, parent),
        None => out.push(NIL),
    }
    text(&mut out, "token_ids");
    array(&mut out, contents.iter().map(|content| content.tokens.len()).sum());
    contents.iter().flat_map(|content| &content.tokens).for_each(|id| number(&mut out, u64::from(*id)));
    text(&mut out, "block_size");
    number(&mut out, u64::from(block_tokens));
    text(&mut out, "lora_id");
    out.push(NIL);
    text(&mut out, "medium");
    text(&mut out, "GPU");
    text(&mut out, "lora_name");
    out.push(NIL);
    text(&mut out, "extra_keys");
    array(&mut out, contents.len());
    for content in contents {
        match &content.salt {
            Some(salt) => {
                array(&mut out, 1);
                text(&mut out, salt);
            }
            None => out.push(NIL),
        }
    }
    text(&mut out, "group_idx");
    number(&mut out, 0);
    text(&mut out, "kv_cache_spec_kind");
    text(&mut out, "full_attention");
    Some(out)
}

fn removed(hash: u64) -> Vec<u8> {
    let mut out = Vec::new();
    map(&mut out, 4);
    text(&mut out, "type");
    text(&mut out, "BlockRemoved");
    text(&mut out, "block_hashes");
    array(&mut out, 1);
    number(&mut out, hash);
    text(&mut out, "medium");
    text(&mut out, "GPU");
    text(&mut out, "group_idx");
    number(&mut out, 0);
    out
}

fn cleared() -> Vec<u8> {
    let mut out = Vec::new();
    map(&mut out, 1);
    text(&mut out, "type");
    text(&mut out, "AllBlocksCleared");
    out
}

const NIL: u8 = 0xc0;

fn array(out: &mut Vec<u8>, len: usize) {
    out.push(0xdd);
    out.extend((len as u32).to_be_bytes());
}

fn map(out: &mut Vec<u8>, pairs: u8) {
    out.push(0x80 | pairs);
}

fn text(out: &mut Vec<u8>, text: &str) {
    out.push(0xdb);
    out.extend((text.len() as u32).to_be_bytes());
    out.extend(text.as_bytes());
}

fn number(out: &mut Vec<u8>, number: u64) {
    out.push(0xcf);
    out.extend(number.to_be_bytes());
}
