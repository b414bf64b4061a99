//! The metrics page: counts of all data threads and the state of the process, in the Prometheus text format.
//!
//! Label values come from the configuration and from closed lists, never from a request, so the number of series is
//! bounded by what is configured. Names that OpenTelemetry has agreed on (`gen_ai.*`, semantic conventions for
//! generative AI) are used where they fit, in their Prometheus spelling.

use std::collections::BTreeMap;
use std::fmt;
use std::time::SystemTime;

use config::snapshot::RateLimits;
use policy::Action;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, NoLabelSet, prometheus_text};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;

use config::source::cluster::Contact;

use self::writer::{Labels, Writer};
use super::report::Reports;
use super::status::{Phase, Status};
use super::tokenizers::State;
use crate::allowance::limits_of;
use crate::metrics::{Metrics, PREDICTION_ERROR_BOUNDS, SeriesCounts};
use crate::queue;

mod endpoints;
mod writer;

/// The media type of [`text`].
pub(crate) const CONTENT_TYPE: &str = prometheus_text::CONTENT_TYPE;

/// Writes the page.
///
/// # Errors
/// Never in practice: writing to a string does not fail.
pub(crate) fn text(status: Status, reports: Reports) -> Result<String, fmt::Error> {
    let totals = reports.totals();
    let mut registry = Registry::default();
    registry.register_collector(Box::new(Page { status, reports, totals }));
    let mut out = String::with_capacity(16 << 10);
    prometheus_text::encode(&mut out, &registry)?;
    Ok(out)
}

#[derive(Debug)]
struct Page {
    status: Status,
    reports: Reports,
    totals: Metrics,
}

impl Collector for Page {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut out = Writer { encoder };
        self.process(&mut out)?;
        self.configuration(&mut out)?;
        self.certificates(&mut out)?;
        self.tenants(&mut out)?;
        self.connections(&mut out)?;
        self.threads(&mut out)?;
        self.requests(&mut out)?;
        self.queues(&mut out)?;
        self.tokens_and_times(&mut out)?;
        self.prediction(&mut out)?;
        self.exact_tokens(&mut out)?;
        self.endpoints(&mut out)?;
        self.beliefs(&mut out)
    }
}

/// The labels of the model asked for and of the one that was sent, in families with agreed names (`gen_ai.request.model`).
const AGREED: [&str; 2] = ["gen_ai_request_model", "gen_ai_response_model"];
/// The same in families of ours.
const OURS: [&str; 2] = ["model", "model_served"];

impl Page {
    fn process(&self, out: &mut Writer<'_>) -> fmt::Result {
        let facts = &self.status.facts;
        let version = vec![("version", String::from(env!("CARGO_PKG_VERSION"))), ("driver", facts.driver.to_string())];
        out.gauges("kinference_build_info", "Version and I/O driver; always 1", [(version, 1_u64)])?;
        let started = facts.started.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs_f64();
        out.gauge("process_start_time_seconds", "When the process started, in seconds since 1970", started)?;
        out.gauge("process_max_fds", "File descriptors the process may have open", facts.open_files_max)?;
        out.gauge("kinference_data_threads", "Data threads", facts.data_threads)?;
        let stuck = self.reports.stuck.len();
        out.gauge(
            "kinference_data_threads_stuck",
            "Data threads that did not answer within 0.5 s; their counts are missing here",
            stuck,
        )?;
        let draining = u64::from(self.status.phase == Phase::Draining);
        out.gauge("kinference_draining", "1 from the first signal to the end", draining)
    }

    fn configuration(&self, out: &mut Writer<'_>) -> fmt::Result {
        let config = &self.status.config;
        let snapshot = self.status.plan.as_ref().map(|plan| &plan.snapshot);
        let generation = snapshot.map_or(0, |snapshot| snapshot.generation);
        out.gauge(
            "kinference_config_generation",
            "Generation of the configuration in force; 0 when none is",
            generation,
        )?;
        let warnings = snapshot.map_or(0, |snapshot| snapshot.warnings.len());
        out.gauge("kinference_config_warnings", "Warnings about the configuration in force", warnings)?;
        out.counter(
            "kinference_config_refusals",
            "Configurations that were refused; the last good one stayed in force",
            config.refusals,
        )?;
        let since = |at: SystemTime| at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs_f64();
        let in_force = config.in_force_since.map(|at| (Vec::new(), since(at)));
        out.gauges(
            "kinference_config_in_force_since_seconds",
            "When the configuration came into force, in seconds since 1970",
            in_force,
        )?;
        let contact = self.status.contact.as_ref();
        let connected = contact.map(|contact| (Vec::new(), u64::from(*contact == Contact::With)));
        let away = contact.and_then(|contact| match contact {
            Contact::With => None,
            Contact::Without { since: at, .. } => Some((Vec::new(), since(*at))),
        });
        out.gauges(
            "kinference_kubernetes_connected",
            "1 while the API server answers; absent where resources come from files",
            connected,
        )?;
        out.gauges(
            "kinference_kubernetes_away_since_seconds",
            "Since when the API server does not answer, in seconds since 1970; what was in force stays",
            away,
        )?;
        let balancers = self.status.balancers.as_ref();
        let plain = |number: u64| (Vec::new(), number);
        out.gauges(
            "kinference_balancers_heard",
            "Other balancers heard within three seconds; absent where there are none",
            balancers.map(|balancers| plain(balancers.heard as u64)),
        )?;
        out.counters(
            "kinference_balancers_datagrams_refused",
            "Datagrams at the port of balancers that were not taken: forged, late, or of another version",
            balancers.map(|balancers| plain(balancers.refused)),
        )?;
        out.counters(
            "kinference_balancers_datagrams_unsent",
            "Datagrams to other balancers that could not be sent",
            balancers.map(|balancers| plain(balancers.unsent)),
        )?;
        let unresolved = self.status.unresolved.len();
        out.gauge("kinference_unresolved_host_names", "Host names that cannot be resolved", unresolved)
    }

    fn certificates(&self, out: &mut Writer<'_>) -> fmt::Result {
        let certificates = &self.status.certificates;
        let expiries = certificates
            .in_use
            .iter()
            .filter_map(|(listener, expires)| Some((vec![("listener", listener.to_string())], (*expires)?)));
        out.gauges(
            "kinference_tls_certificate_expiry_seconds",
            "When the certificate that a listener shows expires, in seconds since 1970",
            expiries,
        )?;
        out.counter(
            "kinference_tls_certificate_refusals",
            "Changes of certificate files that were refused; the last good certificate stayed in force",
            certificates.refusals,
        )
    }

    fn exact_tokens(&self, out: &mut Writer<'_>) -> fmt::Result {
        let tokenizers = self.status.tokenizers.iter();
        let in_force = tokenizers.map(|(worker_set, state)| {
            (vec![("worker_set", worker_set.clone())], u64::from(matches!(state, State::Exact(_))))
        });
        out.gauges(
            "kinference_tokenizer_in_force",
            "1 where a worker set's tokenizer tells its prompts; 0 where they are estimated by bytes until it can be read",
            in_force,
        )?;
        let m = &self.totals;
        let outcomes = m.tokenized.iter().map(|(outcome, n)| (vec![("outcome", String::from(outcome.label()))], *n));
        out.counters(
            "kinference_prompts_tokenized",
            "Requests put to a tokenizer, by what became of it; all but `exact` are estimated by bytes",
            outcomes,
        )?;
        out.durations(
            "kinference_tokenize_wait_seconds",
            "How long requests waited for their tokens",
            [(Vec::new(), &m.tokenize_wait)],
        )?;
        let checks = ["equal", "different"].into_iter().zip(m.exact_checks);
        out.counters(
            "kinference_prompts_tokenized_checked",
            "Prompts told exactly whose length the engine told too; where they differ, tokenizer or chat template are not the engine's",
            checks.map(|(result, n)| (vec![("result", String::from(result))], n)),
        )
    }

    /// Who may call, and how much of their limits is left. One series a tenant, of those that have limits.
    fn tenants(&self, out: &mut Writer<'_>) -> fmt::Result {
        let (sources, failures) = &self.status.keys;
        let keys = sources.iter().map(|of| (vec![("source", of.source.clone())], of.keys));
        out.gauges("kinference_issuer_keys", "Public keys known of a token issuer", keys)?;
        out.counter(
            "kinference_issuer_keys_failures",
            "Readings of issuers' keys that failed; those that were known stayed",
            *failures,
        )?;
        let plan = self.status.plan.as_ref();
        let limited = || {
            let tenants = plan.into_iter().flat_map(|plan| plan.snapshot.tenants.iter().zip(&plan.accounts));
            tenants.filter(|(tenant, _)| tenant.limits != RateLimits::default())
        };
        let in_flight =
            limited().map(|(tenant, account)| (vec![("tenant", tenant.id.name.clone())], account.in_flight()));
        out.gauges("kinference_tenant_in_flight", "Requests in flight of a tenant with limits", in_flight)?;
        let now_ns = crate::clock_us().saturating_mul(1_000);
        let left = limited().flat_map(|(tenant, account)| {
            let standing = account.standing(limits_of(tenant), now_ns);
            let levels = [("requests", standing.requests), ("tokens", standing.tokens)];
            levels.into_iter().filter_map(move |(limit, level)| {
                let labels = vec![("tenant", tenant.id.name.clone()), ("limit", limit.to_owned())];
                Some((labels, level?.remaining))
            })
        });
        out.gauges(
            "kinference_tenant_remaining",
            "Requests or tokens that a tenant has left of its limit a minute",
            left,
        )
    }

    fn connections(&self, out: &mut Writer<'_>) -> fmt::Result {
        let m = &self.totals;
        out.gauge("kinference_downstream_connections_open", "Client connections open", m.connections_open)?;
        out.counter("kinference_downstream_connections", "Client connections taken", m.connections_accepted)?;
        out.counter(
            "kinference_downstream_connections_handed_over",
            "Client connections that a data thread passed on to a lighter one",
            m.connections_handed_over,
        )?;
        out.counter(
            "kinference_downstream_connections_refused",
            "Client connections closed at once for want of room",
            m.connections_refused,
        )?;
        out.counter("kinference_tls_handshakes", "TLS handshakes that were done", m.tls_handshakes)?;
        out.counter(
            "kinference_tls_handshake_failures",
            "TLS handshakes that were refused by either side or not done in time",
            m.tls_handshakes_failed,
        )?;
        out.counter("kinference_accept_errors", "Failed attempts to take a connection", m.accept_errors)?;
        out.counter("kinference_panics", "Requests ended by a defect of this program", m.panics)?;
        out.counter("kinference_upstream_connects", "New upstream connections", m.upstream_connects)?;
        out.counter(
            "kinference_upstream_tls_handshakes",
            "TLS handshakes with upstreams that were done",
            m.upstream_tls_handshakes,
        )?;
        out.counter("kinference_upstream_reuses", "Requests on a kept upstream connection", m.upstream_reuses)?;
        let lost = m.log_lines_dropped.saturating_add(self.status.log_lines_dropped);
        out.counter(
            "kinference_access_log_lines_lost",
            "Lines of the access log that found no room or could not be written",
            lost,
        )?;
        out.counter(
            "kinference_peer_batches_lost",
            "Batches between data threads that found no room",
            m.peer_batches_dropped,
        )
    }

    /// How evenly work is spread over the data threads.
    fn threads(&self, out: &mut Writer<'_>) -> fmt::Result {
        let samples = |value: fn(&Metrics) -> u64| {
            let reports = self.reports.shards.iter();
            reports.map(move |report| (vec![("thread", report.shard.to_string())], value(&report.metrics)))
        };
        out.gauges(
            "kinference_thread_connections_open",
            "Client connections open on a data thread",
            samples(|metrics| metrics.connections_open),
        )?;
        out.gauges(
            "kinference_thread_requests_open",
            "Requests a data thread works on",
            samples(|metrics| metrics.exchanges_open),
        )
    }

    fn requests(&self, out: &mut Writer<'_>) -> fmt::Result {
        let m = &self.totals;
        out.gauge("kinference_requests_open", "Requests being worked on", m.exchanges_open)?;
        out.gauge("kinference_request_bodies_bytes", "Memory taken for request bodies, and for what is made of them and of answers at providers that speak another API", m.body_bytes)?;
        out.counter("kinference_request_bodies_waits", "Request bodies that waited for memory", m.body_waits)?;
        let mut series: Vec<_> = m.series.iter().collect();
        series.sort_unstable_by_key(|(labels, _)| *labels);
        let samples = series.into_iter().map(|(s, counts)| {
            let labels = vec![
                ("model", s.model.to_owned()),
                ("tenant", s.tenant.to_owned()),
                ("destination", s.destination.to_owned()),
                ("rule", s.rule.to_owned()),
                ("api", s.api.to_owned()),
                ("outcome", s.outcome.to_owned()),
                ("status", s.status.to_string()),
            ];
            (labels, counts.requests)
        });
        out.counters("kinference_requests", "Requests that ended", samples)?;
        let shadowed = m.shadowed.iter().map(|([rule, destination, error], count)| {
            let labels = [("rule", rule), ("destination", destination), ("error", error)];
            (labels.map(|(label, value)| (label, value.to_string())).to_vec(), *count)
        });
        out.counters("kinference_shadow_decisions", "What rules in mode Shadow would have done", shadowed)?;
        let tagged = m.tagged.iter().map(|(tag, count)| (vec![("tag", tag.to_string())], *count));
        out.counters("kinference_requests_tagged", "Requests that ended, by each tag of their prompts", tagged)?;
        out.counter("kinference_requests_local", "Requests answered without an upstream", m.requests_local)?;
        out.counter("kinference_retries", "Attempts beyond the first of a request", m.retries)?;
        out.counter("kinference_retries_refused", "Retries that the budget did not allow", m.retries_refused)?;
        out.counter("kinference_replays", "Requests sent again because a kept connection had died", m.replays)
    }

    fn queues(&self, out: &mut Writer<'_>) -> fmt::Result {
        let labels = |pool: &str, rule: &str| vec![("pool", pool.to_owned()), ("rule", rule.to_owned())];
        let mut waiting: Vec<(Labels<'static>, u32)> = Vec::new();
        if let Some(plan) = &self.status.plan {
            for (pool_index, pool) in plan.snapshot.pools.iter().enumerate() {
                for (rule_index, rule) in pool.program.rules().iter().enumerate() {
                    if matches!(&rule.action, Action::Route(route) if route.queue.is_some()) {
                        let count = plan.waiting.waiting(pool_index, rule_index);
                        waiting.push((labels(&pool.id.name, &rule.name), count));
                    }
                }
            }
        }
        out.gauges("kinference_queue_length", "Requests that wait for room under a rule", waiting)?;
        let queues = &self.totals.queues;
        let ended = queues.iter().flat_map(|([pool, rule], counts)| {
            queue::Outcome::ALL.into_iter().zip(counts.outcomes).map(move |(outcome, count)| {
                let mut labels = labels(pool, rule);
                labels.push(("outcome", outcome.label().to_owned()));
                (labels, count)
            })
        });
        out.counters("kinference_queue_requests", "Requests that had to wait for room, by what came of it", ended)?;
        let waits = queues.iter().map(|([pool, rule], counts)| (labels(pool, rule), &counts.waits));
        out.durations("kinference_queue_wait_seconds", "How long requests waited for room", waits)
    }

    /// Tokens, costs and times by models, tenant and destination: rule, interface and outcome would only multiply the buckets.
    fn tokens_and_times(&self, out: &mut Writer<'_>) -> fmt::Result {
        let mut groups: BTreeMap<[&str; 4], SeriesCounts> = BTreeMap::new();
        for (series, counts) in self.totals.series.iter() {
            let key = [series.model, series.model_served, series.tenant, series.destination];
            let group = groups.entry(key).or_default();
            group.add_tokens(&counts.tokens());
            group.cost += counts.cost;
            group.ttft.merge(&counts.ttft);
            group.duration.merge(&counts.duration);
        }
        let labels =
            |[asked, sent]: [&'static str; 2], [model, served, tenant, destination]: &[&str; 4]| -> Labels<'static> {
                vec![
                    (asked, (*model).to_owned()),
                    (sent, (*served).to_owned()),
                    ("tenant", (*tenant).to_owned()),
                    ("destination", (*destination).to_owned()),
                ]
            };
        let tokens = groups.iter().flat_map(|(group, counts)| {
            let kinds = [
                ("input", counts.prompt_tokens),
                ("input_cached", counts.cached_tokens),
                ("output", counts.completion_tokens),
            ];
            kinds.map(|(kind, tokens)| {
                let mut labels = labels(AGREED, group);
                labels.push(("gen_ai_token_type", kind.to_owned()));
                (labels, tokens)
            })
        });
        out.counters(
            "gen_ai_client_token_usage",
            "Tokens as reported by the servers; input_cached is a part of input",
            tokens,
        )?;
        let costs = groups.iter().filter(|(_, counts)| counts.cost > 0.0);
        let costs = costs.map(|(group, counts)| (labels(OURS, group), counts.cost));
        out.sums("kinference_cost", "Cost of requests, in the currency of the destination's prices", costs)?;
        let ttft = groups.iter().map(|(group, counts)| (labels(OURS, group), &counts.ttft));
        out.durations(
            "kinference_ttft_seconds",
            "From the last byte of a request to the first content of its answer, streamed answers",
            ttft,
        )?;
        let duration = groups.iter().map(|(group, counts)| (labels(AGREED, group), &counts.duration));
        out.durations(
            "gen_ai_client_operation_duration_seconds",
            "From the last byte of a request to the last of its answer",
            duration,
        )
    }

    fn prediction(&self, out: &mut Writer<'_>) -> fmt::Result {
        let errors = &self.totals.prediction_error;
        let bounds = PREDICTION_ERROR_BOUNDS.into_iter().chain([f64::INFINITY]);
        let buckets: Vec<(f64, u64)> = bounds.zip(*errors).collect();
        // Data threads count in buckets alone; every error is taken as its bucket's bound, those above all as the last.
        let last = PREDICTION_ERROR_BOUNDS[PREDICTION_ERROR_BOUNDS.len() - 1];
        let sum = buckets.iter().map(|&(bound, count)| bound.min(last) * count as f64).sum();
        let help =
            "|predicted - actual| / actual of the time to first token; the sum takes each error as its bucket's bound";
        let mut family =
            out.encoder.encode_descriptor("kinference_prediction_error_ratio", help, None, MetricType::Histogram)?;
        family.encode_histogram::<NoLabelSet>(sum, errors.iter().sum(), &buckets, None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::keys::KeysStatus;
    use crate::control::status::{CacheNewsStatus, CertificatesStatus, ConfigStatus, Facts};
    use crate::exact::Outcome;
    use crate::io::DriverInUse;
    use crate::mailbox::Failure;
    use crate::metrics::{self, ShardReport};
    use crate::plan::EndpointId;
    use std::sync::Arc;

    fn status() -> Status {
        Status {
            phase: Phase::Draining,
            plan: None,
            endpoints: Vec::new(),
            unresolved: vec![("gpu7.lan".into(), "no such name".into())],
            config: ConfigStatus { in_force_since: None, refusals: 3, last_refusal: None },
            contact: None,
            waiting: Vec::new(),
            balancers: None,
            certificates: CertificatesStatus {
                in_use: vec![("127.0.0.1:8443".parse().unwrap(), Some(1_800_000_000))],
                refusals: 4,
            },
            tokenizers: vec![("gemma".into(), State::Exact(None)), ("qwen".into(), State::Loading)],
            keys: (vec![KeysStatus { source: "jwks.json".into(), keys: 2, error: Some("gone".into()) }], 5),
            cache_news: CacheNewsStatus::default(),
            log_lines_dropped: 2,
            facts: Arc::new(Facts {
                driver: DriverInUse::Epoll,
                data_threads: 2,
                open_files_max: 1024,
                started: SystemTime::UNIX_EPOCH,
                sources: Vec::new(),
                server_file: None,
            }),
        }
    }

    fn report(shard: usize, rule: &str) -> ShardReport {
        let mut metrics = Metrics { log_lines_dropped: 5, ..Metrics::default() };
        metrics.prediction_error = [1, 0, 0, 0, 0, 1];
        metrics.tokenized.insert(Outcome::Late, 2);
        metrics.exact_checks = [5, 1];
        metrics.failures.insert((EndpointId(7), Failure::Reset), 1);
        let series = metrics::Labels {
            model: "odd \"name\"\n",
            model_served: "org/gemma",
            tenant: "alice",
            destination: "gemma",
            rule,
            api: "ChatCompletions",
            outcome: "ok",
            status: 200,
        };
        let counts = metrics.series.counts(&series);
        counts.requests = 2;
        counts.prompt_tokens = 10;
        counts.cost = 0.25;
        counts.ttft.observe_us(30_000);
        ShardReport { shard, metrics, endpoints: Vec::new() }
    }

    #[test]
    fn counts_of_all_threads_are_added_and_odd_names_stay_inside_their_quotes() {
        let reports = Reports { shards: vec![report(0, "a"), report(1, "a")], stuck: vec![2] };
        let page = text(status(), reports).unwrap();
        let lines: Vec<&str> = page.lines().collect();
        let labels = r#"{model="odd \"name\"\n",tenant="alice",destination="gemma",rule="a",api="ChatCompletions",outcome="ok",status="200"}"#;
        for line in [
            format!("kinference_requests_total{labels} 4").as_str(),
            "kinference_data_threads_stuck 1",
            "kinference_draining 1",
            "kinference_config_refusals_total 3",
            "kinference_access_log_lines_lost_total 12",
            r#"kinference_tls_certificate_expiry_seconds{listener="127.0.0.1:8443"} 1800000000"#,
            "kinference_tls_certificate_refusals_total 4",
            r#"kinference_issuer_keys{source="jwks.json"} 2"#,
            "kinference_issuer_keys_failures_total 5",
            "kinference_unresolved_host_names 1",
            r#"kinference_tokenizer_in_force{worker_set="gemma"} 1"#,
            r#"kinference_tokenizer_in_force{worker_set="qwen"} 0"#,
            r#"kinference_prompts_tokenized_total{outcome="late"} 4"#,
            r#"kinference_prompts_tokenized_checked_total{result="different"} 2"#,
            r#"kinference_cost_total{model="odd \"name\"\n",model_served="org/gemma",tenant="alice",destination="gemma"} 0.5"#,
            r#"kinference_prediction_error_ratio_bucket{le="0.05"} 2"#,
            r#"kinference_prediction_error_ratio_bucket{le="+Inf"} 4"#,
        ] {
            assert!(lines.contains(&line), "{line} is not in\n{page}");
        }
    }

    #[test]
    fn tokens_and_times_are_added_over_rules() {
        let reports = Reports { shards: vec![report(0, "a"), report(1, "b")], stuck: Vec::new() };
        let page = text(status(), reports).unwrap();
        let token_lines: Vec<&str> =
            page.lines().filter(|line| line.starts_with("gen_ai_client_token_usage_total")).collect();
        assert_eq!(token_lines.len(), 3, "{page}");
        assert!(token_lines[0].contains(r#"gen_ai_token_type="input""#) && token_lines[0].ends_with(" 20"), "{page}");
        let below = page
            .lines()
            .find(|line| line.starts_with("kinference_ttft_seconds_bucket") && line.contains(r#"le="0.025""#));
        let within = page
            .lines()
            .find(|line| line.starts_with("kinference_ttft_seconds_bucket") && line.contains(r#"le="0.05""#));
        assert!(below.unwrap().ends_with(" 0") && within.unwrap().ends_with(" 2"), "{page}");
    }

    #[test]
    fn every_family_has_help_and_a_type_and_stands_once() {
        let page = text(status(), Reports::default()).unwrap();
        let types: Vec<&str> = page.lines().filter_map(|line| line.strip_prefix("# TYPE ")).collect();
        let mut unique = types.clone();
        unique.sort_unstable();
        unique.dedup();
        assert_eq!(unique.len(), types.len(), "{page}");
        assert_eq!(page.lines().filter(|line| line.starts_with("# HELP ")).count(), types.len());
    }
}
