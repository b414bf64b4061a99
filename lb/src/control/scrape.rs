//! Reads the few numbers that matter out of an engine's Prometheus text.
//!
//! An engine's page is some 70 kB of which nine lines count, and it is read every second or faster from every
//! endpoint: lines are told apart by their names alone, without building anything. The names of vLLM, SGLang, trtllm-serve and Triton's
//! TensorRT-LLM backend are known (those that the model server protocol of the Gateway API Inference Extension lists, and of SGLang `page_size`, `num_pages`).
//! Gauges of several engines behind one address (data parallel ranks have a label `engine`) are added up, the cache usage averaged.

use crate::mailbox;

/// What one page says.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(crate) struct Page {
    /// Requests accepted and not begun.
    pub waiting: Option<f64>,
    /// Requests being worked on.
    pub running: Option<f64>,
    /// Mean over the engines, 0 to 1.
    pub kv_usage_ratio: Option<f64>,
    /// Blocks of the KV cache, all engines together.
    pub num_gpu_blocks: Option<u64>,
    /// Tokens in a block.
    pub block_size_tokens: Option<u32>,
    /// Requests that ended well since the engine started.
    pub succeeded_total: Option<f64>,
    /// When the process started, in seconds since 1970: another one means another process.
    pub started_s: Option<f64>,
}

impl Page {
    /// A gauge of so many blocks.
    fn blocks(&mut self, value: f64) {
        self.num_gpu_blocks = add_blocks(self.num_gpu_blocks, Some(value as u64));
    }

    /// A gauge of so many tokens in a block.
    fn block_size(&mut self, value: f64) {
        self.block_size_tokens = Some(value as u32).filter(|tokens| *tokens > 0).or(self.block_size_tokens);
    }

    /// The part that goes to the data threads; `None` when the page is not that of a known engine.
    pub(crate) fn scrape(&self, began_us: u64) -> Option<mailbox::Scrape> {
        Some(mailbox::Scrape {
            began_us,
            waiting: self.waiting?,
            running: self.running?,
            kv_usage_ratio: self.kv_usage_ratio,
            num_gpu_blocks: self.num_gpu_blocks,
            block_size_tokens: self.block_size_tokens,
        })
    }
}

/// Whose metrics a line's prefix tells of.
#[derive(Debug, Clone, Copy)]
enum Family {
    Vllm,
    Sglang,
    Trtllm,
    Triton,
}

const FAMILIES: [(&[u8], Family); 4] = [
    (b"vllm:", Family::Vllm),
    (b"sglang:", Family::Sglang),
    (b"trtllm_", Family::Trtllm),
    (b"nv_trt_llm_", Family::Triton),
];

/// Reads a page. What is not understood is passed over: a later engine may say more.
pub(crate) fn read(text: &[u8]) -> Page {
    let mut page = Page::default();
    let mut kv_usages = 0_u32;
    for line in text.split(|&byte| byte == b'\n') {
        if let Some(rest) = line.strip_prefix(b"process_start_time_seconds") {
            if let Some((b"", _, value)) = sample(rest) {
                page.started_s = Some(value);
            }
            continue;
        }
        let Some((family, rest)) =
            FAMILIES.iter().find_map(|(prefix, family)| Some((*family, line.strip_prefix(*prefix)?)))
        else {
            continue;
        };
        let Some((name, labels, value)) = sample(rest) else { continue };
        match (family, name) {
            (Family::Vllm, b"num_requests_waiting")
            | (Family::Sglang, b"num_queue_reqs")
            | (Family::Trtllm, b"num_requests_waiting") => add(&mut page.waiting, value),
            (Family::Vllm, b"num_requests_running")
            | (Family::Sglang, b"num_running_reqs")
            | (Family::Trtllm, b"num_requests_running") => add(&mut page.running, value),
            (Family::Vllm, b"kv_cache_usage_perc" | b"gpu_cache_usage_perc")
            | (Family::Sglang, b"token_usage")
            | (Family::Trtllm, b"kv_cache_utilization") => {
                add(&mut page.kv_usage_ratio, value);
                kv_usages += 1;
            }
            (Family::Vllm | Family::Trtllm, b"request_success_total") | (Family::Sglang, b"num_requests_total") => {
                add(&mut page.succeeded_total, value);
            }
            (Family::Vllm, b"cache_config_info") => {
                let blocks = label(labels, b"num_gpu_blocks").and_then(number::<u64>);
                page.num_gpu_blocks = add_blocks(page.num_gpu_blocks, blocks);
                page.block_size_tokens = label(labels, b"block_size").and_then(number).or(page.block_size_tokens);
            }
            (Family::Sglang, b"num_pages") | (Family::Trtllm, b"kv_cache_max_blocks") => page.blocks(value),
            (Family::Sglang, b"page_size") | (Family::Trtllm, b"kv_cache_tokens_per_block") => page.block_size(value),
            (Family::Triton, b"request_metrics") => match label(labels, b"request_type") {
                Some(b"waiting") => add(&mut page.waiting, value),
                Some(b"scheduled") => add(&mut page.running, value),
                _ => {}
            },
            (Family::Triton, b"kv_cache_block_metrics") => match label(labels, b"kv_cache_block_type") {
                Some(b"fraction") => {
                    add(&mut page.kv_usage_ratio, value);
                    kv_usages += 1;
                }
                Some(b"max") => page.blocks(value),
                Some(b"tokens_per") => page.block_size(value),
                _ => {}
            },
            (Family::Vllm | Family::Sglang | Family::Trtllm | Family::Triton, _) => {}
        }
    }
    page.kv_usage_ratio = page.kv_usage_ratio.map(|sum| (sum / f64::from(kv_usages.max(1))).clamp(0.0, 1.0));
    page
}

/// Name, labels and value of a sample that begins with a known prefix, which is left out. Comments begin with none.
fn sample(rest: &[u8]) -> Option<(&[u8], &[u8], f64)> {
    let name_end = rest.iter().position(|byte| matches!(byte, b'{' | b' '))?;
    let (name, rest) = rest.split_at(name_end);
    let (labels, value) = if rest.first() == Some(&b'{') {
        // Label values may hold `}`; the value of the sample never does.
        let close = memchr::memrchr(b'}', rest)?;
        (&rest[1..close], &rest[close + 1..])
    } else {
        (&rest[..0], rest)
    };
    let word = value.split(u8::is_ascii_whitespace).find(|word| !word.is_empty())?;
    let value: f64 = number(word)?;
    (value.is_finite() && value >= 0.0).then_some((name, labels, value))
}

fn number<T: std::str::FromStr>(word: &[u8]) -> Option<T> {
    std::str::from_utf8(word).ok()?.parse().ok()
}

fn add(sum: &mut Option<f64>, value: f64) {
    // Two numbers that are finite may add up to one that is not.
    *sum = Some((sum.unwrap_or(0.0) + value).min(f64::MAX));
}

fn add_blocks(sum: Option<u64>, blocks: Option<u64>) -> Option<u64> {
    match (sum, blocks) {
        (Some(a), Some(b)) => a.checked_add(b),
        (one, other) => one.or(other),
    }
}

/// Value of a label, when it needs no unescaping (the numbers looked for here never do).
fn label<'a>(labels: &'a [u8], name: &[u8]) -> Option<&'a [u8]> {
    let mut rest = labels;
    loop {
        let equals = memchr::memchr(b'=', rest)?;
        let key = &rest[..equals];
        let value = rest.get(equals + 1..)?.strip_prefix(b"\"")?;
        let mut end = 0;
        while *value.get(end)? != b'"' {
            end += if value[end] == b'\\' { 2 } else { 1 };
        }
        if key == name {
            return Some(&value[..end]);
        }
        rest = value.get(end + 1..)?;
        rest = rest.strip_prefix(b",").unwrap_or(rest);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Cut from a page of vLLM 0.32.
    const VLLM: &str = "\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine=\"0\",model_name=\"tiny\"} 4.0
# TYPE process_start_time_seconds gauge
process_start_time_seconds 1.79602702499e+09
vllm:num_requests_waiting{engine=\"0\",model_name=\"tiny\"} 8.0
vllm:num_requests_waiting_by_reason{engine=\"0\",model_name=\"tiny\",reason=\"capacity\"} 8.0
vllm:kv_cache_usage_perc{engine=\"0\",model_name=\"tiny\"} 0.25
vllm:request_success_total{engine=\"0\",finished_reason=\"stop\",model_name=\"tiny\"} 3.0
vllm:request_success_total{engine=\"0\",finished_reason=\"length\",model_name=\"tiny\"} 9.0
vllm:cache_config_info{_block_size_resolved=\"True\",block_size=\"32\",engine=\"0\",odd=\"a\\\"}=,b\",num_cpu_blocks=\"None\",num_gpu_blocks=\"65536\",num_gpu_blocks_override=\"None\"} 1.0
";

    #[test]
    fn a_vllm_page_gives_its_numbers_and_not_those_of_longer_names() {
        let page = read(VLLM.as_bytes());
        let expected = Page {
            waiting: Some(8.0),
            running: Some(4.0),
            kv_usage_ratio: Some(0.25),
            num_gpu_blocks: Some(65_536),
            block_size_tokens: Some(32),
            succeeded_total: Some(12.0),
            started_s: Some(1_796_027_024.99),
        };
        assert_eq!(page, expected);
    }

    #[test]
    fn engines_behind_one_address_are_added_up() {
        let two = VLLM.to_owned() + &VLLM.replace("engine=\"0\"", "engine=\"1\"").replace("} 0.25", "} 0.75");
        let page = read(two.as_bytes());
        assert_eq!((page.waiting, page.running, page.kv_usage_ratio), (Some(16.0), Some(8.0), Some(0.5)));
        assert_eq!((page.num_gpu_blocks, page.block_size_tokens), (Some(131_072), Some(32)));
    }

    #[test]
    fn other_engines_pages_give_the_same_numbers() {
        let sglang = "sglang:num_running_reqs{model_name=\"m\"} 2\nsglang:num_queue_reqs{model_name=\"m\"} 5\nsglang:token_usage{model_name=\"m\"} 0.5\n\
            sglang:num_pages{tp_rank=\"0\"} 6239.0\nsglang:page_size{tp_rank=\"0\"} 64.0\nsglang:num_queue_reqs_total 99\n";
        let trtllm = "trtllm_num_requests_running{model_name=\"m\",engine_type=\"trtllm\"} 2\ntrtllm_num_requests_waiting{model_name=\"m\"} 5\n\
            trtllm_kv_cache_utilization{model_name=\"m\"} 0.5\ntrtllm_kv_cache_max_blocks 6239\ntrtllm_kv_cache_tokens_per_block 64\n";
        let triton = "nv_trt_llm_request_metrics{model=\"t\",request_type=\"waiting\",version=\"1\"} 5\n\
            nv_trt_llm_request_metrics{model=\"t\",request_type=\"scheduled\",version=\"1\"} 2\nnv_trt_llm_request_metrics{model=\"t\",request_type=\"max\",version=\"1\"} 512\n\
            nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type=\"fraction\",model=\"t\"} 0.5\n\
            nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type=\"tokens_per\",model=\"t\"} 64\n\
            nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type=\"max\",model=\"t\"} 6239\n";
        for page in [sglang, trtllm, triton] {
            let scrape = read(page.as_bytes()).scrape(7).expect(page);
            let expected = mailbox::Scrape {
                began_us: 7,
                waiting: 5.0,
                running: 2.0,
                kv_usage_ratio: Some(0.5),
                num_gpu_blocks: Some(6_239),
                block_size_tokens: Some(64),
            };
            assert_eq!(scrape, expected, "{page}");
        }
    }

    #[test]
    fn a_page_of_something_else_is_no_scrape() {
        assert_eq!(read(b"go_goroutines 7\n").scrape(1), None);
        assert_eq!(read(b"<html>vllm:num_requests_waiting 3</html>").scrape(1), None);
        assert_eq!(read(b"vllm: 7\nvllm:{a=\"b\"} 7\nprocess_start_time_seconds_x 7\n").started_s, None);
        let huge =
            b"vllm:num_requests_waiting{engine=\"0\"} 1.7e308\nvllm:num_requests_waiting{engine=\"1\"} 1.7e308\n";
        assert_eq!(read(huge).waiting, Some(f64::MAX));
        assert_eq!(read(b"vllm:num_requests_waiting NaN\nvllm:num_requests_running -1\n").scrape(1), None);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn no_bytes_make_it_panic(noise in proptest::collection::vec(any::<u8>(), 0..80), cut in 0_usize..900) {
            let mut text = VLLM.as_bytes()[..cut.min(VLLM.len())].to_vec();
            text.extend_from_slice(&noise);
            text.extend_from_slice(b"\nvllm:cache_config_info{");
            text.extend_from_slice(&noise);
            let page = read(&text);
            prop_assert!(page.kv_usage_ratio.is_none_or(|ratio| (0.0..=1.0).contains(&ratio)));
        }
    }
}
