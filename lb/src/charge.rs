//! What a request is charged for: its tenant's tokens, and money where prices are written down.

use config::snapshot::DestinationKind;

use crate::allowance::{Came, Work};
use crate::decide::Choice;
use crate::error::Refused;
use crate::flight::Flight;
use crate::io;
use crate::plan::EndpointId;
use crate::record::Record;
use crate::routed::Routed;

/// Reserves the tokens of a request once it is known who answers it.
pub(crate) fn reserve<'p>(
    routed: &Routed<'p>,
    choice: &Choice<'_>,
    tried: &[EndpointId],
    record: &mut Record<'p>,
) -> Result<(), Refused> {
    match (&mut record.allowance, tried) {
        (Some(allowance), []) => allowance.reserve(u64::from(choice.prompt_tokens), &routed.request, io::now_us()),
        (Some(_) | None, _) => Ok(()),
    }
}

/// The endpoint is at work on the request, or may be: its tenant is charged for the prompt at least.
pub(crate) fn begun(routed: &Routed<'_>, choice: &Choice<'_>, record: &mut Record<'_>) {
    if let Some(allowance) = &mut record.allowance {
        allowance.begun(u64::from(choice.prompt_tokens), routed.request.purpose);
    }
}

/// Tokens of an answer that is over, as they count in the limits of its provider.
pub(crate) fn tokens(routed: &Routed<'_>, choice: &Choice<'_>, status: u16, record: &Record<'_>) -> u64 {
    let work = match status {
        ..400 => Work::of_prompt(u64::from(choice.prompt_tokens), routed.request.purpose),
        400.. => Work::None,
    };
    work.tokens(&record.entry.usage, record.pieces, Came::of(record.entry.outcome))
}

/// What it cost: tokens by a provider's prices, or a share of the GPUs of a worker set; `None` where nothing is written down.
pub(crate) fn cost(routed: &Routed<'_>, choice: &Choice<'_>, flight: &Flight, record: &Record<'_>) -> Option<f64> {
    let snapshot = &routed.plan.snapshot;
    let destination = routed.pool.destinations.get(usize::from(choice.target.destination))?;
    match destination.kind {
        DestinationKind::WorkerSet(index) => {
            let price = snapshot.worker_sets.get(index)?.gpu_cost.as_ref()?;
            Some(price.per_second * flight.share_us()? / 1e6)
        }
        DestinationKind::Provider(_) => {
            let price = snapshot.model(routed.pool, choice.target)?.cost.as_ref()?;
            let usage = &record.entry.usage;
            let tokens = |count: Option<u64>| count.unwrap_or(0) as f64;
            let prompt = price.input_per_million * tokens(usage.prompt_tokens);
            Some((prompt + price.output_per_million * tokens(usage.completion_tokens)) / 1e6)
        }
    }
}
