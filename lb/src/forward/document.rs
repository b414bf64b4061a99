//! Answers that are one document: collected within a bound, read, sent with the model's name replaced.

use super::framing::{Sink, Source};
use super::translated::Broken;
use super::{BodyRead, Cut, DOCUMENT_BYTES_MAX, End, Output, Pass, Received};
use crate::conn::LocalAnswer;
use crate::error::{Refused, UpstreamError};
use crate::io::{Buf, SizeClass};
use crate::openai::response::Document;
use crate::openai::scan::push_json_string;
use crate::provider;

impl<F: FnMut(u64, Output)> Pass<'_, F> {
    /// `received` is what came of the body already.
    pub(super) async fn document(&mut self, mut received: Buf) -> End {
        let mut body = Buf::default();
        if let Source::Length(bytes) = self.source {
            body = Buf::with_room(usize::try_from(bytes).unwrap_or(0).min(DOCUMENT_BYTES_MAX));
        }
        loop {
            let collected = &mut body;
            match self.source.read(&received, |range| collected.extend(&received[range])) {
                // Bytes behind the end of the body: the connection cannot be trusted any more.
                Ok(n) if n < received.len() => self.upstream_keeps = false,
                Ok(_) => {}
                Err(cut) => return self.cut_off(cut).await,
            }
            self.hold(body.len());
            if self.source.is_done() {
                return self.send_document(body).await;
            }
            if body.len() > DOCUMENT_BYTES_MAX {
                if self.translated.is_some() {
                    return self.refuse(Broken::Said(provider::too_long(DOCUMENT_BYTES_MAX))).await;
                }
                return self.stream(body, BodyRead::Already).await;
            }
            received.clear();
            if received.room() == 0 || body.len() > SizeClass::Medium.bytes() {
                received = Buf::pooled(SizeClass::Large);
            }
            received = match self.receive(received).await {
                Received::Some(buf) => buf,
                Received::End if matches!(self.source, Source::UntilClose) => {
                    self.upstream_keeps = false;
                    return self.send_document(body).await;
                }
                Received::End | Received::Broken => return self.cut_off(Cut::Reset).await,
                Received::Silent => return self.cut_off(self.patience.cut()).await,
                Received::ClientGone => return End::ClientGone,
            };
        }
    }

    async fn send_document(&mut self, body: Buf) -> End {
        let body = match self.document_of(body) {
            Ok(body) => body,
            Err(broken) => return self.refuse(broken).await,
        };
        let document = Document::parse_frame(&body).unwrap_or_default();
        if let Some(usage) = document.usage {
            self.usage.merge(usage);
        }
        let renamed = self.shown.model_shown.zip(document.model_at);
        let mut text = Vec::new();
        let (bytes, at) = match renamed {
            Some((name, at)) => {
                push_json_string(&mut text, name);
                (body.len() - at.len() + text.len(), at)
            }
            None => (body.len(), 0..0),
        };
        self.sink = Sink::Length(bytes as u64);
        self.end_head();
        let out = &mut self.client.out;
        out.push_data(0..at.start);
        out.push_small(&text);
        out.push_data(at.end..body.len());
        *out.data() = body;
        match self.send().await {
            Ok(()) => End::Complete,
            Err(end) => end,
        }
    }

    /// The upstream failed before anything of the document was sent: the client gets an error instead.
    pub(super) async fn cut_off(&mut self, cut: Cut) -> End {
        self.refuse(Broken::Cut(cut)).await
    }

    /// There is nothing for the client in what came, and it has been sent nothing: it gets an error instead.
    pub(super) async fn refuse(&mut self, broken: Broken) -> End {
        let cut = broken.cut();
        let refused = match broken {
            Broken::Cut(Cut::Reset) => Refused::Upstream(UpstreamError::Reset),
            Broken::Cut(Cut::Silent | Cut::Late) => Refused::Upstream(UpstreamError::Timeout),
            Broken::Cut(Cut::Garbled) => Refused::Upstream(UpstreamError::BadAnswer),
            Broken::Said(refused) => refused,
        };
        let mut body = Vec::new();
        refused.push_body(&mut body);
        let request_id = self.shown.request_id;
        let headers = [("x-request-id", request_id.as_bytes())];
        let answer = LocalAnswer {
            status: refused.status(),
            body: &body,
            headers: &headers,
            lines: &self.shown.rate_limits,
            after: self.after,
            with_body: true,
        };
        self.client.put_answer(&answer);
        self.replaced_status = Some(refused.status());
        match self.send().await {
            Ok(()) => End::Truncated(cut),
            Err(end) => end,
        }
    }
}
