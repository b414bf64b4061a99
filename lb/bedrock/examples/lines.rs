//! What this crate makes of each line of standard input, a JSON object a line in and one out: for checks against other
//! implementations (`tests/botocore_check.py`).

use std::io::{self, BufRead, Write};

use bedrock::sigv4::{CredentialError, Credentials, Request, Signer};
use bedrock::{ChatStream, Delivery, FRAME_BYTES_MAX, Reply};
use serde::Deserialize;
use serde_json::{Value, json};

#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
enum Line {
    /// A request to sign: the headers to add.
    Sign(Box<Unsigned>),
    /// A model's id: the path.
    Path { model: String, stream: bool },
    /// A chat completion request: Converse's.
    Request { body: String },
    /// A Converse answer: a chat completion.
    Answer { body: String },
    /// A ConverseStream answer, as hexadecimal digits: server-sent events.
    Stream { hex: String },
}

#[derive(Deserialize)]
struct Unsigned {
    method: String,
    path: String,
    query: String,
    headers: Vec<(String, String)>,
    body: String,
    access_key_id: String,
    secret_access_key: String,
    session_token: Option<String>,
    region: String,
    service: String,
    time_unix_s: u64,
}

const REPLY: Reply<'_> = Reply { id: "chatcmpl-1", created_unix_s: 1_700_000_000, model: "m" };

fn main() -> io::Result<()> {
    let mut out = io::stdout().lock();
    for line in io::stdin().lock().lines() {
        let made = serde_json::from_str(&line?).map_or_else(|error| json!({ "error": error.to_string() }), made);
        writeln!(out, "{made}")?;
    }
    Ok(())
}

fn made(line: Line) -> Value {
    match line {
        Line::Sign(unsigned) => signed(&unsigned).unwrap_or_else(|error| json!({ "error": error.to_string() })),
        Line::Path { model, stream } => {
            json!({ "path": bedrock::path(&model, if stream { Delivery::Streamed } else { Delivery::Whole }) })
        }
        Line::Request { body } => match bedrock::converse(body.as_bytes()) {
            Ok(made) => json!({ "body": String::from_utf8_lossy(&made.body), "left_out": made.left_out }),
            Err(refusal) => json!({ "refusal": refusal.to_string(), "code": refusal.code() }),
        },
        Line::Answer { body } => match bedrock::completion(body.as_bytes(), REPLY) {
            Ok(made) => json!({ "body": String::from_utf8_lossy(&made.body) }),
            Err(failure) => json!({ "failure": failure.to_string() }),
        },
        Line::Stream { hex } => {
            let mut out = Vec::new();
            let mut stream = ChatStream::new(REPLY, Delivery::StreamedWithUsage, FRAME_BYTES_MAX);
            let result = stream.feed(&unhex(&hex), &mut out).and_then(|()| stream.end(&mut out));
            json!({ "events": String::from_utf8_lossy(&out), "failure": result.err().map(|failure| failure.to_string()) })
        }
    }
}

fn signed(line: &Unsigned) -> Result<Value, CredentialError> {
    let credentials = Credentials::new(&line.access_key_id, &line.secret_access_key, line.session_token.as_deref())?;
    let headers: Vec<(&str, &str)> = line.headers.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    let request = Request {
        method: &line.method,
        path: &line.path,
        query: &line.query,
        headers: &headers,
        body: &[line.body.as_bytes()],
    };
    let signature = Signer::new(credentials, &line.region, &line.service).sign(&request, line.time_unix_s);
    let headers: serde_json::Map<String, Value> =
        signature.headers().map(|(name, value)| (name.to_owned(), Value::from(value))).collect();
    Ok(json!({ "headers": headers }))
}

fn unhex(text: &str) -> Vec<u8> {
    let digit = |byte: u8| char::from(byte).to_digit(16).unwrap_or(0) as u8;
    text.as_bytes().chunks_exact(2).map(|pair| digit(pair[0]) << 4 | digit(pair[1])).collect()
}
