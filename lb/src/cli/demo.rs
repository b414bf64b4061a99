//! `kinference demo`: simulated engines in this process and a gateway in front of them.

use std::net::SocketAddr;
use std::process::ExitCode;

use clap::Args;
use config::ServerFile;
use config::snapshot::StaticEndpoint;
use engine::Engine;

use super::{parse_address, print_out, run_server, usage};
use crate::control::Target;
use crate::control::source::Source;
use crate::io::Driver;
use crate::server::{Bound, ListenerOptions, Options, Sharing};

/// The model that the simulated engines serve.
const MODEL: &str = "demo";

/// Run a gateway over simulated engines, to try it out.
#[derive(Debug, Args)]
pub(super) struct Demo {
    /// Where requests come in, as IP:PORT; port 0 takes a free one
    #[arg(long, value_name = "ADDR", value_parser = parse_address, default_value = "127.0.0.1:8080")]
    listen: SocketAddr,
    /// Where the admin server listens, as IP:PORT; port 0 takes a free one
    #[arg(long, value_name = "ADDR", value_parser = parse_address, default_value = "127.0.0.1:9090")]
    admin: SocketAddr,
    /// Simulated engines
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=64))]
    engines: u16,
    /// What the data threads run on: auto, io_uring or epoll
    #[arg(long, default_value = "auto", value_name = "DRIVER")]
    driver: Driver,
}

impl Demo {
    /// Runs it until Ctrl-C.
    pub(super) fn run(self) -> ExitCode {
        let mut engines = Vec::with_capacity(usize::from(self.engines));
        for _ in 0..self.engines {
            let settings =
                engine::Settings { models: vec![String::from(MODEL)], records_max: 0, ..engine::Settings::default() };
            match Engine::start(settings) {
                Ok(engine) => engines.push(engine),
                Err(error) => return usage(format!("a simulated engine cannot be started: {error}")),
            }
        }
        let addresses = engines.iter().map(Engine::addr);
        let servers = addresses.map(|address| StaticEndpoint { host: address.ip().to_string(), port: address.port() });
        let count = self.engines;
        let defaults = ServerFile::default();
        let code = run_server(Options {
            listeners: vec![ListenerOptions::plain(self.listen)],
            admin: Some(self.admin),
            data_threads: None,
            driver: self.driver,
            source: Source::Servers(servers.collect()),
            balancers: None,
            server_file: None,
            access_log: Target::Off,
            drain_timeout: defaults.drain_timeout,
            decision_headers: crds::server::DecisionHeaders::Shown,
            stream_ping: None,
            limits: defaults.limits,
            timeouts: defaults.timeouts,
            sharing: Sharing::Refused,
            on_ready: Some(Box::new(move |bound| {
                print_out(&welcome(bound, count));
            })),
        });
        drop(engines);
        code
    }
}

fn welcome(bound: &Bound, engines: u16) -> String {
    let gateway = bound.listeners.first().map(ToString::to_string).unwrap_or_default();
    let admin = bound.admin.map(|admin| format!("What the gateway sees: http://{admin}/\n")).unwrap_or_default();
    format!(
        "\nReady: {engines} simulated engines behind http://{gateway}. Try:\n\n  \
         curl -N http://{gateway}/v1/chat/completions -H 'content-type: application/json' \\\n    \
         -d '{{\"model\": \"{MODEL}\", \"stream\": true, \"max_tokens\": 64, \"messages\": [{{\"role\": \"user\", \"content\": \"Hello\"}}]}}'\n\n\
         {admin}Ctrl-C ends the demo.\n\n"
    )
}
