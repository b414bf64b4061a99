//! Many seeds at once in one gateway process: each has a model, engines and documents of its own, so that what one does is
//! nothing to the others, and what all leave behind must be nothing.

use std::collections::HashMap;
use std::fs;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use serde_json::Value;

use crate::check::{check, is_nameless};
use crate::client::{BODY_BYTES_MAX, Seen, play};
use crate::content::{Id, called, model};
use crate::engine::Engines;
use crate::script::{ENGINES, Event, Name, Order, Script, What};
use crate::sockets;
use crate::support::engines::{engine, fleet, pool, worker_set_at};
use crate::support::{Driver, Gateway, Setup, eventually};

/// Seconds-long waits of the gateway, made short: a seed that waits for one takes that long.
const TIMEOUTS: &str = "timeouts: { requestHead: 2s, requestBodyIdle: 2s, firstByte: 2s, idle: 2s, clientIdle: 1m }";
const DATA_THREADS: usize = 3;

/// A seed while it is played.
struct Play<'a> {
    gateway: &'a Gateway,
    script: &'a Script,
    engines: Engines,
    /// Requests begun by its clients, and events that have happened.
    begun: AtomicUsize,
    happened: Mutex<usize>,
}

/// Plays the scripts in one gateway and says what is wrong, each finding with the seed's number.
pub(crate) fn play_all(driver: Driver, scripts: &[Script]) -> Vec<(u64, String)> {
    // One that is always there, so that there is a gateway to begin with and to end with.
    let anchor = engine();
    let limits = format!("limits: {{ requestBody: {}KiB }}", BODY_BYTES_MAX >> 10);
    let mut gateway =
        Setup::new(fleet(&[&anchor])).threads(DATA_THREADS).server(TIMEOUTS).server(&limits).start(driver);
    let (_, others_before) = sockets::of(gateway.process());
    let plays: Vec<Play<'_>> = scripts.iter().map(|script| Play::begin(&gateway, script)).collect();
    wait_for_endpoints(&gateway, scripts.len() * ENGINES);
    let seen: Vec<Vec<Vec<Seen>>> = std::thread::scope(|scope| {
        let threads: Vec<_> = plays.iter().map(|play| scope.spawn(|| play.play())).collect();
        threads.into_iter().map(|thread| thread.join().expect("clients write down what they see")).collect()
    });
    gateway.expect_nothing_in_flight();
    expect_zero(&gateway);
    plays.iter().for_each(Play::end);
    eventually("no endpoint is left but one", || (endpoints(&gateway).len() == 1).then_some(()));
    let mut wrong = Vec::new();
    for play in &plays {
        eventually(&format!("the engines of seed {} have no connection and nothing to do", play.script.seed), || {
            (play.engines.book.open() == (0, 0)).then_some(())
        });
    }
    eventually("no socket of the seeds is left", || {
        let (connections, others) = sockets::of(gateway.process());
        let known = [anchor.addr().port(), gateway.admin.port()];
        let left = connections.iter().filter(|(own, peer)| !known.contains(own) && !known.contains(peer)).count();
        (left == 0 && others <= others_before).then_some(())
    });
    let books: Vec<_> = plays.iter().map(|play| play.engines.book.clone()).collect();
    drop(plays);
    gateway.signal("TERM");
    assert_eq!(gateway.wait().code(), Some(0), "it ends when nothing runs");
    let log = by_id(gateway.log_lines());
    for ((script, seen), book) in scripts.iter().zip(&seen).zip(&books) {
        wrong.extend(check(script, seen, book, &log).into_iter().map(|what| (script.seed, what)));
    }
    if let Some(what) = nameless_lines(scripts, &seen, &log) {
        wrong.push((scripts[0].seed, what));
    }
    if !wrong.is_empty() {
        let quiet = ["level=info", "metrics cannot be read"];
        let said: Vec<_> =
            gateway.said().into_iter().filter(|line| !quiet.iter().any(|word| line.contains(word))).collect();
        eprintln!("the gateway of seeds {} and on said:\n{}", scripts[0].seed, said.join("\n"));
    }
    wrong
}

/// Everything that is counted up and down is down.
fn expect_zero(gateway: &Gateway) {
    for name in [
        "kinference_downstream_connections_open",
        "kinference_thread_connections_open",
        "kinference_thread_requests_open",
        "kinference_requests_open",
        "kinference_request_bodies_bytes",
        "kinference_endpoint_in_flight",
        "kinference_panics_total",
        "kinference_access_log_lines_lost_total",
        "kinference_peer_batches_lost_total",
        "kinference_accept_errors_total",
    ] {
        gateway.wait_for_metric(name, &[], 0.0);
    }
}

fn endpoints(gateway: &Gateway) -> Vec<Value> {
    gateway.page("/endpoints").json()["endpoints"].as_array().cloned().unwrap_or_default()
}

fn wait_for_endpoints(gateway: &Gateway, count: usize) {
    eventually("all endpoints of the seeds are ready", || {
        let ready = gateway.page("/readyz").json()["endpointsReady"].as_u64();
        (ready == Some(count as u64 + 1)).then_some(())
    });
}

fn by_id(lines: Vec<Value>) -> HashMap<String, Vec<Value>> {
    let mut log: HashMap<String, Vec<Value>> = HashMap::new();
    for line in lines {
        log.entry(line["request_id"].as_str().unwrap_or_default().to_owned()).or_default().push(line);
    }
    log
}

/// A request whose head was no good has a line all the same, under the id that its answer names.
fn nameless_lines(scripts: &[Script], seen: &[Vec<Vec<Seen>>], log: &HashMap<String, Vec<Value>>) -> Option<String> {
    let (mut told, mut perhaps) = (Vec::new(), 0);
    for (script, seen) in scripts.iter().zip(seen) {
        for (connection, seen) in script.connections.iter().zip(seen) {
            for (request, seen) in connection.requests.iter().zip(seen) {
                match seen {
                    Seen::Whole(reply) if is_nameless(request.ask) => {
                        told.push(reply.header("x-request-id").unwrap_or_default().to_owned());
                    }
                    Seen::Left(_) if is_nameless(request.ask) && connection.order == Order::Pipelined => perhaps += 1,
                    Seen::Unasked
                    | Seen::Left(_)
                    | Seen::Whole(_)
                    | Seen::Cut(..)
                    | Seen::Nothing(_)
                    | Seen::Odd(_) => {}
                }
            }
        }
    }
    if let Some(id) = told.iter().find(|id| log.get(*id).map(Vec::len) != Some(1)) {
        return Some(format!("an answer names {id:?}, the access log does not"));
    }
    let nameless = log.keys().filter(|id| id.parse::<Id>().is_err()).count();
    (nameless > told.len() + perhaps).then(|| format!("{nameless} lines without a request, {} are due", told.len()))
}

impl<'a> Play<'a> {
    fn begin(gateway: &'a Gateway, script: &'a Script) -> Self {
        let play = Self {
            gateway,
            script,
            engines: Engines::start(script),
            begun: AtomicUsize::new(0),
            happened: Mutex::new(0),
        };
        play.write(&(0..ENGINES).collect::<Vec<_>>(), "");
        play
    }

    fn file(&self) -> String {
        format!("seed-{}.yaml", self.script.seed)
    }

    /// Puts the seed's documents in place, with these engines and a further name for the model.
    fn write(&self, engines: &[usize], name: &str) {
        let seed = self.script.seed;
        let addresses: Vec<_> = engines.iter().map(|&engine| self.engines.addresses[engine]).collect();
        let set = format!("set-{seed}");
        let aliases = format!("{}{name}", called(seed, Name::Alias));
        let yaml = worker_set_at(&set, &model(seed), &aliases, &addresses) + &pool(&[&set], &[]);
        let yaml = yaml.replace("name: pool,", &format!("name: pool-{seed},"));
        // A new file under the old name, as editors do.
        let new = self.gateway.resource(&format!("{}.new", self.file()));
        fs::write(&new, yaml)
            .and_then(|()| fs::rename(&new, self.gateway.resource(&self.file())))
            .expect("a folder of ours");
    }

    /// All connections at once.
    fn play(&self) -> Vec<Vec<Seen>> {
        let (address, seed) = (self.gateway.address, self.script.seed);
        std::thread::scope(|scope| {
            let connections = self.script.connections.iter().enumerate();
            let threads: Vec<_> = connections
                .map(|(number, connection)| {
                    scope.spawn(move || play(address, seed, number, connection, || self.begins()))
                })
                .collect();
            threads.into_iter().map(|thread| thread.join().expect("clients write down what they see")).collect()
        })
    }

    /// A request begins; what is to happen now, happens.
    fn begins(&self) {
        let begun = self.begun.fetch_add(1, Ordering::SeqCst) + 1;
        if self.script.events.iter().any(|event| event.after <= begun) {
            let mut happened = self.happened.lock().unwrap_or_else(PoisonError::into_inner);
            while let Some(event) = self.script.events.get(*happened).filter(|event| event.after <= begun) {
                self.happen(event);
                *happened += 1;
            }
        }
    }

    /// Makes it happen, and waits until the gateway knows where it is told.
    fn happen(&self, event: &Event) {
        let all: Vec<usize> = (0..ENGINES).collect();
        let seed = self.script.seed;
        match event.what {
            What::Reload => {
                let name = format!("other-{seed}");
                self.write(&all, &format!(", {name}"));
                eventually("the model has another name", || {
                    self.gateway.config()["pools"].to_string().contains(&name).then_some(())
                });
            }
            What::Remove(gone) => {
                let left: Vec<usize> = all.into_iter().filter(|engine| *engine != gone).collect();
                self.write(&left, "");
                eventually("the endpoint is gone", || (self.known() < ENGINES).then_some(()));
            }
            What::Restore => {
                self.write(&all, "");
                eventually("the endpoint is back", || (self.known() == ENGINES).then_some(()));
            }
            What::Sicken(engine) => self.engines.sicken(engine),
            What::Refuse(engine) => self.engines.refuse(engine),
            What::Bar(engine) => self.engines.bar(engine),
        }
    }

    /// Endpoints of the seed that the gateway knows.
    fn known(&self) -> usize {
        let set = format!("set-{}", self.script.seed);
        endpoints(self.gateway).iter().filter(|endpoint| endpoint["destination"] == set.as_str()).count()
    }

    /// Takes its documents away.
    fn end(&self) {
        self.engines.book.close();
        fs::remove_file(self.gateway.resource(&self.file())).expect("it was written");
    }
}
