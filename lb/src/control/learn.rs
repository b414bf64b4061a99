//! Without a file: servers given as URLs say themselves what they serve.
//!
//! Each server is asked for its `/v1/models` again and again. Servers with the same list become one worker set, all of
//! them one pool; what comes out are documents like those a person would write, lowered by the same code.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use config::Snapshot;
use config::snapshot::StaticEndpoint;
use policy::Diagnostic;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::time::sleep;

use super::fetch::{Fetcher, Origin};
use super::journal;
use super::models::{self, Listed};
use super::source::{self, SourceEvent};

/// Most servers that can be given.
pub(crate) const SERVERS_MAX: usize = 256;

/// First pause between questions to a server that has not answered yet; doubles.
const UNKNOWN_MIN: Duration = Duration::from_millis(250);
/// Longest pause, and the pause once it has answered.
const EVERY: Duration = Duration::from_secs(5);
/// A server that takes longer is asked again later.
const WITHIN: Duration = Duration::from_secs(2);
/// Answers that wait to be looked at.
const ANSWERS_MAX: usize = 64;

/// Reads `http://host[:port][/]`.
///
/// # Errors
/// What is wrong with it and what it should look like.
pub(crate) fn parse_url(url: &str) -> Result<StaticEndpoint, String> {
    let wrong = |why: &str| Err(format!("{url}: {why}; expected http://HOST:PORT, for example http://10.0.0.5:8000"));
    let Some(rest) = url.strip_prefix("http://") else {
        return if url.starts_with("https://") {
            wrong("https to servers is not supported by this version")
        } else {
            wrong("not an http URL")
        };
    };
    let authority = rest.strip_suffix("/v1").or_else(|| rest.strip_suffix("/v1/")).unwrap_or(rest);
    let authority = authority.strip_suffix('/').unwrap_or(authority);
    if authority.contains(['/', '?', '#', '@']) {
        return wrong("only a host and a port may be given");
    }
    let (host, port) = match authority.rsplit_once(':') {
        Some((host, port)) if !port.ends_with(']') => match port.parse() {
            Ok(port) if port != 0 => (host, port),
            Ok(_) | Err(_) => return wrong("not a port"),
        },
        Some(_) | None => (authority, 80),
    };
    let bracketed = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    match (bracketed, host) {
        (Some(v6), _) if v6.parse::<std::net::Ipv6Addr>().is_ok() => Ok(StaticEndpoint { host: v6.to_owned(), port }),
        (Some(_), _) => wrong("not an IPv6 address"),
        (None, "") => wrong("no host"),
        // It goes into the `Host` header.
        (None, host) if config::url::check_host(host).is_err() || host.contains(':') => wrong("not a host name"),
        (None, host) => Ok(StaticEndpoint { host: host.to_owned(), port }),
    }
}

/// Asks the servers until the process ends; sends a snapshot whenever what they serve has changed.
pub(crate) async fn run(servers: Vec<StaticEndpoint>, snapshots: mpsc::Sender<SourceEvent>) {
    let (answers, mut answered) = mpsc::channel(ANSWERS_MAX);
    for (index, server) in servers.iter().enumerate() {
        tokio::spawn(ask(index, server.clone(), answers.clone()));
    }
    drop(answers);
    let mut known: Vec<Option<Vec<Listed>>> = vec![None; servers.len()];
    let mut generation = 0;
    while let Some((index, listed)) = answered.recv().await {
        known[index] = Some(listed);
        // What came at the same time is one change. Bounded by the number of servers, each of which then waits.
        while let Ok((index, listed)) = answered.try_recv() {
            known[index] = Some(listed);
        }
        let serving: Vec<(&StaticEndpoint, &[Listed])> =
            servers.iter().zip(&known).filter_map(|(server, listed)| Some((server, listed.as_deref()?))).collect();
        generation += 1;
        let event = match lowered(&serving).1 {
            Ok(mut snapshot) => {
                snapshot.generation = generation;
                SourceEvent::Snapshot(Arc::new(snapshot))
            }
            Err(diagnostics) => SourceEvent::Refused(diagnostics),
        };
        if snapshots.send(event).await.is_err() {
            return;
        }
    }
}

/// Sends the list of one server whenever it is another than before.
async fn ask(index: usize, server: StaticEndpoint, answers: mpsc::Sender<(usize, Vec<Listed>)>) {
    let mut known: Option<Vec<Listed>> = None;
    let mut pause = UNKNOWN_MIN;
    let mut told = String::new();
    // Ends when nobody listens.
    loop {
        match question(&server).await {
            Ok(listed) if listed.iter().all(|model| model.parent.is_some()) => {
                tell_once(&mut told, &server, "it serves no model");
            }
            Ok(listed) => {
                told.clear();
                pause = EVERY;
                if known.as_ref() != Some(&listed) {
                    let names: Vec<&str> = listed.iter().map(|model| model.id.as_str()).collect();
                    journal::info("server serves", &[("server", &server), ("models", &names.join(","))]);
                    known = Some(listed.clone());
                    if answers.send((index, listed)).await.is_err() {
                        return;
                    }
                }
            }
            // Once it is known, its health says the same.
            Err(why) if known.is_none() => tell_once(&mut told, &server, &why),
            Err(_) => {}
        }
        sleep(pause).await;
        pause = (pause * 2).min(EVERY);
    }
}

fn tell_once(told: &mut String, server: &StaticEndpoint, why: &str) {
    if told != why {
        why.clone_into(told);
        journal::warn("server cannot be asked what it serves", &[("server", server), ("why", &why)]);
    }
}

async fn question(server: &StaticEndpoint) -> Result<Vec<Listed>, String> {
    let found = tokio::time::timeout(WITHIN, tokio::net::lookup_host((server.host.as_str(), server.port))).await;
    let found =
        found.map_err(|_| String::from("its name does not resolve in time"))?.map_err(|error| error.to_string())?;
    let all: Vec<_> = found.collect();
    let address = all.iter().find(|address| address.is_ipv4()).or(all.first()).ok_or("its name has no address")?;
    let origin = Origin { address: *address, host: server.to_string(), credential: None, proof: None };
    let answer = Fetcher::new(origin).get("/v1/models", WITHIN).await.map_err(|error| error.to_string())?;
    if answer.status == 200 {
        models::list(&answer.body)
    } else {
        Err(format!("/v1/models answers with status {}", answer.status))
    }
}

/// What the documents made of these lists come to, and their text.
pub(super) fn lowered(servers: &[(&StaticEndpoint, &[Listed])]) -> (String, Result<Snapshot, Vec<Diagnostic>>) {
    let text = documents(servers);
    let snapshot = source::lower_text("servers on the command line", &text);
    (text, snapshot)
}

/// The documents: one worker set for each different list, one pool over all.
fn documents(servers: &[(&StaticEndpoint, &[Listed])]) -> String {
    let mut sets: Vec<(&[Listed], Vec<&StaticEndpoint>)> = Vec::new();
    for (server, listed) in servers {
        match sets.iter_mut().find(|(other, _)| other == listed) {
            Some((_, members)) => members.push(server),
            None => sets.push((listed, vec![server])),
        }
    }
    let mut taken: BTreeMap<String, usize> = BTreeMap::new();
    let mut documents: Vec<Value> = Vec::with_capacity(sets.len() + 1);
    let mut destinations = Vec::with_capacity(sets.len());
    for (listed, members) in sets {
        let Some(first) = listed.iter().find(|model| model.parent.is_none()) else { continue };
        let name = resource_name(&first.id, &mut taken);
        destinations.push(json!({ "kind": "InferenceWorkerSet", "name": name }));
        documents.push(json!({
            "apiVersion": crds::API_VERSION,
            "kind": "InferenceWorkerSet",
            "metadata": { "name": name },
            "spec": worker_set(first, listed, &members),
        }));
    }
    if !destinations.is_empty() {
        documents.push(json!({
            "apiVersion": crds::API_VERSION,
            "kind": "InferencePool",
            "metadata": { "name": "all" },
            "spec": { "destinations": destinations },
        }));
    }
    // JSON is YAML (YAML 1.2.2, section 1.2).
    documents.iter().map(|document| format!("---\n{document}\n")).collect()
}

fn worker_set(first: &Listed, listed: &[Listed], members: &[&StaticEndpoint]) -> Value {
    let others =
        |of_base: fn(&Listed) -> bool| listed.iter().filter(move |model| of_base(model) && model.id != first.id);
    let aliases: Vec<&str> = others(|model| model.parent.is_none()).map(|model| model.id.as_str()).collect();
    let adapters: Vec<Value> =
        others(|model| model.parent.is_some()).map(|model| json!({ "name": model.id })).collect();
    let mut model = json!({ "name": first.id, "aliases": aliases });
    if let Some(tokens) = first.max_model_len.filter(|&tokens| tokens > 0) {
        model["contextWindow"] = json!(tokens);
    }
    let endpoints: Vec<Value> =
        members.iter().map(|server| json!({ "address": server.host, "port": server.port })).collect();
    json!({ "model": model, "adapters": adapters, "endpoints": endpoints })
}

/// A resource name (RFC 1123 label) after a model's: `google/gemma-4-31b-it` gives `google-gemma-4-31b-it`.
fn resource_name(model: &str, taken: &mut BTreeMap<String, usize>) -> String {
    let mut name: String =
        model.chars().take(50).map(|c| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' }).collect();
    name = name.trim_matches('-').to_owned();
    if name.is_empty() {
        name.push_str("model");
    }
    let count = taken.entry(name.clone()).or_default();
    *count += 1;
    if *count == 1 { name } else { format!("{name}-{count}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn endpoint(host: &str, port: u16) -> StaticEndpoint {
        StaticEndpoint { host: host.into(), port }
    }

    fn listed(id: &str, parent: Option<&str>) -> Listed {
        Listed { id: id.into(), parent: parent.map(String::from), max_model_len: Some(4096) }
    }

    #[test]
    fn urls_are_a_host_and_a_port() {
        for (url, host, port) in [
            ("http://10.0.0.5:8000", "10.0.0.5", 8000),
            ("http://gpu7.lan", "gpu7.lan", 80),
            ("http://gpu7.lan:8000/v1/", "gpu7.lan", 8000),
            ("http://[::1]:8000/", "::1", 8000),
            ("http://[::1]", "::1", 80),
        ] {
            assert_eq!(parse_url(url), Ok(endpoint(host, port)), "{url}");
        }
        for url in [
            "",
            "10.0.0.5:8000",
            "https://a",
            "http://",
            "http://a:0",
            "http://a:x",
            "http://a/b",
            "http://u@a",
            "http://::1",
            "http://a b",
            "http://a\r\nx: y",
            "http://a\0",
        ] {
            let error = parse_url(url).unwrap_err();
            assert!(error.contains("expected http://HOST:PORT"), "{url}: {error}");
        }
    }

    #[test]
    fn servers_with_the_same_list_are_one_worker_set() {
        let (a, b, c) = (endpoint("a", 1), endpoint("b", 2), endpoint("c", 3));
        let gemma = [listed("google/Gemma", None), listed("gemma", None), listed("sql", Some("google/Gemma"))];
        let other = [listed("google/gemma", None)];
        let text = documents(&[(&a, &gemma), (&b, &gemma), (&c, &other)]);
        let documents: Vec<Value> =
            text.split("---\n").filter(|d| !d.is_empty()).map(|d| serde_json::from_str(d).unwrap()).collect();
        assert_eq!(documents.len(), 3);
        assert_eq!(documents[0]["metadata"]["name"], "google-gemma");
        assert_eq!(
            documents[0]["spec"]["model"],
            json!({"name": "google/Gemma", "aliases": ["gemma"], "contextWindow": 4096})
        );
        assert_eq!(documents[0]["spec"]["adapters"], json!([{"name": "sql"}]));
        assert_eq!(
            documents[0]["spec"]["endpoints"],
            json!([{"address": "a", "port": 1}, {"address": "b", "port": 2}])
        );
        assert_eq!(documents[1]["metadata"]["name"], "google-gemma-2");
        assert_eq!(documents[2]["spec"]["destinations"].as_array().unwrap().len(), 2);
    }
}
