//! Doors of this room for fuzzing (see [`crate::probe`]): content codings without a connection.

use super::coding::{Broken, Coding, Decoder, Step};

/// How decoding ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decoded {
    /// In full: the body.
    Whole(Vec<u8>),
    /// There would be more than the limit.
    TooLong,
    /// The bytes are not what their coding says.
    Broken(&'static str),
}

/// Decodes `body` in steps that make at most `step_bytes`, up to `limit` bytes. `coding` is `gzip`, `deflate` or `zstd`.
///
/// # Panics
/// When a step makes more than it has room for, or decoding gets nowhere.
#[must_use]
pub fn decoded(coding: &str, body: &[u8], step_bytes: usize, limit: usize) -> Decoded {
    let coding = match coding {
        "gzip" => Coding::Gzip,
        "deflate" => Coding::Deflate,
        _ => Coding::Zstd,
    };
    let mut decoder = Decoder::new(coding, body);
    let (mut whole, mut room) = (Vec::new(), vec![0; step_bytes.max(1)]);
    // Every step makes something, takes something, or begins or ends a frame.
    let steps_max = 16 + 3 * body.len() + limit + step_bytes;
    for _ in 0..steps_max {
        match decoder.step(&mut room) {
            Ok(Step::Made(bytes)) => {
                whole.extend_from_slice(&room[..bytes]);
                if whole.len() > limit {
                    return Decoded::TooLong;
                }
            }
            Ok(Step::End) => return Decoded::Whole(whole),
            Err(Broken(why)) => return Decoded::Broken(why),
        }
    }
    panic!("{steps_max} steps and no end");
}
