//! The admin server's JSON answers and its one page for people.

use std::time::SystemTime;

use config::source::cluster::Contact;
use hyper::StatusCode;
use policy::Diagnostic;
use predictor::fleet::{EndpointBelief, Evidence};
use predictor::ttft::Basis;
use serde_json::{Value, json};

use super::kv::{Keys, KvStatus};
use super::report::Reports;
use super::status::{EndpointStatus, Phase, Status};
use super::tokenizers::State;
use crate::mailbox::Readiness;
use crate::quota::Metered;
use crate::time::rfc3339;

/// The page at `/`. It fetches the other answers and holds no data itself.
pub(crate) const HTML: &str = include_str!("page.html");

impl Readiness {
    /// The word shown to people.
    const fn as_str(self) -> &'static str {
        match self {
            Self::Unknown => "unknown",
            Self::Ready => "ready",
            Self::Ejected => "ejected",
            Self::NotReady => "not_ready",
        }
    }
}

/// Whether traffic should come here, and if not, why not.
pub(crate) fn readyz(status: &Status) -> (StatusCode, String) {
    let ready = status.endpoints.iter().filter(|endpoint| endpoint.verdict.readiness == Readiness::Ready).count();
    let mut reasons: Vec<String> = Vec::new();
    match status.phase {
        Phase::Starting => {
            reasons.push(String::from("no configuration is in force yet"));
            reasons.extend(status.waiting.iter().cloned());
            if let (Some(Contact::Without { why, .. }), true) = (&status.contact, status.waiting.is_empty()) {
                reasons.push(format!("the API server does not answer: {why}"));
            }
        }
        Phase::Serving if ready > 0 => {}
        Phase::Serving => {
            reasons.push(String::from("no endpoint is ready"));
            let not_ready = status.endpoints.iter();
            reasons.extend(not_ready.map(|endpoint| format!("{}: {}", endpoint.spec.name, endpoint.verdict.why)));
            reasons.extend(status.unresolved.iter().map(|(host, why)| format!("{host}: {why}")));
        }
        Phase::Draining => reasons.push(String::from("draining")),
    }
    let code = if reasons.is_empty() { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    let body = json!({ "ready": reasons.is_empty(), "reasons": reasons, "endpointsReady": ready, "endpoints": status.endpoints.len() });
    (code, format!("{body}\n"))
}

/// What is in force, where from, and what was refused.
pub(crate) fn config(status: &Status) -> String {
    let snapshot = status.plan.as_ref().map(|plan| &plan.snapshot);
    let refusal = status.config.last_refusal.as_ref();
    let body = json!({
        "generation": snapshot.map(|snapshot| snapshot.generation),
        "inForceSince": status.config.in_force_since.map(time),
        "sources": status.facts.sources,
        "kubernetes": status.contact.as_ref().map(|contact| match contact {
            Contact::With => json!({ "connected": true }),
            Contact::Without { since, why } => json!({ "connected": false, "since": time(*since), "why": why }),
        }),
        "serverFile": status.facts.server_file,
        "refusals": status.config.refusals,
        "lastRefusal": refusal.map(|refusal| json!({
            "at": time(refusal.at),
            "diagnostics": findings(&refusal.diagnostics),
        })),
        "warnings": snapshot.map(|snapshot| findings(&snapshot.warnings)).unwrap_or_default(),
        "unresolved": status.unresolved.iter().map(|(host, why)| json!({ "host": host, "why": why })).collect::<Vec<_>>(),
        "pools": snapshot.map(|snapshot| snapshot.pools.iter().map(|pool| json!({
            "name": pool.id.to_string(),
            "models": pool.names(),
            "destinations": pool.destinations.iter().map(|destination| destination.name.as_str()).collect::<Vec<_>>(),
        })).collect::<Vec<_>>()),
    });
    format!("{body}\n")
}

fn findings(diagnostics: &[Diagnostic]) -> Vec<Value> {
    diagnostics
        .iter()
        .map(|diagnostic| {
            let text = diagnostic.json();
            let value = serde_json::from_str(&text).unwrap_or(Value::String(text));
            Value::Object(serde_json::Map::from_iter([
                (String::from("finding"), value),
                (String::from("text"), Value::String(diagnostic.to_string())),
            ]))
        })
        .collect()
}

/// Everything about every endpoint.
pub(crate) fn endpoints(status: &Status, reports: &Reports) -> String {
    let list: Vec<Value> = status.endpoints.iter().map(|endpoint| of_endpoint(endpoint, reports)).collect();
    let body = json!({
        "phase": match status.phase {
            Phase::Starting => "starting",
            Phase::Serving => "serving",
            Phase::Draining => "draining",
        },
        "stuckThreads": reports.stuck,
        "cacheNewsWaiting": status.cache_news.keys_waiting,
        "tokenizers": status.tokenizers.iter().map(of_tokenizer).collect::<Vec<_>>(),
        "endpoints": list,
    });
    format!("{body}\n")
}

/// How the prompts of a worker set with a tokenizer are told.
fn of_tokenizer((worker_set, state): &(String, State)) -> Value {
    let (prompts, why) = match state {
        State::Loading => ("bytes", Some("the tokenizer is being read")),
        State::Exact(why) => ("tokens", why.as_deref()),
        State::Unusable(why) => ("bytes", Some(why.as_str())),
    };
    json!({ "workerSet": worker_set, "promptsBy": prompts, "why": why })
}

fn of_endpoint(endpoint: &EndpointStatus, reports: &Reports) -> Value {
    let spec = &endpoint.spec;
    let of_shards = || {
        let all = reports.shards.iter().flat_map(|report| &report.endpoints);
        all.filter(|report| report.endpoint == spec.id && report.incarnation == spec.incarnation)
    };
    // Every data thread believes the same, give or take 5 ms.
    let belief = of_shards().find_map(|report| report.belief.as_ref());
    json!({
        "name": spec.name,
        "destination": endpoint.destination,
        "type": spec.backend.as_str(),
        "address": spec.address.to_string(),
        "kind": spec.kind,
        "readiness": endpoint.verdict.readiness.as_str(),
        "why": endpoint.verdict.why,
        "forSeconds": seconds(crate::clock_us().saturating_sub(endpoint.verdict.since_us)),
        "inFlight": of_shards().map(|report| u64::from(report.own_in_flight)).sum::<u64>(),
        "inFlightMax": spec.in_flight_max,
        "lastMinute": spec.metered.as_ref().map(of_metered),
        "idleConnections": of_shards().map(|report| u64::from(report.idle_connections)).sum::<u64>(),
        "scrapeAgeSeconds": endpoint.scrape_age_us.map(seconds),
        "scrapeError": endpoint.scrape_error,
        "kvEvents": endpoint.kv_events.as_ref().map(of_kv_events),
        "belief": belief.map(of_belief),
    })
}

fn of_kv_events(events: &KvStatus) -> Value {
    let counts = &events.counts;
    json!({
        "state": events.state.as_str(),
        "forSeconds": seconds(crate::clock_us().saturating_sub(events.since_us)),
        "why": events.why,
        "overlapBy": match events.keys {
            Keys::Exact => "tokens",
            Keys::Unmatched => "bytes",
        },
        "blocks": events.blocks,
        "blockTokens": events.block_tokens,
        "messages": counts.batches,
        "messagesLost": counts.lost,
        "messagesUnreadable": counts.unreadable,
        "replays": events.replays,
        "blocksStored": counts.stored,
        "blocksRemoved": counts.removed,
        "blocksWithoutPlace": counts.orphans + counts.overflowed,
        "clears": counts.clears,
        "restarts": counts.restarts,
    })
}

/// What is used of a provider's limits.
fn of_metered(metered: &Metered) -> Value {
    let (requests, tokens) = metered.used(crate::clock_us());
    json!({
        "requests": requests,
        "requestsMax": metered.limits.requests_per_minute,
        "tokens": tokens,
        "tokensMax": metered.limits.tokens_per_minute,
    })
}

fn of_belief(belief: &EndpointBelief) -> Value {
    json!({
        "queuedPromptsNow": belief.queued_prompts_now,
        "queuedPromptsMean30s": belief.queued_prompts_mean,
        "runningPrompts": belief.running,
        "kvCacheUsage": belief.kv_usage_ratio,
        "kvCapacityTokens": belief.kv_capacity_tokens,
        "scrapeAgeSeconds": belief.scrape_age_us.map(seconds),
        "blocksHeld": belief.blocks_held,
        "overlapBy": match belief.evidence {
            Evidence::Record => "record",
            Evidence::Corrected => "record and events",
            Evidence::Events => "events",
        },
        "overlapTrust": belief.overlap_trust_ratio,
        "slowness": belief.slowness_ratio,
        "prefillTokensPerSecond": belief.prefill_tokens_per_s,
        "stalledSeconds": belief.stalled_us.map(seconds),
        "otherBalancersInFlight": belief.others_in_flight,
        "predictionBasis": match belief.basis {
            Basis::Learning => "learning",
            Basis::Learned => "learned",
            Basis::Fallback => "fallback",
        },
        "predictionErrorMedian": belief.error_ratio,
        "answersLearnedFrom": belief.answers,
        "requests": {
            "inFlight": belief.sums.in_flight,
            "pending": belief.sums.pending,
            "decoding": belief.sums.decoding,
            "pendingNewTokens": belief.sums.pending_new_tokens,
            "decodingTokens": belief.sums.decoding_tokens,
        },
    })
}

fn seconds(us: u64) -> f64 {
    us as f64 / 1e6
}

fn time(at: SystemTime) -> String {
    let since = at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    String::from_utf8_lossy(&rfc3339(u64::try_from(since.as_millis()).unwrap_or(u64::MAX))).into_owned()
}
