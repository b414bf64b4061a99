//! Tokens that were verified before: a signature costs some fifty microseconds, this less than one.

use ahash::AHashMap;

/// Tokens by the SHA-256 of their text, each with what was found and until when it may be believed. Two generations of at most half the
/// bound: when the young one is full it becomes the old one, and what nobody asked for meanwhile is forgotten. No clock, no list.
#[derive(Debug)]
pub struct VerifiedTokens<V> {
    young: AHashMap<[u8; 32], Verified<V>>,
    old: AHashMap<[u8; 32], Verified<V>>,
    half_max: usize,
}

#[derive(Clone, Copy, Debug)]
struct Verified<V> {
    found: V,
    until_unix_s: u64,
}

impl<V: Copy> VerifiedTokens<V> {
    /// An empty one that holds at most `tokens_max`.
    #[must_use]
    pub fn new(tokens_max: usize) -> Self {
        Self { young: AHashMap::new(), old: AHashMap::new(), half_max: (tokens_max / 2).max(1) }
    }

    /// What was found when a token was verified, while it may still be believed.
    pub fn find(&mut self, sha256: &[u8; 32], now_unix_s: u64) -> Option<V> {
        let known = match self.young.get(sha256) {
            Some(known) => *known,
            None => {
                let known = self.old.remove(sha256)?;
                self.keep(*sha256, known);
                known
            }
        };
        (now_unix_s < known.until_unix_s).then_some(known.found)
    }

    /// Keeps what was found.
    pub fn insert(&mut self, sha256: [u8; 32], found: V, until_unix_s: u64) {
        self.keep(sha256, Verified { found, until_unix_s });
    }

    fn keep(&mut self, sha256: [u8; 32], verified: Verified<V>) {
        if self.young.len() >= self.half_max {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(sha256, verified);
    }

    /// Forgets all: what they were verified against has changed.
    pub fn clear(&mut self) {
        self.young.clear();
        self.old.clear();
    }

    /// Tokens that are kept.
    #[must_use]
    pub fn len(&self) -> usize {
        self.young.len() + self.old.len()
    }

    /// Whether none is kept.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.young.is_empty() && self.old.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_bounded_and_those_in_use_stay() {
        let mut tokens = VerifiedTokens::new(100);
        let key = |n: u32| {
            let mut key = [0; 32];
            key[..4].copy_from_slice(&n.to_le_bytes());
            key
        };
        tokens.insert(key(0), 0, 1_000);
        for n in 1..10_000 {
            tokens.insert(key(n), n, 1_000);
            assert_eq!(tokens.find(&key(0), 0), Some(0), "in use at {n}");
            assert!(tokens.len() <= 100);
        }
        assert_eq!(tokens.find(&key(1), 0), None);
        assert_eq!(tokens.find(&key(9_999), 999), Some(9_999));
        assert_eq!(tokens.find(&key(9_999), 1_000), None, "over");
        tokens.clear();
        assert!(tokens.is_empty());
    }
}
