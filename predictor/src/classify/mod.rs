//! Classifiers: they put tags on a prompt, on the thread that serves it, in tens of microseconds.
//!
//! [`Scanner::compile`] turns plain-data [`Builtin`]s into one immutable scanner that all threads share. Each thread has a [`Scratch`] with
//! the buffers. [`Scanner::scan`] reads the pieces of a prompt and gives [`Findings`]; [`Scanner::start`] does the same in steps of one
//! slice, so that a caller with other work to do can do it in between.
//!
//! Tags have three values. A tag is there, or it is not, or nobody knows: text that could not be read gets [`Tag::PII_UNSCANNED`], and a
//! language the complexity model does not know gets no complexity tag. The text is read in full, never sampled, in time linear in its
//! length. Nothing here keeps, prints or returns matched text: a [`Hit`] is a kind and a byte range.
//!
//! Text that comes again need not be read again: [`Memory`].
//!
//! Reading order: [`kind`](Kind), [`tag`](Tag), [`spec`](Builtin), `scanner`, `scan`, `classes` (letters and digits), `landmarks` (fixed strings), then the lanes `numbers`, `phone`, `mail`, `network`, `secrets`, `second_look` which runs them,
//! with `context` for the words beside a find, `normal`, `encoded` and `spelled` for what is
//! disguised.

mod cards;
#[cfg(test)]
mod cases;
mod cells;
mod checksum;
mod classes;
pub mod complexity;
mod context;
mod custom;
mod encoded;
mod examples;
mod findings;
mod kind;
mod landmarks;
mod lane;
mod layout;
mod mail;
mod memory;
mod network;
mod normal;
mod numbers;
mod outermost;
mod phone;
mod runs;
mod scan;
mod scanner;
mod second_look;
mod secrets;
mod spec;
mod spelled;
mod tag;
mod tokens;
mod topics;
mod turn;
mod words;

pub use examples::{Accuracy, leave_one_out};
pub use findings::{Findings, HITS_MAX, Hit, Verdict};
pub use kind::{Group, Kind, KindSet, Tier};
pub use memory::{Memory, PieceKey, REMEMBERED_BYTES_MIN, Remembered};
pub use scan::{LONG_CONTEXT_BYTES_MIN, Progress, SLICE_BYTES, SLICE_OVERLAP_BYTES, Scan, Scratch};
pub use scanner::Scanner;
pub use spec::{
    BUILTINS_MAX, Boundary, Builtin, ComplexitySpec, EXAMPLE_BYTES_MAX, EXAMPLES_MAX, ExamplesSpec, KEYWORD_BYTES_MAX,
    KEYWORDS_MAX, KeywordsSpec, OnUnknown, PATTERN_BYTES_MAX, PATTERNS_MAX, PiiSpec, Quorum, RegexSpec, Scopes,
    SpecError,
};
pub use tag::{TAGS_MAX, Tag, TagSet};
pub use turn::{HEAD_BYTES_MAX, TAIL_BYTES_MAX};

/// Whose text a piece is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Scope {
    /// Instructions of the application.
    System,
    /// A turn of the user.
    User,
    /// A turn of the model.
    Assistant,
    /// Arguments or results of a tool.
    Tool,
    /// What belongs to no message: names of speakers, metadata, fields that are not known.
    Rest,
}

/// A part of a prompt's text, already unescaped.
#[derive(Debug, Clone, Copy)]
pub struct Piece<'t> {
    /// Whose text it is.
    pub scope: Scope,
    /// The text.
    pub text: &'t str,
}

/// What is known of a request besides its text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Shape {
    /// The request offers tools.
    pub tools: bool,
    /// It holds an image.
    pub image: bool,
    /// It holds audio.
    pub audio: bool,
    /// The answer must follow a JSON schema.
    pub json_schema: bool,
    /// User and assistant turns.
    pub turns: u32,
    /// Some part is not text, or could not be decoded. Images and audio count as such by themselves.
    pub unscannable: bool,
}
