//! What a prompt shares with earlier prompts: [`chain`] hashes a prompt into blocks, [`index`] knows who holds them.

pub mod chain;
pub mod index;
