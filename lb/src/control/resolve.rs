//! Host names: one task each asks the system's resolver every 30 s and tells when the answer changes.

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use super::journal;
use super::registry::Addresses;

/// Between two look-ups of a name.
const EVERY: Duration = Duration::from_secs(30);
/// Between two look-ups of a name that was never found.
const EVERY_UNKNOWN: Duration = Duration::from_secs(2);
/// A look-up that takes longer has failed.
const WITHIN: Duration = Duration::from_secs(5);
/// Most addresses of one name that are used.
const ADDRESSES_MAX: usize = 256;
/// Answers that wait for the loop.
const ANSWERS_MAX: usize = 64;

/// What a look-up gave.
#[derive(Debug)]
pub(crate) struct Found {
    host: String,
    result: Result<Vec<IpAddr>, String>,
}

/// The names in use and their addresses.
#[derive(Debug)]
pub(crate) struct Resolver {
    tasks: HashMap<String, JoinHandle<()>>,
    addresses: Addresses,
    errors: HashMap<String, String>,
    answers: mpsc::Sender<Found>,
}

impl Resolver {
    /// No names yet, and where answers come out.
    pub(crate) fn new() -> (Self, mpsc::Receiver<Found>) {
        let (answers, receiver) = mpsc::channel(ANSWERS_MAX);
        (Self { tasks: HashMap::new(), addresses: Addresses::new(), errors: HashMap::new(), answers }, receiver)
    }

    /// These names and no others are to be known.
    pub(crate) fn want(&mut self, hosts: HashSet<String>) {
        self.tasks.retain(|host, task| {
            let wanted = hosts.contains(host);
            if !wanted {
                task.abort();
            }
            wanted
        });
        self.addresses.retain(|host, _| hosts.contains(host));
        self.errors.retain(|host, _| hosts.contains(host));
        for host in hosts {
            if !self.tasks.contains_key(&host) {
                let task = tokio::spawn(look_up_again_and_again(host.clone(), self.answers.clone()));
                self.tasks.insert(host, task);
            }
        }
    }

    /// Takes in an answer; true when addresses have changed. A name that cannot be resolved any more keeps the ones it had.
    pub(crate) fn take(&mut self, found: Found) -> bool {
        let Found { host, result } = found;
        if !self.tasks.contains_key(&host) {
            return false;
        }
        match result {
            Ok(addresses) => {
                if self.errors.remove(&host).is_some() {
                    journal::info("host name resolves again", &[("host", &host)]);
                }
                let changed = self.addresses.get(&host) != Some(&addresses);
                self.addresses.insert(host, addresses);
                changed
            }
            Err(why) => {
                if self.errors.get(&host) != Some(&why) {
                    journal::warn("host name cannot be resolved", &[("host", &host), ("why", &why)]);
                    self.errors.insert(host, why);
                }
                false
            }
        }
    }

    /// What is known.
    pub(crate) fn addresses(&self) -> &Addresses {
        &self.addresses
    }

    /// Names that cannot be resolved, and why, in order.
    pub(crate) fn errors(&self) -> Vec<(String, String)> {
        let mut errors: Vec<_> = self.errors.iter().map(|(host, why)| (host.clone(), why.clone())).collect();
        errors.sort_unstable();
        errors
    }
}

async fn look_up_again_and_again(host: String, answers: mpsc::Sender<Found>) {
    let mut pause = EVERY_UNKNOWN;
    // Ends when it is aborted or nobody listens.
    loop {
        let result = look_up(&host).await;
        if result.is_ok() {
            pause = EVERY;
        }
        if answers.send(Found { host: host.clone(), result }).await.is_err() {
            return;
        }
        sleep(pause).await;
    }
}

/// The addresses of a name, sorted: resolvers shuffle them.
async fn look_up(host: &str) -> Result<Vec<IpAddr>, String> {
    let found = timeout(WITHIN, tokio::net::lookup_host((host, 0))).await;
    let found =
        found.map_err(|_| format!("no answer within {} s", WITHIN.as_secs()))?.map_err(|error| error.to_string())?;
    let mut addresses: Vec<IpAddr> = found.map(|address| address.ip()).collect();
    addresses.sort_unstable();
    addresses.dedup();
    addresses.truncate(ADDRESSES_MAX);
    if addresses.is_empty() { Err(String::from("the name has no address")) } else { Ok(addresses) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(host: &str, result: Result<&str, &str>) -> Found {
        Found { host: host.into(), result: result.map(|ip| vec![ip.parse().unwrap()]).map_err(String::from) }
    }

    #[tokio::test]
    async fn a_name_that_no_longer_resolves_keeps_its_addresses() {
        let (mut resolver, _answers) = Resolver::new();
        resolver.want(HashSet::from(["a".into()]));
        assert!(resolver.take(found("a", Ok("10.0.0.1"))));
        assert!(!resolver.take(found("a", Ok("10.0.0.1"))));
        assert!(!resolver.take(found("a", Err("gone"))));
        assert_eq!(resolver.addresses()["a"], ["10.0.0.1".parse::<IpAddr>().unwrap()]);
        assert_eq!(resolver.errors(), [("a".into(), "gone".into())]);
        assert!(resolver.take(found("a", Ok("10.0.0.2"))));
        assert!(resolver.errors().is_empty());
    }

    #[tokio::test]
    async fn answers_about_names_no_longer_wanted_are_passed_over() {
        let (mut resolver, _answers) = Resolver::new();
        resolver.want(HashSet::from(["a".into()]));
        resolver.take(found("a", Ok("10.0.0.1")));
        resolver.want(HashSet::from(["b".into()]));
        assert!(resolver.addresses().is_empty());
        assert!(!resolver.take(found("a", Ok("10.0.0.1"))));
    }

    #[tokio::test]
    async fn localhost_is_found() {
        let (mut resolver, mut answers) = Resolver::new();
        resolver.want(HashSet::from(["localhost".into()]));
        let answer = answers.recv().await.unwrap();
        assert!(resolver.take(answer));
        assert!(resolver.addresses()["localhost"].iter().all(IpAddr::is_loopback));
    }
}
