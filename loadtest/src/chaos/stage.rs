//! The stage of a scenario: engines, the proxy before them, and what to say to it.

use std::{
    fmt, io,
    net::SocketAddr,
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, Instant},
};

use engine::{
    Engine, Outcome, RequestRecord, Settings,
    fault::{self, Rule},
    step::{Parameters, StepCost},
};

use super::{
    Plan,
    client::{Answer, Client, Ending},
    proxy::{Front, Proxy},
};

/// Engines of a scenario where the front does not say how many.
const ENGINES: usize = 2;
/// Requests sent at most until all engines have been reached.
const SETTLE_REQUESTS_MAX: u32 = 64;
/// Time between two looks at a condition.
const LOOK_AGAIN: Duration = Duration::from_millis(2);
/// Bytes of each request body that can be compared.
const BODY_KEPT_BYTES_MAX: usize = 1 << 20;

/// Why a scenario does not hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Miss {
    /// The proxy did wrong.
    Fail(String),
    /// It cannot be judged here.
    NotApplicable(String),
}

impl From<String> for Miss {
    fn from(why: String) -> Self {
        Self::Fail(why)
    }
}

/// What a scenario finds: a remark (mostly a measured value), or why it does not hold.
pub(crate) type Judged = Result<String, Miss>;

/// Fails the scenario unless this holds.
pub(crate) fn ensure(holds: impl Into<Option<bool>>, why: impl FnOnce() -> String) -> Result<(), Miss> {
    if holds.into() == Some(true) { Ok(()) } else { Err(Miss::Fail(why())) }
}

/// Fails the scenario with a text.
pub(crate) fn fail<T>(why: impl fmt::Display) -> Result<T, Miss> {
    Err(Miss::Fail(why.to_string()))
}

/// Looks until the condition holds; whether it did within `patience`, and after how long.
pub(crate) fn eventually(patience: Duration, mut condition: impl FnMut() -> bool) -> Option<Duration> {
    let start = Instant::now();
    loop {
        if condition() {
            return Some(start.elapsed());
        }
        if start.elapsed() > patience {
            return None;
        }
        std::thread::sleep(LOOK_AGAIN);
    }
}

/// Which engines.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Which {
    All,
    One(usize),
}

/// Engines, and the proxy before them.
pub(crate) struct Stage<'a> {
    pub(crate) plan: &'a Plan,
    proxy: Proxy,
    engines: Vec<Engine>,
    /// Those of them that have been killed.
    dead: Vec<usize>,
    base_path: &'a str,
    /// Number of the last request of each engine that is not the scenario's.
    seen_before: Vec<u64>,
    prompts: AtomicU64,
}

/// Starts the engines of a run, or of one scenario.
pub(crate) fn start_engines(plan: &Plan) -> io::Result<Vec<Engine>> {
    match &plan.front {
        Front::Running { engines, .. } => engines.iter().map(|addr| start_engine(plan, *addr)).collect(),
        Front::Command(_) | Front::Embedded(_) => {
            (0..ENGINES).map(|_| start_engine(plan, SocketAddr::from(([127, 0, 0, 1], 0)))).collect()
        }
    }
}

/// An engine that makes a token every 2 ms for each of its requests: fast, and yet slow enough to leave in between.
fn start_engine(plan: &Plan, listen: SocketAddr) -> io::Result<Engine> {
    let cost = StepCost { base_us: 2000.0, ..StepCost::NONE };
    Engine::start(Settings {
        listen,
        models: vec![plan.model.clone()],
        parameters: Parameters { cost, ..Parameters::default() },
        body_kept_bytes_max: BODY_KEPT_BYTES_MAX,
        ..Settings::default()
    })
}

impl<'a> Stage<'a> {
    /// Puts the proxy before the engines and waits until it reaches them all.
    pub(crate) fn set(plan: &'a Plan, engines: Vec<Engine>) -> io::Result<Self> {
        let addrs: Vec<SocketAddr> = engines.iter().map(Engine::addr).collect();
        let proxy = Proxy::start(&plan.front, &addrs, &plan.ready_path, plan.output)?;
        let base_path = match &plan.front {
            Front::Running { base_path, .. } => base_path.as_str(),
            Front::Command(_) | Front::Embedded(_) => "",
        };
        let seen_before = vec![0; engines.len()];
        let mut stage =
            Self { plan, proxy, engines, dead: Vec::new(), base_path, seen_before, prompts: AtomicU64::new(0) };
        stage.forget();
        stage.settle();
        stage.forget();
        Ok(stage)
    }

    /// Sends requests until every engine has had one, so that a scenario begins with what the proxy knows of both. A
    /// proxy that does not get there is judged by the scenarios.
    fn settle(&self) {
        let deadline = Instant::now() + self.plan.patience;
        let mut answered = 0;
        while answered < SETTLE_REQUESTS_MAX && Instant::now() < deadline {
            if (0..self.engines.len()).all(|engine| !self.asked(engine).is_empty()) {
                return;
            }
            match self.chat("", &self.whole(1)) {
                Ok(answer) if answer.status == 200 => answered += 1,
                // It knows its models, and not yet its engines.
                Ok(_) => std::thread::sleep(LOOK_AGAIN),
                Err(_) => return,
            }
        }
    }

    /// Takes the proxy away and gives the engines back, all alive and without faults.
    pub(crate) fn strike(mut self) -> io::Result<Vec<Engine>> {
        self.repair();
        while let Some(engine) = self.dead.last() {
            self.revive(*engine)?;
        }
        Ok(self.engines)
    }

    fn last_number(&self, engine: usize) -> u64 {
        self.engines[engine].requests().last().map_or(0, |record| record.number)
    }

    // ---- engines ----

    /// Standing faults from now on, in the text form of [`engine::fault`].
    pub(crate) fn fault(&self, which: Which, faults: &str) -> Result<(), Miss> {
        let faults = fault::parse_list(faults).map_err(|error| Miss::Fail(error.to_string()))?;
        let rule = Rule { faults, path: None, requests: None };
        match which {
            Which::All => self.engines.iter().for_each(|engine| engine.rule(rule.clone())),
            Which::One(engine) => self.engines[engine].rule(rule),
        }
        Ok(())
    }

    /// Ends all faults.
    pub(crate) fn repair(&self) {
        self.engines.iter().for_each(|engine| engine.rule(Rule::default()));
    }

    /// Stops an engine as if it had been killed.
    pub(crate) fn kill(&mut self, engine: usize) {
        self.engines[engine].stop();
        self.dead.push(engine);
    }

    /// Starts a killed engine again on its address, as a new process that has seen nothing.
    pub(crate) fn revive(&mut self, engine: usize) -> io::Result<()> {
        self.engines[engine] = start_engine(self.plan, self.engines[engine].addr())?;
        self.seen_before[engine] = 0;
        self.dead.retain(|dead| *dead != engine);
        Ok(())
    }

    /// The scenario's requests that have reached this engine: POSTs, and whatever goes to a path that starts with
    /// `/chaos`, but not the proxy's own health checks.
    pub(crate) fn asked(&self, engine: usize) -> Vec<RequestRecord> {
        // Some proxies have every engine count a prompt's tokens before they choose one: no request of the client's.
        let counts = |path: &str| path == "/tokenize" || path.ends_with("/render");
        let ours = |record: &RequestRecord| {
            record.number > self.seen_before[engine]
                && (record.method == "POST" || record.path.starts_with("/chaos"))
                && !counts(&record.path)
        };
        self.engines[engine].requests().into_iter().filter(ours).collect()
    }

    /// The scenario's requests that have reached any engine.
    pub(crate) fn asked_any(&self) -> Vec<RequestRecord> {
        (0..self.engines.len()).flat_map(|engine| self.asked(engine)).collect()
    }

    /// How many of the scenario's requests each engine has answered in full.
    pub(crate) fn shares(&self) -> Vec<usize> {
        let answered = |engine| self.asked(engine).iter().filter(|record| record.outcome == Outcome::Completed).count();
        (0..self.engines.len()).map(answered).collect()
    }

    /// Requests counted as over from here.
    pub(crate) fn forget(&mut self) {
        for engine in 0..self.engines.len() {
            self.seen_before[engine] = self.last_number(engine);
        }
    }

    /// Requests that an engine is still busy with.
    pub(crate) fn in_progress(&self) -> usize {
        self.asked_any().iter().filter(|record| record.outcome == Outcome::InProgress).count()
    }

    // ---- requests ----

    /// A prompt unlike all before from its first byte on, so that no engine is preferred for its cache.
    pub(crate) fn prompt(&self) -> String {
        let number = self.prompts.fetch_add(1, Ordering::Relaxed);
        let mixed = number.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        format!("{mixed:016x} is number {number}; say hello to it.")
    }

    /// A chat request body with further fields, each beginning with a comma.
    pub(crate) fn body(&self, tokens: u32, more: &str) -> String {
        format!(
            r#"{{"model":"{}","messages":[{{"role":"user","content":"{}"}}],"max_tokens":{tokens}{more}}}"#,
            self.plan.model,
            self.prompt()
        )
    }

    /// Body of a chat that is not streamed.
    pub(crate) fn whole(&self, tokens: u32) -> String {
        self.body(tokens, "")
    }

    /// Body of a streamed chat.
    pub(crate) fn stream(&self, tokens: u32) -> String {
        self.body(tokens, r#","stream":true"#)
    }

    /// A request head; `headers` are whole lines.
    pub(crate) fn head(&self, method: &str, path: &str, headers: &str) -> String {
        format!("{method} {}{path} HTTP/1.1\r\nhost: {}\r\n{headers}\r\n", self.base_path, self.proxy.addr)
    }

    /// A whole POST request with a content length; `headers` are whole lines.
    pub(crate) fn post(&self, path: &str, headers: &str, body: &[u8]) -> Vec<u8> {
        let headers = format!("content-type: application/json\r\n{headers}content-length: {}\r\n", body.len());
        let mut request = self.head("POST", path, &headers).into_bytes();
        request.extend_from_slice(body);
        request
    }

    /// A whole chat request; `headers` are whole lines.
    pub(crate) fn chat_request(&self, headers: &str, body: &str) -> Vec<u8> {
        self.post(CHAT, headers, body.as_bytes())
    }

    /// A connection to the proxy.
    pub(crate) fn client(&self) -> Result<Client, Miss> {
        Client::connect(self.proxy.addr, self.plan.patience)
            .map_err(|error| Miss::Fail(format!("no connection to the proxy: {error}")))
    }

    /// Sends bytes on a connection of their own and takes one answer.
    pub(crate) fn ask(&self, request: &[u8]) -> Result<Answer, Miss> {
        let mut client = self.client()?;
        // A proxy that refuses early may close while we send; its answer is what counts.
        let sent = client.send(request);
        client.answer().map_err(|trouble| match sent {
            Ok(()) => Miss::Fail(trouble.to_string()),
            Err(error) => Miss::Fail(format!("{trouble}; sending failed: {error}")),
        })
    }

    /// A chat on a connection of its own.
    pub(crate) fn chat(&self, headers: &str, body: &str) -> Result<Answer, Miss> {
        self.ask(&self.chat_request(headers, body))
    }

    /// A chat that has begun to stream or is on its way: the connection, with the request sent.
    pub(crate) fn begin(&self, headers: &str, body: &str) -> Result<Client, Miss> {
        let mut client = self.client()?;
        client
            .send(&self.chat_request(headers, body))
            .map_err(|error| Miss::Fail(format!("sending failed: {error}")))?;
        Ok(client)
    }

    /// The same request sent to an engine without the proxy: what a transparent proxy must give.
    pub(crate) fn direct(&self, engine: usize, request: &[u8]) -> Result<Answer, Miss> {
        let wrong = |what: &dyn fmt::Display| Miss::Fail(format!("the engine itself: {what}"));
        let mut client =
            Client::connect(self.engines[engine].addr(), self.plan.patience).map_err(|error| wrong(&error))?;
        client.send(request).map_err(|error| wrong(&error))?;
        client.answer().map_err(|trouble| wrong(&trouble))
    }

    /// Sends these chats all at once, each on a connection of its own; answers in order, with the time each took.
    pub(crate) fn burst(&self, bodies: &[String]) -> Vec<Result<(Answer, Duration), Miss>> {
        std::thread::scope(|scope| {
            let ask = |body: &String| {
                let start = Instant::now();
                self.chat("", body).map(|answer| (answer, start.elapsed()))
            };
            let threads: Vec<_> = bodies.iter().map(|body| scope.spawn(move || ask(body))).collect();
            let gone = |_| fail("a client of ours ended early");
            threads.into_iter().map(|thread| thread.join().unwrap_or_else(gone)).collect()
        })
    }
}

/// Path of chats.
pub(crate) const CHAT: &str = "/v1/chat/completions";

/// A complete answer with status 200.
pub(crate) fn expect_ok(answer: &Answer) -> Result<(), Miss> {
    ensure(answer.status == 200 && answer.ending == Ending::Complete, || {
        format!("expected 200, got {}", answer.brief())
    })
}

/// A complete unstreamed chat of so many tokens.
pub(crate) fn expect_chat(answer: &Answer, tokens: u32) -> Result<(), Miss> {
    expect_ok(answer)?;
    ensure(answer.json()["usage"]["completion_tokens"] == tokens, || format!("not a right chat: {}", answer.brief()))
}

/// A complete stream that ends with `[DONE]`.
pub(crate) fn expect_stream(answer: &Answer) -> Result<(), Miss> {
    expect_ok(answer)?;
    let last = answer.events().pop();
    ensure(last.as_deref() == Some("[DONE]"), || format!("the stream does not end with [DONE] but {last:?}"))
}

/// Where two texts part, for a report.
pub(crate) fn difference(expected: &str, found: &str) -> String {
    let at = expected.bytes().zip(found.bytes()).take_while(|(one, two)| one == two).count();
    let part = |text: &str| String::from_utf8_lossy(&text.as_bytes()[at..text.len().min(at + 50)]).into_owned();
    format!("at byte {at} {:?} instead of {:?}", part(found), part(expected))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differences_are_shown_where_they_begin() {
        assert_eq!(difference("data: a\n", "data: b\n"), r#"at byte 6 "b\n" instead of "a\n""#);
        assert_eq!(difference("ab", "a"), r#"at byte 1 "" instead of "b""#);
    }
}
