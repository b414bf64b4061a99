//! `kinfctl test`: runs the `PolicyTest` documents of a set against the rest of the set.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use config::policy_test::CaseResult;
use config::{SourceFile, policy_test};

use super::lint::human;
use super::set::Set;
use super::{body, print_out, usage};

/// Run policy tests: exit code 0 when all cases pass, 1 when one fails, 2 when they cannot be run.
#[derive(Debug, Args)]
pub(super) struct Test {
    /// Files and folders of *.yaml, taken together as one set
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<PathBuf>,
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
        let shown: String = results.iter().map(|result| show(result, &files)).collect();
        print_out(&format!("{shown}{} cases, {failed} failed\n", results.len()));
        if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }
}

fn show(result: &CaseResult, files: &[SourceFile]) -> String {
    if result.passed() {
        return format!("ok    {}: {}\n", result.test, result.case);
    }
    format!("FAIL  {}: {}\n      got {}\n{}", result.test, result.case, result.got, human(&result.failures, files))
}
