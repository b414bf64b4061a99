//! The paths: which there are, the pages that do not run the model, and the mock's own controls.

use serde_json::{Value, json};

use crate::{
    fault::{self, Rule},
    http::RawRequest,
    metrics::Metrics,
    openai::{self, Api, ApiError},
    serve::{Shared, unix_s},
    text,
};

/// What a path leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Route {
    Model(Api),
    Get(Page),
    Post(Action),
    Unknown,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Page {
    Models,
    Health,
    Metrics,
    Version,
    Load,
}

impl Page {
    pub(crate) fn content_type(self) -> Option<&'static str> {
        match self {
            Self::Models | Self::Version | Self::Load => Some("application/json"),
            Self::Health => None,
            Self::Metrics => Some("text/plain; version=1.0.0; charset=utf-8"),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    Tokenize,
    Detokenize,
    ResetPrefixCache,
}

pub(crate) fn route(path: &str) -> Route {
    match path {
        "/v1/chat/completions" => Route::Model(Api::Chat),
        "/v1/completions" => Route::Model(Api::Completions),
        "/v1/embeddings" => Route::Model(Api::Embeddings),
        "/v1/models" => Route::Get(Page::Models),
        "/health" | "/ping" => Route::Get(Page::Health),
        "/metrics" => Route::Get(Page::Metrics),
        "/version" => Route::Get(Page::Version),
        "/load" => Route::Get(Page::Load),
        "/tokenize" => Route::Post(Action::Tokenize),
        "/detokenize" => Route::Post(Action::Detokenize),
        "/reset_prefix_cache" => Route::Post(Action::ResetPrefixCache),
        _ => Route::Unknown,
    }
}

/// Answers the paths that steer and show the mock itself; they are neither counted nor subject to faults.
pub(crate) fn control(request: &RawRequest, shared: &Shared) -> Option<(u16, String)> {
    match (request.method.as_str(), request.path.as_str()) {
        ("GET", "/debug/requests") => Some((200, json!(shared.ledger.records()).to_string())),
        ("GET", "/debug/stats") => Some((200, json!(shared.stats()).to_string())),
        ("POST", "/fault") => Some(match rule_from_json(&request.body) {
            Ok(rule) => {
                shared.rule(rule);
                (200, "{}".to_owned())
            }
            Err(message) => (400, json!({ "error": message }).to_string()),
        }),
        _ => None,
    }
}

/// `{"fault": "NAME=ARGS,...", "requests": N, "path": "/metrics"}`; the last two may be missing.
fn rule_from_json(body: &[u8]) -> Result<Rule, String> {
    let body: Value = serde_json::from_slice(body).map_err(|error| error.to_string())?;
    let faults = fault::parse_list(body["fault"].as_str().unwrap_or_default()).map_err(|error| error.to_string())?;
    let requests = body["requests"].as_u64().map(|requests| u32::try_from(requests).unwrap_or(u32::MAX));
    Ok(Rule { faults, path: body["path"].as_str().map(str::to_owned), requests })
}

impl Shared {
    pub(crate) fn page(&self, page: Page) -> String {
        match page {
            Page::Models => self.models(),
            Page::Health => String::new(),
            Page::Version => r#"{"version":"0.32.0"}"#.to_owned(),
            Page::Load => r#"{"server_load":0}"#.to_owned(),
            Page::Metrics => {
                let parameters = &self.settings.parameters;
                Metrics {
                    model: self.settings.models.first().map_or("", String::as_str),
                    gauges: self.pump.gauges(),
                    totals: self.pump.totals(),
                    refused: self.pump.refused(),
                    block_tokens: parameters.block_tokens,
                    blocks_max: parameters.blocks_max,
                    histograms: &self.pump.histograms(),
                }
                .render()
            }
        }
    }

    fn models(&self) -> String {
        let created = unix_s();
        let models = self.settings.models.iter().map(|model| {
            format!(
                r#"{{"id":{},"object":"model","created":{created},"owned_by":"vllm","root":{0},"parent":null,"max_model_len":{}}}"#,
                Value::from(model.as_str()),
                self.settings.model_tokens_max
            )
        });
        format!(r#"{{"object":"list","data":[{}]}}"#, models.collect::<Vec<_>>().join(","))
    }

    pub(crate) fn act(&self, action: Action, body: &[u8]) -> Result<String, ApiError> {
        match action {
            Action::Tokenize => {
                let tokens = openai::tokenize_request(body)?;
                let max = self.settings.model_tokens_max;
                let count = tokens.len();
                Ok(format!(r#"{{"count":{count},"max_model_len":{max},"tokens":{},"token_strs":null}}"#, json!(tokens)))
            }
            Action::Detokenize => {
                let tokens = openai::token_ids(body)?;
                Ok(json!({ "prompt": text::detokenize(&tokens) }).to_string())
            }
            Action::ResetPrefixCache => {
                self.pump.reset_prefix_cache();
                Ok(String::new())
            }
        }
    }
}
