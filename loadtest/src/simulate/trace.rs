//! Request traces: who asks when, how long prompts and answers are, and which prompts begin alike.
//!
//! Two formats are read. JSON lines as published with Mooncake (FAST '25): `timestamp` (ms), `input_length`,
//! `output_length` (tokens), `hash_ids` (one number per block of the prompt, equal numbers at one place mean an equal prefix up
//! to there); optionally `session` and `gap` (ms): such a request is sent `gap` after the session's former answer ended. And
//! CSV as published by Azure (`TIMESTAMP,ContextTokens,GeneratedTokens`), whose prompts share nothing.

use std::{
    collections::{HashMap, HashSet},
    path::Path,
};

use serde::Deserialize;

/// Rows of a trace at most.
pub const ROWS_MAX: usize = 1_000_000;
/// Tokens of a prompt at most; longer ones are an error in the file.
const INPUT_TOKENS_MAX: u32 = 4_000_000;
/// Block sizes that are looked for, in tokens.
const BLOCK_TOKENS: [u32; 8] = [512, 16, 32, 64, 128, 256, 1_024, 2_048];

/// One request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// When it is sent, from the start of the trace; nominal for later turns of a session.
    pub at_us: u64,
    /// Row of the turn before it, which it waits for.
    pub after: Option<u32>,
    /// Pause after the answer of that turn.
    pub gap_us: u64,
    /// Tokens of the prompt.
    pub input_tokens: u32,
    /// Tokens of the answer.
    pub output_tokens: u32,
    /// Chained hashes of the blocks of the prompt; the last may stand for a block that is not full.
    pub blocks: Vec<u64>,
    /// Where messages of the prompt end, in tokens, as far as it can be told: the shared head, earlier prompts and answers.
    pub message_ends: Vec<u32>,
    /// Chained hashes of the full blocks of prompt and answer, as far as they are known from the next turn.
    pub answered_blocks: Vec<u64>,
}

/// A trace, in the order of its file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trace {
    /// Name of the file without its ending.
    pub name: String,
    /// Tokens in a block.
    pub block_tokens: u32,
    /// The requests.
    pub rows: Vec<Row>,
}

#[derive(Deserialize)]
struct Line {
    timestamp: f64,
    input_length: u32,
    output_length: u32,
    #[serde(default)]
    hash_ids: Vec<u64>,
    session: Option<u64>,
    gap: Option<f64>,
}

impl Trace {
    /// Reads a file; at most `rows_max` rows.
    ///
    /// # Errors
    /// Names the file and the line.
    pub fn read(path: &Path, rows_max: usize) -> Result<Self, String> {
        let text = std::fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
        let name = path.file_stem().map_or_else(String::new, |stem| stem.to_string_lossy().into_owned());
        Self::parse(&name, &text, rows_max.min(ROWS_MAX)).map_err(|error| format!("{}: {error}", path.display()))
    }

    /// Reads the text of a file.
    ///
    /// # Errors
    /// Names the line.
    pub fn parse(name: &str, text: &str, rows_max: usize) -> Result<Self, String> {
        let lines = match text.trim_start().starts_with('{') {
            true => json_lines(text, rows_max)?,
            false => csv_lines(text, rows_max)?,
        };
        if lines.is_empty() {
            return Err("it has no rows".to_owned());
        }
        let block_tokens = block_tokens(&lines)?;
        Ok(Self { name: name.to_owned(), block_tokens, rows: rows(&lines, block_tokens) })
    }

    /// Spreads rows that share a time evenly until the next one: a clock that was rounded made a burst of them.
    pub fn spread_bursts(&mut self) {
        let mut times_us: Vec<u64> = self.rows.iter().map(|row| row.at_us).collect();
        times_us.sort_unstable();
        times_us.dedup();
        let mut counts: HashMap<u64, u64> = HashMap::new();
        for row in self.rows.iter().filter(|row| row.after.is_none()) {
            *counts.entry(row.at_us).or_default() += 1;
        }
        let mut seen: HashMap<u64, u64> = HashMap::new();
        for row in self.rows.iter_mut().filter(|row| row.after.is_none()) {
            let next = times_us.partition_point(|at_us| *at_us <= row.at_us);
            let width_us = times_us.get(next).map_or(0, |next_us| next_us - row.at_us);
            let place = seen.entry(row.at_us).or_default();
            let count = counts.get(&row.at_us).copied().unwrap_or(1).max(1);
            row.at_us += width_us * *place / count;
            *place += 1;
        }
    }

    /// Requests a second over the length of the trace.
    #[must_use]
    pub fn nominal_rate(&self) -> f64 {
        let first_us = self.rows.iter().map(|row| row.at_us).min().unwrap_or(0);
        let last_us = self.rows.iter().map(|row| row.at_us).max().unwrap_or(0);
        self.rows.len() as f64 / ((last_us - first_us) as f64 / 1e6).max(1e-3)
    }
}

fn json_lines(text: &str, rows_max: usize) -> Result<Vec<Line>, String> {
    let mut lines = Vec::new();
    for (number, line) in (1..).zip(text.lines()).filter(|(_, line)| !line.trim().is_empty()).take(rows_max) {
        let line: Line = serde_json::from_str(line).map_err(|error| format!("line {number}: {error}"))?;
        if line.input_length > INPUT_TOKENS_MAX || line.output_length > INPUT_TOKENS_MAX {
            return Err(format!("line {number}: a length is over {INPUT_TOKENS_MAX} tokens"));
        }
        if !line.timestamp.is_finite() || line.timestamp < 0.0 || line.gap.is_some_and(|gap| gap.is_nan() || gap < 0.0)
        {
            return Err(format!("line {number}: times are milliseconds, 0 and up"));
        }
        lines.push(line);
    }
    Ok(lines)
}

fn csv_lines(text: &str, rows_max: usize) -> Result<Vec<Line>, String> {
    let mut lines = Vec::new();
    let mut first_ms = None;
    for (number, line) in (1..).zip(text.lines()).skip(1).filter(|(_, line)| !line.trim().is_empty()).take(rows_max) {
        let wrong = || format!("line {number}: not TIMESTAMP,ContextTokens,GeneratedTokens");
        let mut fields = line.trim().split(',');
        let (Some(at), Some(input), Some(output), None) = (fields.next(), fields.next(), fields.next(), fields.next())
        else {
            return Err(wrong());
        };
        let at_ms = clock_ms(at).ok_or_else(wrong)?;
        let first_ms = *first_ms.get_or_insert(at_ms);
        let number = |field: &str| field.trim().parse::<u32>().ok().filter(|tokens| *tokens <= INPUT_TOKENS_MAX);
        let (input_length, output_length) = (number(input).ok_or_else(wrong)?, number(output).ok_or_else(wrong)?);
        let timestamp = (at_ms - first_ms).max(0.0);
        lines.push(Line { timestamp, input_length, output_length, hash_ids: Vec::new(), session: None, gap: None });
    }
    Ok(lines)
}

/// Milliseconds of `2023-11-16 18:15:46.6805900` within a month.
fn clock_ms(text: &str) -> Option<f64> {
    let (date, time) = text.trim().split_once(' ')?;
    let day: f64 = date.rsplit('-').next()?.parse().ok()?;
    let mut parts = time.splitn(3, ':').map(str::parse::<f64>);
    let (hours, minutes, seconds) = (parts.next()?.ok()?, parts.next()?.ok()?, parts.next()?.ok()?);
    Some((((day * 24.0 + hours) * 60.0 + minutes) * 60.0 + seconds) * 1e3)
}

/// The one block size that fits every row.
fn block_tokens(lines: &[Line]) -> Result<u32, String> {
    if lines.iter().all(|line| line.hash_ids.is_empty()) {
        return Ok(BLOCK_TOKENS[0]);
    }
    let fits =
        |line: &Line, tokens: u32| line.hash_ids.len().abs_diff(line.input_length.div_ceil(tokens) as usize) <= 1;
    let all_fit = |tokens: &u32| lines.iter().all(|line| fits(line, *tokens));
    BLOCK_TOKENS.into_iter().find(all_fit).ok_or_else(|| {
        format!("the numbers of hash_ids fit no block size of {BLOCK_TOKENS:?} tokens: one id per block of the prompt is meant")
    })
}

fn rows(lines: &[Line], block_tokens: u32) -> Vec<Row> {
    let mut last_of_session: HashMap<u64, u32> = HashMap::new();
    let mut rows: Vec<Row> = Vec::with_capacity(lines.len());
    let mut seen: HashSet<u64> = HashSet::new();
    for (at, line) in lines.iter().enumerate() {
        let at_row = u32::try_from(at).unwrap_or(u32::MAX);
        let after = line.session.and_then(|session| last_of_session.insert(session, at_row));
        let blocks = match line.hash_ids.is_empty() {
            true => {
                chained((0..line.input_length.div_ceil(block_tokens)).map(|block| (u64::from(block) << 32) | at as u64))
            }
            false => chained(line.hash_ids.iter().copied()),
        };
        let full = (line.input_length / block_tokens) as usize;
        let answered_blocks = blocks[..blocks.len().min(full)].to_vec();
        if let Some(before) = after.and_then(|before| rows.get_mut(before as usize)) {
            let known = ((before.input_tokens + before.output_tokens) / block_tokens) as usize;
            let so_far = before.answered_blocks.len();
            if known >= so_far && blocks.starts_with(&before.answered_blocks) {
                before.answered_blocks.extend(blocks.iter().take(known).skip(so_far));
                // What was the not yet full end of the prompt goes on with the answer: the same text.
                let ends_at = before.blocks.len();
                if let (Some(end), Some(same)) = (before.blocks.last_mut(), blocks.get(ends_at - 1)) {
                    *end = *same;
                }
            }
        }
        let message_ends = match after.and_then(|before| rows.get(before as usize)) {
            Some(before) => {
                let mut ends = before.message_ends.clone();
                ends.extend([before.input_tokens, before.input_tokens + before.output_tokens]);
                ends
            }
            // What other sessions begin with too is a head of its own.
            None if line.session.is_some() => {
                vec![blocks.iter().take_while(|block| seen.contains(block)).count() as u32 * block_tokens]
            }
            None => Vec::new(),
        };
        seen.extend(&blocks);
        rows.push(Row {
            message_ends,
            at_us: (line.timestamp * 1e3) as u64,
            after,
            gap_us: (line.gap.unwrap_or(0.0) * 1e3) as u64,
            input_tokens: line.input_length.max(1),
            output_tokens: line.output_length.max(1),
            blocks,
            answered_blocks,
        });
    }
    rows
}

/// Numbers that name the whole prefix, from numbers that name a block at its place.
fn chained(ids: impl Iterator<Item = u64>) -> Vec<u64> {
    let mut parent = 0x6a09_e667_f3bc_c908_u64;
    ids.map(|id| {
        let mut bits = (parent ^ id).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        bits = (bits ^ (bits >> 32)).wrapping_mul(0xd6e8_feb8_6659_fd93);
        parent = bits ^ (bits >> 29);
        parent
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SESSIONS: &str = r#"{"timestamp": 0, "session": 7, "gap": 0, "input_length": 130, "output_length": 70, "hash_ids": [1, 2, 3]}
{"timestamp": 9, "session": 8, "gap": 0, "input_length": 64, "output_length": 1, "hash_ids": [1]}
{"timestamp": 50, "session": 7, "gap": 20, "input_length": 260, "output_length": 5, "hash_ids": [1, 2, 4, 5, 6]}
"#;

    #[test]
    fn a_turn_waits_for_the_one_before_and_tells_what_its_answer_left_in_the_cache() {
        let trace = Trace::parse("t", SESSIONS, 10).unwrap();
        assert_eq!(trace.block_tokens, 64);
        let [first, other, second] = &trace.rows[..] else { panic!() };
        assert_eq!((first.after, other.after, second.after), (None, None, Some(0)));
        assert_eq!((second.gap_us, other.at_us), (20_000, 9_000));
        assert_eq!(other.blocks[0], first.blocks[0]);
        assert_eq!(first.blocks.len(), 3);
        // 200 tokens are three full blocks, the third known from the second turn.
        assert_eq!(first.answered_blocks, second.blocks[..3]);
    }

    #[test]
    fn the_rows_of_azure_share_nothing() {
        let text = "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,374,44\n2023-11-16 18:15:50.9951690,1396,109\n";
        let trace = Trace::parse("azure", text, 10).unwrap();
        assert_eq!(trace.rows[1].at_us, 4_314_578);
        assert_eq!((trace.rows[1].input_tokens, trace.rows[1].blocks.len()), (1396, 3));
        assert_ne!(trace.rows[0].blocks[0], trace.rows[1].blocks[0]);
    }

    #[test]
    fn what_is_wrong_is_named_by_its_line() {
        let wrong = |text: &str| Trace::parse("t", text, 10).unwrap_err();
        assert!(wrong("{\"timestamp\": 0}\n").starts_with("line 1: missing field `input_length`"));
        assert!(wrong("a,b,c\nx,1,2\n").starts_with("line 2: not TIMESTAMP"));
        assert!(wrong("").contains("no rows"));
        assert!(
            wrong(r#"{"timestamp": 0, "input_length": 9000, "output_length": 1, "hash_ids": [1]}"#)
                .contains("fit no block size")
        );
        assert!(wrong(r#"{"timestamp": -1, "input_length": 9, "output_length": 1}"#).contains("milliseconds"));
    }
}
