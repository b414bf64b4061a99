//! What a decision knows about the request. Borrowed from the data plane for one decision.

use std::fmt;

/// Stands for "could not be read".
const UNSCANNED: &str = "pii-unscanned";

/// The facts of one request that rules may look at.
#[derive(Clone, Copy)]
pub struct Request<'a> {
    /// The model name the client asked for, as written in its body.
    pub model: &'a str,
    /// Who is calling, found from the credential; `anonymous` when no tenant is configured.
    pub tenant: &'a str,
    /// Words the classifiers put on the prompt. `pii-unscanned` stands for "could not be read" and
    /// counts as `pii` and as every `pii-...` tag, so that a prompt never leaks by omission.
    pub tags: &'a [&'a str],
    /// Which API the request was made to.
    pub api: Api,
    /// Whether the client asked for a streamed answer.
    pub stream: Streaming,
    /// Estimated length of the prompt in tokens; NaN when unknown, and then no condition on it holds.
    pub prompt_tokens: f64,
    /// The request's headers.
    pub headers: &'a dyn HeaderLookup,
    /// A number that the requests of one conversation share; `None` when unknown. Looked at by splits only.
    pub conversation: Option<u64>,
}

impl<'a> Request<'a> {
    /// A chat completion for `model` by `tenant` with nothing else known: the starting point of tests and tools.
    #[must_use]
    pub fn chat(model: &'a str, tenant: &'a str) -> Self {
        Self {
            model,
            tenant,
            tags: &[],
            api: Api::ChatCompletions,
            stream: Streaming::No,
            prompt_tokens: f64::NAN,
            headers: &NoHeaders,
            conversation: None,
        }
    }

    /// Whether the prompt carries `tag`; an unscanned prompt counts as carrying every personal-data tag.
    #[must_use]
    pub fn has_tag(&self, tag: &str) -> bool {
        let personal = Self::is_personal(tag);
        self.tags.iter().any(|t| *t == tag || (personal && *t == UNSCANNED))
    }

    /// Whether `tag` speaks of personal data.
    pub(crate) fn is_personal(tag: &str) -> bool {
        tag == "pii" || tag.starts_with("pii-")
    }

    /// Whether some of the prompt could not be read.
    pub(crate) fn is_unscanned(&self) -> bool {
        self.tags.contains(&UNSCANNED)
    }
}

impl fmt::Debug for Request<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Request")
            .field("model", &self.model)
            .field("tenant", &self.tenant)
            .field("tags", &self.tags)
            .field("api", &self.api)
            .field("stream", &self.stream)
            .field("prompt_tokens", &self.prompt_tokens)
            .finish_non_exhaustive()
    }
}

/// The API a request was made to, by its path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Api {
    /// `POST /v1/chat/completions`
    ChatCompletions,
    /// `POST /v1/completions`
    Completions,
    /// `POST /v1/embeddings`
    Embeddings,
    /// `POST /v1/responses`
    Responses,
    /// `POST /v1/messages` and its `count_tokens`
    Messages,
    /// `POST /v1/rerank`
    Rerank,
    /// `POST /v1/score`
    Score,
    /// `POST /tokenize`
    Tokenize,
    /// `POST /detokenize`
    Detokenize,
    /// `POST /v1/audio/transcriptions`
    Transcriptions,
    /// `POST /v1/audio/translations`
    Translations,
    /// Any other path.
    Other,
}

impl Api {
    /// Every API, in the order of the documentation.
    pub const ALL: [Api; 12] = [
        Api::ChatCompletions,
        Api::Completions,
        Api::Embeddings,
        Api::Responses,
        Api::Messages,
        Api::Rerank,
        Api::Score,
        Api::Tokenize,
        Api::Detokenize,
        Api::Transcriptions,
        Api::Translations,
        Api::Other,
    ];

    /// The name used in policies and logs.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Api::ChatCompletions => "ChatCompletions",
            Api::Completions => "Completions",
            Api::Embeddings => "Embeddings",
            Api::Responses => "Responses",
            Api::Messages => "Messages",
            Api::Rerank => "Rerank",
            Api::Score => "Score",
            Api::Tokenize => "Tokenize",
            Api::Detokenize => "Detokenize",
            Api::Transcriptions => "Transcriptions",
            Api::Translations => "Translations",
            Api::Other => "Other",
        }
    }
}

/// Whether the client asked for its answer as a stream of events.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Streaming {
    /// `"stream": true`
    Yes,
    /// One answer at the end.
    No,
}

/// Headers of a request, however the data plane keeps them.
pub trait HeaderLookup {
    /// Calls `test` with each value of the header called `name` (compared without regard to case)
    /// until it says yes; whether it did.
    fn any_value(&self, name: &str, test: &mut dyn FnMut(&[u8]) -> bool) -> bool;
}

/// A request without headers.
#[derive(Clone, Copy, Debug)]
pub struct NoHeaders;

impl HeaderLookup for NoHeaders {
    fn any_value(&self, _name: &str, _test: &mut dyn FnMut(&[u8]) -> bool) -> bool {
        false
    }
}

/// Headers as a list of (name, value), as the policy tests write them.
#[derive(Clone, Debug, Default)]
pub struct HeaderMap(pub Vec<(String, String)>);

impl HeaderLookup for HeaderMap {
    fn any_value(&self, name: &str, test: &mut dyn FnMut(&[u8]) -> bool) -> bool {
        self.0.iter().any(|(n, v)| n.eq_ignore_ascii_case(name) && test(v.as_bytes()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unscanned_prompt_counts_as_carrying_every_personal_data_tag() {
        let tags = ["pii-unscanned"];
        let request = Request { tags: &tags, ..Request::chat("m", "t") };
        assert!(request.has_tag("pii"));
        assert!(request.has_tag("pii-email"));
        assert!(request.has_tag("pii-unscanned"));
        assert!(!request.has_tag("secret"));
        assert!(!request.has_tag("piirate"));
    }

    #[test]
    fn header_names_ignore_case_and_every_value_is_tried() {
        let headers = HeaderMap(vec![("X-Team".into(), "a".into()), ("x-team".into(), "b".into())]);
        assert!(headers.any_value("x-TEAM", &mut |v| v == b"b"));
        assert!(!headers.any_value("x-team", &mut |v| v == b"c"));
    }
}
