//! `kinference serve`: from a file, or with everything on the command line.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use config::snapshot::{PoolScope, StaticEndpoint};

use super::{parse_address, run_server, usage};
use crate::control::source::Source;
use crate::control::{SERVERS_MAX, Target, parse_url};
use crate::io::Driver;
use crate::server::{Options, Sharing};

/// Longest wait for requests to end after a signal, when no file says otherwise.
pub(super) const DRAIN_TIMEOUT: Duration = Duration::from_secs(600);

/// Run a gateway: from a file (`--config`), or over the servers given (`--listen ADDR URL...`).
#[derive(Debug, Args)]
#[command(override_usage = "kinference serve --config FILE\n       kinference serve --listen ADDR [OPTIONS] URL...")]
pub(super) struct Serve {
    /// The server's own file
    #[arg(long, value_name = "FILE", conflicts_with_all = ["listen", "threads", "admin", "access_log", "urls"], required_unless_present = "listen")]
    config: Option<PathBuf>,
    /// Where requests come in, as IP:PORT; may be given several times
    #[arg(long, value_name = "ADDR", value_parser = parse_address, requires = "urls")]
    listen: Vec<SocketAddr>,
    /// Data threads [default: one per core]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: Option<u16>,
    /// Where the admin server listens, as IP:PORT
    #[arg(long, value_name = "ADDR", value_parser = parse_address, default_value = "127.0.0.1:9090")]
    admin: SocketAddr,
    /// What the data threads run on: auto, io_uring or epoll
    #[arg(long, default_value = "auto", value_name = "DRIVER")]
    driver: Driver,
    /// A file for the access log; - is stdout, nothing is off
    #[arg(long, value_name = "PATH", default_value = "-")]
    access_log: String,
    /// The servers: http://HOST:PORT
    #[arg(value_name = "URL", value_parser = parse_url, requires = "listen")]
    urls: Vec<StaticEndpoint>,
}

impl Serve {
    /// Runs it until a signal ends it.
    pub(super) fn run(self) -> ExitCode {
        match self.options() {
            Ok(options) => run_server(options),
            Err(code) => code,
        }
    }

    fn options(self) -> Result<Options, ExitCode> {
        if let Some(path) = &self.config {
            return from_file(path, self.driver);
        }
        if self.urls.len() > SERVERS_MAX {
            return Err(usage(format!("{} servers; at most {SERVERS_MAX} can be given, use a file for more", self.urls.len())));
        }
        let mut servers = self.urls;
        servers.sort();
        servers.dedup();
        Ok(Options {
            listeners: self.listen.into_iter().map(|address| (address, PoolScope::All)).collect(),
            admin: Some(self.admin),
            data_threads: self.threads.map(usize::from),
            driver: self.driver,
            source: Source::Servers(servers),
            server_file: None,
            access_log: Target::parse(&self.access_log),
            drain_timeout: DRAIN_TIMEOUT,
            bounds: crds::server::ServerSpec::default(),
            sharing: Sharing::Allowed,
            on_ready: None,
        })
    }
}

fn from_file(_path: &std::path::Path, _driver: Driver) -> Result<Options, ExitCode> {
    Err(usage("--config is not here yet"))
}
