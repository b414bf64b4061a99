use super::*;
use proptest::prelude::*;
use std::collections::BTreeMap;

/// A message that says that everything is gone.
const CLEARED: &[u8] = b"\x92\xc0\x91\x81\xa4type\xb0AllBlocksCleared";

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
        prop_assert_eq!(mirror.receive(0, Source::Live, 0, CLEARED, 0, &mut delta), Received::Applied);
    }
}

/// Two requests that compute the same prompt at once leave two copies. That one of them goes says nothing of when the other was used last.
#[test]
fn the_end_of_one_of_two_copies_is_no_sign_of_how_far_eviction_has_come() {
    let mut mirror = Mirror::new("m", 1, 100);
    let stored = event(&Step::Store(vec![1], 1, Medium::Device));
    let removed = event(&Step::Remove(vec![1], Medium::Device));
    let mut evicted_after = |what: &Event<'_>, at: u32| {
        let mut delta = Delta::default();
        mirror.apply(0, what, at, &mut delta);
        delta.evicted_stored_at
    };
    assert_eq!(evicted_after(&stored, 10), None);
    assert_eq!(evicted_after(&stored, 20), None);
    assert_eq!(evicted_after(&removed, 30), None);
    assert_eq!(evicted_after(&removed, 40), Some(10));
    assert_eq!(evicted_after(&removed, 50), None, "it is gone already");
    assert_eq!(evicted_after(&stored, 60), None);
    assert_eq!(evicted_after(&removed, 70), Some(60));
}
