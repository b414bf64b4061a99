//! The last decisions of a data thread with their reasons, for people who ask why.
//!
//! Deciding leaves its [`Reasons`] in memory that is used again; they are swapped into the ring here, so that keeping a
//! decision copies a request id and two names. Who asks gets [`DecisionReport`]s with all names in them.

use std::rc::Rc;
use std::sync::Arc;

use config::snapshot::Pool;
use policy::{Action, RuleIndex, Target, Verdict};

use crate::log::Entry;
use crate::openai::Usage;
use crate::plan::{EndpointId, LocalPlan};

/// Decisions that a data thread keeps.
pub(crate) const DECISIONS_KEPT: usize = 1_000;
/// Candidates of one decision that are kept, the chosen one and those ranked beside it first.
pub(crate) const CANDIDATES_KEPT: usize = 16;
/// Changes of the plan that a kept decision outlives: each plan stays in memory as long as a decision refers to it.
const PLANS_KEPT: u64 = 4;

/// What became of one candidate.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Seen {
    pub(crate) endpoint: EndpointId,
    pub(crate) target: Target,
    pub(crate) verdict: Verdict,
    /// The value it was ranked by, in the unit of the ranking; NaN when it was not ranked, infinite when it was unknown.
    pub(crate) rank: f64,
    /// Expected time to the first token, where anything asked for it.
    pub(crate) predicted_ttft_us: Option<u64>,
    pub(crate) overlap_tokens: u32,
}

/// How a decision came out.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The first of the candidates kept answers.
    Chosen,
    /// Nobody does, for this reason (as the error's code says it).
    Refused(&'static str),
    /// Nothing was decided.
    #[default]
    None,
}

/// What deciding leaves behind.
#[derive(Debug, Default)]
pub(crate) struct Reasons {
    pub(crate) rule: Option<RuleIndex>,
    pub(crate) outcome: Outcome,
    pub(crate) prompt_tokens: u32,
    pub(crate) candidates: Vec<Seen>,
    /// Candidates beyond [`CANDIDATES_KEPT`].
    pub(crate) omitted: u32,
}

impl Reasons {
    /// Empty again, with the memory it has.
    pub(crate) fn clear(&mut self) {
        let candidates = std::mem::take(&mut self.candidates);
        *self = Self { candidates, ..Self::default() };
        self.candidates.clear();
    }

    /// Takes over what became of all candidates, in the order of what people ask for.
    pub(crate) fn judged(&mut self, all: impl Iterator<Item = Seen> + Clone) {
        self.candidates.clear();
        let place = |seen: &Seen| match seen.verdict {
            Verdict::Chosen => 0,
            Verdict::Survived => 1,
            Verdict::Excluded { .. } | Verdict::AtLimit | Verdict::NotReady => 2,
            Verdict::NotSelected | Verdict::NotConsidered => 3,
        };
        for wanted in 0..4 {
            let room = CANDIDATES_KEPT - self.candidates.len();
            self.candidates.extend(all.clone().filter(|seen| place(seen) == wanted).take(room));
        }
        self.omitted = u32::try_from(all.count() - self.candidates.len()).unwrap_or(u32::MAX);
    }
}

/// Who asked for what.
pub(crate) struct Asked<'a> {
    pub(crate) request_id: &'a str,
    pub(crate) tenant: &'a str,
    pub(crate) model: &'a str,
    pub(crate) tags: &'a [&'a str],
    /// The rule in shadow that would have taken the request.
    pub(crate) shadow_rule: Option<&'a str>,
    /// 0 for the first attempt.
    pub(crate) attempt: u32,
    pub(crate) at_us: u64,
}

/// How a request ended after its last decision.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ended {
    pub(crate) status: u16,
    pub(crate) outcome: &'static str,
    pub(crate) ttft_us: Option<u64>,
    pub(crate) duration_us: u64,
    pub(crate) usage: Usage,
}

impl Ended {
    pub(crate) fn of(entry: &Entry<'_>) -> Self {
        Self {
            status: entry.status,
            outcome: entry.outcome,
            ttft_us: entry.ttft_us,
            duration_us: entry.duration_us,
            usage: entry.usage,
        }
    }
}

#[derive(Debug)]
struct Kept {
    number: u64,
    plan: Rc<LocalPlan>,
    plan_number: u64,
    pool: usize,
    request_id: String,
    tenant: String,
    model: String,
    tags: String,
    shadow_rule: Option<String>,
    attempt: u32,
    at_us: u64,
    reasons: Reasons,
    ended: Option<Ended>,
}

/// The ring of one data thread.
#[derive(Debug, Default)]
pub(crate) struct Decisions {
    kept: Vec<Option<Kept>>,
    next: u64,
    plans: u64,
}

impl Decisions {
    /// Keeps a decision; `reasons` are swapped for those of the one that is forgotten. Gives its number.
    pub(crate) fn keep(&mut self, plan: &Rc<LocalPlan>, pool: usize, asked: &Asked<'_>, reasons: &mut Reasons) -> u64 {
        let number = self.next;
        self.next += 1;
        let place = (number % DECISIONS_KEPT as u64) as usize;
        if self.kept.len() <= place {
            self.kept.resize_with(place + 1, || None);
        }
        let kept = self.kept[place].get_or_insert_with(|| Kept::empty(plan.clone()));
        if !Rc::ptr_eq(&kept.plan, plan) {
            kept.plan = plan.clone();
        }
        kept.number = number;
        kept.plan_number = self.plans;
        kept.pool = pool;
        asked.request_id.clone_into(&mut kept.request_id);
        asked.tenant.clone_into(&mut kept.tenant);
        asked.model.clone_into(&mut kept.model);
        kept.tags.clear();
        for tag in asked.tags {
            if !kept.tags.is_empty() {
                kept.tags.push(' ');
            }
            kept.tags.push_str(tag);
        }
        kept.shadow_rule = asked.shadow_rule.map(str::to_owned);
        kept.attempt = asked.attempt;
        kept.at_us = asked.at_us;
        kept.ended = None;
        std::mem::swap(&mut kept.reasons, reasons);
        number
    }

    /// The request of a decision is over. Decisions that are forgotten already are no matter.
    pub(crate) fn ended(&mut self, number: u64, ended: Ended) {
        let place = (number % DECISIONS_KEPT as u64) as usize;
        if let Some(Some(kept)) = self.kept.get_mut(place)
            && kept.number == number
        {
            kept.ended = Some(ended);
        }
    }

    /// Another plan is in force: decisions by plans of long ago are forgotten with them.
    pub(crate) fn plan_changed(&mut self) {
        self.plans += 1;
        let oldest = self.plans.saturating_sub(PLANS_KEPT);
        for slot in &mut self.kept {
            if slot.as_ref().is_some_and(|kept| kept.plan_number < oldest) {
                *slot = None;
            }
        }
    }

    /// What is kept of what is wanted, the latest first.
    pub(crate) fn report(&self, thread: usize, wanted: &Wanted, now_us: u64, now_unix_ms: u64) -> Vec<DecisionReport> {
        let mut found: Vec<&Kept> = self.kept.iter().flatten().filter(|kept| wanted.includes(kept)).collect();
        found.sort_unstable_by_key(|kept| std::cmp::Reverse(kept.number));
        found.truncate(wanted.count_max());
        found.iter().map(|kept| kept.report(thread, now_us, now_unix_ms)).collect()
    }
}

/// Which decisions somebody asks for.
#[derive(Debug, Clone)]
pub(crate) enum Wanted {
    /// The last so many.
    Latest(usize),
    /// Those of one request: one for each attempt.
    Of(Arc<str>),
}

impl Wanted {
    fn includes(&self, kept: &Kept) -> bool {
        match self {
            Self::Latest(_) => true,
            Self::Of(request_id) => kept.request_id == **request_id,
        }
    }

    /// Most decisions that are reported.
    pub(crate) fn count_max(&self) -> usize {
        match self {
            Self::Latest(count) => (*count).min(DECISIONS_KEPT),
            Self::Of(_) => DECISIONS_KEPT,
        }
    }
}

impl Kept {
    fn empty(plan: Rc<LocalPlan>) -> Self {
        Self {
            number: 0,
            plan,
            plan_number: 0,
            pool: 0,
            request_id: String::new(),
            tenant: String::new(),
            model: String::new(),
            tags: String::new(),
            shadow_rule: None,
            attempt: 0,
            at_us: 0,
            reasons: Reasons::default(),
            ended: None,
        }
    }

    fn report(&self, thread: usize, now_us: u64, now_unix_ms: u64) -> DecisionReport {
        let pool = self.plan.snapshot.pools.get(self.pool);
        let rule = pool.zip(self.reasons.rule).map(|(pool, index)| pool.program.rule(index));
        let candidates = self.reasons.candidates.iter().map(|seen| self.candidate(pool, seen)).collect();
        DecisionReport {
            thread,
            time_unix_ms: now_unix_ms.saturating_sub(now_us.saturating_sub(self.at_us) / 1_000),
            request_id: self.request_id.clone(),
            attempt: self.attempt,
            pool: pool.map(|pool| pool.id.to_string()).unwrap_or_default(),
            policy: rule.map(|rule| rule.policy.clone()).unwrap_or_default(),
            rule: rule.map(|rule| rule.name.clone()).unwrap_or_default(),
            shadow_rule: self.shadow_rule.clone(),
            tenant: self.tenant.clone(),
            model: self.model.clone(),
            tags: self.tags.split_ascii_whitespace().map(str::to_owned).collect(),
            prompt_tokens: self.reasons.prompt_tokens,
            outcome: self.reasons.outcome,
            candidates,
            candidates_omitted: self.reasons.omitted,
            ended: self.ended,
        }
    }

    fn candidate(&self, pool: Option<&Pool>, seen: &Seen) -> CandidateReport {
        let spec = self.plan.endpoints.get(seen.endpoint.index()).and_then(Option::as_ref);
        let destination = pool.and_then(|pool| pool.destinations.get(usize::from(seen.target.destination)));
        let model = pool.and_then(|pool| self.plan.snapshot.model(pool, seen.target));
        let exclude = match (seen.verdict, pool.zip(self.reasons.rule)) {
            (Verdict::Excluded { exclude }, Some((pool, rule))) => exclude_name(pool, rule, exclude),
            _ => None,
        };
        CandidateReport {
            endpoint: spec.map(|spec| spec.name.clone()).unwrap_or_default(),
            destination: destination.map(|destination| destination.name.clone()).unwrap_or_default(),
            model: model.map(|model| model.upstream_name.clone()).unwrap_or_default(),
            verdict: seen.verdict,
            exclude,
            rank: Some(seen.rank).filter(|rank| rank.is_finite()),
            predicted_ttft_us: seen.predicted_ttft_us,
            overlap_tokens: seen.overlap_tokens,
        }
    }
}

fn exclude_name(pool: &Pool, rule: RuleIndex, exclude: u16) -> Option<String> {
    match &pool.program.rule(rule).action {
        Action::Route(route) => route.exclude.get(usize::from(exclude)).map(|entry| entry.name.clone()),
        Action::Deny(_) => None,
    }
}

/// One decision with all its names.
#[derive(Debug, Clone)]
pub(crate) struct DecisionReport {
    pub(crate) thread: usize,
    pub(crate) time_unix_ms: u64,
    pub(crate) request_id: String,
    pub(crate) attempt: u32,
    pub(crate) pool: String,
    pub(crate) policy: String,
    pub(crate) rule: String,
    pub(crate) shadow_rule: Option<String>,
    pub(crate) tenant: String,
    pub(crate) model: String,
    pub(crate) tags: Vec<String>,
    pub(crate) prompt_tokens: u32,
    pub(crate) outcome: Outcome,
    pub(crate) candidates: Vec<CandidateReport>,
    pub(crate) candidates_omitted: u32,
    pub(crate) ended: Option<Ended>,
}

/// One candidate of a [`DecisionReport`].
#[derive(Debug, Clone)]
pub(crate) struct CandidateReport {
    pub(crate) endpoint: String,
    pub(crate) destination: String,
    pub(crate) model: String,
    pub(crate) verdict: Verdict,
    pub(crate) exclude: Option<String>,
    pub(crate) rank: Option<f64>,
    pub(crate) predicted_ttft_us: Option<u64>,
    pub(crate) overlap_tokens: u32,
}
