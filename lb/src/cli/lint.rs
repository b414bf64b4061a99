//! `kinfctl lint`: checks documents as a server would, and shows every finding at its place.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, ValueEnum};
use config::lower::example_accuracies;
use config::snapshot::ResourceId;
use config::{Lookup, Snapshot, SourceFile};
use policy::{Diagnostic, Severity};
use predictor::classify::Accuracy;

use super::{counted, print_out, usage};

/// Check documents: exit code 0 when a server would take them, 1 when not, 2 when they cannot be read.
#[derive(Debug, Args)]
pub(super) struct Lint {
    /// Files and folders of *.yaml, taken together as one set
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<PathBuf>,
    /// How findings are shown
    #[arg(short = 'o', long, value_enum, default_value_t = Format::Human)]
    format: Format,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Format {
    /// With the line they stand in
    Human,
    /// One JSON object a line
    Json,
    /// Annotations of GitHub Actions
    Github,
}

impl Lint {
    /// Checks and shows.
    pub(super) fn run(&self) -> ExitCode {
        let files = match config::source::read_set(&self.paths) {
            Ok(files) => files,
            Err(findings) => {
                self.show(&findings, &[]);
                return usage("the documents cannot be read");
            }
        };
        if files.is_empty() {
            return usage("there are no *.yaml files there");
        }
        let (findings, accuracies) = match config::load(&files, &Lookup::Skip) {
            Ok(loaded) => {
                let accuracies = accuracies(&loaded.snapshot);
                (loaded.snapshot.warnings, accuracies)
            }
            Err(findings) => (findings, String::new()),
        };
        self.show(&findings, &files);
        let errors = findings.iter().filter(|finding| finding.severity == Severity::Error).count();
        match self.format {
            Format::Human => {
                let warnings = findings.len() - errors;
                let [files, errors, warnings] =
                    [(files.len(), "file"), (errors, "error"), (warnings, "warning")].map(|(n, what)| counted(n, what));
                print_out(&format!("{accuracies}{files}, {errors}, {warnings}\n"));
            }
            Format::Json | Format::Github => {}
        }
        if errors == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }

    fn show(&self, findings: &[Diagnostic], files: &[SourceFile]) {
        let lines =
            |form: fn(&Diagnostic) -> String| findings.iter().map(|finding| form(finding) + "\n").collect::<String>();
        print_out(&match self.format {
            Format::Human => human(findings, files),
            Format::Json => lines(Diagnostic::json),
            Format::Github => lines(Diagnostic::github),
        });
    }
}

/// How well the sentences of each classifier by examples tell each other apart: no finding, but what one wants to know.
fn accuracies(snapshot: &Snapshot) -> String {
    let line = |(id, tag, accuracy): (&ResourceId, &str, Accuracy)| {
        let Accuracy { right, all } = accuracy;
        format!("{id}: tag `{tag}`: {right} of {all} sentences come out right when each is judged by all others\n")
    };
    example_accuracies(snapshot).map(line).collect()
}

/// Findings for people, each with its line when its file is among `files`.
pub(super) fn human(findings: &[Diagnostic], files: &[SourceFile]) -> String {
    let text = |finding: &Diagnostic| {
        let file = files.iter().find(|file| finding.span.as_ref().is_some_and(|span| span.file == file.name))?;
        std::str::from_utf8(&file.bytes).ok()
    };
    findings.iter().map(|finding| finding.human(text(finding)) + "\n").collect()
}
