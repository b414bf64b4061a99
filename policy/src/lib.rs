//! The judge: given a request, a pool's rules and what is known about each endpoint, says which
//! endpoint answers, or why none may.
//!
//! Pure by construction: no I/O, no clock, no randomness of its own, no runtime, no serialisation.
//! Time and chance come in as arguments (signal values, `seed`), so a decision replays bit for bit
//! from its record. Evaluation allocates nothing once its [`Scratch`] has grown to the pool's size.
//!
//! Reading order: [`signal`] (what can be known about an endpoint), [`request`] (what is known about
//! a request), [`condition`] (tests over both), [`rewrite`] (what a rule may change in a request), [`rule`]
//! (a pool's compiled [`Program`]), [`decide`](mod@decide) (the decision), [`explain`] (the same decision as
//! data and text), [`reach`] (what a program can never do), [`diagnostic`] (findings about the documents rules were written in).
#![forbid(unsafe_code)]

pub mod condition;
pub mod decide;
pub mod diagnostic;
pub mod explain;
mod matcher;
pub mod reach;
pub mod request;
pub mod rewrite;
pub mod rule;
pub mod signal;

pub use condition::{DropCondition, HeaderCondition, HeaderTest, Match, NumberRange, Pattern, TagCondition};
pub use decide::{Candidate, Decision, Refusal, Scratch, Verdict, decide};
pub use diagnostic::{Code, Diagnostic, Severity, Span};
pub use request::{Api, HeaderLookup, HeaderMap, NoHeaders, Request, Streaming};
pub use rewrite::{Parameter, Rewrite};
pub use rule::{
    Action, Backend, Consider, DEFAULT_RULE, Deny, Exclude, Minimize, Mode, PoolDestination, Program, ProgramError,
    Queue, Ranking, Route, Rule, RuleIndex, SelectStep, SplitBy, Target, UpstreamHeader,
};
pub use signal::Signal;
