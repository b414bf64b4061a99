//! The one place where policy and predictor meet: a request and the endpoints of its pool become a choice.

use std::cell::Cell;
use std::rc::Rc;

use config::snapshot::{DestinationKind, Pool, PoolScope, ServedModel, Snapshot};
use policy::{
    Action, Backend, Candidate, Decision, HeaderLookup, Refusal, Rewrite, RuleIndex, Signal, Target, UpstreamHeader,
};
use predictor::fleet::{Fleet, Plan as Overlaps};
use predictor::prefix::chain::Chain;
use predictor::ttft::Prediction;

use crate::allowance::answer_tokens;
use crate::decisions::{Outcome, Reasons, Seen};
use crate::endpoints::{Endpoint, Table};
use crate::error::Refused;
use crate::exact::ExactPrompt;
use crate::http1::head::Headers;
use crate::openai::Request;
use crate::plan::{EndpointId, Plan};
use crate::quota::{Full, Metered, Permit};

pub mod door;
mod prompts;
mod refused;
mod shadow;

use prompts::{Basis, Prompts};
use refused::{RETRY_AFTER_UNTOLD_S, refused, retry_after_s, shortened};

pub(crate) use shadow::{Shadowed, shadow};

/// What a request asks, as far as the decision goes.
pub(crate) struct Question<'a> {
    pub(crate) request: &'a Request,
    pub(crate) body: &'a [u8],
    /// Its prefix chain, where it was made in turns.
    pub(crate) chain: Option<&'a Chain>,
    /// Its prompt in the tokens of worker sets that have a tokenizer.
    pub(crate) exact: &'a [ExactPrompt],
    pub(crate) facts: policy::Request<'a>,
    pub(crate) now_us: u64,
    pub(crate) seed: u64,
    /// Endpoints that have failed this request already.
    pub(crate) tried: &'a [EndpointId],
    /// Providers whose limits have no room for this request, as the attempt to count it there has shown.
    pub(crate) full: &'a [(EndpointId, Full)],
}

/// Where a request goes, and why.
#[derive(Debug)]
pub(crate) struct Choice<'p> {
    pub(crate) endpoint: Rc<Endpoint>,
    pub(crate) target: Target,
    pub(crate) rule: RuleIndex,
    pub(crate) upstream_model: &'p str,
    pub(crate) prompt_tokens: u32,
    pub(crate) overlap_tokens: u32,
    pub(crate) prediction: Option<Prediction>,
    pub(crate) chain: Chain,
    /// Its place in the provider's limits, where there are any.
    pub(crate) permit: Option<Permit>,
}

impl Choice<'_> {
    /// What the rule changes in the request on its way; nothing for one that no rule routed.
    pub(crate) fn changes<'p>(&self, pool: &'p Pool) -> (&'p [Rewrite], &'p [UpstreamHeader]) {
        match &pool.program.rule(self.rule).action {
            Action::Route(route) if !self.upstream_model.is_empty() => (&route.rewrite, &route.headers),
            Action::Route(_) | Action::Deny(_) => (&[], &[]),
        }
    }
}

/// What this thread knows about endpoints.
pub(crate) struct Knowledge<'a, 'p> {
    pub(crate) plan: &'p Plan,
    pub(crate) table: &'a Table,
    pub(crate) fleet: &'a mut Fleet,
    pub(crate) memory: &'a mut Memory,
    pub(crate) block_bytes: u32,
}

/// Allocations that are used again from decision to decision.
#[derive(Debug, Default)]
pub(crate) struct Memory {
    scratch: policy::Scratch,
    prompts: Prompts,
    chains: Vec<Chain>,
    seats: Vec<Seat>,
    views: Vec<View<'static>>,
    /// Those of the last decision.
    reasons: Reasons,
}

/// Most chains kept for later decisions.
const CHAINS_KEPT_MAX: usize = 64;

impl Memory {
    /// Why the last decision came out as it did.
    pub(crate) fn reasons(&mut self) -> &mut Reasons {
        &mut self.reasons
    }

    /// Gives a chain back.
    pub(crate) fn recycle(&mut self, chain: Chain) {
        if self.chains.len() < CHAINS_KEPT_MAX {
            self.chains.push(chain);
        }
    }
}

/// The pool a model name belongs to.
pub(crate) fn pool_of<'a>(
    snapshot: &'a Snapshot,
    model: &str,
    scope: &PoolScope,
) -> Result<(usize, &'a Pool), Refused> {
    snapshot.pool_for(model, scope).ok_or_else(|| Refused::ModelNotFound(shortened(model)))
}

/// Decides. The facts' prompt length is estimated here for each model in play.
pub(crate) fn decide<'p>(
    pool: &'p Pool,
    question: &Question<'_>,
    knowledge: &mut Knowledge<'_, 'p>,
) -> Result<Choice<'p>, Refused> {
    knowledge.memory.reasons.clear();
    if question.request.model.is_empty() {
        return decide_without_model(pool, question, knowledge);
    }
    let facts = facts_of(pool, question, knowledge);
    let rule = pool.program.match_rule(&facts);
    let (seats, judged) = judge_seats(pool, rule, &facts, question, knowledge);
    let reasons = &mut knowledge.memory.reasons;
    reasons.rule = Some(rule);
    reasons.prompt_tokens = facts.prompt_tokens as u32;
    let outcome = match judged {
        Ok(index) => {
            reasons.outcome = Outcome::Chosen;
            Ok(choice(pool, &seats[index], rule, knowledge))
        }
        Err(refusal) => {
            reasons.outcome = Outcome::Refused(reason(&refusal));
            let retry_after_s = retry_after_s(&seats, question);
            Err(refused(pool, rule, facts.model, &refusal, retry_after_s))
        }
    };
    release(seats, knowledge);
    outcome
}

/// A refusal in one word; a rule's own code is for the client.
fn reason(refusal: &Refusal<'_>) -> &'static str {
    match refusal {
        Refusal::ModelNotFound => "model_not_found",
        Refusal::NoReadyEndpoint => "no_ready_endpoint",
        Refusal::Overloaded { .. } => "overloaded",
        Refusal::Denied { .. } => "denied",
    }
}

/// The facts with the prompt's length, as the first server of the model would count it.
fn facts_of<'q>(pool: &Pool, question: &Question<'q>, knowledge: &mut Knowledge<'_, '_>) -> policy::Request<'q> {
    let mut facts = question.facts;
    let first = match first_serving(&knowledge.plan.snapshot, pool, facts.model) {
        Some((kind, upstream_model)) => {
            let basis = knowledge.basis(question, kind, knowledge.first_endpoint(kind));
            knowledge.prompt(question, upstream_model, basis)
        }
        None => knowledge.prompt(question, facts.model, Basis::Bytes),
    };
    facts.prompt_tokens = f64::from(knowledge.memory.prompts.all[first].overlaps.prompt_tokens());
    facts
}

/// The endpoints that a rule considers, and which of them answers. They go back by [`release`].
fn judge_seats(
    pool: &Pool,
    rule: RuleIndex,
    facts: &policy::Request<'_>,
    question: &Question<'_>,
    knowledge: &mut Knowledge<'_, '_>,
) -> (Vec<Seat>, Result<usize, Refusal<'static>>) {
    let mut seats = std::mem::take(&mut knowledge.memory.seats);
    for &target in pool.program.targets(rule, facts.model) {
        seat_endpoints(pool, target, question, knowledge, &mut seats);
    }
    let judged = judge(pool, rule, facts, &seats, question, knowledge, Suspects::Avoided);
    let judged = match judged {
        Err(Refusal::NoReadyEndpoint) => judge(pool, rule, facts, &seats, question, knowledge, Suspects::Allowed),
        Ok(_) | Err(_) => judged,
    };
    (seats, judged)
}

fn release(mut seats: Vec<Seat>, knowledge: &mut Knowledge<'_, '_>) {
    seats.clear();
    knowledge.memory.seats = seats;
    knowledge.memory.prompts.used = 0;
}

/// A request that names no model goes to the pool's first ready endpoint. Of rules, only a refusal can say anything about it.
fn decide_without_model<'p>(
    pool: &'p Pool,
    question: &Question<'_>,
    knowledge: &Knowledge<'_, 'p>,
) -> Result<Choice<'p>, Refused> {
    let rule = pool.program.match_rule(&question.facts);
    if let Action::Deny(deny) = &pool.program.rule(rule).action {
        let refusal = Refusal::Denied { status: deny.status, code: "", message: "" };
        return Err(refused(pool, rule, "", &refusal, RETRY_AFTER_UNTOLD_S));
    }
    let sets = pool.destinations.iter().enumerate().filter_map(|(index, destination)| match destination.kind {
        DestinationKind::WorkerSet(set) => Some((index, knowledge.plan.worker_sets.get(set)?)),
        DestinationKind::Provider(_) => None,
    });
    let mut ids = sets.flat_map(|(index, ids)| ids.iter().map(move |&id| (index, id)));
    let found = ids.find_map(|(index, id)| {
        let endpoint = knowledge.table.endpoint(id)?;
        let usable = endpoint.is_ready(question.now_us) && !question.tried.contains(&id);
        usable.then(|| (u16::try_from(index).unwrap_or(u16::MAX), endpoint.clone()))
    });
    let (destination, endpoint) = found.ok_or(Refused::NoEndpointForPath)?;
    Ok(Choice {
        endpoint,
        target: Target { destination, model: 0 },
        rule,
        upstream_model: "",
        prompt_tokens: 0,
        overlap_tokens: 0,
        prediction: None,
        chain: Chain::default(),
        permit: None,
    })
}

/// Whether endpoints that were just seen failing may be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Suspects {
    Avoided,
    Allowed,
}

/// One endpoint for one model, before judging.
#[derive(Debug)]
struct Seat {
    endpoint: Rc<Endpoint>,
    target: Target,
    /// Index in [`Memory::prompts`].
    prompt: usize,
    cost_per_million: Option<f64>,
    context_window: Option<u32>,
}

/// Until when a provider's limits have no room, as was found out for this request or is known for all.
fn full(metered: &Metered, id: EndpointId, found: &[(EndpointId, Full)], now_us: u64) -> Option<Full> {
    let found = found.iter().find(|(full, _)| *full == id).map(|(_, until)| *until);
    found.or_else(|| metered.known_full(now_us))
}

fn seat_endpoints(
    pool: &Pool,
    target: Target,
    question: &Question<'_>,
    knowledge: &mut Knowledge<'_, '_>,
    seats: &mut Vec<Seat>,
) {
    let plan = knowledge.plan;
    let Some(destination) = pool.destinations.get(usize::from(target.destination)) else { return };
    let Some(model) = plan.snapshot.model(pool, target) else { return };
    let mut last: Option<(Basis, usize, Option<f64>)> = None;
    let mut seat = |id: EndpointId| {
        if question.tried.contains(&id) {
            return;
        }
        if let Some(endpoint) = knowledge.table.endpoint(id) {
            let endpoint = endpoint.clone();
            let basis = knowledge.basis(question, destination.kind, Some(id));
            let known = last.filter(|(known, ..)| *known == basis);
            let (_, prompt, cost_per_million) = known.unwrap_or_else(|| {
                let prompt = knowledge.prompt(question, &model.upstream_name, basis);
                let tokens = knowledge.memory.prompts.all[prompt].overlaps.prompt_tokens();
                (basis, prompt, cost(model, question, tokens))
            });
            last = Some((basis, prompt, cost_per_million));
            seats.push(Seat { endpoint, target, prompt, cost_per_million, context_window: model.context_window });
        }
    };
    match destination.kind {
        DestinationKind::WorkerSet(index) => plan.worker_sets.get(index).into_iter().flatten().for_each(|&id| seat(id)),
        DestinationKind::Provider(index) => plan.providers.get(index).copied().flatten().into_iter().for_each(seat),
    }
}

/// Price of a million tokens of this request: prompt and answer by their expected lengths.
fn cost(model: &ServedModel, question: &Question<'_>, prompt_tokens: u32) -> Option<f64> {
    let cost = model.cost.as_ref()?;
    let prompt = f64::from(prompt_tokens.max(1));
    let answer = answer_tokens(question.request) as f64;
    Some((cost.input_per_million * prompt + cost.output_per_million * answer) / (prompt + answer))
}

fn judge(
    pool: &Pool,
    rule: RuleIndex,
    facts: &policy::Request<'_>,
    seats: &[Seat],
    question: &Question<'_>,
    knowledge: &mut Knowledge<'_, '_>,
    suspects: Suspects,
) -> Result<usize, Refusal<'static>> {
    let Memory { scratch, prompts, views: kept_views, reasons, .. } = &mut *knowledge.memory;
    let fleet = &*knowledge.fleet;
    let mut views = emptied(std::mem::take(kept_views));
    views.extend(seats.iter().map(|seat| View {
        seat,
        fleet,
        overlaps: &prompts.all[seat.prompt].overlaps,
        full: question.full,
        suspects,
        now_us: question.now_us,
        prediction: Cell::new(None),
    }));
    let decision = policy::decide(&pool.program, rule, facts, &views, question.seed, scratch);
    let outcomes = views.iter().zip(scratch.verdicts()).zip(scratch.ranks());
    reasons.judged(outcomes.map(|((view, &verdict), &rank)| Seen {
        endpoint: view.seat.endpoint.spec.id,
        target: view.seat.target,
        verdict,
        rank,
        predicted_ttft_us: view.prediction.get().flatten().map(|prediction| prediction.ttft_us),
        overlap_tokens: view.overlaps.overlap_tokens(view.id()),
    }));
    *kept_views = emptied(views);
    match decision {
        Decision::Chosen { candidate, .. } => Ok(candidate),
        Decision::Refused(refusal) => Err(match refusal {
            Refusal::ModelNotFound => Refusal::ModelNotFound,
            Refusal::NoReadyEndpoint => Refusal::NoReadyEndpoint,
            Refusal::Overloaded { exclude } => Refusal::Overloaded { exclude },
            // Its texts are read from the rule again.
            Refusal::Denied { status, .. } => Refusal::Denied { status, code: "", message: "" },
        }),
    }
}

/// The memory of a vector, to be used for views that borrow something else: collecting in place keeps it.
fn emptied<'a>(mut views: Vec<View<'_>>) -> Vec<View<'a>> {
    views.clear();
    views.into_iter().map_while(|_| None).collect()
}

fn choice<'p>(pool: &Pool, seat: &Seat, rule: RuleIndex, knowledge: &mut Knowledge<'_, 'p>) -> Choice<'p> {
    let plan = knowledge.plan;
    let prompt = &mut knowledge.memory.prompts.all[seat.prompt];
    let id = seat.endpoint.spec.id.0;
    Choice {
        endpoint: seat.endpoint.clone(),
        target: seat.target,
        rule,
        upstream_model: plan.snapshot.model(pool, seat.target).map_or("", |model| model.upstream_name.as_str()),
        prompt_tokens: prompt.overlaps.prompt_tokens(),
        overlap_tokens: prompt.overlaps.overlap_tokens(id),
        prediction: knowledge.fleet.predict(&prompt.overlaps, id),
        chain: std::mem::take(&mut prompt.chain),
        permit: None,
    }
}

/// The first destination that serves a model, and what the model is called there.
fn first_serving<'a>(snapshot: &'a Snapshot, pool: &Pool, model: &str) -> Option<(DestinationKind, &'a str)> {
    pool.destinations.iter().find_map(|destination| {
        let mut served = snapshot.models(destination.kind).iter();
        let served = served.find(|served| served.names.iter().any(|name| name == model))?;
        Some((destination.kind, served.upstream_name.as_str()))
    })
}

/// An endpoint as the policy looks at it. Values are found when asked for.
#[derive(Debug)]
struct View<'a> {
    seat: &'a Seat,
    fleet: &'a Fleet,
    overlaps: &'a Overlaps,
    full: &'a [(EndpointId, Full)],
    suspects: Suspects,
    now_us: u64,
    prediction: Cell<Option<Option<Prediction>>>,
}

impl View<'_> {
    fn id(&self) -> u32 {
        self.seat.endpoint.spec.id.0
    }

    fn prediction(&self) -> Option<Prediction> {
        if let Some(known) = self.prediction.get() {
            return known;
        }
        let prediction = self.fleet.predict(self.overlaps, self.id());
        self.prediction.set(Some(prediction));
        prediction
    }
}

impl Candidate for View<'_> {
    fn target(&self) -> Target {
        self.seat.target
    }

    fn backend(&self) -> Backend {
        self.seat.endpoint.spec.backend
    }

    fn ready(&self) -> bool {
        let endpoint = &self.seat.endpoint;
        endpoint.is_ready(self.now_us) || (self.suspects == Suspects::Allowed && endpoint.is_suspect(self.now_us))
    }

    fn at_limit(&self) -> bool {
        let (endpoint, spec) = (&self.seat.endpoint, &self.seat.endpoint.spec);
        match (&spec.metered, spec.backend) {
            (Some(metered), _) if full(metered, spec.id, self.full, self.now_us).is_some() => true,
            (_, Backend::External) => endpoint.backs_off(self.now_us),
            (_, Backend::Local) => spec.in_flight_max.is_some_and(|max| self.fleet.in_flight(self.id()) >= max),
        }
    }

    fn signal(&self, signal: Signal) -> Option<f64> {
        let local = self.backend() == Backend::Local;
        match signal {
            Signal::QueuedPrompts { window_s } if local => {
                self.fleet.queued_prompts_mean(self.now_us, self.id(), u32::from(window_s))
            }
            Signal::RunningPrompts if local => self.fleet.running(self.id()),
            Signal::KvCacheUsage if local => self.fleet.kv_usage_ratio(self.id()),
            Signal::PrefixOverlap if local => Some(self.overlaps.overlap_ratio(self.id())),
            Signal::QueuedPrompts { .. } | Signal::RunningPrompts | Signal::KvCacheUsage | Signal::PrefixOverlap => {
                None
            }
            Signal::InFlight => Some(f64::from(self.fleet.in_flight(self.id()))),
            Signal::PredictedTtft => self.prediction().map(|prediction| prediction.ttft_us as f64),
            // The length of an answer is not predicted yet.
            Signal::PredictedLatency => None,
            Signal::ErrorRate { window_s } => self.seat.endpoint.error_ratio(self.now_us, window_s),
            Signal::CostPerMillionTokens => self.seat.cost_per_million,
            Signal::ContextWindow => self.seat.context_window.map(f64::from),
        }
    }

    fn rank(&self, signal: Signal) -> Option<f64> {
        if signal == Signal::PredictedTtft {
            return self.prediction().map(|prediction| prediction.cost_us as f64);
        }
        self.signal(signal)
    }

    fn uncertainty(&self) -> f64 {
        self.prediction().map_or(0.0, |prediction| prediction.near_ratio())
    }

    fn load(&self) -> Option<f64> {
        Some(self.fleet.tie_load(self.id()))
    }
}

/// The request's headers, for conditions on them.
pub(crate) struct HeadersOf<'a> {
    pub(crate) headers: &'a Headers,
    pub(crate) buffer: &'a [u8],
}

impl HeaderLookup for HeadersOf<'_> {
    fn any_value(&self, name: &str, test: &mut dyn FnMut(&[u8]) -> bool) -> bool {
        self.headers.named(self.buffer, name).any(test)
    }
}
