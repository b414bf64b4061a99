//! What is known and believed of each endpoint.

use std::fmt;

use super::Page;
use super::writer::{Labels, Writer};
use crate::control::kv::{KvState, KvStatus};
use crate::control::status::EndpointStatus;
use crate::mailbox::Readiness;
use crate::plan::EndpointId;

impl Page {
    pub(super) fn endpoints(&self, out: &mut Writer<'_>) -> fmt::Result {
        let all = &self.status.endpoints;
        let samples =
            |value: fn(&EndpointStatus) -> f64| all.iter().map(move |endpoint| (of(endpoint), value(endpoint)));
        out.gauges(
            "kinference_endpoint_ready",
            "1 when requests may go there",
            samples(|endpoint| if endpoint.verdict.readiness == Readiness::Ready { 1.0 } else { 0.0 }),
        )?;
        let ages = all.iter().filter_map(|endpoint| Some((of(endpoint), endpoint.scrape_age_us? as f64 / 1e6)));
        out.gauges("kinference_endpoint_scrape_age_seconds", "Age of the last good read of its metrics", ages)?;
        let failed = all.iter().map(|endpoint| (of(endpoint), endpoint.scrapes_failed));
        out.counters("kinference_endpoint_scrape_failures", "Reads of its metrics that failed", failed)?;

        self.kv_events(out)?;
        let name = |id: EndpointId| all.iter().find(|endpoint| endpoint.spec.id == id);
        let mut failures: Vec<_> = self.totals.failures.iter().collect();
        failures.sort_unstable();
        let failures = failures.into_iter().filter_map(|((id, failure), count)| {
            let mut labels = of(name(*id)?);
            labels.push(("failure", failure.label().to_owned()));
            Some((labels, *count))
        });
        out.counters("kinference_endpoint_failures", "Requests that failed there, by kind", failures)
    }

    fn kv_events(&self, out: &mut Writer<'_>) -> fmt::Result {
        let all =
            || self.status.endpoints.iter().filter_map(|endpoint| Some((of(endpoint), endpoint.kv_events.as_ref()?)));
        out.gauges(
            "kinference_endpoint_kv_events_live",
            "1 when every block of its cache is known from its events",
            all().map(|(labels, events)| (labels, u64::from(events.state == KvState::Live))),
        )?;
        out.gauges(
            "kinference_endpoint_kv_events_blocks",
            "Different blocks in its cache, as its events tell",
            all().map(|(labels, events)| (labels, events.blocks)),
        )?;
        type Value = fn(&KvStatus) -> u64;
        let families: [(&str, &str, Value); 6] = [
            ("kinference_endpoint_kv_events_messages", "Messages of its event stream", |e| e.counts.batches),
            ("kinference_endpoint_kv_events_messages_lost", "Messages that could not be had", |e| e.counts.lost),
            ("kinference_endpoint_kv_events_unreadable", "Messages that could not be read", |e| e.counts.unreadable),
            ("kinference_endpoint_kv_events_replays", "Replays asked for", |e| e.replays),
            ("kinference_endpoint_kv_events_clears", "Times that its cache was cleared", |e| e.counts.clears),
            ("kinference_endpoint_kv_events_restarts", "Times that its events began anew", |e| e.counts.restarts),
        ];
        for (name, help, value) in families {
            out.counters(name, help, all().map(|(labels, events)| (labels, value(events))))?;
        }
        let news = self.status.cache_news;
        out.gauge(
            "kinference_cache_news_waiting",
            "Blocks that data threads are yet to be told of",
            news.keys_waiting,
        )?;
        out.counter(
            "kinference_cache_sweeps_lost",
            "Batches of cache news that found no room at a data thread",
            news.sweeps_lost,
        )
    }

    pub(super) fn beliefs(&self, out: &mut Writer<'_>) -> fmt::Result {
        type Value = fn(&predictor::fleet::EndpointBelief) -> Option<f64>;
        let families: [(&str, &str, Value); 6] = [
            ("kinference_endpoint_queued_prompts", "Prompts that wait there, now", |b| Some(b.queued_prompts_now)),
            ("kinference_endpoint_queued_prompts_mean", "Prompts that wait there, mean over 30 s", |b| {
                b.queued_prompts_mean
            }),
            ("kinference_endpoint_running_prompts", "Requests running there by the last read of its metrics", |b| {
                b.running
            }),
            ("kinference_endpoint_kv_cache_usage_ratio", "KV cache in use, 0 to 1", |b| b.kv_usage_ratio),
            ("kinference_endpoint_prefill_tokens_per_second", "Learned speed of prefill", |b| {
                Some(b.prefill_tokens_per_s)
            }),
            ("kinference_endpoint_slowness_ratio", "How many times slower than its kind", |b| Some(b.slowness_ratio)),
        ];
        let reports = || self.reports.shards.iter().flat_map(|report| &report.endpoints);
        let of_endpoint = |endpoint: &EndpointStatus| {
            let (id, incarnation) = (endpoint.spec.id, endpoint.spec.incarnation);
            reports().filter(move |report| report.endpoint == id && report.incarnation == incarnation)
        };
        let in_flight = self.status.endpoints.iter().map(|endpoint| {
            (of(endpoint), of_endpoint(endpoint).map(|report| u64::from(report.own_in_flight)).sum::<u64>())
        });
        out.gauges("kinference_endpoint_in_flight", "Requests of this process in flight there", in_flight)?;
        for (name, help, value) in families {
            let samples = self.status.endpoints.iter().filter_map(|endpoint| {
                // Every data thread believes the same, give or take 5 ms.
                let belief = of_endpoint(endpoint).find_map(|report| report.belief.as_ref())?;
                Some((of(endpoint), value(belief)?))
            });
            out.gauges(name, help, samples)?;
        }
        Ok(())
    }
}

fn of(endpoint: &EndpointStatus) -> Labels<'static> {
    vec![("endpoint", endpoint.spec.name.clone()), ("destination", endpoint.destination.clone())]
}
