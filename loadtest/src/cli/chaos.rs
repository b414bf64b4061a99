//! `loadtest chaos`.

use std::{
    io::{self, Write},
    net::{SocketAddr, ToSocketAddrs},
    path::PathBuf,
    process::ExitCode,
    time::Duration,
};

use clap::Args;

use super::duration;
use crate::{
    chaos::{self, Front, Output, Plan, SCENARIOS},
    http::Target,
};

#[derive(Debug, Args)]
pub(super) struct ChaosArgs {
    /// Shell command that starts the proxy in the foreground, once for each scenario. {listen} becomes IP:PORT,
    /// {upstreams} the engines' URLs separated by spaces, {upstream1} and {upstream2} one URL each.
    #[arg(long, required_unless_present_any = ["target", "list"], conflicts_with = "target")]
    proxy_cmd: Option<String>,
    /// URL of a proxy that runs already, in front of --engines.
    #[arg(long, requires = "engines")]
    target: Option<Target>,
    /// Addresses where the engines are to be started for --target.
    #[arg(long, value_delimiter = ',', requires = "target")]
    engines: Vec<SocketAddr>,
    /// GET this path until it answers with success: the proxy is ready.
    #[arg(long, default_value = "/v1/models")]
    ready_path: String,
    /// Run these scenarios only.
    #[arg(long, num_args = 1.., value_delimiter = ',')]
    only: Vec<String>,
    /// Show the scenarios and run nothing.
    #[arg(long)]
    list: bool,
    /// Model that the engines serve.
    #[arg(long, default_value = "mock")]
    model: String,
    /// Longest wait for what should happen at once.
    #[arg(long, default_value = "8s", value_parser = duration)]
    patience: Duration,
    /// Silence of an engine that must be survived.
    #[arg(long, default_value = "6s", value_parser = duration)]
    silence: Duration,
    /// How long the proxy is set to wait for an engine's first byte; without it this is not judged.
    #[arg(long, value_parser = duration)]
    first_byte_timeout: Option<Duration>,
    /// A whole run takes no longer; for proxies that are slow to start.
    #[arg(long, default_value = "120s", value_parser = duration)]
    run_max: Duration,
    /// Write the report as JSON to this file; - is standard output, in place of the table.
    #[arg(long)]
    json: Option<PathBuf>,
    /// Show what the proxy prints.
    #[arg(long)]
    proxy_output: bool,
}

impl ChaosArgs {
    fn plan(self) -> Result<Plan, Box<dyn std::error::Error>> {
        let front = match (self.proxy_cmd, self.target) {
            (Some(command), _) => Front::Command(command),
            (None, Some(target)) => Front::Running {
                addr: target.authority.to_socket_addrs()?.next().ok_or("the target has no address")?,
                base_path: target.base_path,
                engines: self.engines,
            },
            (None, None) => return Err("either --proxy-cmd or --target is needed".into()),
        };
        let output = if self.proxy_output { Output::Shown } else { Output::Dropped };
        Ok(Plan {
            front,
            model: self.model,
            ready_path: self.ready_path,
            patience: self.patience,
            silence: self.silence,
            first_byte_timeout: self.first_byte_timeout,
            run_max: self.run_max,
            only: self.only,
            output,
        })
    }
}

pub(super) fn run(args: ChaosArgs) -> Result<ExitCode, Box<dyn std::error::Error>> {
    if args.list {
        for scenario in SCENARIOS {
            let numbers: Vec<String> = scenario.numbers.iter().map(|number| format!("[{number}]")).collect();
            writeln!(io::stdout(), "{:<12} {:<20} {}", numbers.concat(), scenario.name, scenario.rule)?;
        }
        return Ok(ExitCode::SUCCESS);
    }
    let json = args.json.clone();
    let json_only = json.as_ref().is_some_and(|path| path.as_os_str() == "-");
    let report = chaos::run(&args.plan()?, |row| {
        if !json_only {
            // A closed pipe is noticed at the end.
            let _ = writeln!(io::stdout(), "{row}");
        }
    })?;
    match json {
        Some(_) if json_only => writeln!(io::stdout(), "{}", serde_json::to_string_pretty(&report)?)?,
        Some(path) => {
            std::fs::write(&path, serde_json::to_string_pretty(&report)?)
                .map_err(|error| format!("{}: {error}", path.display()))?;
            writeln!(io::stdout(), "{report}")?;
        }
        None => writeln!(io::stdout(), "{report}")?,
    }
    let (_, failed, _) = report.counts();
    Ok(if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
