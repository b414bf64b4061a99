//! `kinfctl classify`: tags of a text, with the kinds, places and scores behind them. The text itself is never shown.
//!
//! With documents, their classifiers judge, as they would a turn of the user; without, those that are built in. Services are not asked.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use predictor::classify::{
    Builtin, ComplexitySpec, Group, KindSet, OnUnknown, Piece, PiiSpec, Scanner, Scope, Scopes, Scratch, Shape,
};
use serde_json::{Value, json};

use super::set::{Set, each_line, read_file};
use super::{print_out, usage};
use crate::tags;

/// Most terms of the complexity score that are shown.
const TERMS_MAX: usize = 5;

/// Show the tags that classifiers put on a text: those of documents, or the built-in ones.
#[derive(Debug, Args)]
pub(super) struct Classify {
    /// The file that holds the text; - is stdin
    file: PathBuf,
    /// Each line is a JSON object with `text`; one JSON object is shown for each
    #[arg(long)]
    jsonl: bool,
    /// Files and folders of *.yaml whose classifiers judge, instead of those that are built in; may be given several times
    #[arg(short = 'f', long, value_name = "PATH")]
    config: Vec<PathBuf>,
}

/// What judges.
struct Judges {
    scanner: Scanner,
    /// Classifiers that are services: a command asks none.
    not_asked: Vec<String>,
}

impl Classify {
    /// Classifies and shows.
    pub(super) fn run(&self) -> ExitCode {
        let judges = if self.config.is_empty() { built_in() } else { of_documents(&self.config) };
        match judges {
            Ok(judges) if self.jsonl => self.lines(&judges),
            Ok(judges) => self.whole(&judges),
            Err(code) => code,
        }
    }

    fn whole(&self, judges: &Judges) -> ExitCode {
        let file = match read_file(&self.file) {
            Ok(file) => file,
            Err(code) => return code,
        };
        match std::str::from_utf8(&file.bytes) {
            Ok(text) => print_out(&human(&looked_at(judges, &mut Scratch::default(), text))),
            Err(error) => usage(format!("{}: not UTF-8 (byte {})", file.name, error.valid_up_to())),
        }
    }

    fn lines(&self, judges: &Judges) -> ExitCode {
        let name = self.file.display();
        let mut scratch = Scratch::default();
        let read = each_line(&self.file, &mut |number, line| {
            let value: Value = serde_json::from_slice(line).unwrap_or_default();
            let Some(text) = value.get("text").and_then(Value::as_str) else {
                return Err(usage(format!("{name}:{number}: not a JSON object with a `text`")));
            };
            let mut shown = looked_at(judges, &mut scratch, text);
            if let (Some(id), Some(members)) = (value.get("id"), shown.as_object_mut()) {
                members.insert("id".to_owned(), id.clone());
            }
            print_out(&format!("{shown}\n"));
            Ok(())
        });
        read.map_or_else(|code| code, |()| ExitCode::SUCCESS)
    }
}

fn built_in() -> Result<Judges, ExitCode> {
    let kinds = KindSet::personal().union(KindSet::of_groups(&[Group::Network, Group::Crypto]));
    let builtins = [
        Builtin::Pii(PiiSpec { kinds, on_unknown: OnUnknown::AddTag, scopes: Scopes::ALL }),
        Builtin::Secrets(Scopes::ALL),
        Builtin::Complexity(ComplexitySpec::default()),
        Builtin::Topics,
        Builtin::Injection,
    ];
    let scanner = Scanner::compile(&builtins).map_err(usage)?;
    Ok(Judges { scanner, not_asked: Vec::new() })
}

fn of_documents(paths: &[PathBuf]) -> Result<Judges, ExitCode> {
    let set = Set::load(paths)?;
    let (scanner, services) = tags::scanner_of(&set.loaded.snapshot).map_err(usage)?;
    Ok(Judges { scanner, not_asked: services.into_iter().map(ToString::to_string).collect() })
}

fn looked_at(judges: &Judges, scratch: &mut Scratch, text: &str) -> Value {
    let scanner = &judges.scanner;
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
    let mut shown = json!({ "tags": tags, "hits": hits, "complexity": complexity, "terms": terms });
    if !judges.not_asked.is_empty() {
        shown["notAsked"] = json!(judges.not_asked);
    }
    shown
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
    for service in list("notAsked") {
        out.push_str(&format!("not asked, as it is a service: {}\n", service.as_str().unwrap_or_default()));
    }
    out
}
