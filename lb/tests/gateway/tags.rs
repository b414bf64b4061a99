//! Classifiers over real sockets: where personal data may hide, what the operator sees, services that classify, long prompts.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};

use crate::support::client::request;
use crate::support::engines::{ALIAS, MODEL, chat_of, engine, own_host, pool, worker_set};
use crate::support::{Client, Driver, Setup, eventually, model_requests};

on_both_drivers![
    personal_data_is_found_in_every_field,
    personal_data_is_looked_for_in_the_messages_of_the_scope_and_in_what_is_no_message,
    tags_are_counted_and_shown_to_clients_on_request,
    a_service_gives_tags_and_is_not_asked_twice,
    a_service_that_does_not_answer_is_judged_as_the_operator_says,
    a_long_prompt_lets_others_go_first,
    an_example_gives_its_tag,
];

const CARD: &str = "4111 1111 1111 1111";

/// A pool whose rule denies prompts with `tag`, and a classifier.
fn denying(tag: &str, classifier: &str, engines: &[&engine::Engine]) -> String {
    let policy = format!(
        "---\napiVersion: kinference.buoyant.io/v1alpha1\nkind: InferencePolicy\nmetadata: {{ name: tags, namespace: default }}\nspec:\n  rules:\n    \
         - name: not-these\n      matches: [{{ tags: [{tag}] }}]\n      deny: {{ status: 403, code: not_these, message: No. }}\n"
    );
    let classifier = format!(
        "---\napiVersion: kinference.buoyant.io/v1alpha1\nkind: InferenceClassifier\nmetadata: {{ name: own, namespace: default }}\nspec: {classifier}\n"
    );
    [worker_set("workers", MODEL, ALIAS, engines), pool(&["workers"], &["tags"]), policy, classifier].concat()
}

fn personal_data_is_found_in_every_field(driver: Driver) {
    let engine = engine();
    let gateway = Setup::new(denying("pii", "{ type: PII }", &[&engine])).ready(1).start(driver);
    let user = |text: &str| json!({ "role": "user", "content": text });
    let hidden = [
        json!({ "messages": [{ "role": "user", "name": CARD, "content": "hi" }] }),
        json!({ "messages": [{ "role": "assistant", "content": "x", "reasoning_content": CARD }, user("hi")] }),
        json!({ "messages": [{ "role": "assistant", "content": "x", "reasoning": [{ "text": CARD }] }, user("hi")] }),
        json!({ "messages": [user("hi")], "user": CARD }),
        json!({ "messages": [user("hi")], "metadata": { "a": [{ "b": CARD }] } }),
        json!({ "messages": [user("hi")], "a_field_of_tomorrow": CARD }),
        json!({ "messages": [user("hi")], "tools": [{ "type": "function", "function": { "name": "f", "description": CARD } }] }),
        json!({ "messages": [{ "role": "tool", "tool_call_id": "1", "content": [{ "type": "text", "text": CARD }] }] }),
        json!({ "messages": [{ "role": "user", "content": [{ "type": "image_url", "image_url": { "url": "data:image/png;base64,AAAA" } }] }] }),
    ];
    for mut body in hidden {
        body["model"] = MODEL.into();
        body["max_tokens"] = 2.into();
        let answer = gateway.chat("", &body.to_string());
        assert_eq!((answer.status, answer.error_code().as_str()), (403, "not_these"), "{body}");
    }
    assert_eq!(gateway.chat("", &chat_of(MODEL, "hi", 2, "")).status, 200);
    assert!(model_requests(&engine).iter().all(|request| !request.body.contains("4111")));
}

fn personal_data_is_looked_for_in_the_messages_of_the_scope_and_in_what_is_no_message(driver: Driver) {
    let engine = engine();
    let gateway = Setup::new(denying("pii", "{ type: PII, scope: [User] }", &[&engine])).ready(1).start(driver);
    let user = |text: &str| json!({ "role": "user", "content": text });
    for (status, mut body) in [
        (403, json!({ "messages": [user(CARD)] })),
        (403, json!({ "messages": [user("hi")], "metadata": { "a": CARD } })),
        (200, json!({ "messages": [{ "role": "system", "content": CARD }, user("hi")] })),
        (200, json!({ "messages": [user("hi"), { "role": "assistant", "content": CARD }, user("and?")] })),
    ] {
        body["model"] = MODEL.into();
        body["max_tokens"] = 2.into();
        assert_eq!(gateway.chat("", &body.to_string()).status, status, "{body}");
    }
}

fn tags_are_counted_and_shown_to_clients_on_request(driver: Driver) {
    let engine = engine();
    let documents = denying("secret", "{ type: Secrets }", &[&engine]);
    let documents = documents
        + "---\napiVersion: kinference.buoyant.io/v1alpha1\nkind: InferenceClassifier\nmetadata: { name: words, namespace: default }\n\
                                 spec: { type: Keywords, tags: [{ tag: merger, any: [merger] }] }\n";
    let documents = documents.replace("matches: [{ tags: [secret] }]", "matches: [{ tags: [secret, merger] }]");
    let gateway = Setup::new(documents).server("decisionHeaders: Shown\n").ready(1).start(driver);
    let answer = gateway.chat("", &chat_of(MODEL, "about the merger", 2, ""));
    assert_eq!((answer.status, answer.header("x-kinference-tags")), (200, Some("merger")));
    assert_eq!(gateway.chat("", &chat_of(MODEL, "about nothing", 2, "")).header("x-kinference-tags"), None);
    gateway.wait_for_metric("kinference_requests_tagged_total", &["tag=\"merger\""], 1.0);
}

/// A service that gives each text that holds `contract` the tags `contract` and one it may not give.
struct Service {
    address: SocketAddr,
    asked: Arc<AtomicUsize>,
    last: Arc<Mutex<Value>>,
}

impl Service {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let service = Self { address: listener.local_addr().unwrap(), asked: Arc::default(), last: Arc::default() };
        let (asked, last) = (Arc::clone(&service.asked), Arc::clone(&service.last));
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let (asked, last) = (Arc::clone(&asked), Arc::clone(&last));
                std::thread::spawn(move || while serve(&stream, &asked, &last).is_some() {});
            }
        });
        service
    }
}

fn serve(mut stream: &TcpStream, asked: &AtomicUsize, last: &Mutex<Value>) -> Option<()> {
    let mut reader = BufReader::new(stream);
    let mut length = 0;
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line).ok()? == 0 {
            return None;
        }
        if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
            length = value.trim().parse().ok()?;
        }
        if line == "\r\n" {
            break;
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    asked.fetch_add(1, Ordering::SeqCst);
    let body: Value = serde_json::from_slice(&body).ok()?;
    let tags = if body.to_string().contains("contract") { json!(["contract", "root"]) } else { json!([]) };
    *last.lock().unwrap() = body;
    let answer = json!({ "tags": tags }).to_string();
    write!(stream, "HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{answer}", answer.len()).ok()
}

fn http(url: &str, on_error: &str) -> String {
    format!(
        "{{ type: HTTP, http: {{ url: \"{url}\", timeout: 20s }}, tags: [{{ tag: contract }}], onError: {on_error} }}"
    )
}

fn a_service_gives_tags_and_is_not_asked_twice(driver: Driver) {
    let (engine, service) = (engine(), Service::start());
    let documents = denying("contract", &http(&format!("http://{}/tags", service.address), "AddTag"), &[&engine]);
    let gateway = Setup::new(documents).threads(1).ready(1).start(driver);
    for _ in 0..2 {
        assert_eq!(gateway.chat("", &chat_of(MODEL, "look at this contract", 2, "")).status, 403);
        assert_eq!(gateway.chat("", &chat_of(MODEL, "look at this poem", 2, "")).status, 200);
    }
    assert_eq!(service.asked.load(Ordering::SeqCst), 2);
    let last = service.last.lock().unwrap().clone();
    assert_eq!(last, json!({ "classifier": "own", "texts": [{ "role": "user", "text": "look at this poem" }] }));
}

fn a_service_that_does_not_answer_is_judged_as_the_operator_says(driver: Driver) {
    // Bound and closed again: nobody listens there.
    let nobody = TcpListener::bind((own_host(), 0)).unwrap().local_addr().unwrap();
    for (on_error, status) in [("AddTag", 403), ("Ignore", 200)] {
        let engine = engine();
        let documents = denying("contract", &http(&format!("http://{nobody}"), on_error), &[&engine]);
        let gateway = Setup::new(documents).ready(1).start(driver);
        assert_eq!(gateway.chat("", &chat_of(MODEL, "look at this", 2, "")).status, status, "{on_error}");
    }
}

fn a_long_prompt_lets_others_go_first(driver: Driver) {
    let engine = engine();
    let gateway = Setup::new(denying("pii", "{ type: PII }", &[&engine])).threads(1).ready(1).start(driver);
    // Some seconds of reading where nothing is optimised, a quarter of one elsewhere.
    let sentences = if cfg!(debug_assertions) { 80_000 } else { 400_000 };
    let long = "The committee met again and read what the others had written. ".repeat(sentences);
    let body = chat_of(MODEL, &format!("{long} {CARD}"), 2, "");
    let mut slow = Client::sending(gateway.address, request("/v1/chat/completions", "", &body));
    let read = Arc::new(AtomicBool::new(false));
    let reader = std::thread::spawn({
        let read = Arc::clone(&read);
        move || {
            let answer = slow.answer();
            read.store(true, Ordering::SeqCst);
            answer.status
        }
    });
    // The whole of it is there before anything else is asked.
    eventually("the body is held", || (gateway.metric("kinference_request_bodies_bytes", &[]) > 4e6).then_some(()));
    assert_eq!(gateway.chat("", &chat_of(MODEL, "hi", 2, "")).status, 200);
    assert!(!read.load(Ordering::SeqCst), "the short one waited for the long one");
    assert_eq!(reader.join().unwrap(), 403);
}

fn an_example_gives_its_tag(driver: Driver) {
    let engine = engine();
    let examples = "{ type: Examples, tags: [{ tag: refund, positive: [I want my money back, please refund my order, refund the broken shoes], \
                    negative: [what is the weather, write a poem, translate this sentence] }] }";
    let gateway = Setup::new(denying("refund", examples, &[&engine])).ready(1).start(driver);
    assert_eq!(gateway.chat("", &chat_of(MODEL, "please refund the shoes, I want my money", 2, "")).status, 403);
    assert_eq!(gateway.chat("", &chat_of(MODEL, "write a poem about the weather", 2, "")).status, 200);
}
