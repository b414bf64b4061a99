//! The prompt of one request as its candidates see it: by upstream model, and by how its blocks are cut.

use std::sync::Arc;

use config::snapshot::DestinationKind;
use predictor::fleet::{BLOCK_TOKENS_DEFAULT, Plan as Overlaps};
use predictor::prefix::chain::Chain;

use super::{Knowledge, Memory, Question};
use crate::openai::prompt;
use crate::plan::EndpointId;

/// The prompt of one request by upstream model. What was made for earlier requests is used again.
#[derive(Debug, Default)]
pub(super) struct Prompts {
    pub(super) all: Vec<Prompt>,
    /// How many of `all` belong to this request.
    pub(super) used: usize,
}

/// How a prompt is cut into blocks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Basis {
    /// By its bytes.
    #[default]
    Bytes,
    /// By its tokens, in the engine's own blocks.
    Tokens {
        /// Index in [`Question::exact`].
        exact: usize,
        /// Tokens in a block.
        block_tokens: u32,
    },
}

/// The prompt as one upstream model sees it.
#[derive(Debug, Default)]
pub(super) struct Prompt {
    upstream_model: String,
    basis: Basis,
    pub(super) chain: Chain,
    pub(super) overlaps: Overlaps,
}

impl Knowledge<'_, '_> {
    /// How a destination cuts this prompt: by its tokens where it has a tokenizer that has told them.
    pub(super) fn basis(&self, question: &Question<'_>, kind: DestinationKind, endpoint: Option<EndpointId>) -> Basis {
        let (false, DestinationKind::WorkerSet(set)) = (question.exact.is_empty(), kind) else { return Basis::Bytes };
        let tokenizer = self.plan.exact.get(set).and_then(Option::as_ref);
        let exact = tokenizer.and_then(|of| question.exact.iter().position(|prompt| Arc::ptr_eq(&prompt.of, of)));
        let Some(exact) = exact else { return Basis::Bytes };
        let block_tokens = endpoint.and_then(|id| self.fleet.block_tokens(id.0)).unwrap_or(BLOCK_TOKENS_DEFAULT);
        Basis::Tokens { exact, block_tokens }
    }

    pub(super) fn first_endpoint(&self, kind: DestinationKind) -> Option<EndpointId> {
        match kind {
            DestinationKind::WorkerSet(set) => self.plan.worker_sets.get(set)?.first().copied(),
            DestinationKind::Provider(provider) => self.plan.providers.get(provider).copied().flatten(),
        }
    }

    /// The prompt as `upstream_model` sees it, made when it is first asked for.
    pub(super) fn prompt(&mut self, question: &Question<'_>, upstream_model: &str, basis: Basis) -> usize {
        let Memory { prompts: Prompts { all, used }, chains, .. } = &mut *self.memory;
        let is_known = |prompt: &Prompt| prompt.basis == basis && prompt.upstream_model == upstream_model;
        if let Some(index) = all[..*used].iter().position(is_known) {
            return index;
        }
        if all.len() == *used {
            all.push(Prompt::default());
        }
        let prompt = &mut all[*used];
        upstream_model.clone_into(&mut prompt.upstream_model);
        prompt.basis = basis;
        // The chain that a choice took away comes back when its request ends.
        let recycled = match prompt.chain.blocks().is_empty() {
            true => chains.pop().unwrap_or_default(),
            false => std::mem::take(&mut prompt.chain),
        };
        let (request, body) = (question.request, question.body);
        let by_bytes = |recycled| match question.chain {
            Some(made) => prompt::chain_for(upstream_model, request, body, made, recycled),
            None => prompt::chain(request, body, upstream_model, self.block_bytes, recycled),
        };
        let (chain, tokens) = match basis {
            Basis::Bytes => {
                let chain = by_bytes(recycled);
                let tokens = self.fleet.estimate_tokens(upstream_model, chain.bytes());
                (chain, tokens)
            }
            Basis::Tokens { exact, block_tokens } => {
                let tokens = &question.exact[exact].tokens;
                prompt::engine_blocks(request, body, upstream_model, tokens, block_tokens, recycled)
            }
        };
        // What fills no prefix cache must not be taken for cached.
        prompt.chain = if prompt::uses_prefix_cache(question.request) { chain } else { Chain::default() };
        self.fleet.plan(&mut prompt.overlaps, &prompt.chain, tokens, question.now_us);
        *used += 1;
        *used - 1
    }
}
