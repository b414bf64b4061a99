//! The command line: `kinference` runs servers, `kinfctl` (the same binary by another name, or `kinference ctl`) looks
//! at configurations and running servers.
//!
//! Exit codes: 0 done; 1 the thing looked at is not well (or a server was ended by force); 2 the command itself cannot
//! be carried out. What a person must do stands in one line on stderr.

mod body;
mod classify;
mod demo;
mod diff;
mod explain;
mod get;
mod lint;
mod schema;
mod serve;
mod set;
mod test;
mod tokenize;
mod usage;
mod why;

use std::fmt::Display;
use std::net::SocketAddr;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::server;

/// Exit code of a command that cannot be carried out.
const USAGE: u8 = 2;

/// Policy-driven inference gateway for vLLM.
#[derive(Debug, Parser)]
#[command(name = "kinference", version, arg_required_else_help = true)]
struct Kinference {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run a gateway
    Serve(Box<serve::Serve>),
    /// Run a gateway over simulated engines, to try it out
    Demo(demo::Demo),
    /// Look at configurations and running gateways (also as `kinfctl`)
    Ctl {
        #[command(subcommand)]
        command: Ctl,
    },
    /// Print the version
    Version,
}

/// Look at configurations and running gateways.
#[derive(Debug, Parser)]
#[command(name = "kinfctl", version, arg_required_else_help = true)]
struct Kinfctl {
    #[command(subcommand)]
    command: Ctl,
}

#[derive(Debug, Subcommand)]
enum Ctl {
    /// Check documents
    Lint(lint::Lint),
    /// Run policy tests
    Test(test::Test),
    /// Explain which endpoint answers a request, and why
    Explain(Box<explain::Explain>),
    /// Tell what two sets of documents do differently
    Diff(diff::Diff),
    /// Add up requests, tokens and costs of an access log
    Usage(usage::Usage),
    /// Show the tags that the built-in classifiers put on a text
    Classify(classify::Classify),
    /// Show the token ids of requests, as exact mode counts them
    Tokenize(tokenize::Tokenize),
    /// Print the JSON Schema of the documents, for editors
    Schema(schema::Schema),
    /// Show a part of a running gateway
    Get(get::Get),
    /// Tell why a request went where it went
    Why(why::Why),
    /// Print the version
    Version,
}

/// Runs the command that the process was started with.
#[must_use]
pub fn main() -> ExitCode {
    let code = run();
    crate::control::journal::flush();
    code
}

fn run() -> ExitCode {
    match invoked_as() {
        InvokedAs::Kinference => match Kinference::parse().command {
            Command::Serve(serve) => serve.run(),
            Command::Demo(demo) => demo.run(),
            Command::Ctl { command } => ctl(&command),
            Command::Version => version("kinference"),
        },
        InvokedAs::Kinfctl => ctl(&Kinfctl::parse().command),
    }
}

enum InvokedAs {
    Kinference,
    Kinfctl,
}

fn invoked_as() -> InvokedAs {
    let program = std::env::args_os().next().map(std::path::PathBuf::from);
    match program.as_deref().and_then(|path| path.file_stem()).and_then(|stem| stem.to_str()) {
        Some("kinfctl") => InvokedAs::Kinfctl,
        Some(_) | None => InvokedAs::Kinference,
    }
}

fn ctl(command: &Ctl) -> ExitCode {
    match command {
        Ctl::Lint(lint) => lint.run(),
        Ctl::Test(test) => test.run(),
        Ctl::Explain(explain) => explain.run(),
        Ctl::Diff(diff) => diff.run(),
        Ctl::Classify(classify) => classify.run(),
        Ctl::Tokenize(tokenize) => tokenize.run(),
        Ctl::Schema(schema) => schema.run(),
        Ctl::Get(get) => get.run(),
        Ctl::Why(why) => why.run(),
        Ctl::Usage(usage) => usage.run(),
        Ctl::Version => version("kinfctl"),
    }
}

fn version(program: &str) -> ExitCode {
    print_out(&format!("{program} {}\n", env!("CARGO_PKG_VERSION")))
}

/// Writes to stdout. A reader that has gone (`| head`) is no failure.
fn print_out(text: &str) -> ExitCode {
    use std::io::Write;
    let mut out = std::io::stdout().lock();
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    ExitCode::SUCCESS
}

/// `1 file`, `2 files`.
fn counted(count: impl TryInto<u64>, what: &str) -> String {
    let count = count.try_into().unwrap_or(u64::MAX);
    let plural = if count == 1 { "" } else { "s" };
    format!("{count} {what}{plural}")
}

/// Says why a command cannot be carried out.
fn usage(message: impl Display) -> ExitCode {
    eprintln!("error: {message}");
    ExitCode::from(USAGE)
}

/// Runs a server and says why it does not start.
fn run_server(options: server::Options) -> ExitCode {
    server::log_panics();
    server::run(options).unwrap_or_else(usage)
}

/// `IP:PORT`, for clap.
fn parse_address(text: &str) -> Result<SocketAddr, String> {
    let expected = "expected IP:PORT, for example 127.0.0.1:8080, or 0.0.0.0:8080 for every interface";
    match text.split_once(':') {
        Some(("localhost", port)) => {
            port.parse().map(|port: u16| SocketAddr::from(([127, 0, 0, 1], port))).map_err(|_| expected.into())
        }
        Some(_) | None => text.parse().map_err(|_| expected.into()),
    }
}
