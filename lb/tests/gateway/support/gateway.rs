//! A gateway process with files of its own, found through what it prints, ended when dropped.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError};
use std::time::Instant;

use serde_json::Value;
use tempfile::TempDir;

use super::client::request;
use super::{Answer, Client, Driver, PATIENCE, eventually, get};

const PROGRAM: &str = env!("CARGO_BIN_EXE_kinference");

/// How a gateway is set up.
#[derive(Clone, Debug)]
pub(crate) struct Setup {
    /// Data threads.
    pub(crate) threads: usize,
    /// Documents, in one file of the watched folder.
    pub(crate) resources: String,
    /// Further lines of the server's own file.
    pub(crate) server: String,
    /// Where it listens; port 0 is any.
    pub(crate) listen: SocketAddr,
    /// Further fields of the listener, each with a comma before it.
    pub(crate) listener: String,
    /// Further files beside the server's own, by name.
    pub(crate) files: Vec<(String, String)>,
    /// Secrets that documents refer to.
    pub(crate) environment: Vec<(String, String)>,
    /// Endpoints that must be ready before the test begins; with 0 it begins at once.
    pub(crate) endpoints: usize,
    /// The line of the server's own file that says where resources come from.
    pub(crate) source: String,
}

impl Setup {
    /// One data thread over these documents; waits for one ready endpoint.
    pub(crate) fn new(resources: String) -> Self {
        Self {
            threads: 1,
            resources,
            server: String::new(),
            listen: (Ipv4Addr::LOCALHOST, 0).into(),
            listener: String::new(),
            files: Vec::new(),
            environment: Vec::new(),
            endpoints: 1,
            source: String::from("resources: [./resources]"),
        }
    }

    /// Over the cluster that a kubeconfig leads to.
    #[allow(dead_code, reason = "the simulation, which shares this file, has no cluster")]
    pub(crate) fn over_cluster(kubeconfig: String) -> Self {
        Self {
            files: vec![(String::from("kubeconfig"), kubeconfig)],
            source: String::from("kubernetes: { enabled: true, kubeconfig: kubeconfig }"),
            ..Self::new(String::new())
        }
    }

    /// With further lines in the server's own file.
    pub(crate) fn server(self, lines: &str) -> Self {
        Self { server: format!("{}{lines}\n", self.server), ..self }
    }

    /// Waits for so many ready endpoints.
    pub(crate) fn ready(self, endpoints: usize) -> Self {
        Self { endpoints, ..self }
    }

    /// With so many data threads.
    pub(crate) fn threads(self, threads: usize) -> Self {
        Self { threads, ..self }
    }

    /// Listens where another one does.
    pub(crate) fn at(self, listen: SocketAddr) -> Self {
        Self { listen, ..self }
    }

    /// Starts it.
    pub(crate) fn start(self, driver: Driver) -> Gateway {
        Gateway::start(driver, &self)
    }
}

/// A running gateway. Dropping it kills it.
#[derive(Debug)]
pub(crate) struct Gateway {
    child: Child,
    said: Arc<Said>,
    printed: Arc<Said>,
    folder: TempDir,
    /// Where requests go.
    pub(crate) address: SocketAddr,
    /// Where it tells about itself.
    pub(crate) admin: SocketAddr,
}

/// The lines that it wrote to stderr, or to stdout.
#[derive(Debug, Default)]
struct Said {
    lines: Mutex<Vec<String>>,
    more: Condvar,
}

impl Said {
    fn listen(self: &Arc<Self>, output: impl Read + Send + 'static) {
        let said = Arc::clone(self);
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                said.lines.lock().unwrap_or_else(PoisonError::into_inner).push(line);
                said.more.notify_all();
            }
        });
    }

    /// The first line that holds every one of `parts`.
    fn wait_for(&self, parts: &[&str]) -> String {
        let deadline = Instant::now() + PATIENCE;
        let mut lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if let Some(line) = lines.iter().find(|line| parts.iter().all(|part| line.contains(part))) {
                return line.clone();
            }
            let left = deadline.saturating_duration_since(Instant::now());
            assert!(!left.is_zero(), "it never said {parts:?}, only {lines:#?}");
            lines = self.more.wait_timeout(lines, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

impl Gateway {
    fn start(driver: Driver, setup: &Setup) -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("resources")).unwrap();
        fs::write(folder.path().join("resources/all.yaml"), &setup.resources).unwrap();
        let server = format!(
            "listeners: [{{ address: \"{}\"{} }}]\nadmin: {{ address: \"127.0.0.1:0\" }}\ndataThreads: {}\n\
             {}\naccessLog: {{ path: access.log }}\n{}",
            setup.listen, setup.listener, setup.threads, setup.source, setup.server
        );
        // What a test holds stays held on a machine on which the test takes minutes.
        let server = match setup.server.contains("timeouts:") {
            true => server,
            false => server + "timeouts: { connect: 1m, firstByte: 10m, idle: 10m, clientIdle: 10m }\n",
        };
        for (name, content) in &setup.files {
            fs::write(folder.path().join(name), content).unwrap();
        }
        let config = folder.path().join("kinference.yaml");
        fs::write(&config, server).unwrap();
        let mut command = Command::new(PROGRAM);
        command.args(["serve", "--driver", driver.name(), "--config"]).arg(config);
        command.envs(setup.environment.iter().map(|(name, value)| (name, value)));
        Self::run(command, folder, setup.endpoints)
    }

    /// A gateway that is told everything on the command line.
    pub(crate) fn over_servers(driver: Driver, servers: &[SocketAddr]) -> Self {
        let mut command = Command::new(PROGRAM);
        command.args([
            "serve",
            "--driver",
            driver.name(),
            "--listen",
            "127.0.0.1:0",
            "--admin",
            "127.0.0.1:0",
            "--access-log",
            "",
        ]);
        command.args(servers.iter().map(|server| format!("http://{server}")));
        Self::run(command, tempfile::tempdir().unwrap(), servers.len())
    }

    fn run(mut command: Command, folder: TempDir, endpoints: usize) -> Self {
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let (said, printed) = (Arc::<Said>::default(), Arc::<Said>::default());
        printed.listen(child.stdout.take().unwrap());
        said.listen(child.stderr.take().unwrap());
        let address = address_in(&said.wait_for(&["msg=listening "]));
        let admin = address_in(&said.wait_for(&["msg=\"admin server listening\""]));
        let gateway = Self { child, said, printed, folder, address, admin };
        if endpoints > 0 {
            gateway.wait_for_endpoints(endpoints);
        }
        gateway
    }

    /// Waits until so many endpoints are ready.
    pub(crate) fn wait_for_endpoints(&self, endpoints: usize) {
        eventually("enough endpoints are ready", || {
            let answer = self.page("/readyz");
            (answer.status == 200 && answer.json()["endpointsReady"].as_u64()? >= endpoints as u64).then_some(())
        });
    }

    // ---- requests ----

    /// Posts a chat on a connection of its own.
    pub(crate) fn chat(&self, headers: &str, body: &str) -> Answer {
        self.send_chat(headers, body).answer()
    }

    /// Sends a chat on a connection of its own.
    pub(crate) fn send_chat(&self, headers: &str, body: &str) -> Client {
        Client::sending(self.address, request("/v1/chat/completions", headers, body))
    }

    // ---- what it tells ----

    /// Waits for a line on stderr that holds every one of `parts`.
    pub(crate) fn wait_for_line(&self, parts: &[&str]) -> String {
        self.said.wait_for(parts)
    }

    /// The line of the access log about one request.
    pub(crate) fn log_of(&self, request_id: &str) -> Value {
        eventually(&format!("a line about {request_id} in the access log"), || {
            self.log_lines().into_iter().find(|line| line["request_id"] == request_id)
        })
    }

    /// Everything on stderr so far.
    #[allow(dead_code, reason = "for tests that collect findings")]
    pub(crate) fn said(&self) -> Vec<String> {
        self.said.lines.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Everything on stdout so far.
    #[allow(dead_code, reason = "for tests that look for what must not be told")]
    pub(crate) fn printed(&self) -> Vec<String> {
        self.printed.lines.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Every line of the access log so far.
    pub(crate) fn log_lines(&self) -> Vec<Value> {
        let text = fs::read_to_string(self.folder.path().join("access.log")).unwrap_or_default();
        // The last line may be in the middle of being written.
        let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
        whole.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"))).collect()
    }

    /// A page of the admin server in which every thread had its say. On a busy machine one may be too late for a page, which
    /// then tells so, and lacks what that thread counts.
    pub(crate) fn page(&self, path: &str) -> Answer {
        eventually(&format!("every thread is heard in {path}"), || {
            let answer = get(self.admin, path);
            let text = answer.text();
            let whole = match path {
                "/metrics" => text.contains("\nkinference_data_threads_stuck 0\n"),
                "/endpoints" => text.contains("\"stuckThreads\":[]"),
                _ => !text.contains("the control thread does not answer"),
            };
            whole.then_some(answer)
        })
    }

    /// The sum of all samples of a metric whose labels hold every one of `labels`.
    pub(crate) fn metric(&self, name: &str, labels: &[&str]) -> f64 {
        let page = self.page("/metrics").text();
        let samples =
            page.lines().filter_map(|line| line.strip_prefix(name)).filter(|rest| rest.starts_with(['{', ' ']));
        samples
            .filter(|rest| labels.iter().all(|label| rest.contains(label)))
            .map(|rest| rest.rsplit_once(' ').unwrap().1.parse::<f64>().unwrap())
            .sum()
    }

    /// Waits until a metric has a value.
    pub(crate) fn wait_for_metric(&self, name: &str, labels: &[&str], value: f64) {
        eventually(&format!("{name}{labels:?} is {value}"), || (self.metric(name, labels) == value).then_some(()));
    }

    /// An endpoint, as it sees it.
    pub(crate) fn endpoint(&self, address: SocketAddr) -> Value {
        let json = self.page("/endpoints").json();
        let mut endpoints = json["endpoints"].as_array().unwrap().iter();
        endpoints.find(|endpoint| endpoint["address"] == address.to_string()).cloned().unwrap_or_default()
    }

    /// Waits until an endpoint is, or is not, ready.
    pub(crate) fn wait_for_readiness(&self, address: SocketAddr, readiness: &str) {
        eventually(&format!("{address} is {readiness}"), || {
            (self.endpoint(address)["readiness"] == readiness).then_some(())
        });
    }

    /// Waits until no request is in flight anywhere, by every count there is.
    pub(crate) fn expect_nothing_in_flight(&self) {
        eventually("no request is in flight", || {
            let json = self.page("/endpoints").json();
            let mut endpoints = json["endpoints"].as_array().unwrap().iter();
            let idle = endpoints.all(|endpoint| {
                let requests = &endpoint["belief"]["requests"];
                let counts = ["inFlight", "pending", "decoding", "pendingNewTokens", "decodingTokens"];
                endpoint["inFlight"] == 0
                    && counts.iter().all(|&count| requests[count].as_f64().is_none_or(|n| n == 0.0))
            });
            (idle && self.metric("kinference_requests_open", &[]) == 0.0).then_some(())
        });
    }

    // ---- files ----

    /// A path in the watched folder.
    pub(crate) fn resource(&self, name: &str) -> PathBuf {
        self.folder.path().join("resources").join(name)
    }

    /// Puts a document set in place, as editors do: a new file under the old name.
    pub(crate) fn write_resources(&self, yaml: &str) {
        let new = self.folder.path().join("new.yaml");
        fs::write(&new, yaml).unwrap();
        fs::rename(new, self.resource("all.yaml")).unwrap();
    }

    /// The state of the configuration.
    pub(crate) fn config(&self) -> Value {
        self.page("/config").json()
    }

    /// Its process.
    #[allow(dead_code, reason = "the simulation, which shares this file, looks at the process's sockets")]
    pub(crate) fn process(&self) -> u32 {
        self.child.id()
    }

    // ---- its end ----

    /// Sends a signal, by its name without SIG.
    pub(crate) fn signal(&self, name: &str) {
        let kill = Command::new("sh").arg("-c").arg(format!("kill -s {name} {}", self.child.id())).status().unwrap();
        assert!(kill.success());
    }

    /// Waits for its end.
    pub(crate) fn wait(&mut self) -> ExitStatus {
        eventually("it ends", || self.child.try_wait().unwrap())
    }

    /// Whether it still runs.
    pub(crate) fn is_running(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        // Both fail when it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            let lines = self.said.lines.lock().unwrap_or_else(PoisonError::into_inner);
            eprintln!("the gateway said:\n{}", lines.join("\n"));
        }
    }
}

fn address_in(line: &str) -> SocketAddr {
    let words = line.split(' ').filter_map(|word| word.strip_prefix("address="));
    words.map(|address| address.parse().unwrap()).next().unwrap_or_else(|| panic!("no address in {line:?}"))
}

/// Whether the kernel lets this process use io_uring; told once when not.
pub(crate) fn io_uring_works() -> bool {
    static WORKS: OnceLock<bool> = OnceLock::new();
    *WORKS.get_or_init(|| {
        // Nothing listens at the server given: the driver is looked at before.
        let mut command = Command::new(PROGRAM);
        command.args([
            "serve",
            "--driver",
            "io_uring",
            "--listen",
            "127.0.0.1:0",
            "--admin",
            "127.0.0.1:0",
            "http://127.0.0.1:1",
        ]);
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let mut first = String::new();
        let read = BufReader::new(child.stderr.take().unwrap()).read_line(&mut first);
        let _ = child.kill();
        let _ = child.wait();
        let works = read.is_ok() && first.contains("driver=io_uring");
        // Only the kernel may say no: a gateway that does not start at all must fail the tests.
        assert!(works || first.contains("io_uring"), "neither works nor says why: {first}");
        if !works {
            eprintln!("io_uring tests are passed over: {}", first.trim());
        }
        works
    })
}
