//! Answers that pass as they come: each received buffer is sent at once.

use std::pin::Pin;

use super::events::{Edits, Kept, Observer, Reading, Seen, push_text};
use super::framing::{Sink, Source};
use super::{BodyRead, Cut, End, Output, Pass, Received};
use crate::conn::push_error_event;
use crate::exchange::After;
use crate::http1::Version;
use crate::http1::chunked::push_chunk_head;
use crate::io::{self, Buf, Out, SizeClass, Stop, until};
use crate::tls::Transport;

impl<F: FnMut(u64, Output)> Pass<'_, F> {
    /// `received` is what came of the body already: as it came, or read already.
    pub(super) async fn stream(&mut self, mut received: Buf, state: BodyRead) -> End {
        self.sink = self.stream_sink(state);
        self.end_head();
        if let BodyRead::Already = state {
            self.kept.clear();
            self.kept.push(Kept::Received(0..received.len()));
            self.put_kept();
            *self.client.out.data() = received;
            received = Buf::default();
        }
        let mut begun = false;
        loop {
            received = match self.events_of(received) {
                Ok(events) => events,
                Err(broken) if begun => return self.break_off(broken.cut()).await,
                Err(broken) => return self.refuse(broken).await,
            };
            if !received.is_empty()
                && let Err(cut) = self.put_received(received)
            {
                // While the client has not been sent a byte, it gets a plain error.
                return if begun { self.break_off(cut).await } else { self.cut_off(cut).await };
            }
            let done = self.source.is_done();
            if done && self.sink == Sink::Chunked && !self.verbatim_end {
                self.client.out.push_small(b"0\r\n\r\n");
            }
            if !self.client.out.is_empty()
                && let Err(end) = self.send().await
            {
                return end;
            }
            begun = true;
            if done {
                return match self.broken_off() {
                    Some(cut) => End::Truncated(cut),
                    None if self.observer.saw_error() => End::ErrorEvent,
                    None => End::Complete,
                };
            }
            let buf = self.next_buffer();
            received = match self.receive_pinging(buf).await {
                Received::Some(buf) => buf,
                ended if self.is_whole_after(&ended) => {
                    self.source = Source::Nothing;
                    self.upstream_keeps = false;
                    Buf::default()
                }
                Received::End | Received::Broken => return self.break_off(Cut::Reset).await,
                Received::Silent => return self.break_off(self.patience.cut()).await,
                Received::ClientGone => return End::ClientGone,
            };
        }
    }

    /// As [`Self::receive`]; where the server's file says so, the client is sent a comment from time to time while the
    /// engine is silent, so that nothing between the two takes the connection for dead.
    async fn receive_pinging(&mut self, buf: Buf) -> Received {
        let Some(interval) = self.shard.settings.stream_ping.filter(|_| self.may_ping()) else {
            return self.receive(buf).await;
        };
        if self.patience.deadline.has_passed() {
            return Received::Silent;
        }
        let watch = self.conn.watch_shared();
        let before = buf.len();
        // One receive for the whole silence: dropping it would lose what comes just then.
        let mut receiving: Pin<Box<dyn Future<Output = _> + '_>> = match &mut *self.conn {
            Transport::Plain(conn) => Box::pin(conn.recv(buf)),
            Transport::Tls(conn) => conn.recv(buf),
        };
        let mut left = self.patience.left();
        loop {
            let wait = interval.min(left);
            watch.arm(wait);
            match until(receiving.as_mut(), Some(self.client.conn.watch()), &watch).await {
                Ok((Ok(_), buf)) if buf.len() > before => return Received::Some(buf),
                Ok((Ok(_), _)) => return Received::End,
                Ok((Err(_), _)) => return Received::Broken,
                Err(Stop::Gone) => return Received::ClientGone,
                Err(Stop::TimedOut) => left -= wait,
            }
            if left.is_zero() {
                return Received::Silent;
            }
            put_ping(&mut self.client.out, self.sink);
            self.response_bytes += self.client.out.len() as u64;
            if self.client.send(self.shard.settings.client_idle_timeout).await.is_err() {
                return Received::ClientGone;
            }
            self.client.out.clear();
        }
    }

    /// The client stands between two events, and its framing has room for more than the engine sends.
    fn may_ping(&self) -> bool {
        let framed = match self.sink {
            Sink::Chunked | Sink::UntilClose => true,
            Sink::Length(_) | Sink::Nothing => false,
        };
        framed && self.observer.client_is_between_events()
    }

    fn stream_sink(&self, state: BodyRead) -> Sink {
        let framed = match (&self.source, self.client.head.version) {
            (Source::Length(left), _) if self.observer.edits() == Edits::None => Sink::Length(*left),
            (_, Version::Http11) => Sink::Chunked,
            (_, Version::Http10) => Sink::UntilClose,
        };
        match state {
            BodyRead::Bodiless(length) => length.map_or(Sink::Nothing, Sink::Length),
            BodyRead::NotYet | BodyRead::Already => framed,
        }
    }

    /// The buffer for the next receive: that of the last one where its size still fits.
    fn next_buffer(&mut self) -> Buf {
        let mut last = std::mem::take(self.client.out.data());
        let (len, capacity) = (last.len(), last.len() + last.room());
        self.client.out.release();
        let class = if len > 0 && len == capacity {
            SizeClass::larger_than(capacity)
        } else if len * 4 <= SizeClass::Small.bytes() {
            SizeClass::Small
        } else {
            SizeClass::Medium
        };
        if capacity == class.bytes() {
            last.clear();
            return last;
        }
        Buf::pooled(class)
    }

    /// Reads a received buffer and puts what is shown of it into `client.out`.
    fn put_received(&mut self, received: Buf) -> Result<(), Cut> {
        self.kept.clear();
        self.texts.clear();
        let was_between = self.source.is_between_chunks();
        let held_back = self.observer.holds_back();
        let mut shows_all = was_between && !held_back;
        let (observer, kept, texts) = (&mut self.observer, &mut self.kept, &mut self.texts);
        let mut seen = Seen::default();
        let mut reading = Reading { shown: self.shown, raw: &received, kept, texts, seen: &mut seen };
        let taken = self.source.read(&received, |range| observer.read(&mut reading, range))?;
        if self.source.is_done()
            && let Observer::Events(events) = &mut self.observer
            && events.edits == Edits::Some
        {
            // The last event may lack its empty line: it is shown as it came.
            seen.changed |= events.reader.is_inside_event();
            self.kept.push(push_text(&mut self.texts, events.reader.carried()));
            events.edits = Edits::None;
        }
        if taken < received.len() {
            self.upstream_keeps = false;
            shows_all = false;
        }
        shows_all &= !seen.changed && self.source.is_between_chunks() && !self.observer.holds_back();
        self.usage.merge(seen.usage);
        self.pieces += seen.pieces;
        if seen.content && self.first_content_us.is_none() {
            let now_us = io::now_us();
            self.first_content_us = Some(now_us);
            (self.heard)(now_us, Output::First);
        } else if seen.pieces == 1 {
            // Several at once lay somewhere for a while: they came when they could, not when they were made.
            (self.heard)(io::now_us(), Output::More);
        }
        let same_framing = match (&self.source, self.sink) {
            (Source::Chunked(_), Sink::Chunked) => true,
            (Source::Length(_) | Source::UntilClose, Sink::Length(_) | Sink::UntilClose) => true,
            (Source::Nothing | Source::Chunked(_) | Source::Length(_) | Source::UntilClose, _) => false,
        };
        if shows_all && same_framing {
            self.client.out.push_data(0..taken);
            self.verbatim_end = self.source.is_done();
        } else {
            self.put_kept();
        }
        *self.client.out.data() = received;
        Ok(())
    }

    /// Puts the kept pieces into `client.out`, as one chunk where the sink is chunked.
    fn put_kept(&mut self) {
        let bytes: usize = self.kept.iter().map(Kept::len).sum();
        if bytes == 0 {
            return;
        }
        let out = &mut self.client.out;
        let chunked = self.sink == Sink::Chunked;
        if chunked {
            out.small_with(|to| push_chunk_head(to, bytes));
        }
        for piece in &self.kept {
            match piece {
                Kept::Received(range) => out.push_data(range.clone()),
                Kept::Text(range) => out.push_small(&self.texts[range.clone()]),
            }
        }
        if chunked {
            out.push_small(b"\r\n");
        }
    }

    /// The upstream failed within the stream: one error event, then the end; never a second attempt, never a `[DONE]`.
    async fn break_off(&mut self, cut: Cut) -> End {
        self.after = After::Abort;
        let Observer::Events(events) = &self.observer else { return End::Truncated(cut) };
        if matches!(self.sink, Sink::Length(_) | Sink::Nothing) {
            return End::Truncated(cut);
        }
        let mut event = Vec::new();
        if events.edits == Edits::None && events.reader.is_inside_event() {
            event.extend_from_slice(b"\n\n");
        }
        let (message, code) = match cut {
            Cut::Reset => ("The endpoint closed the connection within the answer.", "upstream_reset"),
            Cut::Silent => ("The endpoint stopped answering within the answer.", "upstream_timeout"),
            Cut::Late => ("The answer took longer than it may in all.", "upstream_timeout"),
            Cut::Garbled => ("The endpoint's answer is not valid HTTP/1.1.", "upstream_bad_answer"),
        };
        push_error_event(&mut event, self.shown.event_names, message, code);
        self.client.out.clear();
        self.texts = event;
        self.kept.clear();
        self.kept.push(Kept::Text(0..self.texts.len()));
        self.put_kept();
        if self.sink == Sink::Chunked {
            self.client.out.push_small(b"0\r\n\r\n");
        }
        self.after = After::Close;
        match self.send().await {
            Ok(()) => End::Truncated(cut),
            Err(end) => end,
        }
    }
}

/// A comment, which clients pass over (WHATWG HTML, 9.2.6).
const PING: &[u8] = b": ping\n\n";

/// Puts a comment into `out`, as a chunk where the sink is chunked.
fn put_ping(out: &mut Out, sink: Sink) {
    out.clear();
    if sink == Sink::Chunked {
        out.small_with(|to| push_chunk_head(to, PING.len()));
    }
    out.push_small(PING);
    if sink == Sink::Chunked {
        out.push_small(b"\r\n");
    }
}
