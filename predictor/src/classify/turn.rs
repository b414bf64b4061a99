//! The last user turn, as much of it as the topics and the complexity model read.

/// Bytes kept of the beginning.
pub const HEAD_BYTES_MAX: usize = 2048;
/// Bytes kept of the end.
pub const TAIL_BYTES_MAX: usize = 1024;

/// The head and tail of the last user turn. Its buffers are reused.
#[derive(Debug, Default)]
pub(super) struct Turn {
    head: String,
    /// At most twice [`TAIL_BYTES_MAX`]: the older half goes when it is full.
    tail: String,
    joined: String,
}

impl Turn {
    /// A new turn begins.
    pub(super) fn start(&mut self) {
        self.head.clear();
        self.tail.clear();
    }

    /// Adds a part of the turn.
    pub(super) fn push(&mut self, text: &str) {
        let room = if self.tail.is_empty() { HEAD_BYTES_MAX.saturating_sub(self.head.len()) } else { 0 };
        let (head, rest) = text.split_at(floor(text, room));
        self.head.push_str(head);
        if rest.is_empty() {
            return;
        }
        if rest.len() >= TAIL_BYTES_MAX {
            self.tail.clear();
        }
        let recent = &rest[ceil(rest, rest.len().saturating_sub(TAIL_BYTES_MAX))..];
        self.tail.push_str(recent);
        let spare = ceil(&self.tail, self.tail.len().saturating_sub(TAIL_BYTES_MAX));
        self.tail.drain(..spare);
    }

    /// What is read of the turn.
    pub(super) fn text(&mut self) -> &str {
        if self.tail.is_empty() {
            return &self.head;
        }
        self.joined.clear();
        self.joined.push_str(&self.head);
        self.joined.push_str(&self.tail);
        &self.joined
    }
}

/// The last place at or before `at` between two characters.
fn floor(text: &str, at: usize) -> usize {
    (0..=at.min(text.len())).rev().find(|place| text.is_char_boundary(*place)).unwrap_or(0)
}

/// The first place at or behind `at` between two characters.
fn ceil(text: &str, at: usize) -> usize {
    (at..=text.len()).find(|place| text.is_char_boundary(*place)).unwrap_or(text.len())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn parts_read_like_the_whole(text in "[aé世 ]{0,1800}", cut in 0usize..4000) {
            let cut = floor(&text, cut);
            let (mut whole, mut parts) = (Turn::default(), Turn::default());
            whole.push(&text);
            parts.push(&text[..cut]);
            parts.push(&text[cut..]);
            let read = whole.text().to_owned();
            prop_assert_eq!(&read, parts.text());
            if text.len() <= HEAD_BYTES_MAX {
                prop_assert_eq!(&read, &text);
            }
            prop_assert!(read.len() <= HEAD_BYTES_MAX + TAIL_BYTES_MAX && text.ends_with(&read[floor(&read, read.len().min(HEAD_BYTES_MAX))..]));
        }
    }
}
