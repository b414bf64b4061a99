//! What is asked and what is answered: every byte follows from the request's name and the number of the attempt, so that an
//! answer that belongs to another request shows.

use std::fmt::Write as _;

use crate::script::{Act, Ask, Name, Usage};

/// A request of a seed, as it is called in headers, prompts and answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Id {
    pub(crate) seed: u64,
    pub(crate) connection: usize,
    pub(crate) request: usize,
}

impl std::fmt::Display for Id {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "s{}.{}.{}", self.seed, self.connection, self.request)
    }
}

impl std::str::FromStr for Id {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let mut parts = text.strip_prefix('s').ok_or(())?.split('.');
        let mut part = || parts.next().and_then(|part| part.parse::<u64>().ok()).ok_or(());
        let (seed, connection, request) = (part()?, part()?, part()?);
        Ok(Self { seed, connection: connection as usize, request: request as usize })
    }
}

/// The model of a seed, as its engines know it.
pub(crate) fn model(seed: u64) -> String {
    format!("sim/{seed}")
}

/// The model as a client calls it.
pub(crate) fn called(seed: u64, name: Name) -> String {
    match name {
        Name::Own => model(seed),
        Name::Alias => format!("alias-{seed}"),
    }
}

/// The prompt of a request.
pub(crate) fn prompt(id: Id, pad: usize) -> String {
    format!("{id}:{}", "p".repeat(pad))
}

/// The body of a request.
pub(crate) fn request_body(id: Id, ask: Ask, pad: usize) -> String {
    let chat = |model: &str, more: &str| {
        format!(r#"{{"model":"{model}","messages":[{{"role":"user","content":"{}"}}]{more}}}"#, prompt(id, pad))
    };
    match ask {
        Ask::Document(name) => chat(&called(id.seed, name), ""),
        Ask::Stream(name, Usage::Asked) => {
            chat(&called(id.seed, name), r#","stream":true,"stream_options":{"include_usage":true}"#)
        }
        Ask::Stream(name, Usage::NotAsked) => chat(&called(id.seed, name), r#","stream":true"#),
        Ask::Opaque | Ask::BadHead | Ask::TooLarge | Ask::BrokenChunks | Ask::StalledHead | Ask::StalledBody => {
            chat(&model(id.seed), "")
        }
        Ask::UnknownModel => chat("nobody/knows", ""),
        Ask::BrokenJson => format!("{{\"model\":{id}"),
        Ask::Models => String::new(),
    }
}

/// Whether a stream is to carry usage, by the body as it reaches the engine.
pub(crate) fn wants_usage(body: &[u8]) -> bool {
    let word = br#""include_usage":true"#;
    body.windows(word.len()).any(|window| window == word)
}

/// The body of an engine's answer to attempt `attempt`, in the engine's own words.
pub(crate) fn answer_body(id: Id, ask: Ask, attempt: usize, act: Act, usage: Usage) -> String {
    let said = format!("{id}#{attempt}");
    let model = model(id.seed);
    match (act, ask) {
        (Act::Status(_) | Act::Early, _) => {
            format!(r#"{{"error":{{"message":"{said}","type":"engine","param":null,"code":"engine_says"}}}}"#)
        }
        (Act::ErrorEvent(answer), Ask::Stream(..)) => {
            let error = format!(r#"{{"error":{{"message":"{said}","type":"engine","code":500}}}}"#);
            format!("{}data: {error}\n\ndata: [DONE]\n\n", events(&said, &model, answer.pad))
        }
        (Act::Answer(answer) | Act::Cut(answer, ..), Ask::Stream(..)) => {
            let mut body = events(&said, &model, answer.pad);
            if usage == Usage::Asked {
                let _ = write!(
                    body,
                    "data: {{\"id\":\"{said}\",\"model\":\"{model}\",\"choices\":[],\"usage\":{{\"prompt_tokens\":5,\"completion_tokens\":7}}}}\n\n"
                );
            }
            body + "data: [DONE]\n\n"
        }
        (Act::Answer(answer) | Act::Cut(answer, ..), Ask::Opaque) => {
            format!("{said}: {}\n", "o".repeat(answer.pad))
        }
        (Act::Answer(answer) | Act::Cut(answer, ..) | Act::ErrorEvent(answer), _) => format!(
            r#"{{"id":"{said}","object":"chat.completion","model":"{model}","choices":[{{"message":{{"content":"{said}{}"}}}}],"usage":{{"prompt_tokens":5,"completion_tokens":7}}}}"#,
            "d".repeat(answer.pad)
        ),
        (Act::Vanish(_) | Act::VanishUnread(_) | Act::Garbage | Act::HalfHead | Act::Silent, _) => String::new(),
    }
}

/// Events with content, and more of them the more there is.
fn events(said: &str, model: &str, pad: usize) -> String {
    let count = 2 + (pad / 500).min(60);
    let mut text = String::with_capacity(pad + count * 120);
    for number in 0..count {
        let _ = write!(
            text,
            "data: {{\"id\":\"{said}\",\"model\":\"{model}\",\"choices\":[{{\"delta\":{{\"content\":\"{said}.{number}{}\"}}}}]}}\n\n",
            "e".repeat(pad / count)
        );
    }
    text
}

/// The same body as the client is to see it.
pub(crate) fn shown_body(id: Id, ask: Ask, attempt: usize, act: Act) -> String {
    // An error of the engine passes as it is; so does what is not read.
    let (name, usage) = match ask {
        Ask::Document(name) => (name, Usage::NotAsked),
        Ask::Stream(name, usage) => (name, usage),
        Ask::Opaque
        | Ask::Models
        | Ask::UnknownModel
        | Ask::BrokenJson
        | Ask::BadHead
        | Ask::TooLarge
        | Ask::BrokenChunks
        | Ask::StalledHead
        | Ask::StalledBody => return answer_body(id, ask, attempt, act, Usage::NotAsked),
    };
    let (own, called) = (model(id.seed), called(id.seed, name));
    answer_body(id, ask, attempt, act, usage)
        .replace(&format!("\"model\":\"{own}\""), &format!("\"model\":\"{called}\""))
}
