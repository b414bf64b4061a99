//! WIP
#![forbid(unsafe_code)]
