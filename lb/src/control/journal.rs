//! What the process says about itself: one line of `key=value` pairs on stderr per event.
//!
//! For people and for `journalctl`; requests have the access log. No prompt text and no secret is ever given to it:
//! callers pass names, addresses, counts and error texts of their own.

use std::fmt::{Display, Write as _};
use std::io::Write as _;
use std::sync::OnceLock;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::time::rfc3339;

/// Longest value of one pair, in bytes; the rest is cut off.
const VALUE_BYTES_MAX: usize = 2_048;

/// Lines that wait for stderr; more are lost.
const LINES_WAITING_MAX: usize = 1_024;

/// How long the end of the process waits for its last lines.
const FLUSH_WITHIN: Duration = Duration::from_millis(500);

/// How much attention a line asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Level {
    /// The ordinary course of things.
    Info,
    /// Works, but somebody should look.
    Warn,
    /// Does not work.
    Error,
}

impl Level {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Info => "info",
            Self::Warn => "warn",
            Self::Error => "error",
        }
    }
}

/// A pair of a line.
pub(crate) type Pair<'a> = (&'static str, &'a dyn Display);

/// Writes an ordinary line.
pub(crate) fn info(message: &str, pairs: &[Pair<'_>]) {
    write(Level::Info, message, pairs);
}

/// Writes a line that somebody should look at.
pub(crate) fn warn(message: &str, pairs: &[Pair<'_>]) {
    write(Level::Warn, message, pairs);
}

/// Writes a line about something that does not work.
pub(crate) fn error(message: &str, pairs: &[Pair<'_>]) {
    write(Level::Error, message, pairs);
}

fn write(level: Level, message: &str, pairs: &[Pair<'_>]) {
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let text = line(since_epoch, level, message, pairs);
    // A full queue: whoever reads stderr has stopped, and nothing may wait for that.
    let _ = writer().try_send(Entry::Line(text));
}

/// Waits until what was written so far has left, at most [`FLUSH_WITHIN`]: to be called before the process ends.
pub(crate) fn flush() {
    let (done, told) = sync_channel(1);
    if WRITER.get().is_some_and(|writer| writer.try_send(Entry::Flush(done)).is_ok()) {
        let _ = told.recv_timeout(FLUSH_WITHIN);
    }
}

static WRITER: OnceLock<SyncSender<Entry>> = OnceLock::new();

enum Entry {
    Line(String),
    Flush(SyncSender<()>),
}

/// The queue of the thread that writes: a pipe that nobody reads must not hold up the control thread.
fn writer() -> &'static SyncSender<Entry> {
    WRITER.get_or_init(|| {
        let (sender, entries) = sync_channel(LINES_WAITING_MAX);
        let write_all = move || {
            for entry in entries {
                match entry {
                    // Nobody is left to be told when stderr is closed.
                    Entry::Line(text) => drop(std::io::stderr().lock().write_all(text.as_bytes())),
                    Entry::Flush(done) => drop(done.try_send(())),
                }
            }
        };
        // Without a thread the lines stay in the queue, and are lost.
        drop(std::thread::Builder::new().name("journal".into()).spawn(write_all));
        sender
    })
}

pub(super) fn line(since_epoch: Duration, level: Level, message: &str, pairs: &[Pair<'_>]) -> String {
    let mut out = String::with_capacity(128);
    let time = rfc3339(u64::try_from(since_epoch.as_millis()).unwrap_or(u64::MAX));
    let _ = write!(out, "time={} level={} msg=", String::from_utf8_lossy(&time), level.as_str());
    quoted(&mut out, message);
    for (key, value) in pairs {
        let _ = write!(out, " {key}=");
        quoted(&mut out, &value.to_string());
    }
    out.push('\n');
    out
}

/// Appends a value: as it is when it is one plain word, else in quotes on one line.
fn quoted(out: &mut String, value: &str) {
    let value = &value[..value.floor_char_boundary(VALUE_BYTES_MAX)];
    let plain = |c: char| c.is_ascii_graphic() && c != '"' && c != '=' && c != '\\';
    if !value.is_empty() && value.chars().all(plain) {
        out.push_str(value);
        return;
    }
    out.push('"');
    for c in value.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            c if c.is_control() => out.push(' '),
            c => out.push(c),
        }
    }
    out.push('"');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_stays_on_its_line_whatever_it_holds() {
        let value = "two words\nlevel=error msg=\"forged\"";
        let text = line(Duration::ZERO, Level::Warn, "m", &[("a", &"plain"), ("b", &value), ("c", &"")]);
        assert_eq!(text.matches('\n').count(), 1, "{text}");
        assert!(text.ends_with(" a=plain b=\"two words\\nlevel=error msg=\\\"forged\\\"\" c=\"\"\n"), "{text}");
    }

    #[test]
    fn a_long_value_is_cut_between_characters() {
        let text = line(Duration::ZERO, Level::Info, "m", &[("v", &"é".repeat(VALUE_BYTES_MAX))]);
        assert!(text.len() < VALUE_BYTES_MAX + 100);
    }
}
