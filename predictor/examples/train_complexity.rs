//! Trains the complexity model and writes its report.
//!
//! `cargo run --release -p predictor --example train_complexity` reads `predictor/data/complexity-train.jsonl`, one JSON object a line (`text`,
//! `label` `low` or `high`, `source`), and writes `complexity.model` and `complexity-report.md` beside it. With `-- --check` it writes nothing,
//! and fails when one of them would be another: the same rows give the same bytes, as the order of training comes from a fixed seed and
//! nothing runs in parallel. `-- ROWS.jsonl DIRECTORY` trains from other rows.
//!
//! The report scores every row by a model that saw no row of its source, because rows of one source resemble each other and flatter.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::process::ExitCode;

use predictor::classify::complexity::{Example, Model, Reader, logistic, standard};

const SEED: u64 = 0x6b69_6e66_6572;
const EPOCHS: usize = 24;
/// Step size of the plain weights and of the gram weights.
const RATE_PLAIN: f32 = 0.02;
const RATE_GRAM: f32 = 0.25;
/// Pull to zero, per step. Grams are pulled harder: they know the sources by their words.
const DECAY_PLAIN: f32 = 1e-2;
const DECAY_GRAM: f32 = 6e-2;
/// Share of steps that see no grams, so that the plain features learn to do without.
const WITHOUT_GRAMS: f32 = 0.5;

struct Row {
    example: Example,
    high: f32,
    source: String,
}

/// Weights in training.
struct Weights {
    plain: Vec<f32>,
    grams: Vec<f32>,
    bias: f32,
}

/// SplitMix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    fn unit(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1u64 << 24) as f32
    }
}

/// What becomes of what was trained.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Use {
    Write,
    Compare,
}

fn main() -> ExitCode {
    let data = concat!(env!("CARGO_MANIFEST_DIR"), "/data");
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let rows = format!("{data}/complexity-train.jsonl");
    let result = match words[..] {
        [] => run(&rows, data, Use::Write),
        ["--check"] => run(&rows, data, Use::Compare),
        [rows, directory] => run(rows, directory, Use::Write),
        _ => Err("usage: train_complexity [--check | ROWS.jsonl DIRECTORY]".into()),
    };
    match result {
        Ok(report) => {
            println!("{report}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn run(path: &str, directory: &str, with: Use) -> Result<String, Box<dyn std::error::Error>> {
    let rows = read(&std::fs::read_to_string(path)?)?;
    let all: Vec<&Row> = rows.iter().collect();
    let model = train(&all)?;
    let held_out = leave_one_source_out(&rows)?;
    let report = report(&rows, &held_out, &model);
    for (name, bytes) in [("complexity.model", model.to_bytes()), ("complexity-report.md", report.clone().into_bytes())]
    {
        let path = format!("{directory}/{name}");
        match with {
            Use::Write => std::fs::write(path, bytes)?,
            Use::Compare if std::fs::read(&path)? == bytes => {}
            Use::Compare => return Err(format!("{path} is not what these rows give").into()),
        }
    }
    Ok(report)
}

fn read(text: &str) -> Result<Vec<Row>, serde_json::Error> {
    let mut reader = Reader::default();
    text.lines()
        .map(|line| {
            let row: serde_json::Value = serde_json::from_str(line)?;
            let field = |name: &str| row[name].as_str().unwrap_or_default().to_owned();
            Ok(Row {
                example: reader.read(&field("text")),
                high: f32::from(u8::from(field("label") == "high")),
                source: field("source"),
            })
        })
        .collect()
}

/// Logistic regression by AdaGrad, every source and both labels weighing the same.
fn train(rows: &[&Row]) -> Result<Model, Box<dyn std::error::Error>> {
    let (mean, deviation) = standardisation(rows);
    let weight_of = weights_of_sources(rows);
    let (plain, grams) = Reader::DIMENSIONS;
    let mut weights = Weights { plain: vec![0.0; plain], grams: vec![0.0; grams], bias: 0.0 };
    let (mut plain_squares, mut gram_squares) = (vec![1e-4f32; plain], vec![1e-4f32; grams]);
    let mut order: Vec<usize> = (0..rows.len()).collect();
    let mut random = Random(SEED);
    for _ in 0..EPOCHS {
        for at in (1..order.len()).rev() {
            order.swap(at, (random.next() % (at as u64 + 1)) as usize);
        }
        for &index in &order {
            let row = rows[index];
            let values: Vec<f32> = row
                .example
                .plain
                .iter()
                .enumerate()
                .map(|(at, value)| standard(*value, mean[at], deviation[at]))
                .collect();
            let scale = 1.0 / (row.example.grams.len().max(1) as f32).sqrt();
            let without = random.unit() < WITHOUT_GRAMS;
            let plain_sum: f32 = values.iter().zip(&weights.plain).map(|(value, weight)| value * weight).sum();
            let gram_sum: f32 =
                if without { 0.0 } else { row.example.grams.iter().map(|gram| weights.grams[*gram as usize]).sum() };
            let error =
                (logistic(weights.bias + plain_sum + scale * gram_sum) - row.high) * weight_of[row.source.as_str()];
            weights.bias -= RATE_PLAIN * error;
            for (at, value) in values.iter().enumerate() {
                let gradient = error * value + DECAY_PLAIN * weights.plain[at];
                plain_squares[at] += gradient * gradient;
                weights.plain[at] -= RATE_PLAIN * gradient / plain_squares[at].sqrt();
            }
            if !without {
                for gram in &row.example.grams {
                    let at = *gram as usize;
                    let gradient = error * scale + DECAY_GRAM * weights.grams[at];
                    gram_squares[at] += gradient * gradient;
                    weights.grams[at] -= RATE_GRAM * gradient / gram_squares[at].sqrt();
                }
            }
        }
    }
    Ok(Model::from_weights(&mean, &deviation, &weights.plain, weights.bias, &weights.grams)?)
}

fn standardisation(rows: &[&Row]) -> (Vec<f32>, Vec<f32>) {
    let (plain, _) = Reader::DIMENSIONS;
    let count = rows.len().max(1) as f32;
    let mean: Vec<f32> =
        (0..plain).map(|at| rows.iter().map(|row| row.example.plain[at]).sum::<f32>() / count).collect();
    let deviation = (0..plain)
        .map(|at| {
            (rows.iter().map(|row| (row.example.plain[at] - mean[at]).powi(2)).sum::<f32>() / count).sqrt().max(0.05)
        })
        .collect();
    (mean, deviation)
}

/// A row weighs less the more rows its source has, so that no source decides by its size; both labels weigh the same.
fn weights_of_sources<'a>(rows: &[&'a Row]) -> BTreeMap<&'a str, f32> {
    let mut counts: BTreeMap<&str, (f32, f32)> = BTreeMap::new();
    for row in rows {
        let entry = counts.entry(&row.source).or_insert((0.0, row.high));
        entry.0 += 1.0;
    }
    let total =
        |label: f32| counts.values().filter(|(_, high)| *high == label).map(|(count, _)| count.sqrt()).sum::<f32>();
    let totals = [total(0.0), total(1.0)];
    let half = rows.len() as f32 / 2.0;
    counts.iter().map(|(source, (count, high))| (*source, half / totals[*high as usize] / count.sqrt())).collect()
}

/// The score of each row by a model that did not see its source.
fn leave_one_source_out(rows: &[Row]) -> Result<Vec<f32>, Box<dyn std::error::Error>> {
    let mut scores = vec![0.0; rows.len()];
    let mut sources: Vec<&str> = rows.iter().map(|row| row.source.as_str()).collect();
    sources.sort_unstable();
    sources.dedup();
    for source in sources {
        let others: Vec<&Row> = rows.iter().filter(|row| row.source != source).collect();
        let model = train(&others)?;
        for (score, row) in scores.iter_mut().zip(rows).filter(|(_, row)| row.source == source) {
            *score = model.score_example(&row.example);
        }
    }
    Ok(scores)
}

/// Probability that a high row scores above a low one.
fn auc(scored: &[(f32, f32)]) -> f64 {
    let mut sorted = scored.to_vec();
    sorted.sort_by(|a, b| a.0.total_cmp(&b.0));
    let (mut lows, mut pairs, mut highs, mut at) = (0.0, 0.0, 0.0, 0);
    while at < sorted.len() {
        let tie = sorted[at..].iter().take_while(|(score, _)| *score == sorted[at].0).count();
        let high = sorted[at..at + tie].iter().filter(|(_, label)| *label > 0.5).count() as f64;
        let low = tie as f64 - high;
        pairs += high * (lows + low / 2.0);
        lows += low;
        highs += high;
        at += tie;
    }
    pairs / (lows * highs).max(1.0)
}

/// The mean over the sources of how well each is told from all rows of the other label.
fn mean_auc(rows: &[Row], scores: &[f32]) -> f64 {
    let sources: std::collections::BTreeSet<&str> = rows.iter().map(|row| row.source.as_str()).collect();
    let of_source = |source: &str| {
        let high = rows.iter().find(|row| row.source == source).map_or(0.0, |row| row.high);
        let counts = rows.iter().zip(scores).filter(|(row, _)| row.source == source || row.high != high);
        auc(&counts.map(|(row, score)| (*score, row.high)).collect::<Vec<_>>())
    };
    sources.iter().map(|source| of_source(source)).sum::<f64>() / sources.len().max(1) as f64
}

fn share(scores: &[f32], holds: impl Fn(f32) -> bool) -> f64 {
    scores.iter().filter(|score| holds(**score)).count() as f64 / scores.len().max(1) as f64
}

/// The largest threshold below which at most `most` of the pooled rows and `worst` of each source lie.
fn low_threshold(by_source: &BTreeMap<&str, (f32, Vec<f32>)>, most: f64, worst: f64) -> f32 {
    let pooled: Vec<f32> =
        by_source.values().filter(|(high, _)| *high > 0.5).flat_map(|(_, scores)| scores.iter().copied()).collect();
    let fits = |threshold: f32| {
        share(&pooled, |score| score < threshold) <= most
            && by_source
                .values()
                .filter(|(high, _)| *high > 0.5)
                .all(|(_, scores)| share(scores, |score| score < threshold) <= worst)
    };
    (1..1000).map(|step| step as f32 / 1000.0).take_while(|threshold| fits(*threshold)).last().unwrap_or(0.0)
}

fn high_threshold(by_source: &BTreeMap<&str, (f32, Vec<f32>)>, most: f64) -> f32 {
    let pooled: Vec<f32> =
        by_source.values().filter(|(high, _)| *high < 0.5).flat_map(|(_, scores)| scores.iter().copied()).collect();
    (1..1000)
        .rev()
        .map(|step| step as f32 / 1000.0)
        .take_while(|threshold| share(&pooled, |score| score > *threshold) <= most)
        .last()
        .unwrap_or(1.0)
}

fn report(rows: &[Row], held_out: &[f32], model: &Model) -> String {
    let mut by_source: BTreeMap<&str, (f32, Vec<f32>)> = BTreeMap::new();
    for (row, score) in rows.iter().zip(held_out) {
        by_source.entry(&row.source).or_insert((row.high, Vec::new())).1.push(*score);
    }
    let unseen: Vec<(f32, f32)> = rows.iter().zip(held_out).map(|(row, score)| (*score, row.high)).collect();
    let seen: Vec<(f32, f32)> = rows.iter().map(|row| (model.score_example(&row.example), row.high)).collect();
    let five = low_threshold(&by_source, 0.05, 1.0);
    let low = low_threshold(&by_source, 0.04, 0.08);
    let high = high_threshold(&by_source, 0.05);
    let lows: Vec<f32> = unseen.iter().filter(|(_, label)| *label < 0.5).map(|(score, _)| *score).collect();
    let highs: Vec<f32> = unseen.iter().filter(|(_, label)| *label > 0.5).map(|(score, _)| *score).collect();
    let mut text = String::from(
        "# Training report of the complexity model\n\nWritten by `examples/train_complexity.rs`; do not edit.\n",
    );
    text.push_str("Each row is scored by a model trained without the row's source, unless said otherwise. Scores only: the rules that keep code,\nmathematics, tools and unknown languages from being low come on top.\n\n");
    let _ = writeln!(text, "| what | value |\n|---|---|");
    let _ = writeln!(text, "| rows | {} |", rows.len());
    let _ = writeln!(text, "| AUC, source unseen | {:.4} |", auc(&unseen));
    let _ = writeln!(
        text,
        "| AUC, mean of sources: each against all rows of the other label | {:.4} |",
        mean_auc(rows, held_out)
    );
    let _ = writeln!(text, "| AUC, rows seen in training (flatters) | {:.4} |", auc(&seen));
    let _ = writeln!(
        text,
        "| low found when 5 % of high is below the threshold ({five:.3}) | {:.3} |",
        share(&lows, |score| score < five)
    );
    let _ = writeln!(text, "| threshold `low` (4 % of all high, 8 % of any source) | {low:.3} |");
    let _ = writeln!(text, "| low found below it | {:.3} |", share(&lows, |score| score < low));
    let _ = writeln!(text, "| high below it | {:.3} |", share(&highs, |score| score < low));
    let worst =
        by_source.values().filter(|(label, _)| *label > 0.5).map(|(_, scores)| share(scores, |score| score < low));
    let _ = writeln!(text, "| worst high source below it | {:.3} |", worst.fold(0.0, f64::max));
    let _ = writeln!(text, "| threshold `high` (5 % of all low) | {high:.3} |");
    let _ = writeln!(text, "| high found above it | {:.3} |", share(&highs, |score| score > high));
    text.push_str("\n| source | label | rows | mean score | below `low` | above `high` |\n|---|---|---|---|---|---|\n");
    for (source, (label, scores)) in &by_source {
        let mean = scores.iter().sum::<f32>() / scores.len().max(1) as f32;
        let _ = writeln!(
            text,
            "| {source} | {} | {} | {mean:.3} | {:.3} | {:.3} |",
            if *label > 0.5 { "high" } else { "low" },
            scores.len(),
            share(scores, |score| score < low),
            share(scores, |score| score > high)
        );
    }
    text.push_str("\nData: NQ-open (CC BY-SA 3.0), CLINC150 (CC BY 3.0), P3 prompts over AdversarialQA (CC BY-SA 4.0), DuoRC and CommonGen (MIT),\nself-instruct seed tasks (Apache-2.0), GSM8K (MIT), AQuA-RAT (Apache-2.0), MBPP (CC BY 4.0), FollowBench (Apache-2.0), Arena-Hard 2.0\n(Apache-2.0), and sentences of this project. The weights hold no text of them.\n");
    text
}
