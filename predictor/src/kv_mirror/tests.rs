use super::*;
use crate::prefix::chain::{Chain, ChainBuilder};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

fn unhex(text: &str) -> Vec<u8> {
    let digit = |byte: u8| (byte as char).to_digit(16).unwrap() as u8;
    text.as_bytes().chunks(2).map(|pair| digit(pair[0]) << 4 | digit(pair[1])).collect()
}

/// The messages captured from a real engine, in order.
fn captured(name: &str) -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/kv_events").join(name);
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
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/kv_events/int_sha256/requests.json");
    let notes: serde_json::Value = serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap();
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

/// An event on blocks of a small tree of prompts: a path of steps, each a block of two tokens.
#[derive(Clone, Debug)]
enum Step {
    /// Stores the last `fresh` blocks of a path.
    Store(Vec<u8>, usize, Medium),
    Remove(Vec<u8>, Medium),
    Clear,
}

fn name(path: &[u8]) -> EngineHash {
    EngineHash(xxh3_64(path))
}

fn key(path: &[u8]) -> u64 {
    let root = Seed { model: "m", lora: None, cache_salt: None }.root();
    path.iter().fold(root, |parent, step| token_block(parent, [u32::from(*step), 0].into_iter()))
}

fn event(step: &Step) -> Event<'static> {
    match step {
        Step::Store(path, fresh, medium) => {
            let known = path.len() - (*fresh).clamp(1, path.len());
            Event::Stored(Stored {
                hashes: (known + 1..=path.len()).map(|end| name(&path[..end])).collect(),
                parent: (known > 0).then(|| name(&path[..known])),
                token_ids: path[known..].iter().flat_map(|step| [u32::from(*step), 0]).collect(),
                block_tokens: 2,
                medium: *medium,
                ..Stored::default()
            })
        }
        Step::Remove(path, medium) => Event::Removed(Removed { hashes: vec![name(path)], medium: *medium, group: 0 }),
        Step::Clear => Event::Cleared,
    }
}

fn step() -> impl Strategy<Value = Step> {
    let path = || prop::collection::vec(0u8..3, 1..5);
    let medium = || prop_oneof![4 => Just(Medium::Device), 1 => Just(Medium::Elsewhere)];
    prop_oneof![
        8 => (path(), 1usize..5, medium()).prop_map(|(path, fresh, medium)| Step::Store(path, fresh, medium)),
        8 => (path(), medium()).prop_map(|(path, medium)| Step::Remove(path, medium)),
        1 => Just(Step::Clear),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, failure_persistence: None, ..ProptestConfig::default() })]

    /// The slow twin counts copies by path and medium, and never hears of hashes or keys; who follows the changes holds the
    /// same keys as the mirror.
    #[test]
    fn the_mirror_agrees_with_its_slow_twin(steps in prop::collection::vec(step(), 1..80)) {
        let mut mirror = Mirror::new("m", 1, 1_000);
        let mut twin: BTreeMap<Vec<u8>, [u32; 2]> = BTreeMap::new();
        let mut follower = std::collections::BTreeSet::new();
        for step in &steps {
            let mut delta = Delta::default();
            mirror.apply(0, &event(step), 0, &mut delta);
            match step {
                Step::Store(path, fresh, medium) => {
                    let known = path.len() - (*fresh).clamp(1, path.len());
                    // Without its parent a block has no place, unless it is known itself.
                    let mut placed = known == 0 || twin.contains_key(&path[..known]);
                    for end in known + 1..=path.len() {
                        placed |= twin.contains_key(&path[..end]);
                        if placed {
                            twin.entry(path[..end].to_vec()).or_default()[*medium as usize] += 1;
                        }
                    }
                }
                Step::Remove(path, medium) => {
                    if let Some(copies) = twin.get_mut(path) {
                        copies[*medium as usize] = copies[*medium as usize].saturating_sub(1);
                        if *copies == [0, 0] {
                            twin.remove(path);
                        }
                    }
                }
                Step::Clear => twin.clear(),
            }
            for change in &delta.changes {
                match change {
                    Change::Stored(keys) => follower.extend(keys.iter().copied()),
                    Change::Removed(keys) => follower.retain(|key| !keys.contains(key)),
                    Change::Cleared => follower.clear(),
                }
            }
            let expected: std::collections::BTreeSet<u64> = twin.keys().map(|path| key(path)).collect();
            prop_assert_eq!(&mirror.keys().collect::<std::collections::BTreeSet<_>>(), &expected);
            prop_assert_eq!(&follower, &expected);
            prop_assert_eq!(mirror.blocks, twin.len());
        }
    }

    #[test]
    fn any_messages_leave_a_mirror_that_goes_on(
        messages in prop::collection::vec((0u64..6, any::<bool>(), prop::collection::vec(any::<u8>(), 0..40)), 0..40),
    ) {
        let mut mirror = Mirror::new("m", 1, 8);
        let mut delta = Delta::default();
        for (sequence, live, payload) in messages {
            let source = if live { Source::Live } else { Source::Replay };
            if let Received::Gap { missing } = mirror.receive(0, source, sequence, &payload, 0, &mut delta) {
                prop_assert!(missing < sequence);
                mirror.give_up(0, sequence);
            }
        }
        mirror.restart(0, &mut delta);
        let cleared = captured("bytes_sha256_cbor_seed42").remove(7);
        prop_assert_eq!(feed(&mut mirror, 0, &cleared).0, Received::Applied);
    }
}
