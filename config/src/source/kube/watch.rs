//! One resource followed: listed, then watched from the version of the list, for ever.
//!
//! Written out here and not taken from the client's runtime, because what matters is what happens when something is wrong,
//! and the loop must tell of it: a version that is too old comes as an event or as a status and means a new list; a
//! connection on which nothing comes is given up after a bounded time; a definition that is gone is waited for; and
//! whoever listens hears when the server is away and when it is back, also when nothing has changed meanwhile.

use std::fmt;
use std::time::Duration;

use futures_util::{Stream, StreamExt};
use kube::Api;
use kube::api::{ListParams, WatchEvent, WatchParams};
use kube::core::DeserializeGuard;
use serde::de::DeserializeOwned;
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout, timeout_at};

use super::backoff::Backoff;
use super::item::{Item, Subject};
use crate::limits::{LIST_PAGE_ITEMS, LIST_WITHIN, WATCH_MARGIN};

/// Failures in a row after which a watch begins with a new list, in case its version is what is wrong.
const FAILURES_MAX: u32 = 6;

/// Why a request to the API server failed, as far as it changes what happens next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Failure {
    /// The version is too old: HTTP 410, or an ERROR event of code 410 in an answer of status 200.
    Expired,
    /// The resource is not served: its definition is not installed.
    Absent,
    /// Not allowed: 401 or 403, and what was said.
    Refused(String),
    /// Not understood or not possible: 400, 413 or 422, and what was said.
    Invalid(String),
    /// No answer, or none that helps.
    Away(String),
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Expired => f.write_str("the version is too old"),
            Failure::Absent => f.write_str("the resource is not served; are the CustomResourceDefinitions installed?"),
            Failure::Refused(why) | Failure::Invalid(why) | Failure::Away(why) => f.write_str(why),
        }
    }
}

impl From<&kube::Error> for Failure {
    fn from(error: &kube::Error) -> Self {
        if let kube::Error::Api(status) = error {
            let said = shortened(&status.message);
            return match status.code {
                410 => Failure::Expired,
                404 => Failure::Absent,
                401 | 403 => Failure::Refused(said),
                400 | 413 | 422 => Failure::Invalid(said),
                code => Failure::Away(format!("status {code}: {said}")),
            };
        }
        // The cause stands at the end of the chain: "connection refused".
        let mut text = error.to_string();
        let mut source = std::error::Error::source(error);
        // An error has a handful of causes.
        for _ in 0..8 {
            let Some(cause) = source else { break };
            let said = cause.to_string();
            if !text.contains(&said) {
                text = format!("{text}: {said}");
            }
            source = cause.source();
        }
        Failure::Away(shortened(&text))
    }
}

fn shortened(text: &str) -> String {
    text.chars().take(300).collect()
}

/// What is told about a resource.
#[derive(Debug)]
pub(super) enum News {
    /// All there is.
    All(Vec<Item>),
    /// One came or changed.
    Put(Item),
    /// One is gone.
    Gone(Item),
    /// The server answers about it.
    Reached,
    /// It does not.
    Failed(Failure),
}

/// News of a followed resource.
#[derive(Debug)]
pub(super) struct Told {
    pub subject: Subject,
    pub news: News,
}

/// What is followed.
pub(super) struct Follow<K> {
    pub subject: Subject,
    pub api: Api<DeserializeGuard<K>>,
    pub labels: Option<String>,
    pub fields: Option<String>,
    pub read: fn(&Subject, DeserializeGuard<K>) -> Option<Item>,
    /// How long one watch lasts.
    pub lasts: Duration,
    pub told: mpsc::Sender<Told>,
}

/// How a watch ended.
enum End {
    /// As it should, or quietly: it goes on from where it was.
    Clean,
    /// With this.
    Failed(Failure),
    /// Nobody listens any more.
    Unheard,
}

impl<K> Follow<K>
where
    K: kube::Resource + Clone + fmt::Debug + DeserializeOwned + Send + 'static,
{
    /// Follows it until nobody listens.
    pub(super) async fn run(self) {
        let mut backoff = Backoff::default();
        // Each turn is one list; ends with the channel.
        loop {
            let listed = match timeout(LIST_WITHIN, self.list()).await {
                Ok(listed) => listed,
                Err(_) => Err(Failure::Away(format!("no list within {LIST_WITHIN:?}"))),
            };
            let heard = match listed {
                Ok((items, version)) => {
                    backoff.reset();
                    self.tell(News::All(items)).await && self.watch(version, &mut backoff).await
                }
                Err(failure) => self.tell(News::Failed(failure)).await,
            };
            if !heard {
                return;
            }
            backoff.wait().await;
        }
    }

    async fn list(&self) -> Result<(Vec<Item>, String), Failure> {
        let mut items = Vec::new();
        let mut token = None;
        // Each turn is a page, and a server says when there are no more; the caller bounds the time.
        loop {
            let parameters = ListParams {
                label_selector: self.labels.clone(),
                field_selector: self.fields.clone(),
                limit: Some(LIST_PAGE_ITEMS),
                continue_token: token.take(),
                ..ListParams::default()
            };
            let page = self.api.list(&parameters).await.map_err(|error| Failure::from(&error))?;
            items.extend(page.items.into_iter().filter_map(|object| (self.read)(&self.subject, object)));
            match page.metadata.continue_.filter(|token| !token.is_empty()) {
                Some(next) => token = Some(next),
                None => return Ok((items, page.metadata.resource_version.unwrap_or_default())),
            }
        }
    }

    /// Watches from a version until a new list is needed; `false` when nobody listens any more.
    async fn watch(&self, mut version: String, backoff: &mut Backoff) -> bool {
        let mut failures = 0;
        while failures < FAILURES_MAX {
            let began = Instant::now();
            match self.watch_once(&mut version).await {
                End::Unheard => return false,
                End::Failed(Failure::Expired) => return true,
                End::Clean => {
                    failures = 0;
                    // A server that ends every watch at once is not asked without a pause.
                    if began.elapsed() > Duration::from_secs(1) {
                        backoff.reset();
                    } else {
                        backoff.wait().await;
                    }
                }
                End::Failed(failure) => {
                    failures += 1;
                    let gone = failure == Failure::Absent;
                    if !self.tell(News::Failed(failure)).await {
                        return false;
                    }
                    if gone {
                        return true;
                    }
                    backoff.wait().await;
                }
            }
        }
        true
    }

    async fn watch_once(&self, version: &mut String) -> End {
        let lasts = jittered(self.lasts);
        let parameters = WatchParams {
            label_selector: self.labels.clone(),
            field_selector: self.fields.clone(),
            timeout: Some(u32::try_from(lasts.as_secs()).unwrap_or(1).max(1)),
            bookmarks: true,
            send_initial_events: false,
        };
        // A connection whose other side is gone says nothing, also not at the end.
        let latest = Instant::now() + lasts + WATCH_MARGIN.min(self.lasts);
        let mut events = match timeout_at(latest, self.api.watch(&parameters, version)).await {
            Ok(Ok(events)) => Box::pin(events),
            Ok(Err(error)) => return End::Failed(Failure::from(&error)),
            Err(_) => return End::Failed(Failure::Away("no answer to a watch".to_owned())),
        };
        if !self.tell(News::Reached).await {
            return End::Unheard;
        }
        // Each turn is an event, and the watch ends by the latest.
        loop {
            let event = match timeout_at(latest, next(&mut events)).await {
                Ok(Some(Ok(event))) => event,
                Ok(Some(Err(error))) => return End::Failed(Failure::from(&error)),
                Ok(None) => return End::Clean,
                Err(_) => return End::Failed(Failure::Away("a watch did not end at its time".to_owned())),
            };
            let news = match event {
                WatchEvent::Added(object) | WatchEvent::Modified(object) => {
                    self.changed(version, object).map(News::Put)
                }
                WatchEvent::Deleted(object) => self.changed(version, object).map(News::Gone),
                WatchEvent::Bookmark(bookmark) => {
                    *version = bookmark.metadata.resource_version;
                    None
                }
                WatchEvent::Error(status) => return End::Failed(Failure::from(&kube::Error::Api(status))),
            };
            if let Some(news) = news
                && !self.tell(news).await
            {
                return End::Unheard;
            }
        }
    }

    fn changed(&self, version: &mut String, object: DeserializeGuard<K>) -> Option<Item> {
        if let Some(now) = &kube::Resource::meta(&object).resource_version {
            version.clone_from(now);
        }
        (self.read)(&self.subject, object)
    }

    /// Whether anybody listens.
    async fn tell(&self, news: News) -> bool {
        self.told.send(Told { subject: self.subject.clone(), news }).await.is_ok()
    }
}

async fn next<S: Stream + Unpin>(stream: &mut S) -> Option<S::Item> {
    stream.next().await
}

/// Up to a fifth less, so that the watches of many processes do not all end at once.
fn jittered(duration: Duration) -> Duration {
    duration.mul_f64(1.0 - 0.2 * super::backoff::fraction())
}
