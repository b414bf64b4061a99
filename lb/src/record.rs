//! What is known of a request when it is over, for the access log and the counts (step 8).

use config::snapshot::Pool;
use policy::{Api, RuleIndex};

use crate::allowance::{Allowance, Came};
use crate::conn::Client;
use crate::decide::Choice;
use crate::decisions::Ended;
use crate::error::Refused;
use crate::http1::Name;
use crate::io;
use crate::local;
use crate::log::Entry;
use crate::metrics::Labels;
use crate::plan::Plan;
use crate::settings::AccessLog;
use crate::shard::{Shard, unix_ms};

/// What is known of a request for the access log and the counts (step 8). It borrows names from the plan that the request
/// is decided by: nothing is copied for a line that may not be written.
pub(crate) struct Record<'p> {
    pub(crate) entry: Entry<'p>,
    pub(crate) started_us: u64,
    pub(crate) received_us: u64,
    pub(crate) api: Api,
    /// The model asked for is a configured name: it may be a label.
    pub(crate) known_model: bool,
    /// Its place in the limits of its tenant.
    pub(crate) allowance: Option<Allowance<'p>>,
    /// The rule of its first decision, where one was matched.
    pub(crate) rule: Option<RuleIndex>,
    /// Tokens of its prompt as estimated by its first decision.
    pub(crate) prompt_tokens: u32,
    /// Events with output.
    pub(crate) pieces: u64,
    /// Its last decision, by the number it is kept under.
    pub(crate) decision: Option<u64>,
}

/// When a request began, and what it is called.
pub(crate) struct Begun {
    request_id: String,
    started_us: u64,
}

impl Begun {
    /// A request of which nothing is known yet.
    pub(crate) fn unnamed() -> Self {
        Self { request_id: local::new_request_id(), started_us: io::now_us() }
    }

    /// The request whose head `client` has just received.
    pub(crate) fn of(client: &Client) -> Self {
        let named = client.head.headers.first(&client.inbox, Name::XRequestId).and_then(local::sane_request_id);
        named.map_or_else(Self::unnamed, |request_id| Self { request_id, started_us: io::now_us() })
    }
}

impl<'p> Record<'p> {
    pub(crate) fn new(begun: Begun) -> Self {
        let Begun { request_id, started_us } = begun;
        let entry = Entry { outcome: "bad_request", request_id, ..Entry::default() };
        Self {
            entry,
            started_us,
            received_us: started_us,
            api: Api::Other,
            known_model: false,
            allowance: None,
            rule: None,
            prompt_tokens: 0,
            pieces: 0,
            decision: None,
        }
    }

    pub(crate) fn chosen(&mut self, pool: &'p Pool, plan: &'p Plan, choice: &Choice<'p>) {
        let entry = &mut self.entry;
        entry.rule = &pool.program.rule(choice.rule).name;
        entry.endpoint = Some(choice.endpoint.clone());
        entry.destination =
            pool.destinations.get(usize::from(choice.target.destination)).map_or("", |d| d.name.as_str());
        entry.model_served = plan.snapshot.model(pool, choice.target).map_or("", |m| m.upstream_name.as_str());
        entry.estimated_prompt_tokens = Some(choice.prompt_tokens);
        entry.overlap_tokens = Some(choice.overlap_tokens);
        entry.predicted_ttft_us = choice.prediction.map(|prediction| prediction.ttft_us);
    }

    /// What is left of the tenant's limits, as lines of a head; nothing where there are none.
    pub(crate) fn rate_limits(&self) -> Vec<u8> {
        let mut lines = Vec::new();
        if let Some(allowance) = &self.allowance {
            allowance.push_headers(&mut lines, io::now_us());
        }
        lines
    }

    pub(crate) fn refused_by(&mut self, refused: &Refused, pool: &'p Pool) {
        if let Some(rule) = refused.rule() {
            let known = pool.program.rules().iter().find(|known| known.name == rule);
            self.entry.rule = known.map_or("", |known| known.name.as_str());
        }
        if let Refused::Overloaded { exclude: Some(exclude), .. } = refused {
            self.entry.exclude.clone_from(exclude);
        }
    }

    pub(crate) fn settle(mut self, shard: &Shard) {
        let now_us = io::now_us();
        if let Some(allowance) = &mut self.allowance {
            allowance.settle(&self.entry.usage, self.pieces, Came::of(self.entry.outcome), now_us);
        }
        self.entry.duration_us = now_us.saturating_sub(self.received_us.max(self.started_us));
        self.entry.time_unix_ms = unix_ms();
        let entry = &self.entry;
        {
            let mut metrics = shard.metrics.borrow_mut();
            let counts = metrics.series.counts(&Labels {
                model: if self.known_model { &entry.model } else { "" },
                model_served: entry.model_served,
                tenant: entry.tenant,
                destination: entry.destination,
                rule: entry.rule,
                api: self.api.as_str(),
                outcome: entry.outcome,
                status: entry.status,
            });
            counts.requests += 1;
            counts.add_tokens(&entry.usage);
            counts.cost += entry.cost.unwrap_or_default();
            counts.duration.observe_us(entry.duration_us);
            if let Some(ttft_us) = entry.ttft_us {
                counts.ttft.observe_us(ttft_us);
            }
        }
        if !entry.tags.is_empty() {
            shard.metrics.borrow_mut().tags(&entry.tags);
        }
        if let Some(shadow) = &entry.shadow {
            shard.metrics.borrow_mut().shadow(shadow.rule, shadow.destination, shadow.error);
        }
        if let Some(number) = self.decision {
            shard.decisions.borrow_mut().ended(number, Ended::of(entry));
        }
        if shard.settings.access_log == AccessLog::On {
            shard.log(&self.entry);
        }
    }
}
