//! Datagrams between balancers: who tells, when, and five numbers an endpoint; authenticated, and good once.
//!
//! Integers are big-endian: `KIN1`, sender (8 bytes), time in microseconds since 1970 (8), number of entries (2), the entries
//! (40 each: endpoint 8, pending 4, its new tokens 8, its attention pairs twice 8, decoding 4, its tokens 8), then the first
//! 16 bytes of HMAC-SHA256 (RFC 2104) over all before. A datagram is below 1,280 bytes, which no path breaks up.

use std::collections::HashMap;

use predictor::fleet::{PEERS_MAX, PeerSums};
use ring::hmac;

const MAGIC: &[u8; 4] = b"KIN1";
const HEAD_BYTES: usize = 4 + 8 + 8 + 2;
const ENTRY_BYTES: usize = 40;
const TAG_BYTES: usize = 16;
/// Entries of one datagram.
const ENTRIES_MAX: usize = 30;
/// The longest datagram.
pub(super) const DATAGRAM_BYTES_MAX: usize = HEAD_BYTES + ENTRIES_MAX * ENTRY_BYTES + TAG_BYTES;
/// How far a sender's clock may be from ours. What is older may be a repetition.
const CLOCK_US_MAX: u64 = 60_000_000;
/// A sender that is silent for so long has gone, and makes room.
const SILENT_US_MAX: u64 = 60_000_000;

/// The secret that balancers share.
pub(super) struct Key(hmac::Key);

impl Key {
    pub(super) fn new(secret: &str) -> Self {
        Self(hmac::Key::new(hmac::HMAC_SHA256, secret.as_bytes()))
    }
}

/// What a balancer has sent to one endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    /// The endpoint, as all balancers name it.
    pub endpoint: u64,
    pub sums: PeerSums,
}

/// One datagram.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Telling {
    pub sender: u64,
    /// By the sender's clock, in microseconds since 1970; rises with each datagram.
    pub at_us: u64,
    pub entries: Vec<Entry>,
}

/// Why a datagram is not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refused {
    /// It has another form, or another version.
    Unknown,
    /// Its sender does not know the secret.
    Forged,
    /// Its time is not ours, or not after the sender's last: late, or a repetition.
    Late,
    /// More senders than can be heard.
    TooMany,
}

/// The datagrams that tell `entries`. Their times follow each other from `at_us`.
pub(super) fn encode(key: &Key, sender: u64, at_us: u64, entries: &[Entry]) -> Vec<Vec<u8>> {
    let datagrams = entries.chunks(ENTRIES_MAX).zip(at_us..);
    datagrams
        .map(|(entries, at_us)| {
            let mut bytes = Vec::with_capacity(DATAGRAM_BYTES_MAX);
            bytes.extend_from_slice(MAGIC);
            bytes.extend_from_slice(&sender.to_be_bytes());
            bytes.extend_from_slice(&at_us.to_be_bytes());
            bytes.extend_from_slice(&u16::try_from(entries.len()).unwrap_or(0).to_be_bytes());
            for Entry { endpoint, sums } in entries {
                bytes.extend_from_slice(&endpoint.to_be_bytes());
                bytes.extend_from_slice(&sums.pending.to_be_bytes());
                bytes.extend_from_slice(&sums.pending_new_tokens.to_be_bytes());
                bytes.extend_from_slice(&sums.pending_attention_x2.to_be_bytes());
                bytes.extend_from_slice(&sums.decoding.to_be_bytes());
                bytes.extend_from_slice(&sums.decoding_tokens.to_be_bytes());
            }
            signed(key, bytes)
        })
        .collect()
}

fn signed(key: &Key, mut said: Vec<u8>) -> Vec<u8> {
    let tag = hmac::sign(&key.0, &said);
    said.extend_from_slice(&tag.as_ref()[..TAG_BYTES]);
    said
}

/// Signs what might be said, reads it, and writes what was read again, without its signature: for fuzzing. `None` when it is
/// refused.
pub(super) fn reread(said: &[u8]) -> Option<Vec<u8>> {
    let key = Key::new("for fuzzing alone");
    let telling = decode(&key, &signed(&key, said.to_vec())).ok()?;
    let datagrams = encode(&key, telling.sender, telling.at_us, &telling.entries);
    Some(datagrams.iter().flat_map(|datagram| &datagram[..datagram.len() - TAG_BYTES]).copied().collect())
}

/// Reads a datagram.
pub(super) fn decode(key: &Key, bytes: &[u8]) -> Result<Telling, Refused> {
    let whole = bytes.len() >= HEAD_BYTES + TAG_BYTES && bytes.len() <= DATAGRAM_BYTES_MAX;
    if !whole || !bytes.starts_with(MAGIC) {
        return Err(Refused::Unknown);
    }
    let (said, tag) = bytes.split_at(bytes.len() - TAG_BYTES);
    let expected = hmac::sign(&key.0, said);
    if !same(&expected.as_ref()[..TAG_BYTES], tag) {
        return Err(Refused::Forged);
    }
    let mut rest = &said[MAGIC.len()..];
    let (sender, at_us) = (u64_of(&mut rest)?, u64_of(&mut rest)?);
    let count = usize::from(u16::from_be_bytes(take(&mut rest)?));
    if rest.len() != count * ENTRY_BYTES {
        return Err(Refused::Unknown);
    }
    let mut entries = Vec::with_capacity(count);
    for _ in 0..count {
        let endpoint = u64_of(&mut rest)?;
        let sums = PeerSums {
            pending: u32::from_be_bytes(take(&mut rest)?),
            pending_new_tokens: u64_of(&mut rest)?,
            pending_attention_x2: u64_of(&mut rest)?,
            decoding: u32::from_be_bytes(take(&mut rest)?),
            decoding_tokens: u64_of(&mut rest)?,
        };
        entries.push(Entry { endpoint, sums });
    }
    Ok(Telling { sender, at_us, entries })
}

/// Whether two tags are the same, in a time that does not tell where they differ.
fn same(a: &[u8], b: &[u8]) -> bool {
    a.len() == b.len() && a.iter().zip(b).fold(0, |different, (a, b)| different | (a ^ b)) == 0
}

fn take<const N: usize>(rest: &mut &[u8]) -> Result<[u8; N], Refused> {
    let (taken, left) = rest.split_first_chunk::<N>().ok_or(Refused::Unknown)?;
    *rest = left;
    Ok(*taken)
}

fn u64_of(rest: &mut &[u8]) -> Result<u64, Refused> {
    take(rest).map(u64::from_be_bytes)
}

/// Who has been heard, and when last.
#[derive(Debug, Default)]
pub(super) struct Senders {
    /// By sender: the time of its last datagram by its clock, and by ours.
    last: HashMap<u64, (u64, u64)>,
}

impl Senders {
    /// Whether a datagram is news; `now_us` since 1970.
    pub(super) fn hear(&mut self, now_us: u64, telling: &Telling) -> Result<(), Refused> {
        self.last.retain(|_, (_, heard_us)| now_us.saturating_sub(*heard_us) < SILENT_US_MAX);
        let known = self.last.get(&telling.sender);
        let repeated = known.is_some_and(|(at_us, _)| telling.at_us <= *at_us);
        if repeated || telling.at_us.abs_diff(now_us) > CLOCK_US_MAX {
            return Err(Refused::Late);
        }
        if known.is_none() && self.last.len() >= PEERS_MAX {
            return Err(Refused::TooMany);
        }
        self.last.insert(telling.sender, (telling.at_us, now_us));
        Ok(())
    }

    /// How many have been heard within `us`.
    pub(super) fn heard_within(&self, now_us: u64, us: u64) -> usize {
        self.last.values().filter(|(_, heard_us)| now_us.saturating_sub(*heard_us) <= us).count()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn entry(endpoint: u64) -> Entry {
        let sums = PeerSums {
            pending: 3,
            pending_new_tokens: endpoint.wrapping_mul(7),
            pending_attention_x2: u64::MAX - endpoint,
            decoding: 9,
            decoding_tokens: 11,
        };
        Entry { endpoint, sums }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn what_is_told_is_heard(endpoints in prop::collection::vec(any::<u64>(), 0..100), sender: u64, at_us in 0..u64::MAX / 2) {
            let key = Key::new("sixteen letters!");
            let entries: Vec<Entry> = endpoints.into_iter().map(entry).collect();
            let datagrams = encode(&key, sender, at_us, &entries);
            let tellings: Vec<Telling> = datagrams.iter().map(|datagram| decode(&key, datagram).unwrap()).collect();
            prop_assert!(datagrams.iter().all(|datagram| datagram.len() <= DATAGRAM_BYTES_MAX));
            prop_assert!(tellings.iter().all(|telling| telling.sender == sender));
            prop_assert!(tellings.windows(2).all(|two| two[0].at_us < two[1].at_us));
            let heard: Vec<Entry> = tellings.into_iter().flat_map(|telling| telling.entries).collect();
            prop_assert_eq!(heard, entries);
        }

        #[test]
        fn a_changed_datagram_is_refused(at in any::<prop::sample::Index>(), flip in 1..=255_u8) {
            let key = Key::new("sixteen letters!");
            let mut datagram = encode(&key, 1, 2, &[entry(3)]).remove(0);
            let at = at.index(datagram.len());
            datagram[at] ^= flip;
            prop_assert!(decode(&key, &datagram).is_err());
        }

        #[test]
        fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..1500)) {
            prop_assert!(decode(&Key::new("sixteen letters!"), &bytes).is_err());
        }
    }

    #[test]
    fn another_secret_is_a_forgery_and_a_cut_is_not_understood() {
        let datagram = encode(&Key::new("sixteen letters!"), 1, 2, &[entry(3)]).remove(0);
        assert_eq!(decode(&Key::new("another sixteen!"), &datagram), Err(Refused::Forged));
        assert_eq!(decode(&Key::new("sixteen letters!"), &datagram[..30]), Err(Refused::Unknown));
    }

    #[test]
    fn a_datagram_is_good_once_and_for_a_minute() {
        let told = |sender, at_us| Telling { sender, at_us, entries: Vec::new() };
        let now_us = 1_000_000_000;
        let mut senders = Senders::default();
        assert_eq!(senders.hear(now_us, &told(1, now_us)), Ok(()));
        assert_eq!(senders.hear(now_us, &told(1, now_us)), Err(Refused::Late));
        assert_eq!(senders.hear(now_us, &told(1, now_us - 1)), Err(Refused::Late));
        assert_eq!(senders.hear(now_us, &told(2, now_us - CLOCK_US_MAX - 1)), Err(Refused::Late));
        assert_eq!(senders.hear(now_us, &told(2, now_us + CLOCK_US_MAX)), Ok(()));
        assert_eq!(senders.heard_within(now_us, 0), 2);
    }

    #[test]
    fn senders_are_bounded_and_silent_ones_make_room() {
        let mut senders = Senders::default();
        let mut hear =
            |now_us: u64, sender: u64| senders.hear(now_us, &Telling { sender, at_us: now_us, entries: Vec::new() });
        let start = 1_000_000_000;
        assert!((0..PEERS_MAX as u64).all(|sender| hear(start, sender).is_ok()));
        assert_eq!(hear(start + 1, 1_000), Err(Refused::TooMany));
        assert_eq!(hear(start + SILENT_US_MAX, 1_000), Ok(()));
    }
}
