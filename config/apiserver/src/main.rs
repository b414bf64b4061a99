//! `apiserver [ADDRESS]`: the stand-in as a program. Prints a kubeconfig, then serves until it is killed.
#![forbid(unsafe_code)]

use std::process::ExitCode;

use apiserver::{ApiServer, Options};

fn main() -> ExitCode {
    let address = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:0".to_owned());
    let Ok(address) = address.parse() else {
        eprintln!("usage: apiserver [IP:PORT]\n{address} is not an IP address and a port");
        return ExitCode::from(2);
    };
    match ApiServer::start(Options { address, ..Options::default() }) {
        Ok(server) => {
            print!("{}", server.kubeconfig());
            loop {
                std::thread::park();
            }
        }
        Err(error) => {
            eprintln!("cannot listen on {address}: {error}");
            ExitCode::FAILURE
        }
    }
}
