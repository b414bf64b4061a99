//! `/decisions`: the last decisions of all data threads with their reasons, or those of one request.

use std::sync::Arc;
use std::sync::mpsc as std_mpsc;

use policy::Verdict;
use serde_json::{Value, json};

use super::report::answers;
use crate::decisions::{CandidateReport, DecisionReport, Ended, Outcome, Wanted};
use crate::mailbox::{ShardHandle, ToShard};
use crate::time::rfc3339;

/// Decisions of a page where no number is asked for.
const COUNT_DEFAULT: usize = 100;

/// What `path` (with its query) asks for; `None` when it is another path, or asks for what there is not.
pub(super) fn wanted(path: &str) -> Option<Result<Wanted, String>> {
    let rest = path.strip_prefix("/decisions")?;
    let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
    match (rest.trim_end_matches('/'), rest.strip_prefix('/')) {
        ("", _) => Some(count_of(query).map(Wanted::Latest)),
        (_, Some(request_id)) => Some(Ok(Wanted::Of(Arc::from(request_id)))),
        (_, None) => None,
    }
}

fn count_of(query: &str) -> Result<usize, String> {
    let mut count = COUNT_DEFAULT;
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        match pair.split_once('=') {
            Some(("limit", number)) => {
                count = number.parse().map_err(|_| format!("limit={number}: expected a number of decisions"))?;
            }
            _ => return Err(format!("{pair}: the only parameter here is limit=NUMBER")),
        }
    }
    Ok(count)
}

/// What the data threads keep of what is wanted, the latest first.
pub(super) async fn collect(shards: &[ShardHandle], wanted: &Wanted) -> Vec<DecisionReport> {
    let (sender, receiver) = std_mpsc::sync_channel(shards.len().max(1));
    for shard in shards {
        // A full box is that of a thread that is stuck; the page does without it.
        let _ = shard.send(ToShard::Decisions(wanted.clone(), sender.clone()));
    }
    drop(sender);
    let mut all: Vec<DecisionReport> = answers(receiver, shards.len()).await.into_iter().flatten().collect();
    all.sort_by_key(|decision| (std::cmp::Reverse(decision.time_unix_ms), std::cmp::Reverse(decision.attempt)));
    all.truncate(wanted.count_max());
    all
}

/// The page.
pub(super) fn page(decisions: &[DecisionReport]) -> String {
    let decisions: Vec<Value> = decisions.iter().map(decision).collect();
    format!("{:#}\n", json!({ "decisions": decisions }))
}

fn decision(decision: &DecisionReport) -> Value {
    let (chosen, refused) = match decision.outcome {
        Outcome::Chosen => (decision.candidates.first(), None),
        Outcome::Refused(code) => (None, Some(code)),
        Outcome::None => (None, None),
    };
    json!({
        "time": String::from_utf8_lossy(&rfc3339(decision.time_unix_ms)),
        "requestId": decision.request_id,
        "attempt": decision.attempt + 1,
        "thread": decision.thread,
        "tenant": decision.tenant,
        "model": decision.model,
        "tags": decision.tags,
        "promptTokens": decision.prompt_tokens,
        "pool": decision.pool,
        "policy": some(&decision.policy),
        "rule": some(&decision.rule),
        "shadowRule": decision.shadow_rule,
        "endpoint": chosen.map(|candidate| &candidate.endpoint),
        "refused": refused,
        "candidates": decision.candidates.iter().map(candidate).collect::<Vec<_>>(),
        "candidatesOmitted": decision.candidates_omitted,
        "result": decision.ended.as_ref().map(ended),
    })
}

fn candidate(candidate: &CandidateReport) -> Value {
    let verdict = match candidate.verdict {
        Verdict::Chosen => "chosen",
        Verdict::Survived => "ranked",
        Verdict::NotSelected => "not_selected",
        Verdict::NotConsidered => "not_considered",
        Verdict::NotReady => "not_ready",
        Verdict::AtLimit => "at_limit",
        Verdict::Excluded { .. } => "excluded",
    };
    json!({
        "endpoint": candidate.endpoint,
        "destination": candidate.destination,
        "model": candidate.model,
        "verdict": verdict,
        "exclude": candidate.exclude,
        "rank": candidate.rank,
        "predictedTtftMs": candidate.predicted_ttft_us.map(milliseconds),
        "overlapTokens": candidate.overlap_tokens,
    })
}

fn ended(ended: &Ended) -> Value {
    json!({
        "status": ended.status,
        "outcome": ended.outcome,
        "ttftMs": ended.ttft_us.map(milliseconds),
        "durationMs": milliseconds(ended.duration_us),
        "promptTokens": ended.usage.prompt_tokens,
        "cachedTokens": ended.usage.cached_tokens,
        "completionTokens": ended.usage.completion_tokens,
    })
}

fn milliseconds(us: u64) -> f64 {
    us as f64 / 1_000.0
}

fn some(name: &str) -> Option<&str> {
    (!name.is_empty()).then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_ask_for_the_latest_or_for_one_request() {
        let of = |path: &str| wanted(path).map(|wanted| wanted.map(|wanted| format!("{wanted:?}")));
        assert_eq!(of("/decisions"), Some(Ok("Latest(100)".into())));
        assert_eq!(of("/decisions/?limit=5"), Some(Ok("Latest(5)".into())));
        assert_eq!(of("/decisions/a-b"), Some(Ok("Of(\"a-b\")".into())));
        assert!(of("/decisions?limit=many").is_some_and(|wanted| wanted.is_err()));
        assert!(of("/decisions?last=5").is_some_and(|wanted| wanted.is_err()));
        assert_eq!(of("/decisionsx"), None);
        assert_eq!(of("/config"), None);
    }
}
