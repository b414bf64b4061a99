//! What engines publish of their caches: the payload, the copy made from it, and the connection it comes on.

use std::collections::BTreeSet;

use lb::probe::control;
use predictor::kv_event::{self, Attention, Event, Medium};
use predictor::kv_mirror::{CHANGE_KEYS_MAX, Change, Delta, Knowledge, Mirror, Received, Source};

use crate::input::{line_of, option_of};

/// A payload: read as a slow reader finds it, or refused as it refuses it.
pub fn kv_event(data: &[u8]) {
    let fast = kv_event::decode(data).ok();
    let mut rest = data;
    // What nests deeper than the slow reader's stack is left to the other one.
    let Ok(tree) = Tree::read(&mut rest, 0) else { return };
    let slow = tree.and_then(|tree| slow_batch(&tree));
    assert_eq!(fast.as_ref().map(|batch| batch.rank), slow.as_ref().map(|(rank, _)| *rank), "rank");
    let fast = fast.map(|batch| (batch.events.iter().map(told).collect::<Vec<_>>(), batch.unknown as usize));
    let slow = slow.map(|(_, events)| {
        let unknown = events.iter().filter(|event| event.is_none()).count();
        (events.into_iter().flatten().collect::<Vec<_>>(), unknown)
    });
    assert_eq!(fast, slow);
}

/// Messages in lines, each after a byte that says its number and where it comes from: who follows the changes holds what the
/// mirror holds, and no more than there is room for.
pub fn kv_mirror(data: &[u8]) {
    const BLOCKS_MAX: usize = 16;
    let mut mirror = Mirror::new("m", 2, BLOCKS_MAX);
    let mut follower = BTreeSet::new();
    let mut rest = data;
    while !rest.is_empty() {
        let (line, after) = line_of(rest);
        rest = after;
        let (option, payload) = option_of(line);
        let (sequence, rank) = (u64::from(option >> 3), u32::from(option & 1));
        let source = if option & 2 == 0 { Source::Live } else { Source::Replay };
        let mut delta = Delta::default();
        if let Received::Gap { missing } = mirror.receive(rank, source, sequence, payload, 0, &mut delta) {
            assert!(missing < sequence);
            mirror.give_up(rank, sequence);
            mirror.receive(rank, source, sequence, payload, 0, &mut delta);
            assert!(mirror.next(rank) > sequence);
        }
        for change in delta.changes {
            match change {
                Change::Stored(keys) => {
                    assert!(keys.len() <= CHANGE_KEYS_MAX);
                    follower.extend(keys);
                }
                Change::Removed(keys) => follower.retain(|key| !keys.contains(key)),
                Change::Cleared => follower.clear(),
            }
        }
        assert_eq!(mirror.keys().collect::<BTreeSet<_>>(), follower);
        assert!(mirror.blocks() <= BLOCKS_MAX && mirror.knowledge() >= Knowledge::Nothing);
    }
}

/// A publisher's side of a connection: what is heard does not depend on how its bytes come in, and is what is in them.
pub fn zmtp(data: &[u8]) {
    let Ok((whole, why)) = control::published(data, 1 << 20) else { return };
    for pipe_bytes in [1, 7] {
        let Ok(split) = control::published(data, pipe_bytes) else { return };
        assert_eq!(split, (whole.clone(), why.clone()), "through a pipe of {pipe_bytes} bytes");
    }
    assert!(!why.is_empty(), "it ended without a reason");
    let heard: usize = whole.iter().flatten().map(Vec::len).sum();
    assert!(heard <= data.len());
}

/// A value of msgpack with all it holds.
#[derive(Debug, Clone, PartialEq)]
enum Tree {
    Nil,
    Other,
    Number(i128),
    Text(Vec<u8>),
    Bytes(Vec<u8>),
    Array(Vec<Tree>),
    Map(Vec<(Tree, Tree)>),
}

const DEPTH_MAX: usize = 64;

impl Tree {
    fn text(&self) -> Option<&[u8]> {
        if let Tree::Text(text) = self { Some(text) } else { None }
    }

    fn list(&self) -> Option<&[Tree]> {
        if let Tree::Array(items) = self { Some(items) } else { None }
    }

    fn number(&self) -> Option<i128> {
        if let Tree::Number(number) = self { Some(*number) } else { None }
    }

    fn is_nil(&self) -> bool {
        *self == Tree::Nil
    }
}

impl Tree {
    /// `Err`: too deep. `None`: no value.
    fn read(rest: &mut &[u8], depth: usize) -> Result<Option<Tree>, ()> {
        if depth > DEPTH_MAX {
            return Err(());
        }
        let Some((&head, after)) = rest.split_first() else { return Ok(None) };
        *rest = after;
        let mut take = |count: usize| -> Option<Vec<u8>> {
            let (taken, after) = rest.split_at_checked(count)?;
            *rest = after;
            Some(taken.to_vec())
        };
        let big = |bytes: Vec<u8>| bytes.iter().fold(0_u128, |number, byte| number << 8 | u128::from(*byte));
        let sized = |take: &mut dyn FnMut(usize) -> Option<Vec<u8>>, bytes: usize, more: usize| {
            let length = usize::try_from(big(take(bytes)?)).ok()?;
            take(length.checked_add(more)?)
        };
        let leaf = match head {
            0x00..=0x7f => Some(Tree::Number(i128::from(head))),
            0xe0..=0xff => Some(Tree::Number(i128::from(head as i8))),
            0xa0..=0xbf => take(usize::from(head - 0xa0)).map(Tree::Text),
            0xc0 => Some(Tree::Nil),
            0xc2 | 0xc3 => Some(Tree::Other),
            0xc4 => sized(&mut take, 1, 0).map(Tree::Bytes),
            0xc5 => sized(&mut take, 2, 0).map(Tree::Bytes),
            0xc6 => sized(&mut take, 4, 0).map(Tree::Bytes),
            0xc7 => sized(&mut take, 1, 1).map(|_| Tree::Other),
            0xc8 => sized(&mut take, 2, 1).map(|_| Tree::Other),
            0xc9 => sized(&mut take, 4, 1).map(|_| Tree::Other),
            0xca => take(4).map(|_| Tree::Other),
            0xcb => take(8).map(|_| Tree::Other),
            0xcc => take(1).map(|b| Tree::Number(big(b) as i128)),
            0xcd => take(2).map(|b| Tree::Number(big(b) as i128)),
            0xce => take(4).map(|b| Tree::Number(big(b) as i128)),
            0xcf => take(8).map(|b| Tree::Number(big(b) as i128)),
            0xd0 => take(1).map(|b| Tree::Number(i128::from(big(b) as u8 as i8))),
            0xd1 => take(2).map(|b| Tree::Number(i128::from(big(b) as u16 as i16))),
            0xd2 => take(4).map(|b| Tree::Number(i128::from(big(b) as u32 as i32))),
            0xd3 => take(8).map(|b| Tree::Number(i128::from(big(b) as u64 as i64))),
            0xd4 => take(2).map(|_| Tree::Other),
            0xd5 => take(3).map(|_| Tree::Other),
            0xd6 => take(5).map(|_| Tree::Other),
            0xd7 => take(9).map(|_| Tree::Other),
            0xd8 => take(17).map(|_| Tree::Other),
            0xd9 => sized(&mut take, 1, 0).map(Tree::Text),
            0xda => sized(&mut take, 2, 0).map(Tree::Text),
            0xdb => sized(&mut take, 4, 0).map(Tree::Text),
            0xc1 => None,
            0x80..=0x9f | 0xdc..=0xdf => return Tree::read_many(head, rest, depth),
        };
        Ok(leaf)
    }

    fn read_many(head: u8, rest: &mut &[u8], depth: usize) -> Result<Option<Tree>, ()> {
        let count_bytes = match head {
            0xdc | 0xde => 2,
            0xdd | 0xdf => 4,
            _ => 0,
        };
        let Some((count, after)) = rest.split_at_checked(count_bytes) else { return Ok(None) };
        *rest = after;
        let count = match count_bytes {
            0 => usize::from(head & 0x0f),
            _ => count.iter().fold(0, |number, byte| number << 8 | usize::from(*byte)),
        };
        let is_map = matches!(head, 0x80..=0x8f | 0xde | 0xdf);
        let mut items = Vec::new();
        for _ in 0..if is_map { 2 * count } else { count } {
            match Tree::read(rest, depth + 1)? {
                Some(item) => items.push(item),
                None => return Ok(None),
            }
        }
        Ok(Some(match is_map {
            true => Tree::Map(items.chunks(2).map(|pair| (pair[0].clone(), pair[1].clone())).collect()),
            false => Tree::Array(items),
        }))
    }
}

/// What an event says, written down.
type Told = String;

fn told(event: &Event<'_>) -> Told {
    let medium = |medium: &Medium| match medium {
        Medium::Device => "here",
        Medium::Elsewhere => "there",
    };
    match event {
        Event::Stored(stored) => {
            let whole = if stored.attention == Attention::Whole { "whole" } else { "bounded" };
            format!(
                "stored {:?} after {:?}, {:?} by {}, {}, {:?}, group {}, {whole}, {} extras",
                stored.hashes.iter().map(|hash| hash.0).collect::<Vec<_>>(),
                stored.parent.map(|hash| hash.0),
                stored.token_ids,
                stored.block_tokens,
                medium(&stored.medium),
                stored.lora,
                stored.group,
                stored.extras.len(),
            )
        }
        Event::Removed(removed) => {
            let hashes = removed.hashes.iter().map(|hash| hash.0).collect::<Vec<_>>();
            format!("removed {hashes:?}, {}, group {}", medium(&removed.medium), removed.group)
        }
        Event::Cleared => String::from("cleared"),
    }
}

/// The rank, and each event: what it says, or nothing for an unknown kind. `None` when it is no batch.
fn slow_batch(tree: &Tree) -> Option<(Option<u32>, Vec<Option<Told>>)> {
    let (mut rank, mut events) = (None, Vec::new());
    let mut list = |tree: &Tree| -> Option<()> {
        for item in tree.list()? {
            events.push(slow_event(item)?);
        }
        Some(())
    };
    if let Tree::Map(pairs) = tree {
        for (name, value) in pairs {
            match name.text()? {
                b"events" => list(value)?,
                b"data_parallel_rank" => rank = small(value)?,
                _ => {}
            }
        }
    } else {
        list(tree.list()?.get(1)?)?;
        if let Some(item) = tree.list()?.get(2) {
            rank = small(item)?;
        }
    }
    Some((rank, events))
}

const STORED: [&str; 10] = [
    "block_hashes",
    "parent_block_hash",
    "token_ids",
    "block_size",
    "lora_id",
    "medium",
    "lora_name",
    "extra_keys",
    "group_idx",
    "kv_cache_spec_kind",
];
const REMOVED: [&str; 3] = ["block_hashes", "medium", "group_idx"];
const WHOLE: [&[u8]; 4] = [b"full_attention", b"mla_attention", b"sink_full_attention", b"unknown"];

/// The fields of an event by name, in the order they came.
fn fields_of(tree: &Tree) -> Option<Vec<(String, &Tree)>> {
    if let Tree::Map(pairs) = tree {
        let named = |(name, value)| Some((String::from_utf8_lossy(Tree::text(name)?).into_owned(), value));
        return pairs.iter().map(|(name, value)| (name, value)).map(named).collect();
    }
    let (kind, values) = tree.list()?.split_first()?;
    let names: &[&str] = match kind.text() {
        Some(b"BlockStored") => &STORED,
        Some(b"BlockRemoved") => &REMOVED,
        Some(_) | None => &[],
    };
    let known = names.iter().zip(values).map(|(name, value)| ((*name).to_owned(), value));
    Some([(String::from("type"), kind)].into_iter().chain(known).collect())
}

fn slow_event(tree: &Tree) -> Option<Option<Told>> {
    let fields = fields_of(tree)?;
    for (name, value) in &fields {
        check(name, value)?;
    }
    let field = |name: &str| fields.iter().rev().find(|(found, _)| found == name).map(|(_, value)| *value);
    let text = |name: &str| field(name).and_then(Tree::text);
    let medium = if matches!(text("medium"), None | Some(b"GPU" | b"gpu")) { "here" } else { "there" };
    let group = field("group_idx").and_then(small).flatten().unwrap_or(0);
    match text("type")? {
        b"BlockStored" => {
            let hashes = hashes(field("block_hashes")?)?;
            let block_tokens = small(field("block_size")?)??;
            let mut ids = field("token_ids").and_then(token_ids).unwrap_or_default();
            let wanted = hashes.len() as u64 * u64::from(block_tokens);
            if (ids.len() as u64) < wanted {
                ids.clear();
            }
            ids.truncate(wanted as usize);
            let lora = text("lora_name").map(|name| String::from_utf8_lossy(name).into_owned());
            let whole = text("kv_cache_spec_kind").is_none_or(|kind| WHOLE.contains(&kind));
            let whole = if whole { "whole" } else { "bounded" };
            let extras = field("extra_keys").and_then(Tree::list).map_or(0, <[Tree]>::len);
            let extras = if extras == hashes.len() { extras } else { 0 };
            let parent = field("parent_block_hash").and_then(hash).flatten();
            Some(Some(format!(
                "stored {hashes:?} after {parent:?}, {ids:?} by {block_tokens}, {medium}, {lora:?}, group {group}, {whole}, {extras} extras"
            )))
        }
        b"BlockRemoved" => {
            let hashes = hashes(field("block_hashes")?)?;
            Some(Some(format!("removed {hashes:?}, {medium}, group {group}")))
        }
        b"AllBlocksCleared" => Some(Some(String::from("cleared"))),
        _ => Some(None),
    }
}

/// Whether a field has a value of its kind, whatever event it is in.
fn check(name: &str, value: &Tree) -> Option<()> {
    let good = match name {
        "type" => value.text().is_some(),
        "block_hashes" => hashes(value).is_some(),
        "parent_block_hash" => hash(value).is_some(),
        "token_ids" => value.is_nil() || value.list().is_some(),
        "block_size" | "group_idx" => small(value).is_some(),
        "medium" | "lora_name" | "kv_cache_spec_kind" => {
            value.is_nil() || value.text().is_some_and(|text| std::str::from_utf8(text).is_ok())
        }
        "extra_keys" => {
            let is_extra = |item: &Tree| item.is_nil() || item.list().is_some();
            value.is_nil() || value.list().is_some_and(|items| items.iter().all(is_extra))
        }
        _ => true,
    };
    good.then_some(())
}

fn small(tree: &Tree) -> Option<Option<u32>> {
    if tree.is_nil() { Some(None) } else { u32::try_from(tree.number()?).ok().map(Some) }
}

fn hash(tree: &Tree) -> Option<Option<u64>> {
    match tree {
        Tree::Nil => Some(None),
        Tree::Number(number) => Some(Some(*number as u64)),
        // Wide hashes are brought to 64 bits by the reader; which, is its own affair.
        Tree::Bytes(bytes) | Tree::Text(bytes) => Some(Some(wide(bytes))),
        Tree::Other | Tree::Array(_) | Tree::Map(_) => None,
    }
}

/// What the reader makes of a wide hash, found through a payload that holds nothing else.
fn wide(bytes: &[u8]) -> u64 {
    let mut payload = b"\x92\xc0\x91\x92\xacBlockRemoved\x91\xc6".to_vec();
    payload.extend((bytes.len() as u32).to_be_bytes());
    payload.extend(bytes);
    match kv_event::decode(&payload).map(|batch| batch.events).as_deref() {
        Ok([Event::Removed(removed)]) => removed.hashes[0].0,
        other => panic!("{other:?}"),
    }
}

fn hashes(tree: &Tree) -> Option<Vec<u64>> {
    tree.list()?.iter().map(|item| hash(item)?).collect()
}

fn token_ids(tree: &Tree) -> Option<Vec<u32>> {
    tree.list()?.iter().map(|item| small(item)?).collect()
}
