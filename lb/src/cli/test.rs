//! `kinfctl test`: runs the `PolicyTest` documents of a set against the rest of the set.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, ValueEnum};
use config::policy_test::CaseResult;
use config::{SourceFile, policy_test};
use serde_json::{Value, json};

use super::lint::human;
use super::set::Set;
use super::{body, counted, print_out, usage};

/// Run policy tests: exit code 0 when all cases pass, 1 when one fails, 2 when they cannot be run.
#[derive(Debug, Args)]
pub(super) struct Test {
    /// Files and folders of *.yaml, taken together as one set
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<PathBuf>,
    /// How results are shown
    #[arg(short = 'o', long, value_enum, default_value_t = Format::Human)]
    format: Format,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Format {
    /// A line for each case, and why it failed
    Human,
    /// One JSON object a case, each on a line
    Json,
}

impl Test {
    /// Runs them and shows what came of each case.
    pub(super) fn run(&self) -> ExitCode {
        let Set { loaded, files } = match Set::load(&self.paths) {
            Ok(set) => set,
            Err(code) => return code,
        };
        if loaded.tests.is_empty() {
            return usage("there is no PolicyTest among the documents");
        }
        let results = policy_test::run(&loaded.snapshot, &loaded.tests, &|snapshot, text| {
            body::look_at(snapshot, text, None).tags
        });
        let failed = results.iter().filter(|result| !result.passed()).count();
        print_out(&match self.format {
            Format::Human => {
                let shown: String = results.iter().map(|result| show(result, &files)).collect();
                format!("{shown}{}{}, {failed} failed\n", notes(&results), counted(results.len(), "case"))
            }
            Format::Json => results.iter().map(|result| format!("{}\n", as_json(result))).collect(),
        });
        if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }
}

/// Each note once for each file it is about.
fn notes(results: &[CaseResult]) -> String {
    let notes: BTreeSet<(&str, &str)> =
        results.iter().flat_map(|r| r.notes.iter().map(|note| (&*r.file, note.as_str()))).collect();
    notes.into_iter().map(|(file, note)| format!("note: {file}: {note}\n")).collect()
}

fn as_json(result: &CaseResult) -> Value {
    let failures: Vec<Value> =
        result.failures.iter().filter_map(|finding| serde_json::from_str(&finding.json()).ok()).collect();
    json!({
        "file": &*result.file, "test": result.test, "case": result.case, "passed": result.passed(), "got": result.got,
        "failures": failures, "notes": result.notes,
    })
}

fn show(result: &CaseResult, files: &[SourceFile]) -> String {
    if result.passed() {
        return format!("ok    {}: {}\n", result.test, result.case);
    }
    format!("FAIL  {}: {}\n      got {}\n{}", result.test, result.case, result.got, human(&result.failures, files))
}
