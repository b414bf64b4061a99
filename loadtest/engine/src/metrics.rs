//! `/metrics`: the gauges, counters and histograms of vLLM 0.32 that routers read, under the same names and labels.

use std::fmt::Write as _;

use crate::{pump::Gauges, pump::Timing, step::Totals};

/// Bucket bounds of vLLM for the time to the first token, in seconds.
const FIRST_TOKEN_S: [f64; 22] = [
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
    160.0, 640.0, 2560.0,
];
/// For the time between tokens, in seconds.
const TOKEN_GAP_S: [f64; 19] =
    [0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0];
/// For times of a whole request, in seconds.
const REQUEST_S: [f64; 21] = [
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0,
    1920.0, 7680.0,
];
/// For lengths of prompts, in tokens.
const PROMPT_TOKENS: [f64; 13] =
    [1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0, 2000.0, 5000.0, 10_000.0];

/// A Prometheus histogram; counts are per bucket and summed up when written.
#[derive(Clone, Debug)]
struct Histogram {
    name: &'static str,
    bounds: &'static [f64],
    counts: Vec<u64>,
    sum: f64,
}

impl Histogram {
    fn new(name: &'static str, bounds: &'static [f64]) -> Self {
        Self { name, bounds, counts: vec![0; bounds.len() + 1], sum: 0.0 }
    }

    fn observe(&mut self, value: f64) {
        self.counts[self.bounds.partition_point(|&bound| bound < value)] += 1;
        self.sum += value;
    }

    fn observe_us(&mut self, us: u64) {
        self.observe(us as f64 * 1e-6);
    }

    fn write(&self, model: &str, out: &mut String) {
        let name = self.name;
        // Writing to a String cannot fail, here and below.
        let _ =
            writeln!(out, "# HELP vllm:{name} Histogram of {}.\n# TYPE vllm:{name} histogram", name.replace('_', " "));
        let mut total = 0;
        for (at, count) in self.counts.iter().enumerate() {
            total += count;
            let bound = self.bounds.get(at).map_or("+Inf".to_owned(), |bound| format!("{bound:?}"));
            let _ = writeln!(out, r#"vllm:{name}_bucket{{engine="0",le="{bound}",model_name="{model}"}} {total}.0"#);
        }
        let _ = writeln!(out, r#"vllm:{name}_count{{engine="0",model_name="{model}"}} {total}.0"#);
        let _ = writeln!(out, r#"vllm:{name}_sum{{engine="0",model_name="{model}"}} {:?}"#, self.sum);
    }
}

/// The histograms; times are virtual.
#[derive(Clone, Debug)]
pub(crate) struct Histograms {
    prompt_tokens: Histogram,
    first_token: Histogram,
    token_gap: Histogram,
    end_to_end: Histogram,
    queue: Histogram,
    prefill: Histogram,
    decode: Histogram,
    inference: Histogram,
}

impl Default for Histograms {
    fn default() -> Self {
        Self {
            prompt_tokens: Histogram::new("request_prompt_tokens", &PROMPT_TOKENS),
            first_token: Histogram::new("time_to_first_token_seconds", &FIRST_TOKEN_S),
            token_gap: Histogram::new("inter_token_latency_seconds", &TOKEN_GAP_S),
            end_to_end: Histogram::new("e2e_request_latency_seconds", &REQUEST_S),
            queue: Histogram::new("request_queue_time_seconds", &REQUEST_S),
            prefill: Histogram::new("request_prefill_time_seconds", &REQUEST_S),
            decode: Histogram::new("request_decode_time_seconds", &REQUEST_S),
            inference: Histogram::new("request_inference_time_seconds", &REQUEST_S),
        }
    }
}

impl Histograms {
    pub(crate) fn first_token(&mut self, us: u64) {
        self.first_token.observe_us(us);
    }

    pub(crate) fn next_token(&mut self, gap_us: u64) {
        self.token_gap.observe_us(gap_us);
    }

    pub(crate) fn finished(&mut self, timing: &Timing) {
        self.prompt_tokens.observe(f64::from(timing.prompt_tokens));
        self.end_to_end.observe_us(timing.last_token_us - timing.arrived_us);
        self.queue.observe_us(timing.admitted_us - timing.arrived_us);
        self.prefill.observe_us(timing.first_token_us - timing.admitted_us);
        self.decode.observe_us(timing.last_token_us - timing.first_token_us);
        self.inference.observe_us(timing.last_token_us - timing.admitted_us);
    }
}

/// Everything `/metrics` shows.
pub(crate) struct Metrics<'a> {
    pub(crate) model: &'a str,
    pub(crate) gauges: Gauges,
    pub(crate) totals: Totals,
    pub(crate) refused: u64,
    pub(crate) block_tokens: u32,
    pub(crate) blocks_max: u32,
    pub(crate) histograms: &'a Histograms,
}

#[derive(Clone, Copy)]
enum Kind {
    Gauge,
    Counter,
}

impl Metrics<'_> {
    /// The page in Prometheus' text format.
    pub(crate) fn render(&self) -> String {
        let mut out = String::with_capacity(16 << 10);
        let Self { gauges, totals, .. } = self;
        let (running, waiting) = (gauges.running as f64, gauges.waiting as f64);
        self.family(&mut out, Kind::Gauge, "num_requests_running", &[("", running)]);
        self.family(&mut out, Kind::Gauge, "num_requests_waiting", &[("", waiting)]);
        let by_reason = [(r#",reason="capacity""#, waiting), (r#",reason="deferred""#, 0.0)];
        self.family(&mut out, Kind::Gauge, "num_requests_waiting_by_reason", &by_reason);
        self.family(&mut out, Kind::Gauge, "kv_cache_usage_perc", &[("", gauges.kv_usage_ratio)]);
        let counters = [
            ("prefix_cache_queries_total", totals.cache_query_tokens),
            ("prefix_cache_hits_total", totals.cache_hit_tokens),
            ("num_preemptions_total", totals.preemptions),
            ("prompt_tokens_total", totals.cache_query_tokens),
            ("prompt_tokens_cached_total", totals.cache_hit_tokens),
            ("generation_tokens_total", totals.output_tokens),
        ];
        for (name, count) in counters {
            self.family(&mut out, Kind::Counter, name, &[("", count as f64)]);
        }
        let success = [
            (r#",finished_reason="length""#, totals.finished as f64),
            (r#",finished_reason="abort""#, totals.aborted as f64),
        ];
        self.family(&mut out, Kind::Counter, "request_success_total", &success);
        let refused = [(r#",reason="max_num_queued_reqs""#, self.refused as f64)];
        self.family(&mut out, Kind::Counter, "admission_rejections_total", &refused);
        let histograms = self.histograms;
        for histogram in [
            &histograms.prompt_tokens,
            &histograms.first_token,
            &histograms.token_gap,
            &histograms.end_to_end,
            &histograms.queue,
            &histograms.prefill,
            &histograms.decode,
            &histograms.inference,
        ] {
            histogram.write(self.model, &mut out);
        }
        let _ = writeln!(
            out,
            "# HELP vllm:cache_config_info Information of the LLMEngine CacheConfig\n\
             # TYPE vllm:cache_config_info gauge\n\
             vllm:cache_config_info{{block_size=\"{}\",cache_dtype=\"auto\",enable_prefix_caching=\"True\",engine=\"0\",\
             kv_cache_size_tokens=\"{}\",num_gpu_blocks=\"{}\",prefix_caching_hash_algo=\"sha256\"}} 1.0",
            self.block_tokens,
            u64::from(self.block_tokens) * u64::from(self.blocks_max),
            self.blocks_max,
        );
        out
    }

    fn family(&self, out: &mut String, kind: Kind, name: &str, samples: &[(&str, f64)]) {
        let kind = match kind {
            Kind::Gauge => "gauge",
            Kind::Counter => "counter",
        };
        let _ = writeln!(out, "# HELP vllm:{name} {}.\n# TYPE vllm:{name} {kind}", name.replace('_', " "));
        for (labels, value) in samples {
            // Prometheus sorts labels by name: finished_reason comes before model_name, reason after it.
            let (before, after) = if labels.starts_with(",f") { (*labels, "") } else { ("", *labels) };
            let _ = writeln!(out, r#"vllm:{name}{{engine="0"{before},model_name="{}"{after}}} {value:?}"#, self.model);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_those_of_vllm() {
        let mut histograms = Histograms::default();
        histograms.first_token(30_000);
        histograms.first_token(3_000_000_000);
        let totals = Totals { cache_query_tokens: 12_270, cache_hit_tokens: 160, finished: 154, ..Totals::default() };
        let page = Metrics {
            model: "tiny",
            gauges: Gauges { running: 4, waiting: 8, kv_usage_ratio: 0.25 },
            totals,
            refused: 0,
            block_tokens: 32,
            blocks_max: 65_536,
            histograms: &histograms,
        }
        .render();
        // Lines taken from a real server under load.
        for line in [
            r#"vllm:num_requests_running{engine="0",model_name="tiny"} 4.0"#,
            r#"vllm:num_requests_waiting{engine="0",model_name="tiny"} 8.0"#,
            r#"vllm:num_requests_waiting_by_reason{engine="0",model_name="tiny",reason="capacity"} 8.0"#,
            r#"vllm:prefix_cache_queries_total{engine="0",model_name="tiny"} 12270.0"#,
            r#"vllm:prompt_tokens_cached_total{engine="0",model_name="tiny"} 160.0"#,
            r#"vllm:request_success_total{engine="0",finished_reason="length",model_name="tiny"} 154.0"#,
            r#"vllm:time_to_first_token_seconds_bucket{engine="0",le="0.02",model_name="tiny"} 0.0"#,
            r#"vllm:time_to_first_token_seconds_bucket{engine="0",le="0.04",model_name="tiny"} 1.0"#,
            r#"vllm:time_to_first_token_seconds_bucket{engine="0",le="2560.0",model_name="tiny"} 1.0"#,
            r#"vllm:time_to_first_token_seconds_bucket{engine="0",le="+Inf",model_name="tiny"} 2.0"#,
        ] {
            assert!(page.lines().any(|found| found == line), "{line} is missing in\n{page}");
        }
        assert!(page.contains(r#"num_gpu_blocks="65536""#));
    }
}
