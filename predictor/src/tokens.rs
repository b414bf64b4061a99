//! How many tokens a prompt will be, from its bytes, per model.
//!
//! Without a tokenizer the balancer knows bytes. The ratio differs by language and model (about 4.4 bytes a token for
//! English prose, 3.3 for code, 2 for some scripts), so it is learned from the `prompt_tokens` that engines report: two
//! decayed sums, one division. It errs when the mix of languages shifts within a few dozen requests.

/// Bytes a token before anything was learned.
pub const BYTES_PER_TOKEN_PRIOR: f64 = 4.0;
/// Least and most bytes a token one answer may claim; outside it is a miscount and not believed.
const BYTES_PER_TOKEN_RANGE: std::ops::RangeInclusive<f64> = 0.5..=32.0;
/// Weight kept by what was known at each answer: a memory of about 100 answers.
const DECAY: f64 = 0.99;
/// The prior weighs as much as one prompt of this many tokens.
const PRIOR_TOKENS: f64 = 500.0;
/// An answer counts with at most this many tokens, so that one huge prompt does not drown a hundred others.
const SAMPLE_TOKENS_MAX: f64 = 4_096.0;

/// Bytes a token of one model, learned online.
#[derive(Clone, Debug, PartialEq)]
pub struct BytesPerToken {
    bytes: f64,
    tokens: f64,
}

impl Default for BytesPerToken {
    fn default() -> Self {
        BytesPerToken { bytes: PRIOR_TOKENS * BYTES_PER_TOKEN_PRIOR, tokens: PRIOR_TOKENS }
    }
}

impl BytesPerToken {
    /// The present ratio in bytes a token.
    #[must_use]
    pub fn ratio(&self) -> f64 {
        self.bytes / self.tokens
    }

    /// Tokens expected of a prompt of `prompt_bytes`; at least one for any prompt that is not empty.
    #[must_use]
    pub fn estimate(&self, prompt_bytes: u32) -> u32 {
        (f64::from(prompt_bytes) / self.ratio()).ceil() as u32
    }

    /// Learns from one answer. Counts no tokenizer could give are ignored.
    pub fn learn(&mut self, prompt_bytes: u32, prompt_tokens: u32) {
        let (bytes, tokens) = (f64::from(prompt_bytes), f64::from(prompt_tokens));
        if prompt_tokens == 0 || !BYTES_PER_TOKEN_RANGE.contains(&(bytes / tokens)) {
            return;
        }
        let weight = (SAMPLE_TOKENS_MAX / tokens).min(1.0);
        self.bytes = self.bytes * DECAY + bytes * weight;
        self.tokens = self.tokens * DECAY + tokens * weight;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_of_two_bytes_a_token_is_known_after_ten_answers() {
        let mut ratio = BytesPerToken::default();
        assert_eq!(ratio.estimate(4_000), 1_000);
        for _ in 0..10 {
            ratio.learn(4_000, 2_000);
        }
        assert!((1_900..=2_000).contains(&ratio.estimate(4_000)), "{}", ratio.estimate(4_000));
    }

    #[test]
    fn impossible_counts_are_not_believed() {
        let mut ratio = BytesPerToken::default();
        for (bytes, tokens) in [(4_000, 0), (0, 10), (u32::MAX, 1), (10, u32::MAX)] {
            ratio.learn(bytes, tokens);
        }
        assert_eq!(ratio, BytesPerToken::default());
    }

    #[test]
    fn one_huge_prompt_does_not_drown_the_others() {
        let mut ratio = BytesPerToken::default();
        for _ in 0..50 {
            ratio.learn(4_000, 1_000);
        }
        ratio.learn(2_000_000, 1_000_000);
        assert!(ratio.ratio() > 3.5, "{}", ratio.ratio());
    }

    #[test]
    fn a_prompt_that_is_not_empty_has_a_token() {
        assert_eq!(BytesPerToken::default().estimate(1), 1);
        assert_eq!(BytesPerToken::default().estimate(0), 0);
    }
}
