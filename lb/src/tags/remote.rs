//! Classifiers that are asked over HTTP: what a data thread sends to the control thread, and how it waits.

use std::future::{Future, poll_fn};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use config::snapshot::{BaseUrl, Classifier, ClassifierKind, OnError, ResourceId};
use predictor::classify::{Scope, Scopes};

use super::scope_of;
use super::text::{Origin, Sources, decode};
use crate::io;
use crate::openai::scan::push_json_string;
use crate::pace::{Breath, Pace};
use crate::shard::Shard;

/// Longest text that is sent, in bytes; a longer prompt is judged like one whose service does not answer.
const TEXT_BYTES_MAX: usize = 1 << 20;
/// How much longer than the service's time-out a data thread waits: the control thread tells of that.
const GRACE: Duration = Duration::from_millis(50);

/// A service that classifies text.
#[derive(Debug, PartialEq)]
pub(crate) struct Service {
    pub(crate) id: ResourceId,
    pub(crate) url: BaseUrl,
    pub(crate) timeout: Duration,
    pub(crate) in_flight_max: u32,
    pub(crate) cache_entries_max: u32,
    /// Tags it may give.
    pub(crate) tags: Vec<String>,
    scopes: Scopes,
    on_error: OnError,
}

/// What a data thread wants to know.
#[derive(Debug)]
pub(crate) struct Question {
    /// Its number.
    pub(crate) shard: usize,
    /// What the answer is told by.
    pub(crate) ticket: u64,
    pub(crate) service: Arc<Service>,
    /// What is sent.
    pub(crate) body: Vec<u8>,
}

impl Service {
    /// The service of a classifier of this kind.
    pub(super) fn of(classifier: &Classifier) -> Option<Arc<Self>> {
        let ClassifierKind::Http { url, timeout, in_flight_max, cache_entries_max, tags } = &classifier.kind else {
            return None;
        };
        let scopes = match classifier.scope.is_empty() {
            true => Scopes::ALL,
            false => classifier.scope.iter().map(|&scope| scope_of(scope)).collect(),
        };
        Some(Arc::new(Self {
            id: classifier.id.clone(),
            url: url.clone(),
            timeout: *timeout,
            in_flight_max: *in_flight_max,
            cache_entries_max: *cache_entries_max,
            tags: tags.clone(),
            scopes,
            on_error: classifier.on_error,
        }))
    }

    /// The tags where there is no answer.
    pub(super) fn unanswered(&self) -> impl Iterator<Item = &str> {
        let tags = match self.on_error {
            OnError::AddTag => self.tags.as_slice(),
            OnError::Ignore => &[],
        };
        tags.iter().map(String::as_str)
    }

    /// Asks about `sources`. The tags come by their places; `None` when there is no answer.
    pub(super) async fn ask(self: &Arc<Self>, sources: &Sources<'_>, shard: &Shard) -> Option<Box<[u16]>> {
        if sources.shape.unscannable {
            return None;
        }
        let body = self.body(sources, Breath::new(Pace::Turns(shard))).await?;
        let ticket = shard.ask_service(self.clone(), body)?;
        io::unless(ticket.answer(), io::sleep(self.timeout + GRACE)).await.flatten()
    }

    /// What is sent; `None` when it is too long.
    async fn body(&self, sources: &Sources<'_>, mut breath: Breath<'_>) -> Option<Vec<u8>> {
        let mut body = b"{\"classifier\":".to_vec();
        push_json_string(&mut body, &self.id.name);
        body.extend(b",\"texts\":[");
        let mut separator = None;
        let prompt = sources.pieces.iter().filter(|source| source.origin == Origin::Prompt);
        for source in prompt.filter(|source| self.scopes.contains(source.scope)) {
            body.extend(separator);
            separator = Some(b',');
            body.extend(b"{\"role\":\"");
            body.extend(role(source.scope).bytes());
            body.extend(b"\",\"text\":");
            push_json_string(&mut body, &decode(source, &mut breath).await.0);
            body.push(b'}');
            if body.len() > TEXT_BYTES_MAX {
                return None;
            }
        }
        body.extend(b"]}");
        Some(body)
    }
}

/// What services give that are asked at once: a prompt waits as long as the slowest takes.
pub(super) async fn all<T>(asked: impl Iterator<Item = impl Future<Output = T>>) -> Vec<T> {
    let mut asked: Vec<_> = asked.map(Box::pin).collect();
    let mut given: Vec<Option<T>> = asked.iter().map(|_| None).collect();
    poll_fn(|context| {
        let mut waits = false;
        for (asked, given) in asked.iter_mut().zip(&mut given).filter(|(_, given)| given.is_none()) {
            match asked.as_mut().poll(context) {
                Poll::Ready(answer) => *given = Some(answer),
                Poll::Pending => waits = true,
            }
        }
        if waits { Poll::Pending } else { Poll::Ready(()) }
    })
    .await;
    given.into_iter().flatten().collect()
}

const fn role(scope: Scope) -> &'static str {
    match scope {
        Scope::System => "system",
        Scope::User => "user",
        Scope::Assistant => "assistant",
        Scope::Tool => "tool",
        Scope::Rest => "system",
    }
}
