//! Messages captured from real engines: what they say, and the cache that is made of them.
#![allow(clippy::unwrap_used, reason = "a test may fail by panic")]

use predictor::kv_event::{Attention, Batch, Beside, EngineHash, Event, Medium, decode};
use predictor::kv_mirror::{Change, Delta, Knowledge, Mirror, Received, Source};
use predictor::prefix::chain::{Chain, ChainBuilder, Seed};
use serde_json::Value as Json;
use std::fs;
use std::path::{Path, PathBuf};

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/kv_events").join(name)
}

/// Which request caused which message, and what another decoder found in it.
fn notes(name: &str) -> Json {
    serde_json::from_str(&fs::read_to_string(folder(name).join("requests.json")).unwrap()).unwrap()
}

fn unhex(text: &str) -> Vec<u8> {
    let digit = |byte: u8| (byte as char).to_digit(16).unwrap() as u8;
    text.as_bytes().chunks(2).map(|pair| digit(pair[0]) << 4 | digit(pair[1])).collect()
}

fn hash_of(json: &Json) -> EngineHash {
    match json.as_u64() {
        Some(number) => EngineHash(number),
        None => EngineHash(xxhash_rust::xxh3::xxh3_64(&unhex(json["bytes"].as_str().unwrap()))),
    }
}

fn list<T>(json: &Json, of: impl Fn(&Json) -> T) -> Vec<T> {
    json.as_array().unwrap().iter().map(of).collect()
}

/// What a captured message says by another decoder, as far as events are told by it.
fn assert_says(batch: &Batch<'_>, decoded: &Json, file: &str) {
    let events = decoded[1].as_array().unwrap();
    assert_eq!(batch.events.len(), events.len(), "{file}");
    assert_eq!((batch.rank, batch.unknown), (Some(0), 0), "{file}");
    for (event, json) in batch.events.iter().zip(events) {
        match event {
            Event::Stored(stored) => {
                assert_eq!(json["type"], "BlockStored", "{file}");
                assert_eq!(stored.hashes, list(&json["block_hashes"], hash_of), "{file}");
                assert_eq!(stored.token_ids, list(&json["token_ids"], |id| id.as_u64().unwrap() as u32), "{file}");
                let parent = &json["parent_block_hash"];
                assert_eq!(stored.parent, (!parent.is_null()).then(|| hash_of(parent)), "{file}");
                assert_eq!(u64::from(stored.block_tokens), json["block_size"].as_u64().unwrap(), "{file}");
                assert_eq!((stored.medium, stored.attention, stored.group), (Medium::Device, Attention::Whole, 0));
                let beside = |json: &Json| json[0].as_str().map_or(Beside::Nothing, |_| Beside::Text(b"salt"));
                let told = stored.extras.iter().map(|extra| match extra.beside(stored.lora) {
                    Beside::Text(_) => Beside::Text(b"salt"),
                    beside @ (Beside::Nothing | Beside::Other(_)) => beside,
                });
                assert_eq!(told.collect::<Vec<_>>(), list(&json["extra_keys"], beside), "{file}");
            }
            Event::Removed(removed) => {
                assert_eq!(json["type"], "BlockRemoved", "{file}");
                assert_eq!(removed.hashes, list(&json["block_hashes"], hash_of), "{file}");
            }
            Event::Cleared => assert_eq!(json["type"], "AllBlocksCleared", "{file}"),
        }
    }
}

#[test]
fn captured_messages_say_what_another_decoder_found_in_them() {
    let mut messages = 0;
    for name in ["int_sha256", "bytes_sha256_cbor_seed42"] {
        let notes = notes(name);
        for event in
            notes["requests"].as_array().unwrap().iter().flat_map(|request| list(&request["events"], Json::clone))
        {
            let file = event["file"].as_str().unwrap();
            let text = fs::read_to_string(folder(name).join(file)).unwrap();
            let payload = unhex(text.lines().nth(2).unwrap());
            assert_says(&decode(&payload).unwrap(), &event["decoded"], file);
            for cut in 0..payload.len() {
                assert!(decode(&payload[..cut]).is_err(), "{file} cut at {cut}");
            }
            messages += 1;
        }
    }
    assert_eq!(messages, 14);
}

/// The messages captured from a real engine, in order.
fn captured(name: &str) -> Vec<Vec<u8>> {
    let folder = folder(name);
    (0..)
        .map_while(|number| fs::read_to_string(folder.join(format!("{number:03}.hex"))).ok())
        .map(|text| unhex(text.lines().nth(2).unwrap()))
        .collect()
}

fn chain(ids: impl Iterator<Item = u32>, salt: Option<&str>) -> Chain {
    let seed = Seed { model: "tiny", lora: None, cache_salt: salt.map(str::as_bytes) };
    let mut builder = ChainBuilder::new(&seed, 32 * 4, Chain::default());
    builder.token_ids(ids);
    builder.finish()
}

/// Blocks of a request's chain that are held, from its start.
fn depth(mirror: &Mirror, chain: &Chain) -> usize {
    chain.blocks().iter().take_while(|key| mirror.holds(**key)).count()
}

fn feed(mirror: &mut Mirror, sequence: u64, payload: &[u8]) -> (Received, Delta) {
    let mut delta = Delta::default();
    let received = mirror.receive(0, Source::Live, sequence, payload, sequence as u32, &mut delta);
    (received, delta)
}

#[test]
fn a_real_engines_messages_give_the_keys_of_its_requests() {
    let messages = captured("bytes_sha256_cbor_seed42");
    let mut mirror = Mirror::new("tiny", 1, 1_000);
    let a = chain(3000..3064, None);
    let salted = chain(3000..3064, Some("s1"));
    assert_eq!(mirror.knowledge(), Knowledge::Nothing);
    feed(&mut mirror, 0, &messages[0]);
    assert_eq!((depth(&mirror, &a), depth(&mirror, &salted), mirror.blocks()), (2, 0, 2));
    assert_eq!((mirror.knowledge(), mirror.block_tokens()), (Knowledge::Complete, 32));
    let (_, again) = feed(&mut mirror, 1, &messages[1]);
    assert_eq!(again.changes, [Change::Stored(a.blocks()[1..].to_vec())]);
    feed(&mut mirror, 2, &messages[2]);
    assert_eq!((depth(&mirror, &salted), mirror.blocks()), (2, 4));
    feed(&mut mirror, 3, &messages[3]);
    feed(&mut mirror, 4, &messages[4]);
    assert_eq!(depth(&mirror, &chain(4000..4512, None)), 16);
    // The third prompt of 16 blocks does not fit into 39: the two copies of A's last block go, and its first.
    let (_, evicted) = feed(&mut mirror, 5, &messages[5]);
    assert_eq!(evicted.evicted_stored_at, Some(3));
    assert_eq!((depth(&mirror, &a), depth(&mirror, &salted)), (0, 0));
    let (_, cleared) = {
        feed(&mut mirror, 6, &messages[6]);
        feed(&mut mirror, 7, &messages[7])
    };
    assert_eq!((cleared.changes, mirror.blocks()), (vec![Change::Cleared], 0));
}

#[test]
fn chat_prompts_and_generated_tokens_are_found_by_their_ids() {
    let mut mirror = Mirror::new("tiny", 1, 1_000);
    for (sequence, message) in captured("int_sha256").iter().enumerate() {
        assert_eq!(feed(&mut mirror, sequence as u64, message).0, Received::Applied);
    }
    let notes = notes("int_sha256");
    for request in notes["requests"].as_array().unwrap() {
        let ids = |field: &str| request[field].as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32);
        let salt = request["request"]["cache_salt"].as_str();
        let prompt = chain(ids("prompt_token_ids"), salt);
        let whole = ids("prompt_token_ids").count() / 32;
        assert_eq!(depth(&mirror, &prompt), whole, "{}", request["name"]);
        if request["name"].as_str().unwrap().starts_with('d') {
            let answered = chain(ids("prompt_token_ids").chain(ids("output_token_ids")), salt);
            assert!(depth(&mirror, &answered) > whole);
        }
    }
}

#[test]
fn a_gap_is_told_and_filled_by_a_replay() {
    let messages = captured("int_sha256");
    let mut mirror = Mirror::new("tiny", 1, 1_000);
    assert_eq!(feed(&mut mirror, 2, &messages[2]).0, Received::Gap { missing: 0 });
    let mut delta = Delta::default();
    assert_eq!(mirror.replay_from(0), 0);
    for (sequence, message) in messages.iter().enumerate().take(4) {
        let received = mirror.receive(0, Source::Replay, sequence as u64, message, 0, &mut delta);
        assert_eq!(received, Received::Applied);
    }
    // What was published meanwhile is known by now.
    assert_eq!(feed(&mut mirror, 2, &messages[2]).0, Received::Duplicate);
    assert_eq!(feed(&mut mirror, 3, &messages[3]).0, Received::Duplicate);
    assert_eq!(feed(&mut mirror, 4, &messages[4]).0, Received::Applied);
    assert_eq!((mirror.knowledge(), mirror.replay_from(0)), (Knowledge::Complete, 4));
}

#[test]
fn what_cannot_be_had_again_leaves_the_knowledge_partial_until_a_clear() {
    let messages = captured("bytes_sha256_cbor_seed42");
    let mut mirror = Mirror::new("tiny", 1, 1_000);
    feed(&mut mirror, 0, &messages[0]);
    assert_eq!(feed(&mut mirror, 3, &messages[3]).0, Received::Gap { missing: 1 });
    mirror.give_up(0, 3);
    assert_eq!(feed(&mut mirror, 3, &messages[3]).0, Received::Applied);
    assert_eq!((mirror.knowledge(), mirror.counts().lost), (Knowledge::Partial, 2));
    assert_eq!(depth(&mirror, &chain(3000..3064, None)), 2, "what is known stays");
    assert_eq!(depth(&mirror, &chain(4000..4512, None)), 16);
    for sequence in 4..8 {
        feed(&mut mirror, sequence, &messages[sequence as usize]);
    }
    assert_eq!(mirror.knowledge(), Knowledge::Complete);
}

#[test]
fn a_restarted_engine_is_known_by_its_numbers_or_by_its_last_message() {
    let messages = captured("int_sha256");
    let mut mirror = Mirror::new("tiny", 1, 1_000);
    feed(&mut mirror, 0, &messages[0]);
    feed(&mut mirror, 1, &messages[1]);
    let (received, delta) = feed(&mut mirror, 0, &messages[4]);
    assert_eq!((received, delta.changes), (Received::Restarted, vec![Change::Cleared]));
    assert_eq!(feed(&mut mirror, 0, &messages[4]).0, Received::Applied);
    assert_eq!((mirror.blocks(), mirror.counts().restarts), (2, 1));

    let mut delta = Delta::default();
    assert_eq!(mirror.receive(0, Source::Replay, 0, &messages[4], 0, &mut delta), Received::Duplicate);
    assert_eq!(mirror.receive(0, Source::Replay, 0, &messages[0], 0, &mut delta), Received::Restarted);
    assert_eq!((mirror.knowledge(), mirror.replay_from(0)), (Knowledge::Nothing, 0));
}

#[test]
fn ranks_have_caches_and_numbers_of_their_own() {
    let messages = captured("bytes_sha256_cbor_seed42");
    let mut mirror = Mirror::new("tiny", 2, 1_000);
    let mut delta = Delta::default();
    for rank in 0..2 {
        mirror.receive(rank, Source::Live, 0, &messages[0], 0, &mut delta);
    }
    assert_eq!(mirror.blocks(), 2);
    mirror.restart(0, &mut delta);
    assert_eq!((mirror.blocks(), mirror.knowledge()), (2, Knowledge::Nothing));
    assert!(!delta.changes.contains(&Change::Cleared), "the other rank still holds them");
    mirror.restart(1, &mut delta);
    assert_eq!((mirror.blocks(), delta.changes.last()), (0, Some(&Change::Cleared)));
    assert_eq!(mirror.receive(2, Source::Live, 0, &messages[0], 0, &mut delta), Received::Duplicate);
}

#[test]
fn an_unreadable_message_counts_as_lost() {
    let mut mirror = Mirror::new("tiny", 1, 1_000);
    let (received, _) = feed(&mut mirror, 0, b"\xc1");
    assert!(matches!(received, Received::Unreadable(_)));
    assert_eq!((mirror.knowledge(), mirror.next(0)), (Knowledge::Partial, 1));
}

#[test]
fn no_more_blocks_are_kept_than_there_is_room_for() {
    let mut mirror = Mirror::new("tiny", 1, 10);
    for (sequence, message) in captured("bytes_sha256_cbor_seed42").iter().take(5).enumerate() {
        feed(&mut mirror, sequence as u64, message);
    }
    assert_eq!(mirror.blocks(), 10);
    assert!(mirror.counts().overflowed > 0);
}
