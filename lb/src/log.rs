//! One JSON line per request for the access log. Names, numbers and outcomes; never prompt text, never a credential.

use std::borrow::Cow;
use std::rc::Rc;

use config::snapshot::ResourceId;

use crate::decide::Shadowed;
use crate::endpoints::Endpoint;
use crate::http1::rewrite::push_decimal;
use crate::openai::Usage;
use crate::openai::scan::push_json_string;
use crate::time::rfc3339;

/// What is said about one request. Names are borrowed from the plan that decided it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Entry<'p> {
    /// When it ended, milliseconds since 1970.
    pub(crate) time_unix_ms: u64,
    pub(crate) request_id: String,
    pub(crate) tenant: &'p str,
    pub(crate) method: Cow<'static, str>,
    pub(crate) path: Cow<'static, str>,
    /// The model asked for; empty when none was read.
    pub(crate) model: String,
    /// The model the upstream was sent.
    pub(crate) model_served: &'p str,
    pub(crate) pool: Option<&'p ResourceId>,
    pub(crate) rule: &'p str,
    /// The exclude entry that refused it.
    pub(crate) exclude: String,
    /// What a rule in shadow would have done.
    pub(crate) shadow: Option<Shadowed<'p>>,
    pub(crate) destination: &'p str,
    pub(crate) endpoint: Option<Rc<Endpoint>>,
    pub(crate) tags: Vec<&'p str>,
    pub(crate) stream: bool,
    pub(crate) request_bytes: u64,
    pub(crate) response_bytes: u64,
    pub(crate) usage: Usage,
    pub(crate) estimated_prompt_tokens: Option<u32>,
    pub(crate) overlap_tokens: Option<u32>,
    pub(crate) predicted_ttft_us: Option<u64>,
    pub(crate) ttft_us: Option<u64>,
    /// How long it waited in the queue of its rule.
    pub(crate) queued_us: Option<u64>,
    pub(crate) duration_us: u64,
    /// The status sent; 0 when none was.
    pub(crate) status: u16,
    pub(crate) outcome: &'static str,
    pub(crate) retries: u32,
    /// Machine-readable code of an error of ours.
    pub(crate) error: String,
    /// In the currency of the destination's prices.
    pub(crate) cost: Option<f64>,
}

/// What a line of ordinary names takes.
const LINE_BYTES: usize = 1_024;

impl Entry<'_> {
    /// Appends the line with its line feed.
    pub(crate) fn push(&self, to: &mut Vec<u8>) {
        to.reserve(LINE_BYTES);
        let mut line = Line { to };
        line.raw("{\"time\":\"", &rfc3339(self.time_unix_ms));
        line.text("\",\"request_id\":", &self.request_id);
        line.text(",\"tenant\":", self.tenant);
        line.text(",\"method\":", &self.method);
        line.text(",\"path\":", &self.path);
        line.some_text(",\"model\":", &self.model);
        line.some_text(",\"model_served\":", self.model_served);
        if let Some(pool) = self.pool {
            // Names of resources are DNS labels: nothing in them needs an escape.
            line.raw(",\"pool\":\"", pool.namespace.as_bytes());
            line.raw("/", pool.name.as_bytes());
            line.raw("\"", b"");
        }
        line.some_text(",\"rule\":", self.rule);
        line.some_text(",\"exclude\":", &self.exclude);
        if let Some(shadow) = &self.shadow {
            line.text(",\"shadow_rule\":", shadow.rule);
            line.some_text(",\"shadow_destination\":", shadow.destination);
            line.some_text(",\"shadow_error\":", shadow.error);
        }
        line.some_text(",\"destination\":", self.destination);
        line.some_text(",\"endpoint\":", self.endpoint.as_ref().map_or("", |endpoint| endpoint.spec.name.as_str()));
        line.some_text(",\"backend\":", self.endpoint.as_ref().map_or("", |endpoint| endpoint.spec.backend.as_str()));
        line.texts(",\"tags\":[", &self.tags);
        line.raw(",\"stream\":", if self.stream { b"true" } else { b"false" });
        line.number(",\"request_bytes\":", Some(self.request_bytes));
        line.number(",\"response_bytes\":", Some(self.response_bytes));
        line.number(",\"prompt_tokens\":", self.usage.prompt_tokens);
        line.number(",\"cached_tokens\":", self.usage.cached_tokens);
        line.number(",\"completion_tokens\":", self.usage.completion_tokens);
        line.number(",\"estimated_prompt_tokens\":", self.estimated_prompt_tokens.map(u64::from));
        line.number(",\"overlap_tokens\":", self.overlap_tokens.map(u64::from));
        line.milliseconds(",\"predicted_ttft_ms\":", self.predicted_ttft_us);
        line.milliseconds(",\"ttft_ms\":", self.ttft_us);
        line.milliseconds(",\"queued_ms\":", self.queued_us);
        line.milliseconds(",\"duration_ms\":", Some(self.duration_us));
        line.number(",\"status\":", Some(u64::from(self.status)));
        line.text(",\"outcome\":", self.outcome);
        line.number(",\"retries\":", Some(u64::from(self.retries)));
        line.some_text(",\"error\":", &self.error);
        if let Some(cost) = self.cost {
            line.raw(",\"cost\":", format!("{cost:.9}").as_bytes());
        }
        line.raw("}\n", b"");
    }
}

/// A line under way. Keys are given as they are written, with all that stands around them.
struct Line<'a> {
    to: &'a mut Vec<u8>,
}

impl Line<'_> {
    fn raw(&mut self, key: &'static str, value: &[u8]) {
        self.to.extend_from_slice(key.as_bytes());
        self.to.extend_from_slice(value);
    }

    fn text(&mut self, key: &'static str, value: &str) {
        self.to.extend_from_slice(key.as_bytes());
        push_json_string(self.to, value);
    }

    fn some_text(&mut self, key: &'static str, value: &str) {
        if !value.is_empty() {
            self.text(key, value);
        }
    }

    fn texts(&mut self, key: &'static str, values: &[&str]) {
        self.to.extend_from_slice(key.as_bytes());
        for (i, value) in values.iter().enumerate() {
            if i > 0 {
                self.to.push(b',');
            }
            push_json_string(self.to, value);
        }
        self.to.push(b']');
    }

    fn number(&mut self, key: &'static str, value: Option<u64>) {
        if let Some(value) = value {
            self.to.extend_from_slice(key.as_bytes());
            push_decimal(self.to, value);
        }
    }

    fn milliseconds(&mut self, key: &'static str, us: Option<u64>) {
        if let Some(us) = us {
            self.number(key, Some(us / 1000));
            let digit = |divisor: u64| b'0' + (us / divisor % 10) as u8;
            self.to.extend_from_slice(&[b'.', digit(100), digit(10), digit(1)]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_one_json_object() {
        let pool = ResourceId { namespace: "default".into(), name: "chat".into() };
        let entry = Entry {
            time_unix_ms: 1_796_027_193_045,
            request_id: "a\"b".into(),
            tags: vec!["pii", "tools"],
            pool: Some(&pool),
            predicted_ttft_us: Some(12_345),
            usage: Usage { prompt_tokens: Some(22), completion_tokens: None, cached_tokens: Some(0) },
            outcome: "ok",
            status: 200,
            cost: Some(0.000_012),
            ..Entry::default()
        };
        let mut line = Vec::new();
        entry.push(&mut line);
        assert_eq!(line.last(), Some(&b'\n'));
        let json: serde_json::Value = serde_json::from_slice(&line).unwrap();
        assert_eq!(json["time"], "2026-11-30T08:26:33.045Z");
        assert_eq!(json["request_id"], "a\"b");
        assert_eq!(json["pool"], "default/chat");
        assert_eq!(json["tags"], serde_json::json!(["pii", "tools"]));
        assert_eq!(json["predicted_ttft_ms"], 12.345);
        assert_eq!(json["prompt_tokens"], 22);
        assert_eq!(json["cached_tokens"], 0);
        assert!(json.get("completion_tokens").is_none());
        assert!(json.get("model").is_none());
    }
}
