//! Recall and false alarms on labelled rows.

use std::collections::BTreeMap;

use predictor::classify::{Kind, Piece, Scanner, Scope, Scratch, Shape};
use serde_json::Value;

use super::Row;

/// Whether wrong rows are named.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Misses {
    Counted,
    Shown,
}

/// Found and all.
#[derive(Debug, Default, Clone, Copy)]
struct Count {
    found: u32,
    all: u32,
}

impl Count {
    fn add(&mut self, found: bool) {
        self.found += u32::from(found);
        self.all += 1;
    }

    fn share(self) -> f64 {
        f64::from(self.found) / f64::from(self.all.max(1))
    }
}

#[derive(Debug, Default)]
struct Counts {
    tiers: BTreeMap<String, Count>,
    cards: Count,
    phones: Count,
    beside: Count,
    disguised: Count,
    negatives: Count,
}

/// The rows of one set. Rows without labels are hard negatives; tier C is not looked for.
pub(crate) fn rows(scanner: &Scanner, name: &str, text: &str, misses: Misses) -> Result<Vec<Row>, serde_json::Error> {
    let mut counts = Counts::default();
    let mut scratch = Scratch::default();
    for line in text.lines() {
        let row: Value = serde_json::from_str(line)?;
        count(scanner, &mut scratch, &row, &mut counts, misses);
    }
    let goals = [
        ("tier A found", 0.995, counts.tiers.get("A").copied().unwrap_or_default()),
        ("tier B found", 0.98, counts.tiers.get("B").copied().unwrap_or_default()),
        ("cards found", 0.98, counts.cards),
        ("telephone numbers found", 0.80, counts.phones),
        ("found beside other numbers", 1.0, counts.beside),
        ("found in disguise", 0.75, counts.disguised),
    ];
    let row = |(what, goal, count): (&str, f64, Count)| {
        (count.all > 0).then(|| Row::at_least(format!("{name}: {what}"), goal, count.share(), count.all as usize))
    };
    let mut rows: Vec<Row> = goals.into_iter().filter_map(row).collect();
    let flagged = Row::at_most(format!("{name}: hard negatives flagged"), 0.01, counts.negatives.share(), "");
    rows.push(Row { reached: format!("{} of {}", flagged.reached, counts.negatives.all), ..flagged });
    Ok(rows)
}

fn count(scanner: &Scanner, scratch: &mut Scratch, row: &Value, counts: &mut Counts, misses: Misses) {
    let text = row["text"].as_str().unwrap_or_default();
    let style = row["style"].as_str().unwrap_or_default();
    let findings = scanner.scan(scratch, [Piece { scope: Scope::User, text }], &Shape::default());
    let labels = row["labels"].as_array().map_or(&[][..], Vec::as_slice);
    if labels.is_empty() {
        counts.negatives.add(!findings.hits().is_empty());
        if misses == Misses::Shown && !findings.hits().is_empty() {
            println!("flagged {} {style} {:?}", row["id"], findings.kinds().iter().map(Kind::name).collect::<Vec<_>>());
        }
    }
    for label in labels {
        let Some(kind) = label["kind"].as_str().and_then(Kind::from_name) else { continue };
        let place = |end: &str| label[end].as_u64().unwrap_or(0) as u32;
        let (start, end) = (place("start"), place("end"));
        let found = findings.hits().iter().any(|hit| hit.kind == kind && hit.start < end && start < hit.end);
        if misses == Misses::Shown && !found {
            println!("missed {} {style} {kind}", row["id"]);
        }
        if style.starts_with("disguised") {
            counts.disguised.add(found);
            continue;
        }
        counts.tiers.entry(label["tier"].as_str().unwrap_or_default().to_owned()).or_default().add(found);
        if kind == Kind::CreditCard {
            counts.cards.add(found);
        } else if kind == Kind::Phone {
            counts.phones.add(found);
        }
        if style.starts_with("beside") || style.ends_with("adjacent") {
            counts.beside.add(found);
        }
    }
}
