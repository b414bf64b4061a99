//! The `loadtest` program; see the crate's README.
#![forbid(unsafe_code)]

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    loadtest::cli::main(loadtest::cli::Cli::parse())
}
