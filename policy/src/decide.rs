//! The decision: one candidate, or the reason why none may answer.
//!
//! A pass over the candidates drops those that are not ready, at a limit, or excluded; then the
//! select steps are tried in order and the first with a survivor wins. Values are asked for only
//! when a condition or a ranking needs them, and each at most once per exclude entry or step.

use crate::request::Request;
use crate::rule::{Action, Backend, Program, Ranking, Route, Rule, RuleIndex, SelectStep, SplitBy, Target};
use crate::signal::Signal;

/// Largest relative prediction error a ranking honours. A predictor that claims to be off by more
/// still gets its order respected beyond a factor of 1.5: otherwise a warm cache would never win.
pub const UNCERTAINTY_MAX: f64 = 0.5;

/// An (endpoint, model) pair that could serve the request. Values are asked for lazily.
pub trait Candidate {
    /// Which destination and model of the pool it is.
    fn target(&self) -> Target;

    /// Local or External.
    fn backend(&self) -> Backend;

    /// Whether it can be used at all: known to be up, not draining, not ejected.
    fn ready(&self) -> bool;

    /// Whether a limit of its own (requests in flight, requests or tokens a minute) is reached.
    fn at_limit(&self) -> bool {
        false
    }

    /// A number about it; `None` when unknown.
    fn signal(&self, signal: Signal) -> Option<f64>;

    /// The value to minimise when ranked by `signal`, where it differs from the value itself
    /// (a predicted time plus the harm done to requests already there).
    fn rank(&self, signal: Signal) -> Option<f64> {
        self.signal(signal)
    }

    /// Relative error of its predictions, 0 and up: candidates closer than that are taken as equal.
    fn uncertainty(&self) -> f64 {
        0.0
    }

    /// Load that decides between equals, the lesser first; `None` comes last.
    fn load(&self) -> Option<f64> {
        self.signal(Signal::InFlight)
    }
}

/// Outcome of a decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision<'p> {
    /// This candidate answers.
    Chosen {
        /// Index in the candidates given.
        candidate: usize,
        /// Which select step chose it.
        select_step: u16,
    },
    /// Nobody may answer.
    Refused(Refusal<'p>),
}

/// Why nobody may answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal<'p> {
    /// No destination serves the name: 404 `model_not_found`.
    ModelNotFound,
    /// Destinations exist but none that the rule may select is ready: 503 `no_ready_endpoint`.
    NoReadyEndpoint,
    /// Every usable candidate was dropped by an exclude entry or a limit: 429 `overloaded`.
    Overloaded {
        /// The exclude entry that dropped the most candidates (the first of equals); `None` when only limits did.
        exclude: Option<u16>,
    },
    /// The rule refuses such requests.
    Denied {
        /// HTTP status.
        status: u16,
        /// Machine-readable code.
        code: &'p str,
        /// Human-readable message.
        message: &'p str,
    },
}

impl<'p> Refusal<'p> {
    /// HTTP status of the answer.
    #[must_use]
    pub fn status(&self) -> u16 {
        match self {
            Refusal::ModelNotFound => 404,
            Refusal::NoReadyEndpoint => 503,
            Refusal::Overloaded { .. } => 429,
            Refusal::Denied { status, .. } => *status,
        }
    }

    /// Machine-readable code of the answer.
    #[must_use]
    pub fn code(&self) -> &'p str {
        match self {
            Refusal::ModelNotFound => "model_not_found",
            Refusal::NoReadyEndpoint => "no_ready_endpoint",
            Refusal::Overloaded { .. } => "overloaded",
            Refusal::Denied { code, .. } => code,
        }
    }
}

/// What became of one candidate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It answers.
    Chosen,
    /// It was ranked by the step that chose, and another was better or luckier.
    Survived,
    /// It survived, but the step that chose did not look at it (or no step does).
    NotSelected,
    /// The rule does not consider its model.
    NotConsidered,
    /// It is not ready.
    NotReady,
    /// A limit of its own is reached.
    AtLimit,
    /// An exclude entry dropped it.
    Excluded {
        /// Index of the first entry that did.
        exclude: u16,
    },
}

/// Memory of one data thread's decisions, reused so that deciding allocates nothing.
#[derive(Clone, Debug, Default)]
pub struct Scratch {
    verdicts: Vec<Verdict>,
    ranks: Vec<f64>,
    /// How many candidates a rule's exclude entry dropped.
    dropped: Vec<u32>,
}

impl Scratch {
    /// Empty memory; grows to the largest pool it meets.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// For each candidate of the last decision, what became of it.
    #[must_use]
    pub fn verdicts(&self) -> &[Verdict] {
        &self.verdicts
    }

    /// For each candidate of the last decision, the value it was ranked by; NaN when it was not ranked,
    /// infinity when the value was unknown.
    #[must_use]
    pub fn ranks(&self) -> &[f64] {
        &self.ranks
    }

    fn reset(&mut self, candidates: usize, excludes: usize) {
        self.verdicts.clear();
        self.verdicts.resize(candidates, Verdict::NotSelected);
        self.ranks.clear();
        self.ranks.resize(candidates, f64::NAN);
        self.dropped.clear();
        self.dropped.resize(excludes, 0);
    }
}

/// Decides who answers `request`, which falls under rule `rule`, among `candidates`.
///
/// `candidates` are the endpoints of the rule's [targets](Program::targets), ready or not; those of
/// other targets are ignored. `seed` settles ties: fresh for each request, recorded for replay.
pub fn decide<'p, C: Candidate>(
    program: &'p Program,
    rule: RuleIndex,
    request: &Request<'_>,
    candidates: &[C],
    seed: u64,
    scratch: &mut Scratch,
) -> Decision<'p> {
    let held = program.rule(rule);
    let route = match &held.action {
        Action::Route(route) => route,
        Action::Deny(deny) => {
            scratch.reset(candidates.len(), 0);
            let (status, code, message) = (deny.status, deny.code.as_str(), deny.message.as_str());
            return Decision::Refused(Refusal::Denied { status, code, message });
        }
    };
    scratch.reset(candidates.len(), route.exclude.len());
    let targets = program.targets(rule, request.model);
    if targets.is_empty() {
        scratch.verdicts.fill(Verdict::NotConsidered);
        return Decision::Refused(Refusal::ModelNotFound);
    }
    drop_candidates(route, targets, request, candidates, scratch);
    let mut first = 0;
    while let Some(step) = route.select.get(first) {
        let (chosen, steps) = match step.weight {
            None => (select(step, candidates, seed, scratch).map(|candidate| (candidate, first)), 1),
            Some(_) => {
                let rest = route.select.get(first..).unwrap_or_default();
                let steps = rest.iter().take_while(|s| s.weight.is_some()).count();
                let split =
                    Split { steps: rest.get(..steps).unwrap_or_default(), key: split_key(held, route, request, seed) };
                let chosen = split.select(candidates, seed, scratch);
                (chosen.map(|(candidate, offset)| (candidate, first + offset)), steps)
            }
        };
        if let Some((candidate, step)) = chosen {
            return Decision::Chosen { candidate, select_step: u16::try_from(step).unwrap_or(u16::MAX) };
        }
        first += steps;
    }
    Decision::Refused(refusal(route, candidates, scratch))
}

/// Neighbouring steps with weights, and what decides among them.
struct Split<'r> {
    steps: &'r [SelectStep],
    key: u64,
}

impl Split<'_> {
    /// Chooses by the steps in the order in which this key draws them: one without a candidate leaves its share to the next.
    fn select<C: Candidate>(&self, candidates: &[C], seed: u64, scratch: &mut Scratch) -> Option<(usize, usize)> {
        let mut before = None;
        while let Some((offset, score)) = self.next(before) {
            if let Some(candidate) = self.steps.get(offset).and_then(|s| select(s, candidates, seed, scratch)) {
                return Some((candidate, offset));
            }
            before = Some((offset, score));
        }
        None
    }

    /// The step that is drawn after `before`.
    ///
    /// Weighted rendezvous hashing (the logarithmic method of Schindelhauer and Schomaker, 2005): each step's score is an
    /// exponential variable with its weight as rate, and the least is drawn. So a step is drawn in proportion to its weight,
    /// and a weight that changes moves only the keys that its step gains or loses.
    fn next(&self, before: Option<(usize, f64)>) -> Option<(usize, f64)> {
        let scores = self.steps.iter().enumerate().filter_map(|(offset, step)| {
            let weight = f64::from(step.weight.filter(|weight| *weight > 0)?);
            // 53 random bits make a number above 0 and up to 1, exactly.
            #[expect(clippy::cast_precision_loss, reason = "53 bits fit")]
            let uniform = ((mix(self.key ^ mix(offset as u64)) >> 11) + 1) as f64 / (1_u64 << 53) as f64;
            Some((offset, -uniform.ln() / weight))
        });
        let later = |a: (usize, f64), b: (usize, f64)| (a.1, a.0) > (b.1, b.0);
        scores.filter(|s| before.is_none_or(|b| later(*s, b))).reduce(|a, b| if later(a, b) { b } else { a })
    }
}

/// What requests that stay together in a rule's splits share; another rule splits them another way.
fn split_key(rule: &Rule, route: &Route, request: &Request<'_>, seed: u64) -> u64 {
    let shared = match route.split_by {
        SplitBy::Conversation => request.conversation.unwrap_or(seed),
        SplitBy::Tenant => hash(request.tenant.as_bytes()),
        SplitBy::Request => seed,
    };
    mix(shared) ^ hash(rule.policy.as_bytes()) ^ hash(rule.name.as_bytes()).rotate_left(1)
}

/// FNV-1a with a finaliser: the same in every process and on every core.
fn hash(bytes: &[u8]) -> u64 {
    mix(bytes.iter().fold(0xCBF2_9CE4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01B3)))
}

/// Writes the verdict of every candidate that cannot be selected.
fn drop_candidates<C: Candidate>(
    route: &Route,
    targets: &[Target],
    request: &Request<'_>,
    candidates: &[C],
    scratch: &mut Scratch,
) {
    // At most 64 entries by construction of the program.
    let mut applying = 0_u64;
    for (bit, entry) in route.exclude.iter().enumerate() {
        if entry.applies_to.holds(request) {
            applying |= 1 << bit;
        }
    }
    // Endpoints come target by target, so the next one's target is most often the last one's or its neighbour.
    let mut near = 0;
    for (candidate, verdict) in candidates.iter().zip(&mut scratch.verdicts) {
        *verdict = if !is_among(targets, candidate.target(), &mut near) {
            Verdict::NotConsidered
        } else if !candidate.ready() {
            Verdict::NotReady
        } else if candidate.at_limit() {
            Verdict::AtLimit
        } else {
            match first_exclude(route, applying, request, candidate) {
                Some(exclude) => Verdict::Excluded { exclude },
                None => Verdict::NotSelected,
            }
        };
    }
}

/// Whether `target` is one of `targets`; `near` is where the last one was found.
fn is_among(targets: &[Target], target: Target, near: &mut usize) -> bool {
    let at = |place: usize| targets.get(place) == Some(&target);
    let place = [*near, *near + 1].into_iter().find(|place| at(*place));
    match place.or_else(|| targets.iter().position(|t| *t == target)) {
        Some(place) => {
            *near = place;
            true
        }
        None => false,
    }
}

/// The first exclude entry, of those applying to the request, that drops `candidate`.
fn first_exclude<C: Candidate>(route: &Route, applying: u64, request: &Request<'_>, candidate: &C) -> Option<u16> {
    (0_u16..).zip(&route.exclude).find_map(|(exclude, entry)| {
        let drops = applying & (1 << exclude) != 0 && entry.conditions.iter().all(|c| c.holds(request, candidate));
        drops.then_some(exclude)
    })
}

/// Chooses by one step; writes the verdicts of those it ranked when there was one to choose.
fn select<C: Candidate>(step: &SelectStep, candidates: &[C], seed: u64, scratch: &mut Scratch) -> Option<usize> {
    let best = rank_survivors(step, candidates, scratch)?;
    let limit = match step.ranking {
        Ranking::Listed => best.value,
        Ranking::Minimize(_) => best.value * (1.0 + best.uncertainty),
    };
    let near = |rank: f64| rank <= limit;
    let mut least_load = f64::INFINITY;
    let mut ties = 0_u64;
    for (candidate, rank) in candidates.iter().zip(&scratch.ranks) {
        if near(*rank) {
            let load = known(candidate.load());
            if ties == 0 || load < least_load {
                least_load = load;
                ties = 1;
            } else if load <= least_load {
                ties += 1;
            }
        }
    }
    let mut skip = below(mix(seed), ties);
    let mut chosen = None;
    for (i, candidate) in candidates.iter().enumerate() {
        let (Some(verdict), Some(rank)) = (scratch.verdicts.get_mut(i), scratch.ranks.get(i)) else { continue };
        if rank.is_nan() {
            continue;
        }
        *verdict = Verdict::Survived;
        if chosen.is_none() && near(*rank) && known(candidate.load()) <= least_load {
            if skip == 0 {
                *verdict = Verdict::Chosen;
                chosen = Some(i);
            } else {
                skip -= 1;
            }
        }
    }
    chosen
}

/// The least rank of a step and how sure it is.
struct Best {
    value: f64,
    uncertainty: f64,
}

/// Writes the rank of every survivor the step looks at, NaN for all others; `None` when there is none.
fn rank_survivors<C: Candidate>(step: &SelectStep, candidates: &[C], scratch: &mut Scratch) -> Option<Best> {
    let mut best: Option<Best> = None;
    for ((candidate, verdict), rank) in candidates.iter().zip(&scratch.verdicts).zip(&mut scratch.ranks) {
        *rank = f64::NAN;
        let target = candidate.target();
        if *verdict != Verdict::NotSelected || candidate.backend() != step.backend {
            continue;
        }
        let Some(position) = step.position(target.destination) else { continue };
        let (value, uncertainty) = match step.ranking {
            Ranking::Listed => (listed_rank(position, target.model), 0.0),
            Ranking::Minimize(minimize) => {
                let signal = minimize.signal();
                (known(candidate.rank(signal)), uncertainty_of(candidate, signal))
            }
        };
        *rank = value;
        match &mut best {
            Some(b) if value > b.value => {}
            Some(b) if value == b.value => b.uncertainty = b.uncertainty.max(uncertainty),
            Some(_) | None => best = Some(Best { value, uncertainty }),
        }
    }
    best
}

/// Order by destination, then by model. Both fit 16 bits, so the sum is exact.
fn listed_rank(position: usize, model: u16) -> f64 {
    let position = u32::try_from(position).unwrap_or(u32::MAX >> 16);
    f64::from(position) * 65_536.0 + f64::from(model)
}

/// Error of a ranking value: only predictions have one.
fn uncertainty_of<C: Candidate>(candidate: &C, signal: Signal) -> f64 {
    match signal {
        Signal::PredictedTtft | Signal::PredictedLatency => {
            let error = candidate.uncertainty();
            if error.is_nan() { 0.0 } else { error.clamp(0.0, UNCERTAINTY_MAX) }
        }
        Signal::QueuedPrompts { .. }
        | Signal::RunningPrompts
        | Signal::InFlight
        | Signal::KvCacheUsage
        | Signal::PrefixOverlap
        | Signal::ErrorRate { .. }
        | Signal::CostPerMillionTokens
        | Signal::ContextWindow => 0.0,
    }
}

/// A value for ordering: unknown and NaN come last, negative ones count as zero.
fn known(value: Option<f64>) -> f64 {
    match value {
        Some(v) if v.is_nan() => f64::INFINITY,
        Some(v) => v.max(0.0),
        None => f64::INFINITY,
    }
}

/// Why no step found a candidate. Only those some step could have taken count: an idle provider that
/// no step names neither saves the request nor explains why it failed.
fn refusal<'p, C: Candidate>(route: &Route, candidates: &[C], scratch: &mut Scratch) -> Refusal<'p> {
    let mut limited = false;
    for (candidate, verdict) in candidates.iter().zip(&scratch.verdicts) {
        let destination = candidate.target().destination;
        let backend = candidate.backend();
        if !route.select.iter().any(|s| s.takes(backend, destination)) {
            continue;
        }
        match verdict {
            Verdict::AtLimit => limited = true,
            Verdict::Excluded { exclude } => {
                if let Some(count) = scratch.dropped.get_mut(usize::from(*exclude)) {
                    *count += 1;
                }
            }
            Verdict::Chosen | Verdict::Survived | Verdict::NotSelected | Verdict::NotConsidered | Verdict::NotReady => {
            }
        }
    }
    let mut worst: Option<(u16, u32)> = None;
    for (exclude, count) in (0_u16..).zip(&scratch.dropped) {
        if *count > worst.map_or(0, |(_, most)| most) {
            worst = Some((exclude, *count));
        }
    }
    match worst {
        Some((exclude, _)) => Refusal::Overloaded { exclude: Some(exclude) },
        None if limited => Refusal::Overloaded { exclude: None },
        None => Refusal::NoReadyEndpoint,
    }
}

/// SplitMix64's finaliser (Steele, Lea, Flood 2014): neighbouring seeds give unrelated numbers.
fn mix(seed: u64) -> u64 {
    let mut z = seed.wrapping_add(0x9E37_79B9_7F4A_7C15);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// A number below `bound` (0 for 0), by the high half of a product (Lemire 2019).
fn below(random: u64, bound: u64) -> u64 {
    let product = u128::from(random) * u128::from(bound);
    u64::try_from(product >> 64).unwrap_or(0)
}
