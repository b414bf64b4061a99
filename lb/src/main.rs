//! `kinference`, and `kinfctl` when run under that name.
#![forbid(unsafe_code)]

use std::process::ExitCode;

/// glibc gives back what another thread frees at the top of a data thread's memory, and has the data thread ask the kernel for
/// it again page by page: four system calls a request.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    lb::cli::main()
}
