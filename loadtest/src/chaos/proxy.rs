//! The proxy under test: a command started anew for every scenario, one that runs already, or one inside this process.

use std::{
    any::Any,
    fmt, io,
    net::{SocketAddr, TcpListener},
    os::unix::process::CommandExt,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process_group};

use super::client::Client;

/// Longest time a proxy may take until it answers.
const START_MAX: Duration = Duration::from_secs(10);
/// Time a proxy has to end by itself before it is killed.
const END_MAX: Duration = Duration::from_millis(500);
/// Time between two looks at a process or port.
const LOOK_AGAIN: Duration = Duration::from_millis(5);

/// How to get a proxy in front of the engines.
pub enum Front {
    /// A shell command with `{listen}` and `{upstreams}`, or `{upstream1}`, `{upstream2}`, ...; started for each
    /// scenario, ended with its process group.
    Command(String),
    /// It runs already, in front of these addresses, where the engines will be started.
    Running {
        /// Where it listens.
        addr: SocketAddr,
        /// What stands before `/v1/...`; empty or beginning with a slash.
        base_path: String,
        /// Where it expects the engines.
        engines: Vec<SocketAddr>,
    },
    /// A function that starts one in this process in front of the given engines; it ends when its handle is dropped.
    Embedded(Box<StartEmbedded>),
}

/// Starts a proxy in this process in front of the engines at these addresses.
pub type StartEmbedded = dyn Fn(&[SocketAddr]) -> io::Result<Embedded> + Send + Sync;

/// A proxy inside this process.
pub struct Embedded {
    /// Where it listens.
    pub addr: SocketAddr,
    /// Dropping this ends it.
    pub handle: Box<dyn Any + Send + Sync>,
}

impl fmt::Debug for Front {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Command(command) => f.debug_tuple("Command").field(command).finish(),
            Self::Running { addr, .. } => f.debug_tuple("Running").field(addr).finish(),
            Self::Embedded(_) => f.write_str("Embedded"),
        }
    }
}

/// Where the output of a command goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Output {
    /// Nowhere.
    Dropped,
    /// To standard error.
    Shown,
}

/// A proxy that runs; dropping it ends it if we started it.
pub(crate) struct Proxy {
    pub(crate) addr: SocketAddr,
    running: Running,
}

enum Running {
    Process(Child),
    Elsewhere,
    Here(#[expect(dead_code, reason = "held for its drop")] Box<dyn Any + Send + Sync>),
}

impl Proxy {
    pub(crate) fn start(front: &Front, engines: &[SocketAddr], ready_path: &str, output: Output) -> io::Result<Self> {
        match front {
            Front::Command(command) => {
                // Another process may take the port between the look and the start.
                let first = Self::spawn(command, engines, ready_path, output);
                first.or_else(|_| Self::spawn(command, engines, ready_path, output))
            }
            Front::Running { addr, base_path, .. } => {
                let mut proxy = Self { addr: *addr, running: Running::Elsewhere };
                proxy.wait_ready(&format!("{base_path}{ready_path}"))?;
                Ok(proxy)
            }
            Front::Embedded(start) => {
                let embedded = start(engines)?;
                Ok(Self { addr: embedded.addr, running: Running::Here(embedded.handle) })
            }
        }
    }

    fn spawn(command: &str, engines: &[SocketAddr], ready_path: &str, output: Output) -> io::Result<Self> {
        let addr = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
        let line = command_line(command, addr, engines);
        let (out, err) = match output {
            Output::Dropped => (Stdio::null(), Stdio::null()),
            Output::Shown => (Stdio::from(io::stderr()), Stdio::inherit()),
        };
        let mut shell = Command::new("/bin/sh");
        shell.args(["-c", &line]).process_group(0).stdin(Stdio::null()).stdout(out).stderr(err);
        let mut proxy = Self { addr, running: Running::Process(shell.spawn()?) };
        proxy.wait_ready(ready_path)?;
        Ok(proxy)
    }

    fn wait_ready(&mut self, path: &str) -> io::Result<()> {
        let deadline = Instant::now() + START_MAX;
        let request = format!("GET {path} HTTP/1.1\r\nhost: {}\r\nconnection: close\r\n\r\n", self.addr);
        while Instant::now() < deadline {
            if let Running::Process(child) = &mut self.running
                && let Some(status) = child.try_wait()?
            {
                return Err(io::Error::other(format!("the proxy's command ended at once ({status})")));
            }
            let answer = Client::connect(self.addr, Duration::from_secs(1)).and_then(|mut client| {
                client.send(request.as_bytes())?;
                client.answer().map_err(|trouble| io::Error::other(trouble.to_string()))
            });
            if answer.is_ok_and(|answer| (200..300).contains(&answer.status)) {
                return Ok(());
            }
            std::thread::sleep(LOOK_AGAIN);
        }
        Err(io::Error::other(format!("the proxy does not answer GET {path} with success (see --ready-path)")))
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        let Running::Process(child) = &mut self.running else { return };
        let group = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
        let signal = |signal| {
            if let Some(group) = group {
                // Fails when the group has ended.
                let _ = kill_process_group(group, signal);
            }
        };
        signal(Signal::TERM);
        let deadline = Instant::now() + END_MAX;
        while Instant::now() < deadline && matches!(child.try_wait(), Ok(None)) {
            std::thread::sleep(LOOK_AGAIN);
        }
        signal(Signal::KILL);
        // It has been killed; this only takes its status.
        let _ = child.wait();
    }
}

fn command_line(command: &str, listen: SocketAddr, engines: &[SocketAddr]) -> String {
    let urls: Vec<String> = engines.iter().map(|addr| format!("http://{addr}")).collect();
    let mut line = command.replace("{listen}", &listen.to_string()).replace("{upstreams}", &urls.join(" "));
    for (index, url) in urls.iter().enumerate() {
        line = line.replace(&format!("{{upstream{}}}", index + 1), url);
    }
    // The shell makes way for the proxy where the command is a simple one.
    if line.contains([';', '&', '|']) { line } else { format!("exec {line}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn placeholders_are_filled_in() {
        let engines: Vec<SocketAddr> = vec!["127.0.0.1:1".parse().unwrap(), "127.0.0.1:2".parse().unwrap()];
        let listen = "127.0.0.1:9".parse().unwrap();
        assert_eq!(
            command_line("p -l {listen} {upstreams}", listen, &engines),
            "exec p -l 127.0.0.1:9 http://127.0.0.1:1 http://127.0.0.1:2"
        );
        assert_eq!(
            command_line("p {upstream2}; q {upstream1}", listen, &engines),
            "p http://127.0.0.1:2; q http://127.0.0.1:1"
        );
    }

    #[test]
    fn a_command_that_ends_at_once_is_an_error() {
        let front = Front::Command("false {listen}".to_owned());
        let Err(error) = Proxy::start(&front, &[], "/", Output::Dropped) else { panic!("it has started") };
        assert!(error.to_string().contains("ended at once"), "{error}");
    }
}
