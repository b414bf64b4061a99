//! Faults on command: what the engine does wrong, for one request, for the next few, or for all.
//!
//! Text form, as in the `x-fault` header, `POST /fault` and on the command line: `NAME` or `NAME=NUMBER`, several
//! separated by commas, for example `reset-mid-stream=3,crlf-lines`. Events are counted as written to the stream: the
//! first is the chunk with the role.

use std::{fmt, str::FromStr, time::Duration};

/// One way to misbehave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// `slow-accept=MS`: waits before accepting each connection. Only as a standing fault.
    SlowAccept {
        /// Milliseconds.
        ms: u32,
    },
    /// `delay-head=MS`: waits before the response head.
    DelayHead {
        /// Milliseconds.
        ms: u32,
    },
    /// `delay-first-token=MS`: waits between the response head and the first event, or before an unstreamed body.
    DelayFirstToken {
        /// Milliseconds.
        ms: u32,
    },
    /// `hang-before-head`: never answers; waits for the client to leave.
    HangBeforeHead,
    /// `reset-before-head`: closes with a TCP reset instead of answering.
    ResetBeforeHead,
    /// `close-before-head`: closes the connection instead of answering.
    CloseBeforeHead,
    /// `hang-mid-stream=EVENTS`: falls silent after this many events (unstreamed: after half of the body).
    HangMidStream {
        /// Events written before.
        events: u32,
    },
    /// `reset-mid-stream=EVENTS`: TCP reset after this many events (unstreamed: after half of the body).
    ResetMidStream {
        /// Events written before.
        events: u32,
    },
    /// `early-end=EVENTS`: closes after this many events, without `[DONE]` and last chunk (unstreamed: after half of
    /// the promised content length).
    EarlyEnd {
        /// Events written before.
        events: u32,
    },
    /// `error-event=EVENTS`: after this many events an error event, then the stream ends in good order, as vLLM does
    /// when its engine fails.
    ErrorEvent {
        /// Events written before.
        events: u32,
    },
    /// `no-usage`: leaves the usage out even when asked for it.
    NoUsage,
    /// `no-done`: leaves `data: [DONE]` out; the HTTP message is complete.
    NoDone,
    /// `crlf-lines`: SSE lines end in CR LF.
    CrlfLines,
    /// `bare-data`: `data:` without the space.
    BareData,
    /// `byte-wise`: each byte in a write of its own.
    ByteWise,
    /// `coalesce=EVENTS`: so many events in one HTTP chunk and one write.
    Coalesce {
        /// Events in a chunk; at least 1.
        events: u32,
    },
    /// `split-chunks=BYTES`: events are cut into HTTP chunks of at most this many bytes.
    SplitChunks {
        /// Bytes in a chunk; at least 1.
        bytes: u32,
    },
    /// `huge-chunk=BYTES`: the first event (or the unstreamed body) carries a padding field of this size.
    HugeChunk {
        /// Size of the padding, at most 64 MiB.
        bytes: u32,
    },
    /// `status=CODE` or `status=CODE/SECONDS`: an error answer, with `Retry-After` when seconds are given.
    Status {
        /// HTTP status, 400 to 599.
        code: u16,
        /// Value of `Retry-After`.
        retry_after_s: Option<u32>,
    },
    /// `close-on-reuse`: answers in full and keeps the connection, then closes it at the first byte of the next
    /// request: the race every connection pool must survive.
    CloseOnReuse,
    /// `close-after`: answers in full, promises keep-alive and closes all the same.
    CloseAfter,
}

/// Largest padding of [`Fault::HugeChunk`].
const PAD_BYTES_MAX: u32 = 64 << 20;

/// Why a fault could not be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParseFaultError(String);

impl fmt::Display for ParseFaultError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for ParseFaultError {}

impl FromStr for Fault {
    type Err = ParseFaultError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (name, argument) = match text.trim().split_once('=') {
            Some((name, argument)) => (name.trim(), Some(argument.trim())),
            None => (text.trim(), None),
        };
        let number = || -> Result<u32, ParseFaultError> {
            let argument = argument.ok_or_else(|| ParseFaultError(format!("fault {name} needs a number")))?;
            argument.parse().map_err(|_| ParseFaultError(format!("fault {name}: {argument:?} is not a number")))
        };
        let fault = match name {
            "slow-accept" => Self::SlowAccept { ms: number()? },
            "delay-head" => Self::DelayHead { ms: number()? },
            "delay-first-token" => Self::DelayFirstToken { ms: number()? },
            "hang-before-head" => Self::HangBeforeHead,
            "reset-before-head" => Self::ResetBeforeHead,
            "close-before-head" => Self::CloseBeforeHead,
            "hang-mid-stream" => Self::HangMidStream { events: number()? },
            "reset-mid-stream" => Self::ResetMidStream { events: number()? },
            "early-end" => Self::EarlyEnd { events: number()? },
            "error-event" => Self::ErrorEvent { events: number()? },
            "no-usage" => Self::NoUsage,
            "no-done" => Self::NoDone,
            "crlf-lines" => Self::CrlfLines,
            "bare-data" => Self::BareData,
            "byte-wise" => Self::ByteWise,
            "coalesce" => Self::Coalesce { events: number()?.max(1) },
            "split-chunks" => Self::SplitChunks { bytes: number()?.max(1) },
            "huge-chunk" => Self::HugeChunk { bytes: number()?.min(PAD_BYTES_MAX) },
            "status" => status(argument.unwrap_or_default())?,
            "close-on-reuse" => Self::CloseOnReuse,
            "close-after" => Self::CloseAfter,
            _ => return Err(ParseFaultError(format!("unknown fault {name:?}"))),
        };
        Ok(fault)
    }
}

fn status(argument: &str) -> Result<Fault, ParseFaultError> {
    let refused = || ParseFaultError(format!("fault status: {argument:?} is not CODE or CODE/SECONDS"));
    let (code, retry_after_s) = match argument.split_once('/') {
        Some((code, seconds)) => (code, Some(seconds.parse().map_err(|_| refused())?)),
        None => (argument, None),
    };
    let code = code.parse().ok().filter(|code| (400..600).contains(code)).ok_or_else(refused)?;
    Ok(Fault::Status { code, retry_after_s })
}

/// Reads a comma-separated list. The empty text is the empty list.
pub fn parse_list(text: &str) -> Result<Vec<Fault>, ParseFaultError> {
    text.split(',').filter(|part| !part.trim().is_empty()).map(str::parse).collect()
}

/// Which requests a standing set of faults concerns.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rule {
    /// What goes wrong.
    pub faults: Vec<Fault>,
    /// Path concerned; `None`: those that run the model (`/v1/...` POST).
    pub path: Option<String>,
    /// How many more requests; `None`: all.
    pub requests: Option<u32>,
}

/// Where and how an answer is cut off.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Cut {
    #[default]
    Never,
    BeforeHead(CutKind),
    AfterEvents(CutKind, u32),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CutKind {
    Hang,
    Reset,
    Close,
    ErrorEvent,
}

/// How the bytes of the body go out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Writes {
    /// One event, one chunk, one write.
    #[default]
    PerEvent,
    PerByte,
    Coalesced(u32),
    SplitChunks(u32),
}

/// What becomes of the connection after a complete answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Afterwards {
    #[default]
    AsAgreed,
    CloseOnReuse,
    Close,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum LineEnd {
    #[default]
    Lf,
    CrLf,
}

/// A part of the answer that may be left out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Part {
    #[default]
    Sent,
    LeftOut,
}

/// The faults of one request, resolved. The default is an engine without fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Plan {
    pub(crate) accept_delay: Duration,
    pub(crate) head_delay: Duration,
    pub(crate) first_token_delay: Duration,
    pub(crate) cut: Cut,
    pub(crate) status: Option<(u16, Option<u32>)>,
    pub(crate) usage: Part,
    pub(crate) done: Part,
    pub(crate) line_end: LineEnd,
    pub(crate) data_prefix: &'static str,
    pub(crate) writes: Writes,
    pub(crate) pad_bytes: u32,
    pub(crate) afterwards: Afterwards,
}

impl Default for Plan {
    fn default() -> Self {
        Self {
            accept_delay: Duration::ZERO,
            head_delay: Duration::ZERO,
            first_token_delay: Duration::ZERO,
            cut: Cut::Never,
            status: None,
            usage: Part::Sent,
            done: Part::Sent,
            line_end: LineEnd::Lf,
            data_prefix: "data: ",
            writes: Writes::PerEvent,
            pad_bytes: 0,
            afterwards: Afterwards::AsAgreed,
        }
    }
}

impl Plan {
    /// Adds a fault; of two that contradict each other the later holds.
    pub(crate) fn add(&mut self, fault: Fault) {
        match fault {
            Fault::SlowAccept { ms } => self.accept_delay = Duration::from_millis(ms.into()),
            Fault::DelayHead { ms } => self.head_delay = Duration::from_millis(ms.into()),
            Fault::DelayFirstToken { ms } => self.first_token_delay = Duration::from_millis(ms.into()),
            Fault::HangBeforeHead => self.cut = Cut::BeforeHead(CutKind::Hang),
            Fault::ResetBeforeHead => self.cut = Cut::BeforeHead(CutKind::Reset),
            Fault::CloseBeforeHead => self.cut = Cut::BeforeHead(CutKind::Close),
            Fault::HangMidStream { events } => self.cut = Cut::AfterEvents(CutKind::Hang, events),
            Fault::ResetMidStream { events } => self.cut = Cut::AfterEvents(CutKind::Reset, events),
            Fault::EarlyEnd { events } => self.cut = Cut::AfterEvents(CutKind::Close, events),
            Fault::ErrorEvent { events } => self.cut = Cut::AfterEvents(CutKind::ErrorEvent, events),
            Fault::NoUsage => self.usage = Part::LeftOut,
            Fault::NoDone => self.done = Part::LeftOut,
            Fault::CrlfLines => self.line_end = LineEnd::CrLf,
            Fault::BareData => self.data_prefix = "data:",
            Fault::ByteWise => self.writes = Writes::PerByte,
            Fault::Coalesce { events } => self.writes = Writes::Coalesced(events),
            Fault::SplitChunks { bytes } => self.writes = Writes::SplitChunks(bytes),
            Fault::HugeChunk { bytes } => self.pad_bytes = bytes,
            Fault::Status { code, retry_after_s } => self.status = Some((code, retry_after_s)),
            Fault::CloseOnReuse => self.afterwards = Afterwards::CloseOnReuse,
            Fault::CloseAfter => self.afterwards = Afterwards::Close,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_read_with_their_numbers() {
        assert_eq!(
            parse_list("reset-mid-stream=3, crlf-lines ,status=429/7").unwrap(),
            [
                Fault::ResetMidStream { events: 3 },
                Fault::CrlfLines,
                Fault::Status { code: 429, retry_after_s: Some(7) }
            ]
        );
        assert_eq!(parse_list("  ").unwrap(), []);
    }

    #[test]
    fn what_cannot_be_read_is_named() {
        for (text, named) in
            [("explode", "explode"), ("delay-head", "number"), ("delay-head=x", "x"), ("status=200", "200")]
        {
            let error = parse_list(text).unwrap_err().to_string();
            assert!(error.contains(named), "{text}: {error}");
        }
    }
}
