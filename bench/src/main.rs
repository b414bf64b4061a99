//! Micro-benchmarks and side-by-side runs.
fn main() {}
