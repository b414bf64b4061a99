//! Choices made from the input itself, so that a body is a function of its bytes alone.

/// A small generator (xorshift64*): the same seed, the same choices, everywhere.
#[derive(Debug, Clone)]
pub struct Choices {
    state: u64,
}

impl Choices {
    /// Seeded with a number.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self { state: seed | 1 << 63 }
    }

    /// Seeded with the bytes (FNV-1a).
    #[must_use]
    pub fn of(data: &[u8]) -> Self {
        let hash = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01B3);
        Self::new(data.iter().fold(0xCBF2_9CE4_8422_2325, hash))
    }

    /// Any number.
    pub fn word(&mut self) -> u64 {
        self.state ^= self.state >> 12;
        self.state ^= self.state << 25;
        self.state ^= self.state >> 27;
        self.state.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    /// A number below `end`; 0 when `end` is 0.
    pub fn below(&mut self, end: usize) -> usize {
        (self.word() >> 11) as usize % end.max(1)
    }

    /// One of them.
    ///
    /// # Panics
    /// When there is none.
    pub fn one_of<T: Copy>(&mut self, list: &[T]) -> T {
        list[self.below(list.len())]
    }
}

/// `data` in parts: byte by byte, at three places, and in two: whatever is split must come to the same.
pub(crate) fn splits(data: &[u8]) -> Vec<Vec<&[u8]>> {
    const SINGLE_BYTES_MAX: usize = 512;
    let mut choices = Choices::of(data);
    let mut all = Vec::new();
    if data.len() <= SINGLE_BYTES_MAX {
        all.push(data.chunks(1).collect());
    }
    for cuts in [3, 1] {
        let mut at: Vec<usize> = (0..cuts).map(|_| choices.below(data.len() + 1)).collect();
        at.extend([0, data.len()]);
        at.sort_unstable();
        all.push(at.windows(2).map(|ends| &data[ends[0]..ends[1]]).collect());
    }
    all
}

/// Ends of prefixes that are worth a look: all of a short input, some of a long one.
pub(crate) fn prefixes(data: &[u8]) -> Vec<usize> {
    const ALL_BYTES_MAX: usize = 64;
    if data.len() <= ALL_BYTES_MAX {
        return (0..data.len()).collect();
    }
    let mut choices = Choices::of(data);
    (0..16).map(|_| choices.below(data.len())).collect()
}

/// The first byte, and the rest.
pub(crate) fn option_of(data: &[u8]) -> (u8, &[u8]) {
    data.split_first().map_or((0, data), |(option, rest)| (*option, rest))
}

/// The line up to the first line feed, and the rest.
pub(crate) fn line_of(data: &[u8]) -> (&[u8], &[u8]) {
    match data.iter().position(|byte| *byte == b'\n') {
        Some(at) => (&data[..at], &data[at + 1..]),
        None => (data, &[]),
    }
}
