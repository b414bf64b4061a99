//! The mock server on real sockets: the answers of vLLM, and each fault as it arrives at a client.
#![allow(clippy::unwrap_used, reason = "a test may fail by panic")]

use std::{
    io::{ErrorKind, Read, Write},
    net::{Shutdown, TcpStream},
    time::{Duration, Instant},
};

use engine::{
    Embeddings, Engine, Outcome, Settings,
    fault::{Rule, parse_list},
    openai::{Api, Call, Served, parse_call},
    step::{Parameters, StepCost},
};
use serde_json::Value;

const PATIENCE: Duration = Duration::from_secs(180);

fn start(settings: Settings) -> Engine {
    Engine::start(Settings { models: vec!["tiny".to_owned()], ..settings }).expect("loopback has a free port")
}

fn instant() -> Engine {
    start(Settings::instant())
}

/// An engine that needs 50 ms for each token.
fn slow() -> Engine {
    let cost = StepCost { base_us: 50_000.0, ..StepCost::NONE };
    start(Settings { parameters: Parameters { cost, ..Parameters::default() }, ..Settings::default() })
}

fn connect(engine: &Engine) -> TcpStream {
    let stream = TcpStream::connect(engine.addr()).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

fn post(path: &str, headers: &str, body: &str) -> String {
    format!("POST {path} HTTP/1.1\r\nHost: engine\r\n{headers}Content-Length: {}\r\n\r\n{body}", body.len())
}

fn chat_body(more: &str) -> String {
    format!(r#"{{"model":"tiny","messages":[{{"role":"user","content":"Say hello."}}],"max_tokens":40{more}}}"#)
}

fn stream_body() -> String {
    chat_body(r#","stream":true,"stream_options":{"include_usage":true}"#)
}

fn call(body: &str) -> Call {
    let served = Served { models: &["tiny".to_owned()], model_tokens_max: 131_072 };
    parse_call(Api::Chat, body.as_bytes(), served).unwrap()
}

#[derive(Debug, PartialEq, Eq)]
enum Ending {
    Closed,
    Reset,
}

#[derive(Debug)]
struct Received {
    head: String,
    body: Vec<u8>,
    ending: Ending,
}

impl Received {
    fn status(&self) -> u16 {
        self.head.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0)
    }

    fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap()
    }

    /// The chunked body's chunks, and whether the last one came.
    fn chunks(&self) -> (Vec<Vec<u8>>, bool) {
        let mut chunks = Vec::new();
        let mut rest = &self.body[..];
        while let Ok(httparse::Status::Complete((line, size))) = httparse::parse_chunk_size(rest) {
            let size = size as usize;
            if size == 0 {
                return (chunks, &rest[line..] == b"\r\n");
            }
            if rest.len() < line + size + 2 {
                break;
            }
            chunks.push(rest[line..line + size].to_vec());
            rest = &rest[line + size + 2..];
        }
        (chunks, false)
    }

    fn events(&self) -> Vec<String> {
        let text = String::from_utf8(self.chunks().0.concat()).unwrap().replace("\r\n", "\n");
        text.split_terminator("\n\n")
            .map(|event| event.strip_prefix("data:").unwrap().trim_start().to_owned())
            .collect()
    }

    /// Text of all events of a chat.
    fn text(&self) -> String {
        let events = self.events();
        let json = events.iter().filter_map(|event| serde_json::from_str::<Value>(event).ok());
        json.map(|event| event["choices"][0]["delta"]["content"].as_str().unwrap_or_default().to_owned()).collect()
    }
}

/// Reads until the connection ends.
fn read_to_end(mut stream: TcpStream) -> Received {
    let mut bytes = Vec::new();
    let ending = match stream.read_to_end(&mut bytes) {
        Ok(_) => Ending::Closed,
        Err(error) if error.kind() == ErrorKind::ConnectionReset => Ending::Reset,
        Err(error) => panic!("{error}"),
    };
    let head_bytes = bytes.windows(4).position(|window| window == b"\r\n\r\n").map_or(bytes.len(), |at| at + 4);
    let body = bytes.split_off(head_bytes);
    Received { head: String::from_utf8(bytes).unwrap(), body, ending }
}

fn exchange(engine: &Engine, request: &str) -> Received {
    let mut stream = connect(engine);
    stream.write_all(request.as_bytes()).unwrap();
    read_to_end(stream)
}

fn chat(engine: &Engine, headers: &str, body: &str) -> Received {
    exchange(engine, &post("/v1/chat/completions", &format!("Connection: close\r\n{headers}"), body))
}

fn with_fault(engine: &Engine, fault: &str) -> Received {
    chat(engine, &format!("x-fault: {fault}\r\n"), &stream_body())
}

fn get(engine: &Engine, path: &str) -> Received {
    exchange(engine, &format!("GET {path} HTTP/1.1\r\nHost: engine\r\nConnection: close\r\n\r\n"))
}

#[test]
fn streamed_and_whole_answers_have_the_same_text() {
    let engine = instant();
    let streamed = chat(&engine, "", &stream_body());
    let whole = chat(&engine, "", &chat_body(""));
    let expected = call(&chat_body("")).answer.text(40);
    assert_eq!(streamed.text(), expected);
    assert_eq!(whole.json()["choices"][0]["message"]["content"], expected.as_str());
    assert_eq!(whole.json()["usage"]["completion_tokens"], 40);
}

#[test]
fn a_stream_has_role_tokens_usage_and_done_each_in_a_chunk() {
    let engine = instant();
    let received = chat(&engine, "", &stream_body());
    assert!(received.head.contains("content-type: text/event-stream; charset=utf-8\r\n"), "{}", received.head);
    let (chunks, complete) = received.chunks();
    assert!(complete);
    assert_eq!(chunks.len(), 1 + 40 + 1 + 1);
    let events = received.events();
    let role: Value = serde_json::from_str(&events[0]).unwrap();
    assert_eq!(role["choices"][0]["delta"]["role"], "assistant");
    assert_eq!(role["choices"][0]["delta"]["content"], "");
    let last: Value = serde_json::from_str(&events[40]).unwrap();
    assert_eq!(last["choices"][0]["finish_reason"], "length");
    let usage: Value = serde_json::from_str(&events[41]).unwrap();
    assert_eq!(usage["choices"], Value::Array(Vec::new()));
    assert_eq!(usage["usage"]["completion_tokens"], 40);
    assert_eq!(events[42], "[DONE]");
}

#[test]
fn a_body_in_chunks_is_read_with_extensions_and_trailers_and_the_next_request_follows() {
    let engine = instant();
    let body = chat_body("");
    let (first, second) = body.split_at(20);
    let head = "POST /v1/chat/completions HTTP/1.1\r\nHost: engine\r\nTransfer-Encoding: chunked\r\n";
    let chunks = format!(
        "{:x};a=b\r\n{first}\r\n{:X}\r\n{second}\r\n00\r\nx-sum: 1\r\nx-more: 2\r\n\r\n",
        first.len(),
        second.len()
    );
    let mut stream = connect(&engine);
    let request = format!("{head}\r\n{chunks}{head}Connection: close\r\n\r\n{chunks}");
    stream.write_all(request.as_bytes()).unwrap();
    let mut answers = String::new();
    stream.read_to_string(&mut answers).unwrap();
    assert_eq!(answers.matches("HTTP/1.1 200 OK").count(), 2, "{answers}");
    let records = engine.requests();
    assert!(records.len() == 2 && records.iter().all(|record| record.body == body), "{records:?}");
}

#[test]
fn continuous_usage_counts_up_in_every_chunk() {
    let body = chat_body(r#","stream":true,"stream_options":{"include_usage":true,"continuous_usage_stats":true}"#);
    let events = chat(&instant(), "", &body).events();
    let counts = events.iter().filter_map(|event| serde_json::from_str::<Value>(event).ok());
    let counts: Vec<_> = counts.map(|event| event["usage"]["completion_tokens"].as_u64().unwrap()).collect();
    let expected: Vec<_> = (0..=40).chain([40]).collect();
    assert_eq!(counts, expected);
}

#[test]
fn metrics_show_what_runs_and_what_waits() {
    let cost = StepCost { base_us: 200_000.0, ..StepCost::NONE };
    let parameters = Parameters { running_max: 1, cost, ..Parameters::default() };
    let engine = start(Settings { parameters, ..Settings::default() });
    let clients: Vec<_> = (0..3)
        .map(|_| {
            let mut stream = connect(&engine);
            stream.write_all(post("/v1/chat/completions", "", &stream_body()).as_bytes()).unwrap();
            stream
        })
        .collect();
    engine.wait_until(PATIENCE, |stats| (stats.running, stats.waiting) == (1, 2)).unwrap();
    let page = String::from_utf8(get(&engine, "/metrics").body).unwrap();
    for line in [
        r#"vllm:num_requests_running{engine="0",model_name="tiny"} 1.0"#,
        r#"vllm:num_requests_waiting{engine="0",model_name="tiny"} 2.0"#,
    ] {
        assert!(page.contains(line), "{line} is missing in\n{page}");
    }
    drop(clients);
    engine.wait_until(PATIENCE, |stats| stats.aborted == 3 && stats.running + stats.waiting == 0).unwrap();
}

#[test]
fn the_head_comes_before_the_first_token() {
    let engine = instant();
    let mut stream = connect(&engine);
    let request = post("/v1/chat/completions", "x-fault: hang-mid-stream=0\r\n", &stream_body());
    stream.write_all(request.as_bytes()).unwrap();
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).unwrap();
        head.push(byte[0]);
    }
    assert!(head.starts_with(b"HTTP/1.1 200 OK\r\n"));
}

#[test]
fn completions_stream_text_and_take_token_ids() {
    let engine = instant();
    let body = r#"{"model":"tiny","prompt":[1,2,3],"max_tokens":3,"stream":true}"#;
    let received = exchange(&engine, &post("/v1/completions", "Connection: close\r\n", body));
    let events = received.events();
    assert_eq!(events.len(), 4);
    let first: Value = serde_json::from_str(&events[0]).unwrap();
    assert_eq!(first["object"], "text_completion");
    assert_eq!(first["choices"][0]["text"].as_str().unwrap().len(), 4);
    let record = engine.requests().pop().unwrap();
    assert_eq!(record.prompt_tokens, Some(3));
}

#[test]
fn a_repeated_prompt_is_reported_as_cached() {
    let engine = instant();
    let body = format!(
        r#"{{"model":"tiny","messages":[{{"role":"user","content":"{}"}}],"max_tokens":2}}"#,
        "cache me ".repeat(40)
    );
    let cached = |received: Received| received.json()["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64();
    assert_eq!(cached(chat(&engine, "", &body)), Some(0));
    assert_eq!(cached(chat(&engine, "", &body)), Some(80));
    let reset = exchange(&engine, &post("/reset_prefix_cache", "Connection: close\r\n", ""));
    assert_eq!(reset.status(), 200);
    assert_eq!(cached(chat(&engine, "", &body)), Some(0));
    assert_eq!(engine.stats().cached_tokens, 80);
}

#[test]
fn other_pages_are_those_of_vllm() {
    let engine = instant();
    assert_eq!((get(&engine, "/health").status(), get(&engine, "/health").body.len()), (200, 0));
    assert_eq!(get(&engine, "/v1/models").json()["data"][0]["id"], "tiny");
    assert_eq!(get(&engine, "/version").json()["version"], "0.32.0");
    let metrics = get(&engine, "/metrics");
    assert!(String::from_utf8(metrics.body).unwrap().contains("vllm:num_requests_running{engine=\"0\""));
    assert_eq!(get(&engine, "/nothing").json()["detail"], "Not Found");
    assert_eq!(get(&engine, "/v1/chat/completions").status(), 405);
    let tokens = exchange(&engine, &post("/tokenize", "Connection: close\r\n", r#"{"prompt":"Say hello."}"#)).json();
    assert_eq!(tokens["count"], 3);
    let body = format!(r#"{{"tokens":{}}}"#, tokens["tokens"]);
    let text = exchange(&engine, &post("/detokenize", "Connection: close\r\n", &body)).json();
    assert_eq!(text["prompt"], "Say hello.");
}

#[test]
fn embeddings_are_not_found_unless_served() {
    let request = post("/v1/embeddings", "Connection: close\r\n", r#"{"model":"tiny","input":"x"}"#);
    assert_eq!(exchange(&instant(), &request).status(), 404);
    let engine = start(Settings { embeddings: Embeddings::Served, ..Settings::instant() });
    let answer = exchange(&engine, &request).json();
    assert_eq!(answer["data"][0]["embedding"].as_array().map(Vec::len), Some(8));
}

#[test]
fn invalid_requests_are_refused_before_any_stream() {
    let engine = instant();
    assert_eq!(chat(&engine, "", r#"{"model":"nope","messages":[],"stream":true}"#).status(), 404);
    assert_eq!(chat(&engine, "", r#"{"model": "tiny", "#).status(), 400);
    assert_eq!(exchange(&engine, "nonsense\r\n\r\n").status(), 400);
}

#[test]
fn a_full_queue_answers_503() {
    let cost = StepCost { base_us: 200_000.0, ..StepCost::NONE };
    let parameters = Parameters { queued_max: Some(1), cost, ..Parameters::default() };
    let engine = start(Settings { parameters, ..Settings::default() });
    let mut first = connect(&engine);
    first.write_all(post("/v1/chat/completions", "", &stream_body()).as_bytes()).unwrap();
    engine.wait_until(PATIENCE, |stats| stats.running == 1).unwrap();
    let second = chat(&engine, "", &stream_body());
    assert_eq!((second.status(), second.json()["error"]["type"].as_str()), (503, Some("Service Unavailable")));
    assert_eq!(engine.stats().refused, 1);
}

#[test]
fn a_client_that_leaves_aborts_its_request() {
    for body in [stream_body(), chat_body("")] {
        let engine = slow();
        let mut stream = connect(&engine);
        stream.write_all(post("/v1/chat/completions", "", &body).as_bytes()).unwrap();
        engine.wait_until(PATIENCE, |stats| stats.running == 1).unwrap();
        stream.shutdown(Shutdown::Both).unwrap();
        drop(stream);
        let stats = engine.wait_until(PATIENCE, |stats| stats.aborted == 1 && stats.running == 0).unwrap();
        assert_eq!((stats.completed, stats.waiting), (0, 0));
        assert_eq!(engine.requests()[0].outcome, Outcome::Aborted);
    }
}

#[test]
fn a_connection_serves_many_requests_and_is_closed_when_idle() {
    let engine = start(Settings { keep_alive: Duration::from_millis(500), ..Settings::instant() });
    let mut stream = connect(&engine);
    let request = post("/v1/chat/completions", "", &chat_body(""));
    // Pipelined: both in one write.
    stream.write_all(format!("{request}{request}").as_bytes()).unwrap();
    let received = read_to_end(stream);
    assert_eq!(received.ending, Ending::Closed);
    let again = received.body.windows(15).filter(|window| window == b"HTTP/1.1 200 OK").count();
    assert_eq!(again, 1, "the second answer follows the first one's body");
    let connections: Vec<_> = engine.requests().iter().map(|record| record.connection).collect();
    assert_eq!(connections, [1, 1]);
    engine.wait_until(PATIENCE, |stats| stats.connections_open == 0).unwrap();
}

#[test]
fn chunked_bodies_and_expectations_are_understood() {
    let engine = instant();
    let mut stream = connect(&engine);
    let body = chat_body("");
    let (first, second) = body.split_at(17);
    stream
        .write_all(
            b"POST /v1/chat/completions HTTP/1.1\r\nConnection: close\r\nExpect: 100-continue\r\n\
              Transfer-Encoding: chunked\r\n\r\n",
        )
        .unwrap();
    let mut interim = [0; 25];
    stream.read_exact(&mut interim).unwrap();
    assert_eq!(&interim, b"HTTP/1.1 100 Continue\r\n\r\n");
    for part in [first, second, ""] {
        stream.write_all(format!("{:x}\r\n{part}\r\n", part.len()).as_bytes()).unwrap();
    }
    assert_eq!(read_to_end(stream).status(), 200);
    assert_eq!(engine.requests()[0].body, body);
}

#[test]
fn requests_are_remembered_as_they_came() {
    let engine = start(Settings { records_max: 2, ..Settings::instant() });
    for id in ["a", "b", "c"] {
        chat(&engine, &format!("X-Request-Id: {id}\r\nX-Tenant: t1\r\n"), &chat_body(""));
    }
    let records = get(&engine, "/debug/requests").json();
    let ids: Vec<_> = records.as_array().unwrap().iter().map(|record| record["id"].as_str().unwrap()).collect();
    assert_eq!(ids, ["b", "c"], "the oldest is forgotten, the mock's own pages are not recorded");
    let record = &engine.requests()[1];
    assert!(record.headers.contains(&("X-Tenant".to_owned(), "t1".to_owned())));
    assert_eq!((record.body.as_str(), record.model.as_deref()), (chat_body("").as_str(), Some("tiny")));
    assert_eq!((record.status, record.outcome), (Some(200), Outcome::Completed));
}

#[test]
fn stopping_closes_connections_and_frees_the_port() {
    let mut engine = slow();
    let mut stream = connect(&engine);
    stream.write_all(post("/v1/chat/completions", "", &stream_body()).as_bytes()).unwrap();
    engine.wait_until(PATIENCE, |stats| stats.running == 1).unwrap();
    engine.stop();
    let received = read_to_end(stream);
    assert!(!received.chunks().1);
    let again = start(Settings { listen: engine.addr(), ..Settings::instant() });
    assert_eq!(get(&again, "/health").status(), 200);
}

#[test]
fn fault_delays_hold_back_head_and_first_token() {
    let engine = instant();
    for fault in ["delay-head=30", "delay-first-token=30"] {
        let begun = Instant::now();
        let received = with_fault(&engine, fault);
        assert!(begun.elapsed() >= Duration::from_millis(30), "{fault}");
        assert_eq!(received.text(), call(&stream_body()).answer.text(40), "{fault}");
    }
}

#[test]
fn fault_hangs_until_the_client_leaves() {
    for (fault, events) in [("hang-before-head", 0), ("hang-mid-stream=3", 3)] {
        let engine = instant();
        let mut stream = connect(&engine);
        let request = post("/v1/chat/completions", &format!("x-fault: {fault}\r\n"), &stream_body());
        stream.write_all(request.as_bytes()).unwrap();
        // Leaving earlier would be an abort before the hang.
        let mut before = Vec::new();
        while before.windows(4).filter(|window| window == b"\n\n\r\n").count() < events {
            let mut byte = [0];
            stream.read_exact(&mut byte).unwrap();
            before.push(byte[0]);
        }
        engine.wait_until(PATIENCE, |stats| stats.received == 1).unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        let rest = read_to_end(stream);
        assert!(!rest.head.contains("data:") && rest.body.is_empty(), "{fault}: {rest:?}");
        engine.wait_until(PATIENCE, |stats| stats.aborted == 1).unwrap();
    }
}

#[test]
fn fault_resets_and_early_ends_cut_the_answer() {
    let engine = instant();
    for (fault, ending) in [
        ("reset-before-head", Ending::Reset),
        ("close-before-head", Ending::Closed),
        ("reset-mid-stream=3", Ending::Reset),
        ("early-end=3", Ending::Closed),
    ] {
        let received = with_fault(&engine, fault);
        assert_eq!(received.ending, ending, "{fault}");
        assert!(!received.chunks().1, "{fault}");
        if fault == "early-end=3" {
            assert_eq!(received.events().len(), 3, "{fault}");
        }
        assert_eq!(engine.requests().last().unwrap().outcome, Outcome::Faulted, "{fault}");
    }
    let received = chat(&engine, "x-fault: early-end=0\r\n", &chat_body(""));
    let promised: usize =
        received.head.lines().find_map(|line| line.strip_prefix("content-length: ")).unwrap().parse().unwrap();
    assert_eq!(received.body.len(), promised / 2);
}

#[test]
fn fault_forms_change_the_bytes_and_not_the_text() {
    let engine = instant();
    let expected = call(&stream_body()).answer.text(40);
    for fault in ["crlf-lines", "bare-data", "byte-wise", "coalesce=5", "split-chunks=7", "huge-chunk=300000"] {
        let received = with_fault(&engine, fault);
        assert!(received.chunks().1, "{fault}");
        assert_eq!(received.text(), expected, "{fault}");
        assert_eq!(received.events().last().unwrap(), "[DONE]", "{fault}");
    }
    assert!(with_fault(&engine, "crlf-lines").chunks().0[0].ends_with(b"\r\n\r\n"));
    assert!(with_fault(&engine, "bare-data").chunks().0[0].starts_with(b"data:{"));
    assert_eq!(with_fault(&engine, "coalesce=5").chunks().0.len(), 43_usize.div_ceil(5));
    assert!(with_fault(&engine, "split-chunks=7").chunks().0.iter().all(|chunk| chunk.len() <= 7));
    assert!(with_fault(&engine, "huge-chunk=300000").chunks().0[0].len() > 300_000);
    let both = with_fault(&engine, "bare-data,crlf-lines").chunks().0[0].clone();
    assert!(both.starts_with(b"data:{") && both.ends_with(b"\r\n\r\n"));
}

#[test]
fn fault_leaves_out_usage_and_done() {
    let engine = instant();
    let events = with_fault(&engine, "no-usage").events();
    assert!(events.iter().all(|event| !event.contains("\"usage\"")));
    let received = with_fault(&engine, "no-done");
    assert!(received.chunks().1);
    assert!(received.events().last().unwrap().contains("\"usage\""));
}

#[test]
fn fault_puts_an_error_event_into_the_stream() {
    let received = with_fault(&instant(), "error-event=4");
    let events = received.events();
    assert_eq!(events.len(), 6);
    let error: Value = serde_json::from_str(&events[4]).unwrap();
    assert_eq!(error["error"]["code"], 500);
    assert!(received.chunks().1, "the HTTP message is complete");
}

#[test]
fn fault_answers_with_a_status() {
    let engine = instant();
    for status in [429, 503, 500, 502] {
        let received = with_fault(&engine, &format!("status={status}/7"));
        assert_eq!(received.status(), status);
        assert!(received.head.contains("retry-after: 7\r\n"));
        assert_eq!(received.json()["error"]["code"], status);
    }
    assert!(!with_fault(&engine, "status=429").head.contains("retry-after"));
}

#[test]
fn fault_closes_the_connection_under_the_next_request() {
    let engine = instant();
    let mut stream = connect(&engine);
    let first = post("/v1/chat/completions", "x-fault: close-on-reuse\r\n", &chat_body(""));
    stream.write_all(first.as_bytes()).unwrap();
    engine.wait_until(PATIENCE, |stats| stats.completed == 1).unwrap();
    assert_eq!(engine.stats().connections_open, 1, "kept until the next request");
    stream.write_all(post("/v1/chat/completions", "", &chat_body("")).as_bytes()).unwrap();
    let received = read_to_end(stream);
    assert_eq!(received.status(), 200);
    assert_eq!(engine.stats().received, 1, "the second request was never read");
}

#[test]
fn fault_closes_after_a_kept_alive_answer() {
    let engine = instant();
    let mut stream = connect(&engine);
    let request = post("/v1/chat/completions", "x-fault: close-after\r\n", &chat_body(""));
    stream.write_all(request.as_bytes()).unwrap();
    let received = read_to_end(stream);
    assert_eq!(received.status(), 200);
    assert!(!received.head.contains("connection: close"));
}

#[test]
fn fault_delays_accepting() {
    let engine = start(Settings { faults: parse_list("slow-accept=40").unwrap(), ..Settings::instant() });
    // The first accept was due before this connection came; the delay holds between connections.
    get(&engine, "/health");
    let begun = Instant::now();
    get(&engine, "/health");
    get(&engine, "/health");
    assert!(begun.elapsed() >= Duration::from_millis(40));
}

#[test]
fn standing_faults_hold_for_the_given_number_of_requests() {
    let engine = instant();
    let set = |body: &str| exchange(&engine, &post("/fault", "Connection: close\r\n", body)).status();
    assert_eq!(set(r#"{"fault":"status=503","requests":2}"#), 200);
    let statuses: Vec<_> = (0..3).map(|_| chat(&engine, "", &chat_body("")).status()).collect();
    assert_eq!(statuses, [503, 503, 200]);
    assert_eq!(get(&engine, "/metrics").status(), 200, "only requests that run the model are concerned");
    assert_eq!(set(r#"{"fault":"status=500","path":"/metrics"}"#), 200);
    assert_eq!((get(&engine, "/metrics").status(), chat(&engine, "", &chat_body("")).status()), (500, 200));
    assert_eq!(set(r#"{"fault":""}"#), 200);
    assert_eq!(get(&engine, "/metrics").status(), 200);
    assert_eq!(set(r#"{"fault":"explode"}"#), 400);
    engine.rule(Rule { faults: parse_list("status=502").unwrap(), path: None, requests: Some(1) });
    assert_eq!(chat(&engine, "", &chat_body("")).status(), 502);
}

#[test]
fn an_unknown_fault_is_an_error() {
    let received = with_fault(&instant(), "explode");
    assert_eq!(received.status(), 400);
    assert!(received.json()["error"]["message"].as_str().unwrap().contains("explode"));
}

#[test]
fn model_time_can_be_scaled() {
    let cost = StepCost { base_us: 10_000_000.0, ..StepCost::NONE };
    let parameters = Parameters { cost, ..Parameters::default() };
    let engine = start(Settings { parameters, time_scale: 0.0001, ..Settings::default() });
    let begun = Instant::now();
    assert_eq!(chat(&engine, "", &chat_body("")).status(), 200);
    assert!(begun.elapsed() >= Duration::from_millis(40), "40 steps of 10 s at a ten-thousandth");
}
