//! Measures the PII and secret scanners on rows of labelled text.
//!
//! `cargo run --release -p predictor --example classify_rows -- ROWS.jsonl [misses]` reads one JSON object a line, with `text`, `labels`
//! (`kind`, `tier`, `start`, `end` in bytes) and `style`, and prints the recall of each tier and kind, the share of unlabelled rows that
//! were flagged, and the scan rate. With `misses` it also prints the id, kind and style of every wrong row (not its text).

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::Instant;

use predictor::classify::{
    Builtin, Group, Kind, KindSet, OnUnknown, Piece, PiiSpec, Scanner, Scope, Scopes, Scratch, Shape,
};

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let Some(path) = arguments.next() else {
        eprintln!("usage: classify_rows ROWS.jsonl [misses]");
        return ExitCode::FAILURE;
    };
    let verbose = arguments.next().is_some();
    let rows: Vec<serde_json::Value> = match std::fs::read_to_string(&path) {
        Ok(text) => text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect(),
        Err(error) => {
            eprintln!("{path}: {error}");
            return ExitCode::FAILURE;
        }
    };
    let kinds = KindSet::personal().union(KindSet::of_groups(&[Group::Network, Group::Crypto]));
    let builtins = [
        Builtin::Pii(PiiSpec { kinds, on_unknown: OnUnknown::AddTag, scopes: Scopes::ALL }),
        Builtin::Secrets(Scopes::ALL),
    ];
    let scanner = match Scanner::compile(&builtins) {
        Ok(scanner) => scanner,
        Err(error) => {
            eprintln!("{error}");
            return ExitCode::FAILURE;
        }
    };
    measure(&scanner, &rows, verbose);
    rate(&scanner, &rows);
    ExitCode::SUCCESS
}

fn piece(row: &serde_json::Value) -> Piece<'_> {
    Piece { scope: Scope::User, text: row["text"].as_str().unwrap_or_default() }
}

fn measure(scanner: &Scanner, rows: &[serde_json::Value], verbose: bool) {
    let mut scratch = Scratch::default();
    let mut tiers: BTreeMap<String, [u32; 2]> = BTreeMap::new();
    let mut kinds: BTreeMap<String, [u32; 2]> = BTreeMap::new();
    let (mut negatives, mut flagged, mut extra) = (0, 0, 0);
    for row in rows {
        let findings = scanner.scan(&mut scratch, [piece(row)], &Shape::default());
        let labels = row["labels"].as_array().map_or(&[][..], Vec::as_slice);
        if labels.is_empty() {
            negatives += 1;
            if !findings.hits().is_empty() {
                flagged += 1;
                if verbose {
                    println!("FLAGGED {} {} {:?}", row["id"], row["style"], findings.hits());
                }
            }
        }
        for label in labels {
            let (name, tier) = (label["kind"].as_str().unwrap_or_default(), label["tier"].as_str().unwrap_or_default());
            let Some(kind) = Kind::from_name(name) else { continue };
            let (start, end) = (label["start"].as_u64().unwrap_or(0) as u32, label["end"].as_u64().unwrap_or(0) as u32);
            let hit = findings.hits().iter().any(|hit| hit.kind == kind && hit.start < end && start < hit.end);
            for cell in [tiers.entry(tier.to_owned()).or_default(), kinds.entry(name.to_owned()).or_default()] {
                cell[0] += u32::from(hit);
                cell[1] += 1;
            }
            if !hit && verbose {
                println!(
                    "MISSED {} {name} {tier} {} at {start}..{end}, hits {:?}",
                    row["id"],
                    row["style"],
                    findings.hits()
                );
            }
        }
        for hit in findings
            .hits()
            .iter()
            .filter(|hit| !labels.is_empty() && !labels.iter().any(|label| label["kind"] == hit.kind.name()))
        {
            extra += 1;
            if verbose {
                println!("EXTRA {} {} {:?}", row["id"], row["style"], hit);
            }
        }
    }
    for (name, [hit, all]) in tiers.iter().chain(&kinds).filter(|(name, [hit, all])| name.len() == 1 || hit < all) {
        println!("{name:20} {hit:4} of {all:4}  {:.4}", f64::from(*hit) / f64::from(*all));
    }
    println!("unlabelled rows flagged {flagged} of {negatives}; finds of other kinds in labelled rows {extra}");
}

/// Scan rate over all rows joined, and over a table of digits.
fn rate(scanner: &Scanner, rows: &[serde_json::Value]) {
    let joined: String = rows.iter().map(|row| format!("{}\n", piece(row).text)).collect();
    let table: String = (0..40_000u64)
        .map(|row| format!("{} {} {}\n", row * 7_919 % 1_000_000, row * 104_729 % 10_000_000_000, row * 31 % 997))
        .collect();
    let prose =
        "The committee met again in the autumn to read what the others had written about the harbour. ".repeat(8_000);
    let mut scratch = Scratch::default();
    for (name, text) in [("rows", &joined), ("digits", &table), ("prose", &prose)] {
        // The least of several tries per block: another program on the core spoils a block, not the whole.
        let (mut seconds, mut bytes, mut steps) = (0.0, 0, 0);
        for block in blocks(text) {
            let once = |scratch: &mut Scratch| {
                let begun = Instant::now();
                scanner.scan(scratch, [Piece { scope: Scope::User, text: block }], &Shape::default());
                begun.elapsed().as_secs_f64()
            };
            seconds += (0..7).map(|_| once(&mut scratch)).fold(f64::INFINITY, f64::min);
            bytes += block.len();
            steps += scratch.findings().work_steps();
        }
        println!("{name:8} {:6.1} MB/s, {:.2} steps a byte", bytes as f64 / seconds / 1e6, steps as f64 / bytes as f64);
    }
}

/// Whole lines, about 32 KiB at a time.
fn blocks(text: &str) -> impl Iterator<Item = &str> {
    let mut rest = text;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let cut = rest
            .bytes()
            .enumerate()
            .skip(32 * 1024)
            .find(|(_, byte)| *byte == b'\n' || *byte == b' ')
            .map_or(rest.len(), |(at, _)| at + 1);
        let (block, tail) = rest.split_at(cut);
        rest = tail;
        Some(block)
    })
}
