//! Tokens and text of the simulated model: reproducible, so that a client can check every byte of an answer.
//!
//! - A token of text is 4 bytes; the last token of a piece of text may be shorter. Its id is those bytes read as a
//!   little-endian number, so ids turn back into text. Token-id prompts are taken as they are.
//! - A chat is, per message: start mark, role, the content's tokens, end mark. Tools come first. The prompt ends with
//!   the start of the assistant's message. Content is cut anew in each message, so the next turn of a conversation
//!   begins with exactly the tokens of this prompt and its answer, and finds their blocks in the cache.
//! - Token `p` of the answer depends on (model name, prompt tokens, `p`) only. Each is 4 bytes of valid UTF-8; one in
//!   32 holds bytes that JSON must escape or that are not ASCII.

use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Bytes of text in one token.
pub const TOKEN_BYTES: usize = 4;

/// Starts a message in a chat prompt. Ids below 256 stand for no text.
pub(crate) const MESSAGE_START: u32 = 1;
/// Ends a message in a chat prompt.
pub(crate) const MESSAGE_END: u32 = 2;
/// Stands before the description of the tools.
pub(crate) const TOOLS_START: u32 = 3;

/// Tokens that are awkward in JSON, SSE or UTF-8, each of 4 bytes.
const AWKWARD: [&str; 8] = [" \"q\"", " \u{e9}a", "\n\n- ", "\u{1f600}", "\\n\\t", "\u{65e5} ", "data", "</s>"];

/// Appends the tokens of a text.
pub fn tokenize(text: &str, tokens: &mut Vec<u32>) {
    tokens.extend(text.as_bytes().chunks(TOKEN_BYTES).map(token_id));
}

/// The text of token ids made by [`tokenize`]; marks stand for nothing and broken UTF-8 becomes U+FFFD.
pub fn detokenize(tokens: &[u32]) -> String {
    let bytes: Vec<u8> =
        tokens.iter().flat_map(|token| token.to_le_bytes()).filter(|&byte| byte > MESSAGE_MARK_MAX).collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Bytes up to this are marks or padding, not text.
const MESSAGE_MARK_MAX: u8 = 3;

fn token_id(piece: &[u8]) -> u32 {
    piece.iter().rev().fold(0, |id, &byte| id << 8 | u32::from(byte))
}

/// What the simulated model says to one prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    seed: u64,
}

impl Answer {
    /// The answer of `model` to a prompt of these tokens.
    pub fn new(model: &str, prompt_tokens: &[u32]) -> Self {
        Self { seed: xxh3_64_with_seed(model.as_bytes(), prompt_hash(prompt_tokens)) }
    }

    /// Text of the token at `position`, counted from 0: 4 bytes.
    pub fn token(self, position: u32) -> Token {
        let hash = xxh3_64_with_seed(&position.to_le_bytes(), self.seed);
        if hash.is_multiple_of(32) {
            let awkward = AWKWARD[(hash >> 8) as usize % AWKWARD.len()].as_bytes();
            return Token(std::array::from_fn(|at| awkward[at]));
        }
        let letter = |shift: u32| b'a' + ((hash >> shift) % 26) as u8;
        Token([b' ', letter(8), letter(16), letter(24)])
    }

    /// The first `tokens` tokens as one text.
    pub fn text(self, tokens: u32) -> String {
        (0..tokens).map(|position| self.token(position).as_str().to_owned()).collect()
    }

    /// Where the model would stop by itself, when the request sets no `max_tokens`: 16 to 271 tokens.
    pub fn natural_tokens(self) -> u32 {
        16 + (self.seed >> 32) as u32 % 256
    }
}

/// Text of one token of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Token([u8; TOKEN_BYTES]);

impl Token {
    /// The text; always 4 bytes.
    pub fn as_str(&self) -> &str {
        // Made from ASCII or from the table above only.
        std::str::from_utf8(&self.0).unwrap_or_default()
    }

    /// The token's id.
    pub fn id(self) -> u32 {
        u32::from_le_bytes(self.0)
    }
}

/// Hash of a whole prompt, as shown in the request records.
pub fn prompt_hash(tokens: &[u32]) -> u64 {
    tokens.chunks(256).fold(tokens.len() as u64, chain)
}

/// Chained hashes of the full blocks of a prompt followed by `output_tokens` tokens of its answer.
pub fn block_hashes(seed: u64, prompt: &[u32], answer: Answer, output_tokens: u32, block_tokens: u32) -> Vec<u64> {
    let mut tokens = Vec::with_capacity(prompt.len() + output_tokens as usize);
    tokens.extend_from_slice(prompt);
    tokens.extend((0..output_tokens).map(|position| answer.token(position).id()));
    let mut parent = seed;
    let full_blocks = tokens.chunks_exact(block_tokens.max(1) as usize);
    full_blocks
        .map(|block| {
            parent = chain(parent, block);
            parent
        })
        .collect()
}

fn chain(parent: u64, tokens: &[u32]) -> u64 {
    let mut bytes = [0; 1024];
    tokens.chunks(bytes.len() / 4).fold(parent, |hash, piece| {
        for (to, token) in bytes.chunks_exact_mut(4).zip(piece) {
            to.copy_from_slice(&token.to_le_bytes());
        }
        xxh3_64_with_seed(&bytes[..piece.len() * 4], hash)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_awkward_token_has_four_bytes() {
        for token in AWKWARD {
            assert_eq!(token.len(), TOKEN_BYTES, "{token:?}");
        }
    }

    #[test]
    fn an_answer_tokenizes_back_to_its_tokens() {
        let answer = Answer::new("tiny", &[1, 2, 3]);
        let mut tokens = Vec::new();
        tokenize(&answer.text(200), &mut tokens);
        let ids: Vec<_> = (0..200).map(|position| answer.token(position).id()).collect();
        assert_eq!(tokens, ids);
        assert_eq!(detokenize(&tokens), answer.text(200));
    }

    #[test]
    fn answers_differ_by_model_and_by_prompt() {
        let texts = [("a", [1, 2]), ("b", [1, 2]), ("a", [2, 1])].map(|(model, prompt)| Answer::new(model, &prompt));
        assert_ne!(texts[0].text(8), texts[1].text(8));
        assert_ne!(texts[0].text(8), texts[2].text(8));
    }

    #[test]
    fn the_last_piece_of_a_text_may_be_short() {
        let mut tokens = Vec::new();
        tokenize("Hello", &mut tokens);
        assert_eq!(tokens, [u32::from_le_bytes(*b"Hell"), u32::from(b'o')]);
    }

    #[test]
    fn blocks_of_a_longer_prompt_begin_with_those_of_its_prefix() {
        let answer = Answer::new("tiny", &[7; 40]);
        let first = block_hashes(0, &[7; 40], answer, 8, 16);
        let mut longer = vec![7; 40];
        longer.extend((0..8).map(|position| answer.token(position).id()));
        longer.extend([9; 16]);
        let second = block_hashes(0, &longer, answer, 0, 16);
        assert_eq!(first.len(), 3);
        assert_eq!(second[..3], first[..]);
        assert_ne!(block_hashes(1, &[7; 40], answer, 0, 16)[0], first[0], "the seed separates");
    }
}
