//! The scenarios, by subject. Each is a function from a freshly set stage to a judgement.

pub(crate) mod body;
pub(crate) mod head;
pub(crate) mod health;
pub(crate) mod leave;
pub(crate) mod refuse;
pub(crate) mod retry;
pub(crate) mod spread;
pub(crate) mod stream;
