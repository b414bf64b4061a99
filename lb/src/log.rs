//! One JSON line per request for the access log. Names, numbers and outcomes; never prompt text, never a credential.

use crate::http1::rewrite::push_decimal;
use crate::openai::Usage;
use crate::openai::scan::push_json_string;

/// What is said about one request.
#[derive(Debug, Clone, Default)]
pub(crate) struct Entry {
    /// When it ended, milliseconds since 1970.
    pub(crate) time_unix_ms: u64,
    pub(crate) request_id: String,
    pub(crate) tenant: String,
    pub(crate) method: String,
    pub(crate) path: String,
    /// The model asked for; empty when none was read.
    pub(crate) model: String,
    /// The model the upstream was sent.
    pub(crate) model_served: String,
    pub(crate) pool: String,
    pub(crate) rule: String,
    /// The exclude entry that refused it.
    pub(crate) exclude: String,
    pub(crate) destination: String,
    pub(crate) endpoint: String,
    pub(crate) tags: Vec<String>,
    pub(crate) stream: bool,
    pub(crate) request_bytes: u64,
    pub(crate) response_bytes: u64,
    pub(crate) usage: Usage,
    pub(crate) estimated_prompt_tokens: Option<u32>,
    pub(crate) overlap_tokens: Option<u32>,
    pub(crate) predicted_ttft_us: Option<u64>,
    pub(crate) ttft_us: Option<u64>,
    pub(crate) duration_us: u64,
    /// The status sent; 0 when none was.
    pub(crate) status: u16,
    pub(crate) outcome: &'static str,
    pub(crate) retries: u32,
    /// Machine-readable code of an error of ours.
    pub(crate) error: String,
    /// In the currency of the destination's price list.
    pub(crate) cost: Option<f64>,
}

impl Entry {
    /// Appends the line with its line feed.
    pub(crate) fn push(&self, to: &mut Vec<u8>) {
        let mut line = Line { to, first: true };
        line.text("time", &rfc3339(self.time_unix_ms));
        line.text("request_id", &self.request_id);
        line.text("tenant", &self.tenant);
        line.text("method", &self.method);
        line.text("path", &self.path);
        line.some_text("model", &self.model);
        line.some_text("model_served", &self.model_served);
        line.some_text("pool", &self.pool);
        line.some_text("rule", &self.rule);
        line.some_text("exclude", &self.exclude);
        line.some_text("destination", &self.destination);
        line.some_text("endpoint", &self.endpoint);
        line.texts("tags", &self.tags);
        line.raw("stream", if self.stream { b"true" } else { b"false" });
        line.number("request_bytes", Some(self.request_bytes));
        line.number("response_bytes", Some(self.response_bytes));
        line.number("prompt_tokens", self.usage.prompt_tokens);
        line.number("cached_tokens", self.usage.cached_tokens);
        line.number("completion_tokens", self.usage.completion_tokens);
        line.number("estimated_prompt_tokens", self.estimated_prompt_tokens.map(u64::from));
        line.number("overlap_tokens", self.overlap_tokens.map(u64::from));
        line.milliseconds("predicted_ttft_ms", self.predicted_ttft_us);
        line.milliseconds("ttft_ms", self.ttft_us);
        line.milliseconds("duration_ms", Some(self.duration_us));
        line.number("status", Some(u64::from(self.status)));
        line.text("outcome", self.outcome);
        line.number("retries", Some(u64::from(self.retries)));
        line.some_text("error", &self.error);
        if let Some(cost) = self.cost {
            line.raw("cost", format!("{cost:.9}").as_bytes());
        }
        line.to.extend_from_slice(b"}\n");
    }
}

struct Line<'a> {
    to: &'a mut Vec<u8>,
    first: bool,
}

impl Line<'_> {
    fn key(&mut self, key: &str) {
        self.to.extend_from_slice(if self.first { b"{\"" } else { b",\"" });
        self.first = false;
        self.to.extend_from_slice(key.as_bytes());
        self.to.extend_from_slice(b"\":");
    }

    fn raw(&mut self, key: &str, value: &[u8]) {
        self.key(key);
        self.to.extend_from_slice(value);
    }

    fn text(&mut self, key: &str, value: &str) {
        self.key(key);
        push_json_string(self.to, value);
    }

    fn some_text(&mut self, key: &str, value: &str) {
        if !value.is_empty() {
            self.text(key, value);
        }
    }

    fn texts(&mut self, key: &str, values: &[String]) {
        self.key(key);
        self.to.push(b'[');
        for (i, value) in values.iter().enumerate() {
            if i > 0 {
                self.to.push(b',');
            }
            push_json_string(self.to, value);
        }
        self.to.push(b']');
    }

    fn number(&mut self, key: &str, value: Option<u64>) {
        if let Some(value) = value {
            self.key(key);
            push_decimal(self.to, value);
        }
    }

    fn milliseconds(&mut self, key: &str, us: Option<u64>) {
        if let Some(us) = us {
            self.key(key);
            push_decimal(self.to, us / 1000);
            self.to.push(b'.');
            for divisor in [100, 10, 1] {
                self.to.push(b'0' + (us / divisor % 10) as u8);
            }
        }
    }
}

/// `2026-11-30T08:26:33.123Z` (Howard Hinnant's days-to-civil algorithm).
fn rfc3339(unix_ms: u64) -> String {
    let (days, ms_of_day) = (unix_ms / 86_400_000, unix_ms % 86_400_000);
    let z = days + 719_468;
    let era = z / 146_097;
    let day_of_era = z % 146_097;
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    let (hour, minute) = (ms_of_day / 3_600_000, ms_of_day / 60_000 % 60);
    let (second, ms) = (ms_of_day / 1000 % 60, ms_of_day % 1000);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{ms:03}Z")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_one_json_object() {
        let entry = Entry {
            time_unix_ms: 1_796_027_193_045,
            request_id: "a\"b".into(),
            tags: vec!["pii".into(), "tools".into()],
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
        assert_eq!(json["tags"], serde_json::json!(["pii", "tools"]));
        assert_eq!(json["predicted_ttft_ms"], 12.345);
        assert_eq!(json["prompt_tokens"], 22);
        assert_eq!(json["cached_tokens"], 0);
        assert!(json.get("completion_tokens").is_none());
        assert!(json.get("model").is_none());
    }

    #[test]
    fn dates_are_right_around_leap_days() {
        assert_eq!(rfc3339(0), "1970-01-01T00:00:00.000Z");
        assert_eq!(rfc3339(951_782_400_000), "2000-02-29T00:00:00.000Z");
        assert_eq!(rfc3339(1_709_251_199_999), "2024-02-29T23:59:59.999Z");
    }
}
