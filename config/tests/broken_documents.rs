//! Documents with faults: every finding is made, at its line and column, and no other.
//!
//! Each file ends with what is expected of it, one `# expect LINE:COLUMN CODE PATH` a finding.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use config::{Lookup, SourceFile, load};
use policy::{Diagnostic, Severity};

fn cases() -> Vec<(PathBuf, String)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cases/broken");
    let mut files: Vec<PathBuf> =
        std::fs::read_dir(folder).expect("the cases are there").map(|e| e.expect("reads").path()).collect();
    files.sort();
    files.into_iter().map(|f| (f.clone(), std::fs::read_to_string(f).expect("reads"))).collect()
}

fn findings(text: &str) -> Vec<Diagnostic> {
    match load(&[SourceFile::new("case.yaml", text)], &Lookup::Skip) {
        Ok(loaded) => {
            assert!(loaded.snapshot.warnings.iter().all(|w| w.severity == Severity::Warning));
            loaded.snapshot.warnings
        }
        Err(findings) => {
            assert!(findings.iter().any(|f| f.severity == Severity::Error));
            findings
        }
    }
}

#[test]
fn every_fault_is_found_at_its_place_and_nothing_else() {
    let cases = cases();
    assert!(cases.len() >= 45, "only {} cases", cases.len());
    let mut wrong = String::new();
    for (file, text) in cases {
        let expected: BTreeSet<String> =
            text.lines().filter_map(|l| l.strip_prefix("# expect ")).map(|l| l.trim().to_owned()).collect();
        assert!(!expected.is_empty(), "{} expects nothing", file.display());
        let found = findings(&text);
        let got: BTreeSet<String> = found
            .iter()
            .map(|f| {
                let place =
                    f.span.as_ref().map_or_else(|| "nowhere".to_owned(), |s| format!("{}:{}", s.line, s.column));
                format!("{place} {} {}", f.code.number(), f.path).trim().to_owned()
            })
            .collect();
        if got != expected {
            let shown: String = found.iter().map(|f| f.human(Some(&text))).collect();
            wrong.push_str(&format!("{}:\n expected {expected:?}\n got      {got:?}\n{shown}\n", file.display()));
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
}

#[test]
fn misspelt_names_are_suggested() {
    for (case, suggestion) in [
        ("unknown-field", "model"),
        ("unknown-value", "Local"),
        ("unknown-kind", "InferencePolicy"),
        ("unknown-destination", "ws"),
        ("warn-not-served", "big"),
        ("warn-tag", "math"),
        ("wrong-type-number-for-text", "\"405\""),
        ("wrong-type-list", "[m]"),
    ] {
        let (_, text) =
            cases().into_iter().find(|(f, _)| f.file_stem().is_some_and(|s| s == case)).expect("the case is there");
        let found: Vec<_> = findings(&text).into_iter().filter_map(|f| f.suggestion).collect();
        assert!(found.iter().any(|s| s == suggestion), "{case}: {found:?}");
    }
}

#[test]
fn a_repeated_key_names_both_places() {
    let found = findings("kind: InferencePool\nspec: {}\nkind: InferencePolicy\n");
    let duplicate = found.iter().find(|f| f.path == "kind").expect("found");
    assert!(duplicate.message.contains("line 1, column 1"), "{}", duplicate.message);
    assert_eq!(duplicate.span.as_ref().map(|s| (s.line, s.column)), Some((3, 1)));
}

#[test]
fn the_same_resource_in_two_files_names_both() {
    let text = "apiVersion: kinference.buoyant.io/v1alpha1\nkind: InferenceWorkerSet\nmetadata: { name: ws }\nspec:\n  \
                model: { name: m }\n  endpoints: [{ address: a }]\n";
    let files = [SourceFile::new("a.yaml", text), SourceFile::new("b.yaml", text)];
    let found = load(&files, &Lookup::Skip).expect_err("refused");
    assert_eq!(found.len(), 1);
    assert!(found[0].message.contains("a.yaml:3:19"), "{}", found[0].message);
    assert_eq!(found[0].span.as_ref().map(|s| s.file.to_string()).as_deref(), Some("b.yaml"));
}

#[test]
fn no_message_repeats_a_secret_looking_value() {
    // A value in the wrong place is shown cut to forty characters at most, and a credential never by value.
    let text = "apiVersion: kinference.buoyant.io/v1alpha1\nkind: InferenceProvider\nmetadata: { name: p }\nspec:\n  type: \
                OpenAI\n  baseURL: https://user:hunter2@host\n  models: [{ name: m }]\n";
    for finding in findings(text) {
        assert!(!finding.human(None).contains("hunter2"), "{}", finding.human(None));
    }
}
