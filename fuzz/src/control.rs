//! What engines say about themselves, what the admin server is asked, and what is written for others to read.

use std::collections::BTreeMap;

use lb::probe::control::{self, Scraped};
use lb::probe::{Names, access_log_line, http1};
use policy::Code;

use crate::json::Json;

/// What another balancer tells: read when its length is what its count says, and then the same when it is written again.
pub fn balancers(data: &[u8]) {
    let count = data.get(20..22).map_or(0, |two| usize::from(two[0]) << 8 | usize::from(two[1]));
    let whole = data.len() >= 22 && data.starts_with(b"KIN1") && count <= 30 && data.len() == 22 + 40 * count;
    match control::balancer_told(data) {
        Some(again) if count == 0 => assert!(whole && again.is_empty()),
        Some(again) => assert!(whole && again == data),
        None => assert!(!whole),
    }
}

/// An engine's page of metrics: numbers are finite and in their ranges, and those that a slow reading finds.
pub fn scrape(data: &[u8]) {
    let page = control::scraped(data);
    for number in [page.waiting, page.running, page.kv_usage_ratio, page.succeeded_total, page.started_s] {
        assert!(number.is_none_or(|number| number.is_finite() && number >= 0.0), "{number:?}");
    }
    assert!(page.kv_usage_ratio.is_none_or(|ratio| ratio <= 1.0));
    assert_eq!(page, slow_page(data));
    let commented = [b"# HELP vllm:num_requests_waiting text\n# TYPE x gauge\nother 1\n", data].concat();
    assert_eq!(control::scraped(&commented), page, "a comment counts");
}

fn slow_page(data: &[u8]) -> Scraped {
    let mut page = Scraped::default();
    let mut usages = Vec::new();
    let sum = |to: &mut Option<f64>, value: f64| *to = Some((to.unwrap_or(0.0) + value).min(f64::MAX));
    for line in data.split(|byte| *byte == b'\n') {
        let Some((name, labels, value)) = slow_sample(line) else { continue };
        match name.as_str() {
            "vllm:num_requests_waiting"
            | "vllm:num_queue_reqs"
            | "sglang:num_requests_waiting"
            | "sglang:num_queue_reqs" => {
                sum(&mut page.waiting, value);
            }
            "vllm:num_requests_running"
            | "vllm:num_running_reqs"
            | "sglang:num_requests_running"
            | "sglang:num_running_reqs" => {
                sum(&mut page.running, value);
            }
            "vllm:request_success_total"
            | "vllm:num_requests_total"
            | "sglang:request_success_total"
            | "sglang:num_requests_total" => sum(&mut page.succeeded_total, value),
            "process_start_time_seconds" => page.started_s = Some(value),
            _ => match name.split_once(':').filter(|(engine, _)| matches!(*engine, "vllm" | "sglang")) {
                Some((_, "kv_cache_usage_perc" | "gpu_cache_usage_perc" | "token_usage")) => usages.push(value),
                Some((_, "cache_config_info")) => {
                    let number = |name: &[u8]| slow_label(&labels, name);
                    let blocks = number(b"num_gpu_blocks").and_then(|text| text.parse::<u64>().ok());
                    page.num_gpu_blocks = match (page.num_gpu_blocks, blocks) {
                        (Some(a), Some(b)) => a.checked_add(b),
                        (one, other) => one.or(other),
                    };
                    let size = number(b"block_size").and_then(|text| text.parse().ok());
                    page.block_size_tokens = size.or(page.block_size_tokens);
                }
                Some(_) | None => {}
            },
        }
    }
    if !usages.is_empty() {
        let sum = usages.iter().fold(0.0, |sum: f64, value| (sum + value).min(f64::MAX));
        page.kv_usage_ratio = Some((sum / usages.len() as f64).clamp(0.0, 1.0));
    }
    page
}

/// `name{labels} value`, with the labels from the first brace to the last.
fn slow_sample(line: &[u8]) -> Option<(String, Vec<u8>, f64)> {
    let stop = line.iter().position(|byte| matches!(byte, b'{' | b' '))?;
    let (labels, value) = match line[stop] {
        b'{' => {
            let close = line.iter().rposition(|byte| *byte == b'}').filter(|close| *close > stop)?;
            (line[stop + 1..close].to_vec(), &line[close + 1..])
        }
        _ => (Vec::new(), &line[stop..]),
    };
    let word = value.split(u8::is_ascii_whitespace).find(|word| !word.is_empty())?;
    let value: f64 = std::str::from_utf8(word).ok()?.parse().ok()?;
    let name = String::from_utf8_lossy(&line[..stop]).into_owned();
    (value.is_finite() && value >= 0.0).then_some((name, labels, value))
}

/// The raw value of a label.
fn slow_label(labels: &[u8], wanted: &[u8]) -> Option<String> {
    let mut rest = labels;
    loop {
        let equals = rest.iter().position(|byte| *byte == b'=')?;
        let (name, quoted) = (&rest[..equals], rest.get(equals + 1..)?.strip_prefix(b"\"")?);
        let (mut end, mut escaped) = (0, false);
        while escaped || *quoted.get(end)? != b'"' {
            escaped = !escaped && quoted[end] == b'\\';
            end += 1;
        }
        if name == wanted {
            return String::from_utf8(quoted[..end].to_vec()).ok();
        }
        rest = &quoted[end + 1..];
        rest = rest.strip_prefix(b",").unwrap_or(rest);
    }
}

/// An engine's list of models: what is made of it is YAML whatever the names, and a list of ordinary names is put in force.
pub fn learned(data: &[u8]) {
    let Some(learned) = control::learned(data) else { return };
    match &learned.snapshot {
        Ok(snapshot) => {
            for pool in &snapshot.pools {
                assert!(pool.names().iter().all(|name| learned.names.iter().any(|listed| listed == name)));
            }
        }
        Err(findings) => {
            let broken = |code: Code| matches!(code, Code::Syntax | Code::WrongType | Code::UnknownField);
            let first = findings.iter().find(|finding| broken(finding.code));
            assert!(first.is_none(), "{} in\n{}", first.map(ToString::to_string).unwrap_or_default(), learned.text);
            let ordinary = |name: &String| {
                (1..64).contains(&name.len()) && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"/-_.".contains(&b))
            };
            let unique = |at: usize| !learned.names[..at].contains(&learned.names[at]);
            let good = learned.names.iter().all(ordinary) && (0..learned.names.len()).all(unique);
            assert!(!good || learned.names.len() > 64, "ordinary names are refused: {findings:?}");
        }
    }
}

/// Four texts, told apart by zero bytes.
fn four(data: &[u8]) -> [String; 4] {
    let mut texts = data.splitn(4, |byte| *byte == 0).map(|text| String::from_utf8_lossy(text).into_owned());
    std::array::from_fn(|_| texts.next().unwrap_or_default())
}

/// Our page of metrics: every line is a comment or a sample, and names come back from their quotes as they were.
pub fn exposition(data: &[u8]) {
    let names = four(data);
    let page = control::metrics_page(&names[0], &names[1], &names[2], &names[3]).expect("a page is written");
    assert!(page.ends_with("# EOF\n") || page.ends_with('\n'));
    let mut found = None;
    for line in page.lines().filter(|line| !line.starts_with('#')) {
        let (name, labels, value) = exposition_line(line).unwrap_or_else(|| panic!("no sample: {line:?}"));
        assert!(value.parse::<f64>().is_ok(), "no number: {line:?}");
        if name == "kinference_requests_total" {
            assert!(found.is_none(), "one request, two samples");
            found = Some(labels);
        }
    }
    let found = found.expect("the request is counted");
    let of = |label: &str| found.get(label).cloned().unwrap_or_default();
    assert_eq!([of("model"), of("tenant"), of("destination"), of("rule")], names);
}

/// Reads a sample as the format's description has it.
fn exposition_line(line: &str) -> Option<(String, BTreeMap<String, String>, String)> {
    let name_end = line.find(['{', ' '])?;
    let mut labels = BTreeMap::new();
    let name = line[..name_end].to_owned();
    assert!(name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b':'));
    let mut rest = &line[name_end..];
    if let Some(inner) = rest.strip_prefix('{') {
        rest = inner;
        while !rest.starts_with('}') {
            let (label, quoted) = rest.split_once("=\"")?;
            let (mut value, mut chars) = (String::new(), quoted.char_indices());
            let end = loop {
                match chars.next()? {
                    (at, '"') => break at,
                    (_, '\\') => value.push(match chars.next()?.1 {
                        'n' => '\n',
                        other => other,
                    }),
                    (_, other) => value.push(other),
                }
            };
            labels.insert(label.to_owned(), value);
            rest = quoted[end + 1..].trim_start_matches(',');
        }
        rest = &rest[1..];
    }
    Some((name, labels, rest.strip_prefix(' ')?.to_owned()))
}

/// A line of the access log is one line, and one JSON object with the names in it, whatever they are.
pub fn access_log(data: &[u8]) {
    let [path, model, tenant, tag] = four(data);
    let names = Names { path: &path, model: &model, tenant: &tenant, tag: &tag };
    let number = data.iter().take(8).fold(0_u64, |number, byte| number << 8 | u64::from(*byte));
    let line = access_log_line(&names, number, number);
    assert_eq!(line.iter().position(|byte| *byte == b'\n'), Some(line.len() - 1), "one line");
    let json = Json::parse(&line).expect("a line is JSON");
    let of = |name: &str| json.member(name).and_then(Json::text).unwrap_or_default();
    assert_eq!([of("path"), of("model"), of("tenant")], [&path, &model, &tenant]);
    assert_eq!(json.member("tags"), Some(&Json::Array(vec![Json::String(tag)])));
    let members = json.members().unwrap_or_default();
    assert_eq!(json.effective().len(), members.len(), "a name stands twice");
    let duration = json.member("duration_ms").map(|number| format!("{number:?}")).unwrap_or_default();
    assert!(duration.contains("Number"), "{duration}");
    let time = of("time");
    // The journal writes times too.
    assert!(control::journal_line("", "", number).starts_with(&format!("time={time} ")), "two readings of a clock");
    let (date, clock) = time.split_once('T').expect("a date and a time");
    assert_eq!((date.split('-').count(), clock.len(), clock.ends_with('Z')), (3, 13, true), "{time}");
}

/// A line of the journal is one line of printable text, in which a value ends where it seems to.
pub fn journal(data: &[u8]) {
    let [message, name, ..] = four(data);
    let line = control::journal_line(&message, &name, 1_796_027_194_123);
    let rest = line.strip_prefix("time=2026-11-30T08:26:34.123Z level=info msg=").expect("a time, a level, a message");
    assert_eq!(line.chars().position(char::is_control), Some(line.chars().count() - 1), "one line");
    let (told, rest) = journal_value(rest);
    let (named, rest) = journal_value(rest.strip_prefix(" name=").expect("the pair"));
    assert_eq!(rest, "\n");
    for (found, given) in [(told, message), (named, name)] {
        // What is cut off, and what cannot be printed, is not given back.
        let shown: String = given.chars().map(|c| if c.is_control() && c != '\n' { ' ' } else { c }).collect();
        assert!(shown.starts_with(&found) && (found.len() == shown.len() || given.len() > 2_000), "{found:?}");
    }
}

/// The value at the start of `text`, and what follows.
fn journal_value(text: &str) -> (String, &str) {
    let Some(quoted) = text.strip_prefix('"') else {
        let end = text.find([' ', '\n']).unwrap_or(text.len());
        return (text[..end].to_owned(), &text[end..]);
    };
    let (mut value, mut escaped) = (String::new(), false);
    for (at, c) in quoted.char_indices() {
        match (escaped, c) {
            (false, '"') => return (value, &quoted[at + 1..]),
            (false, '\\') => {}
            (true, 'n') => value.push('\n'),
            (_, other) => value.push(other),
        }
        escaped = !escaped && c == '\\';
    }
    panic!("a quote that is not closed in {text:?}");
}

/// The admin server: whatever is sent, it answers HTTP or nothing, with a status it knows, and comes to an end.
pub fn admin(data: &[u8]) {
    let answer = control::admin_answer(data).expect("a runtime can be made");
    if answer.is_empty() {
        return;
    }
    let head = http1::response_head(&answer, "GET").expect("an answer is HTTP").expect("and has a whole head");
    let status = String::from_utf8_lossy(&head.first).into_owned();
    let known = ["100", "200", "400", "404", "405", "408", "414", "431", "503", "505"];
    assert!(known.contains(&status.as_str()), "status {status}");
}
