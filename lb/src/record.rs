//! What is known of a request when it is over, for the access log and the counts (step 8).

use config::Snapshot;
use config::snapshot::Pool;
use policy::Api;

use crate::conn::Client;
use crate::decide::Choice;
use crate::error::Refused;
use crate::io;
use crate::local;
use crate::log::Entry;
use crate::metrics::Series;
use crate::settings::AccessLog;
use crate::shard::{Shard, unix_ms};

/// What is known of a request for the access log and the counts (step 8).
pub(crate) struct Record {
    pub(crate) entry: Entry,
    pub(crate) started_us: u64,
    pub(crate) received_us: u64,
    pub(crate) api: Api,
    /// The model asked for is a configured name: it may be a label.
    pub(crate) known_model: bool,
}

impl Record {
    pub(crate) fn new() -> Self {
        let now_us = io::now_us();
        let entry = Entry { outcome: "bad_request", request_id: local::new_request_id(), ..Entry::default() };
        Self { entry, started_us: now_us, received_us: now_us, api: Api::Other, known_model: false }
    }

    pub(crate) fn begin(client: &Client) -> Self {
        let mut record = Self::new();
        if let Some(id) = client.head.headers.first(&client.inbox, "x-request-id").and_then(local::sane_request_id) {
            record.entry.request_id = id;
        }
        record
    }

    pub(crate) fn chosen(&mut self, pool: &Pool, snapshot: &Snapshot, choice: &Choice) {
        let entry = &mut self.entry;
        entry.rule.clone_from(&pool.program.rule(choice.rule).name);
        entry.endpoint.clone_from(&choice.endpoint.spec.name);
        entry.destination =
            pool.destinations.get(usize::from(choice.target.destination)).map(|d| d.name.clone()).unwrap_or_default();
        entry.model_served = snapshot.model(pool, choice.target).map(|m| m.upstream_name.clone()).unwrap_or_default();
        entry.estimated_prompt_tokens = Some(choice.prompt_tokens);
        entry.overlap_tokens = Some(choice.overlap_tokens);
        entry.predicted_ttft_us = choice.prediction.map(|prediction| prediction.ttft_us);
    }

    pub(crate) fn refused_by(&mut self, refused: &Refused) {
        if let Some(rule) = refused.rule() {
            rule.clone_into(&mut self.entry.rule);
        }
        if let Refused::Overloaded { exclude: Some(exclude), .. } = refused {
            self.entry.exclude.clone_from(exclude);
        }
    }

    pub(crate) fn settle(mut self, shard: &Shard) {
        let now_us = io::now_us();
        self.entry.duration_us = now_us.saturating_sub(self.received_us.max(self.started_us));
        self.entry.time_unix_ms = unix_ms();
        let entry = &self.entry;
        {
            let mut metrics = shard.metrics.borrow_mut();
            let counts = metrics.series(Series {
                model: if self.known_model { entry.model.clone() } else { String::new() },
                tenant: entry.tenant.clone(),
                destination: entry.destination.clone(),
                rule: entry.rule.clone(),
                api: self.api.as_str(),
                outcome: entry.outcome,
                status: entry.status,
            });
            counts.requests += 1;
            counts.prompt_tokens += entry.usage.prompt_tokens.unwrap_or(0);
            counts.cached_tokens += entry.usage.cached_tokens.unwrap_or(0);
            counts.completion_tokens += entry.usage.completion_tokens.unwrap_or(0);
            counts.duration.observe_us(entry.duration_us);
            if let Some(ttft_us) = entry.ttft_us {
                counts.ttft.observe_us(ttft_us);
            }
        }
        if shard.settings.access_log == AccessLog::On {
            shard.log(&self.entry);
        }
    }
}
