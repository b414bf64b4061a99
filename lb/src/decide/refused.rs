//! Why nobody was chosen, as the client is told.

use config::snapshot::Pool;
use policy::{Action, Refusal, Rule, RuleIndex};

use super::{Question, Seat, full};
use crate::error::Refused;
use crate::plan::EndpointSpec;

/// When nobody says how long it is busy, trying again may help so soon.
pub(super) const RETRY_AFTER_UNTOLD_S: u32 = 1;

/// After how long the first of these may have room: providers that have asked to be left alone said when, and the minute of
/// their limits passes.
pub(super) fn retry_after_s(seats: &[Seat], question: &Question<'_>) -> u32 {
    let now_us = question.now_us;
    let endpoints = seats.iter().map(|seat| &seat.endpoint);
    let usable = endpoints.filter(|endpoint| endpoint.backs_off(now_us) || endpoint.is_ready(now_us));
    let full_for_us = |spec: &EndpointSpec| {
        let full = spec.metered.as_ref().and_then(|metered| full(metered, spec.id, question.full, now_us));
        full.map_or(0, |full| full.until_us.saturating_sub(now_us))
    };
    let first_us = usable.map(|endpoint| endpoint.backs_off_for_us(now_us).max(full_for_us(&endpoint.spec))).min();
    let first_us = first_us.unwrap_or(0);
    u32::try_from(first_us.div_ceil(1_000_000)).unwrap_or(u32::MAX).max(RETRY_AFTER_UNTOLD_S)
}

pub(super) fn refused(pool: &Pool, rule: RuleIndex, model: &str, refusal: &Refusal<'_>, retry_after_s: u32) -> Refused {
    let decided = pool.program.rule(rule);
    match refusal {
        Refusal::ModelNotFound => Refused::ModelNotFound(shortened(model)),
        Refusal::NoReadyEndpoint => Refused::NoReadyEndpoint { model: shortened(model), rule: decided.name.clone() },
        Refusal::Overloaded { exclude } => Refused::Overloaded {
            rule: decided.name.clone(),
            exclude: exclude.and_then(|index| exclude_name(decided, index)),
            retry_after_s,
        },
        Refusal::Denied { .. } => match &decided.action {
            Action::Deny(deny) => Refused::Denied {
                status: deny.status,
                code: deny.code.clone(),
                message: deny.message.clone(),
                rule: decided.name.clone(),
            },
            Action::Route(_) => Refused::Internal,
        },
    }
}

fn exclude_name(rule: &Rule, index: u16) -> Option<String> {
    match &rule.action {
        Action::Route(route) => route.exclude.get(usize::from(index)).map(|entry| entry.name.clone()),
        Action::Deny(_) => None,
    }
}

/// A name as an error may show it: clients send anything.
pub(super) fn shortened(model: &str) -> String {
    model.chars().take(200).collect()
}
