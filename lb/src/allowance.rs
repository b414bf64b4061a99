//! What a tenant may use, and what one request of it uses: let in, reserved, settled.
//!
//! A request is counted when it is let in, whatever becomes of it. Its tokens are reserved when there is somebody to answer it,
//! so that nothing is taken for one that is refused; at the end what was used takes the place of what was reserved. An
//! answer that breaks off before the engine tells its usage is taken for its prompt and the pieces of text that came.

use admission::{Account, Admitted, Exceeded, Level, Limits, Rate};
use config::limits::ANSWER_TOKENS_EXPECTED;
use config::snapshot::Tenant;

use crate::error::Refused;
use crate::http1::rewrite::{push_decimal, push_header};
use crate::openai::Usage;
use crate::openai::request::{Purpose, Request};
use crate::plan::Plan;

const NS_PER_MS: u64 = 1_000_000;

/// A request's place in the limits of its tenant.
#[derive(Debug)]
pub(crate) struct Allowance<'p> {
    account: &'p Account,
    limits: Limits,
    admitted: Option<Admitted<'p>>,
    work: Work,
}

/// What the destination has done for a request, in tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Work {
    /// Nothing that counts.
    None,
    /// The prompt was read, or may have been.
    Prompt(u64),
}

impl Work {
    /// The prompt of a request of this purpose.
    pub(crate) fn of_prompt(tokens: u64, purpose: Purpose) -> Self {
        match purpose {
            Purpose::Generate | Purpose::Read => Self::Prompt(tokens),
            Purpose::Other => Self::Prompt(0),
        }
    }

    /// Tokens that the request counts: as told, else its prompt as estimated. `pieces` of text came, which count where the
    /// usage of the answer is not told to its end.
    pub(crate) fn tokens(self, usage: &Usage, pieces: u64, came: Came) -> u64 {
        let estimated = match self {
            Self::None => 0,
            Self::Prompt(tokens) => tokens.saturating_add(pieces),
        };
        let answered = match (usage.completion_tokens, came) {
            (Some(told), Came::Whole) => told,
            (Some(told), Came::Part) => told.max(pieces),
            (None, Came::Whole | Came::Part) => pieces,
        };
        usage.prompt_tokens.map_or(estimated, |prompt| prompt.saturating_add(answered))
    }
}

/// Whether an answer came to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Came {
    /// All of it: what is told of its usage is the last word.
    Whole,
    /// A part: what is told may be what held at its beginning.
    Part,
}

impl Came {
    /// By the outcome of a request, as in the access log.
    pub(crate) fn of(outcome: &str) -> Self {
        if outcome == "ok" { Self::Whole } else { Self::Part }
    }
}

/// What a tenant may use.
pub(crate) fn limits_of(tenant: &Tenant) -> Limits {
    let limits = &tenant.limits;
    Limits {
        requests: limits.requests_per_minute.map(|n| Rate::per_minute(u64::from(n))),
        tokens: limits.tokens_per_minute.map(Rate::per_minute),
        in_flight_max: limits.in_flight_max,
    }
}

impl<'p> Allowance<'p> {
    /// Of a tenant, by its index in the plan; `None` for callers that are none.
    pub(crate) fn of(plan: &'p Plan, tenant: Option<usize>) -> Option<Self> {
        let index = tenant?;
        let account = plan.accounts.get(index)?;
        let limits = limits_of(plan.snapshot.tenants.get(index)?);
        Some(Self { account, limits, admitted: None, work: Work::None })
    }

    /// Lets the request in.
    pub(crate) fn admit(&mut self, now_us: u64) -> Result<(), Refused> {
        let admitted = self.account.admit(self.limits, ns(now_us)).map_err(Refused::OverLimit)?;
        self.admitted = Some(admitted);
        Ok(())
    }

    /// Reserves what the request may use. One that is turned away for it does not count as a request either.
    pub(crate) fn reserve(&mut self, prompt_tokens: u64, request: &Request, now_us: u64) -> Result<(), Refused> {
        let Some(admitted) = &mut self.admitted else { return Ok(()) };
        let tokens = match request.purpose {
            Purpose::Generate => prompt_tokens.saturating_add(answer_tokens(request)),
            Purpose::Read => prompt_tokens,
            Purpose::Other => 0,
        };
        let reserved = admitted.reserve(tokens, ns(now_us));
        if let (Err(_), Some(admitted)) = (&reserved, self.admitted.take_if(|_| reserved.is_err())) {
            admitted.withdraw(ns(now_us));
        }
        reserved.map_err(Refused::OverLimit)
    }

    /// The destination is, or may be, at work on the prompt.
    pub(crate) fn begun(&mut self, prompt_tokens: u64, purpose: Purpose) {
        self.work = Work::of_prompt(prompt_tokens, purpose);
    }

    /// It is over, and `pieces` of text came.
    pub(crate) fn settle(&mut self, usage: &Usage, pieces: u64, came: Came, now_us: u64) {
        let Some(mut admitted) = self.admitted.take() else { return };
        admitted.settle(self.work.tokens(usage, pieces, came), ns(now_us));
    }

    /// Appends what is left of the limits, as OpenAI's API tells it.
    pub(crate) fn push_headers(&self, to: &mut Vec<u8>, now_us: u64) {
        let standing = self.account.standing(self.limits, ns(now_us));
        if let Some(level) = standing.requests {
            push_level(to, level, "requests");
        }
        if let Some(level) = standing.tokens {
            push_level(to, level, "tokens");
        }
    }
}

/// The most that a request may have answered.
pub(crate) fn answer_tokens(request: &Request) -> u64 {
    request.output_tokens_max.unwrap_or(ANSWER_TOKENS_EXPECTED)
}

fn ns(us: u64) -> u64 {
    us.saturating_mul(1_000)
}

fn push_level(to: &mut Vec<u8>, level: Level, unit: &str) {
    let mut number = |word: &str, number: u64| {
        to.extend_from_slice(b"x-ratelimit-");
        to.extend_from_slice(word.as_bytes());
        to.extend_from_slice(b"-");
        to.extend_from_slice(unit.as_bytes());
        to.extend_from_slice(b": ");
        push_decimal(to, number);
        to.extend_from_slice(b"\r\n");
    };
    number("limit", level.limit);
    number("remaining", level.remaining);
    let name = if unit == "tokens" { "x-ratelimit-reset-tokens" } else { "x-ratelimit-reset-requests" };
    push_header(to, name.as_bytes(), span(level.full_after_ns).as_bytes());
}

/// A time as OpenAI's headers have it: `120ms`, `8.64s`, `6m0s`. Rounded up to milliseconds.
fn span(ns: u64) -> String {
    let ms = ns.div_ceil(NS_PER_MS);
    let (minutes, seconds, rest_ms) = (ms / 60_000, ms / 1_000 % 60, ms % 1_000);
    let fraction = match rest_ms {
        0 => String::new(),
        rest_ms => format!(".{rest_ms:03}").trim_end_matches('0').to_owned(),
    };
    match (minutes, ms) {
        (0, 0..1_000) => format!("{ms}ms"),
        (0, _) => format!("{seconds}{fraction}s"),
        (_, _) => format!("{minutes}m{seconds}{fraction}s"),
    }
}

/// Seconds after which a request over a limit may be tried again.
pub(crate) fn retry_after_s(exceeded: &Exceeded) -> u32 {
    match exceeded {
        Exceeded::Requests { wait_ns, .. } | Exceeded::Tokens { wait_ns, .. } => {
            u32::try_from(wait_ns.div_ceil(1_000_000_000)).unwrap_or(u32::MAX).max(1)
        }
        Exceeded::InFlight { .. } => 1,
    }
}

/// What is told of a request over a limit.
pub(crate) fn message(exceeded: &Exceeded) -> String {
    let again = |wait_ns: u64| format!("Please try again in {}.", span(wait_ns));
    match exceeded {
        Exceeded::Requests { limit, wait_ns } => {
            format!("Rate limit reached: {limit} requests a minute. {}", again(*wait_ns))
        }
        Exceeded::Tokens { limit, wanted, wait_ns } => format!(
            "Rate limit reached: {limit} tokens a minute, of which this request may use {wanted}. {} A smaller `max_tokens` reserves less.",
            again(*wait_ns)
        ),
        Exceeded::InFlight { limit } => {
            format!("Rate limit reached: {limit} requests at once. Please try again when one of them has ended.")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_written_as_openai_does() {
        for (ms, written) in [
            (0, "0ms"),
            (7, "7ms"),
            (999, "999ms"),
            (1_000, "1s"),
            (8_640, "8.64s"),
            (60_000, "1m0s"),
            (361_050, "6m1.05s"),
        ] {
            assert_eq!(span(ms * NS_PER_MS), written);
        }
        assert_eq!(span(1), "1ms");
    }

    #[test]
    fn headers_tell_each_limit_that_there_is() {
        let account = Account::default();
        let limits = Limits { tokens: Some(Rate::per_minute(600)), ..Limits::default() };
        let mut allowance = Allowance { account: &account, limits, admitted: None, work: Work::None };
        allowance.admit(0).unwrap();
        let request = Request { purpose: Purpose::Generate, output_tokens_max: Some(50), ..Request::default() };
        allowance.reserve(10, &request, 0).unwrap();
        let mut lines = Vec::new();
        allowance.push_headers(&mut lines, 0);
        let expected =
            "x-ratelimit-limit-tokens: 600\r\nx-ratelimit-remaining-tokens: 540\r\nx-ratelimit-reset-tokens: 6s\r\n";
        assert_eq!(String::from_utf8(lines).unwrap(), expected);
    }

    #[test]
    fn what_is_charged_is_what_was_told_or_else_the_prompt_and_the_pieces_that_came() {
        let told = Usage { prompt_tokens: Some(100), completion_tokens: Some(7), cached_tokens: Some(90) };
        let prompt_told = Usage { completion_tokens: None, ..told };
        for (begun, usage, pieces, came, left) in [
            (Some(120), told, 9, Came::Whole, 1_000 - 107),
            (Some(120), told, 9, Came::Part, 1_000 - 109),
            (Some(120), told, 3, Came::Part, 1_000 - 107),
            (Some(120), prompt_told, 3, Came::Part, 1_000 - 103),
            (Some(120), Usage::default(), 3, Came::Part, 1_000 - 123),
            (None, Usage::default(), 0, Came::Part, 1_000),
        ] {
            let account = Account::default();
            let limits = Limits { tokens: Some(Rate::per_minute(1_000)), ..Limits::default() };
            let mut allowance = Allowance { account: &account, limits, admitted: None, work: Work::None };
            allowance.admit(0).unwrap();
            let request = Request { purpose: Purpose::Generate, output_tokens_max: Some(500), ..Request::default() };
            allowance.reserve(120, &request, 0).unwrap();
            if let Some(prompt_tokens) = begun {
                allowance.begun(prompt_tokens, Purpose::Generate);
            }
            allowance.settle(&usage, pieces, came, 0);
            assert_eq!(account.standing(limits, 0).tokens.unwrap().remaining, left);
            assert_eq!(account.in_flight(), 0);
        }
    }
}
