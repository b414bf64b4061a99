//! What rules in mode `Shadow` would have done: decided like any other, told, and nothing comes of it.

use config::snapshot::Pool;
use policy::{Action, Refusal};

use super::{Knowledge, Question, facts_of, judge_seats, release};

/// What a rule in shadow would have done with a request. Names are those of the plan.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Shadowed<'p> {
    pub(crate) rule: &'p str,
    /// Worker set or provider; empty when it would have refused.
    pub(crate) destination: &'p str,
    /// Code of the refusal; empty when it would have chosen.
    pub(crate) error: &'p str,
}

/// Decides by the rule in shadow that would take the request if it were enforced. Nothing comes of it.
pub(crate) fn shadow<'p>(
    pool: &'p Pool,
    question: &Question<'_>,
    knowledge: &mut Knowledge<'_, 'p>,
) -> Option<Shadowed<'p>> {
    if question.request.model.is_empty() {
        return None;
    }
    let facts = facts_of(pool, question, knowledge);
    let shadow = pool.program.match_shadow(&facts, pool.program.match_rule(&facts));
    let told = shadow.map(|shadow| {
        let rule = pool.program.rule(shadow);
        let (seats, judged) = judge_seats(pool, shadow, &facts, question, knowledge);
        let (destination, error) = match (judged, &rule.action) {
            (Ok(index), _) => {
                let place = usize::from(seats[index].target.destination);
                (pool.destinations.get(place).map_or("", |d| d.name.as_str()), "")
            }
            (Err(Refusal::Denied { .. }), Action::Deny(deny)) => ("", deny.code.as_str()),
            (Err(refusal), Action::Route(_) | Action::Deny(_)) => ("", refusal.code()),
        };
        release(seats, knowledge);
        Shadowed { rule: &rule.name, destination, error }
    });
    knowledge.memory.prompts.used = 0;
    told
}
