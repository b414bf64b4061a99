//! The complexity model: how likely a request takes more than one step.
//!
//! Score = logistic(bias + sum of plain weight x standardised feature + scale x sum of gram weights / sqrt(grams)), 0 (one step) to 1.
//! The weights come from `predictor/data/complexity.model`, written by `examples/train_complexity.rs`; the format is the same for an
//! operator's override file. The model was trained on English; what another language's score would mean nobody has measured.

pub(crate) mod cues;
pub(crate) mod features;

use std::fmt;

use features::{Features, GRAM_BITS, Lexicon, PLAIN, PLAIN_NAMES};

const MAGIC: &[u8; 8] = b"KNFCPLX1";
const GRAMS: usize = 1 << GRAM_BITS;
/// Bytes of a model file.
pub const MODEL_BYTES: usize = MAGIC.len() + 4 * (3 * PLAIN + 2) + GRAMS;

static BUILT_IN: &[u8] = include_bytes!("../../../data/complexity.model");

/// The weights.
#[derive(Debug, Clone)]
pub struct Model {
    mean: [f32; PLAIN],
    deviation: [f32; PLAIN],
    weight: [f32; PLAIN],
    bias: f32,
    /// What one unit of a gram weight is worth.
    gram_scale: f32,
    grams: Vec<i8>,
}

/// Why bytes are not a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ModelError {
    /// The file has another length than [`MODEL_BYTES`].
    Length(usize),
    /// It does not begin like a model of this version.
    Magic,
    /// A weight is not a finite number.
    NotFinite,
}

impl fmt::Display for ModelError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ModelError::Length(bytes) => write!(f, "a model has {MODEL_BYTES} bytes, this has {bytes}"),
            ModelError::Magic => f.write_str("does not begin like a complexity model of this version"),
            ModelError::NotFinite => f.write_str("a weight is not a finite number"),
        }
    }
}

impl std::error::Error for ModelError {}

/// One part of a score.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Term {
    /// The feature, or `words` for all hashed words together.
    pub name: &'static str,
    /// What it adds to the logit; above 0 speaks for more steps.
    pub logit: f32,
}

/// One text as numbers, for training.
#[derive(Debug, Clone)]
pub struct Example {
    /// Plain features, not standardised.
    pub plain: Vec<f32>,
    /// Buckets of words and pairs of words, with repetition.
    pub grams: Vec<u32>,
}

/// Reads texts as the model sees them.
#[derive(Debug)]
pub struct Reader {
    lexicon: Lexicon,
    features: Features,
}

impl Default for Reader {
    fn default() -> Reader {
        Reader { lexicon: Lexicon::compile(), features: Features::default() }
    }
}

impl Reader {
    /// The number of plain features and of gram buckets.
    pub const DIMENSIONS: (usize, usize) = (PLAIN, GRAMS);

    /// The names of the plain features.
    #[must_use]
    pub fn names() -> &'static [&'static str] {
        PLAIN_NAMES
    }

    /// Reads `text`, which is cut like a user turn.
    pub fn read(&mut self, text: &str) -> Example {
        let mut turn = super::turn::Turn::default();
        turn.push(text);
        self.features.read(&self.lexicon, turn.text());
        Example { plain: self.features.plain.to_vec(), grams: self.features.grams.clone() }
    }
}

/// Little-endian numbers off the front of a slice.
fn floats<const N: usize>(bytes: &mut &[u8]) -> Result<[f32; N], ModelError> {
    let mut values = [0.0; N];
    for value in &mut values {
        let Some((head, rest)) = bytes.split_first_chunk::<4>() else { return Err(ModelError::Length(0)) };
        *value = f32::from_le_bytes(*head);
        *bytes = rest;
    }
    if values.iter().all(|value| value.is_finite()) { Ok(values) } else { Err(ModelError::NotFinite) }
}

impl Model {
    /// The model in the binary.
    ///
    /// # Errors
    /// Never with the committed file; a test reads it.
    pub fn built_in() -> Result<Model, ModelError> {
        Model::from_bytes(BUILT_IN)
    }

    /// Reads a model file.
    ///
    /// # Errors
    /// When the bytes are not a model of this version.
    pub fn from_bytes(bytes: &[u8]) -> Result<Model, ModelError> {
        if bytes.len() != MODEL_BYTES {
            return Err(ModelError::Length(bytes.len()));
        }
        let mut rest = bytes.strip_prefix(MAGIC.as_slice()).ok_or(ModelError::Magic)?;
        let mean = floats(&mut rest)?;
        let deviation = floats(&mut rest)?;
        let weight = floats(&mut rest)?;
        let [bias, gram_scale] = floats(&mut rest)?;
        let grams = rest.iter().map(|byte| i8::from_le_bytes([*byte])).collect();
        Ok(Model { mean, deviation, weight, bias, gram_scale, grams })
    }

    /// Makes a model of trained numbers: gram weights are rounded to 255 steps.
    ///
    /// # Errors
    /// When the slices have other lengths than [`Reader::DIMENSIONS`], or hold numbers that are not finite.
    pub fn from_weights(
        mean: &[f32],
        deviation: &[f32],
        weight: &[f32],
        bias: f32,
        grams: &[f32],
    ) -> Result<Model, ModelError> {
        let plain = |values: &[f32]| <[f32; PLAIN]>::try_from(values).map_err(|_| ModelError::Length(values.len()));
        if grams.len() != GRAMS {
            return Err(ModelError::Length(grams.len()));
        }
        let largest = grams.iter().fold(1e-6f32, |largest, weight| largest.max(weight.abs()));
        if !largest.is_finite() || !bias.is_finite() {
            return Err(ModelError::NotFinite);
        }
        let gram_scale = largest / 127.0;
        let grams = grams.iter().map(|weight| (weight / gram_scale).round() as i8).collect();
        Ok(Model { mean: plain(mean)?, deviation: plain(deviation)?, weight: plain(weight)?, bias, gram_scale, grams })
    }

    /// The model file.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        let numbers = self.mean.iter().chain(&self.deviation).chain(&self.weight).chain([&self.bias, &self.gram_scale]);
        numbers.for_each(|number| bytes.extend(number.to_le_bytes()));
        bytes.extend(self.grams.iter().map(|weight| weight.to_le_bytes()[0]));
        bytes
    }

    /// The score of an example, 0 (one step) to 1.
    #[must_use]
    pub fn score_example(&self, example: &Example) -> f32 {
        let plain: f32 = (0..PLAIN).map(|at| self.plain_term(at, example.plain.get(at).copied().unwrap_or(0.0))).sum();
        logistic(self.bias + plain + self.gram_term(&example.grams))
    }

    pub(crate) fn score(&self, features: &Features) -> f32 {
        let plain: f32 = features.plain.iter().enumerate().map(|(at, value)| self.plain_term(at, *value)).sum();
        logistic(self.bias + plain + self.gram_term(&features.grams))
    }

    /// The terms of the score, the largest first.
    pub(crate) fn terms(&self, features: &Features) -> Vec<Term> {
        let plain = features
            .plain
            .iter()
            .enumerate()
            .map(|(at, value)| Term { name: PLAIN_NAMES[at], logit: self.plain_term(at, *value) });
        let mut terms: Vec<Term> =
            plain.chain([Term { name: "words", logit: self.gram_term(&features.grams) }]).collect();
        terms.sort_by(|a, b| b.logit.abs().total_cmp(&a.logit.abs()));
        terms
    }

    /// A feature beyond four deviations says no more than one at four.
    fn plain_term(&self, at: usize, value: f32) -> f32 {
        self.weight[at] * standard(value, self.mean[at], self.deviation[at])
    }

    fn gram_term(&self, grams: &[u32]) -> f32 {
        let sum: i32 = grams.iter().map(|gram| i32::from(self.grams.get(*gram as usize).copied().unwrap_or(0))).sum();
        self.gram_scale * sum as f32 / (grams.len().max(1) as f32).sqrt()
    }
}

/// A value in deviations from the mean, cut at four.
#[must_use]
pub fn standard(value: f32, mean: f32, deviation: f32) -> f32 {
    ((value - mean) / deviation.max(1e-3)).clamp(-4.0, 4.0)
}

/// 1 / (1 + e^-x).
#[must_use]
pub fn logistic(x: f32) -> f32 {
    1.0 / (1.0 + (-x).exp())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_built_in_model_is_read_and_written_without_loss() {
        let model = Model::built_in().expect("the committed model");
        assert_eq!(model.to_bytes(), BUILT_IN);
        assert!(BUILT_IN.len() <= 68 * 1024);
    }

    #[test]
    fn bytes_that_are_no_model_are_refused() {
        assert_eq!(Model::from_bytes(b"").err(), Some(ModelError::Length(0)));
        assert_eq!(Model::from_bytes(&vec![0; MODEL_BYTES]).err(), Some(ModelError::Magic));
        let mut bytes = BUILT_IN.to_vec();
        bytes[8..12].copy_from_slice(&f32::NAN.to_le_bytes());
        assert_eq!(Model::from_bytes(&bytes).err(), Some(ModelError::NotFinite));
    }
}
