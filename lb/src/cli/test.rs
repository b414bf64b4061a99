//! `kinfctl test`: runs the `PolicyTest` documents of a set against the rest of the set.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use config::policy_test::CaseResult;
use config::snapshot::PoolScope;
use config::{Lookup, Snapshot, SourceFile, policy_test};
use policy::Api;
use serde_json::Value;

use super::lint::human;
use super::{print_out, usage};
use crate::openai::Request;
use crate::tags::Tagger;

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
        let loaded =
            config::source::read_set(&self.paths).map_err(|findings| (findings, Vec::new())).and_then(|files| {
                match config::load(&files, &Lookup::Skip) {
                    Ok(loaded) => Ok((loaded, files)),
                    Err(findings) => Err((findings, files)),
                }
            });
        let (loaded, files) = match loaded {
            Ok(loaded) => loaded,
            Err((findings, files)) => {
                print_out(&human(&findings, &files));
                return usage("the documents have errors; no case was run");
            }
        };
        if loaded.tests.is_empty() {
            return usage("there is no PolicyTest among the documents");
        }
        let results = policy_test::run(&loaded.snapshot, &loaded.tests, &tags);
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

/// The tags of a request body, as a data thread would find them.
fn tags(snapshot: &Snapshot, body: &Value) -> Vec<String> {
    let model = body.get("model").and_then(Value::as_str).unwrap_or_default();
    let Some((_, pool)) = snapshot.pool_for(model, &PoolScope::All) else { return Vec::new() };
    let bytes = body.to_string().into_bytes();
    let api = if body.get("prompt").is_some() { Api::Completions } else { Api::ChatCompletions };
    let (tagger, _) = Tagger::for_pool(snapshot, pool);
    match Request::parse(&bytes) {
        Ok(request) => tagger.tags(api, &request, &bytes).into_iter().map(String::from).collect(),
        // What a data thread does with a body it cannot read.
        Err(_) => vec![String::from("pii-unscanned")],
    }
}
