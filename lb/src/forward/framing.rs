//! Where a body ends: as the upstream tells it, and as we tell it.

use std::ops::Range;

use super::Cut;
use crate::http1::{BodyFraming, ChunkedDecoder};

/// Where the body ends, as the upstream tells it.
#[derive(Debug)]
pub(super) enum Source {
    Nothing,
    Length(u64),
    Chunked(ChunkedDecoder),
    UntilClose,
}

impl Source {
    pub(super) fn new(framing: BodyFraming) -> Self {
        match framing {
            BodyFraming::None => Self::Nothing,
            BodyFraming::Length(n) => Self::Length(n),
            BodyFraming::Chunked => Self::Chunked(ChunkedDecoder::default()),
            BodyFraming::UntilClose => Self::UntilClose,
        }
    }

    pub(super) fn is_done(&self) -> bool {
        match self {
            Self::Nothing => true,
            Self::Length(left) => *left == 0,
            Self::Chunked(decoder) => decoder.is_done(),
            Self::UntilClose => false,
        }
    }

    /// Calls `payload` with the ranges of body bytes in `raw`; the number of bytes of `raw` that belong to the body.
    pub(super) fn read(&mut self, raw: &[u8], mut payload: impl FnMut(Range<usize>)) -> Result<usize, Cut> {
        match self {
            Self::Nothing => Ok(0),
            Self::Length(left) => {
                let n = (*left).min(raw.len() as u64);
                *left -= n;
                payload(0..n as usize);
                Ok(n as usize)
            }
            Self::Chunked(decoder) => decoder.decode(raw, payload).map_err(|_| Cut::Garbled),
            Self::UntilClose => {
                payload(0..raw.len());
                Ok(raw.len())
            }
        }
    }

    pub(super) fn is_between_chunks(&self) -> bool {
        match self {
            Self::Chunked(decoder) => decoder.is_between_chunks(),
            Self::Nothing | Self::Length(_) | Self::UntilClose => true,
        }
    }
}

/// Where the body ends, as we tell it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sink {
    Nothing,
    Length(u64),
    Chunked,
    UntilClose,
}
