//! `kinfctl classify`: tags of a text, with the kinds, places and scores behind them. The text itself is never shown.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use predictor::classify::{
    Builtin, ComplexitySpec, Group, KindSet, OnUnknown, Piece, PiiSpec, Scanner, Scope, Scratch, Shape,
};
use serde_json::{Value, json};

use super::set::{each_line, read_file};
use super::{print_out, usage};

/// Most terms of the complexity score that are shown.
const TERMS_MAX: usize = 5;

/// Show the tags that the built-in classifiers put on a text.
#[derive(Debug, Args)]
pub(super) struct Classify {
    /// The file that holds the text; - is stdin
    file: PathBuf,
    /// Each line is a JSON object with `text`; one JSON object is shown for each
    #[arg(long)]
    jsonl: bool,
}

impl Classify {
    /// Classifies and shows.
    pub(super) fn run(&self) -> ExitCode {
        let kinds = KindSet::personal().union(KindSet::of_groups(&[Group::Network, Group::Crypto]));
        let builtins = [
            Builtin::Pii(PiiSpec { kinds, on_unknown: OnUnknown::AddTag }),
            Builtin::Secrets,
            Builtin::Complexity(ComplexitySpec::default()),
            Builtin::Topics,
            Builtin::Injection,
        ];
        let scanner = match Scanner::compile(&builtins) {
            Ok(scanner) => scanner,
            Err(error) => return usage(error),
        };
        if self.jsonl { self.lines(&scanner) } else { self.whole(&scanner) }
    }

    fn whole(&self, scanner: &Scanner) -> ExitCode {
        let file = match read_file(&self.file) {
            Ok(file) => file,
            Err(code) => return code,
        };
        match std::str::from_utf8(&file.bytes) {
            Ok(text) => print_out(&human(&looked_at(scanner, &mut Scratch::default(), text))),
            Err(error) => usage(format!("{}: not UTF-8 (byte {})", file.name, error.valid_up_to())),
        }
    }

    fn lines(&self, scanner: &Scanner) -> ExitCode {
        let name = self.file.display();
        let mut scratch = Scratch::default();
        let read = each_line(&self.file, &mut |number, line| {
            let value: Value = serde_json::from_slice(line).unwrap_or_default();
            let Some(text) = value.get("text").and_then(Value::as_str) else {
                return Err(usage(format!("{name}:{number}: not a JSON object with a `text`")));
            };
            let mut shown = looked_at(scanner, &mut scratch, text);
            if let (Some(id), Some(members)) = (value.get("id"), shown.as_object_mut()) {
                members.insert("id".to_owned(), id.clone());
            }
            print_out(&format!("{shown}\n"));
            Ok(())
        });
        read.map_or_else(|code| code, |()| ExitCode::SUCCESS)
    }
}

fn looked_at(scanner: &Scanner, scratch: &mut Scratch, text: &str) -> Value {
    let findings = scanner.scan(scratch, [Piece { scope: Scope::User, text }], &Shape::default());
    let tags: Vec<&str> = findings.tags().iter().filter_map(|tag| scanner.tag_name(tag)).collect();
    let hits: Vec<Value> = findings
        .hits()
        .iter()
        .map(|hit| json!({ "kind": hit.kind.name(), "start": hit.start, "end": hit.end }))
        .collect();
    let complexity = findings.complexity();
    let terms = scanner.complexity_terms(scratch);
    let terms: Vec<Value> =
        terms.iter().take(TERMS_MAX).map(|term| json!({ "name": term.name, "logit": term.logit })).collect();
    json!({ "tags": tags, "hits": hits, "complexity": complexity, "terms": terms })
}

fn human(shown: &Value) -> String {
    let list = |key: &str| shown[key].as_array().cloned().unwrap_or_default();
    let tags: Vec<String> = list("tags").iter().filter_map(|tag| tag.as_str().map(str::to_owned)).collect();
    let mut out = format!("tags: {}\n", if tags.is_empty() { "none".to_owned() } else { tags.join(", ") });
    for hit in list("hits") {
        out.push_str(&format!(
            "  {} at bytes {} to {}\n",
            hit["kind"].as_str().unwrap_or_default(),
            hit["start"],
            hit["end"]
        ));
    }
    if let Some(score) = shown["complexity"].as_f64() {
        out.push_str(&format!("complexity: {score:.3}\n"));
        for term in list("terms") {
            let logit = term["logit"].as_f64().unwrap_or_default();
            out.push_str(&format!("  {logit:+.2} {}\n", term["name"].as_str().unwrap_or_default()));
        }
    }
    out
}
