//! Complexity on prompts that no model was trained on: scores as they come out, and tags with the rules on top.

use predictor::classify::{Builtin, ComplexitySpec, Piece, Scanner, Scope, Scratch, Shape, SpecError, Tag};
use serde_json::Value;

use super::Row;
use super::labelled::Misses;

/// What came out for a prompt.
struct Judged {
    high: bool,
    score: f32,
    tagged_low: bool,
}

/// The rows of a set of prompts, each labelled `low` or `high` by the person who wrote it.
pub(crate) fn rows(text: &str, misses: Misses) -> Result<Vec<Row>, Box<dyn std::error::Error>> {
    let scanner = scanner()?;
    let mut scratch = Scratch::default();
    let mut all: Vec<Judged> = Vec::new();
    for line in text.lines() {
        let row: Value = serde_json::from_str(line)?;
        let text = row["text"].as_str().unwrap_or_default();
        let findings = scanner.scan(&mut scratch, [Piece { scope: Scope::User, text }], &Shape::default());
        // A language that is not known has no score: it is taken for the middle.
        let score = findings.complexity().unwrap_or(0.5);
        let judged =
            Judged { high: row["label"] == "high", score, tagged_low: findings.tags().contains(Tag::COMPLEXITY_LOW) };
        if misses == Misses::Shown && judged.high == judged.tagged_low {
            println!("{} {} scored {score:.3}", row["label"], row["source"]);
        }
        all.push(judged);
    }
    let share = |high: bool| {
        let side: Vec<&Judged> = all.iter().filter(|judged| judged.high == high).collect();
        side.iter().filter(|judged| judged.tagged_low).count() as f64 / side.len().max(1) as f64
    };
    let lows = all.iter().filter(|judged| !judged.high).count();
    Ok(vec![
        Row::at_least("fresh prompts: complexity AUC", 0.92, area(&all), all.len()),
        Row::at_least("fresh prompts: low found", 0.60, share(false), lows),
        Row::at_most("fresh prompts: high tagged low", 0.05, share(true), ""),
    ])
}

fn scanner() -> Result<Scanner, SpecError> {
    Scanner::compile(&[Builtin::Complexity(ComplexitySpec::default()), Builtin::Topics])
}

/// How often a high prompt scores above a low one, ties counted half.
fn area(all: &[Judged]) -> f64 {
    let scores = |high: bool| all.iter().filter(move |judged| judged.high == high).map(|judged| judged.score);
    let (mut above, mut pairs) = (0.0, 0.0);
    for high in scores(true) {
        for low in scores(false) {
            above += if high > low { 1.0 } else { f64::from(u8::from(high == low)) / 2.0 };
            pairs += 1.0;
        }
    }
    above / f64::max(pairs, 1.0)
}
