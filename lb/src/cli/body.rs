//! What a data thread would read from a request body.

use config::Snapshot;
use config::snapshot::PoolScope;
use policy::Api;
use predictor::prefix::chain::Chain;
use predictor::tokens::BytesPerToken;
use serde_json::{Map, Value};

use crate::openai::{Request, prompt};
use crate::tags::Tagger;

/// Bytes of a block of the prefix chain here: only its length in bytes is asked for.
const BLOCK_BYTES: u32 = 256;

/// What is read from a body.
pub(super) struct Body {
    model: Option<String>,
    api: Api,
    stream: bool,
    prompt_tokens: Option<u32>,
    /// The tags that the classifiers of the model's pool give.
    pub(super) tags: Vec<String>,
}

impl Body {
    /// The fields of a policy test's request that it says.
    pub(super) fn fields(&self) -> Map<String, Value> {
        let mut fields = Map::new();
        fields.extend(self.model.clone().map(|model| ("model".to_owned(), model.into())));
        fields.insert("api".to_owned(), self.api.as_str().into());
        fields.insert("stream".to_owned(), self.stream.into());
        fields.extend(self.prompt_tokens.map(|n| ("promptTokens".to_owned(), n.into())));
        fields
    }
}

/// Reads a body, asking for `model` where that stands over the body's own.
pub(super) fn look_at(snapshot: &Snapshot, body: &Value, model: Option<&str>) -> Body {
    let own = body.get("model").and_then(Value::as_str);
    let asked = model.or(own).unwrap_or_default();
    let mut body = body.clone();
    if let Some(members) = body.as_object_mut() {
        members.insert("model".to_owned(), asked.into());
    }
    let bytes = body.to_string().into_bytes();
    let api = api_of(&body);
    let read = Request::parse(&bytes);
    let tags = match snapshot.pool_for(asked, &PoolScope::All) {
        None => Vec::new(),
        Some((_, pool)) => {
            let (tagger, _) = Tagger::for_pool(snapshot, pool);
            match &read {
                Ok(request) => tagger.tags(api, request, &bytes).into_iter().map(String::from).collect(),
                // What a data thread does with a body it cannot read.
                Err(_) => vec![String::from("pii-unscanned")],
            }
        }
    };
    let prompt_tokens = read.as_ref().ok().map(|request| {
        let chain = prompt::chain(request, &bytes, asked, BLOCK_BYTES, Chain::default());
        BytesPerToken::default().estimate(chain.bytes())
    });
    let stream = body.get("stream").and_then(Value::as_bool).unwrap_or_default();
    Body { model: own.map(str::to_owned), api, stream, prompt_tokens, tags }
}

/// The interface that a body seems to be written for.
fn api_of(body: &Value) -> Api {
    let has = |member: &str| body.get(member).is_some();
    if has("prompt") {
        Api::Completions
    } else if has("input") {
        Api::Responses
    } else {
        Api::ChatCompletions
    }
}
