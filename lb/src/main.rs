//! `kinference`, and `kinfctl` when run under that name.
#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    lb::cli::main()
}
