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
    assert!(cases.len() >= 85, "only {} cases", cases.len());
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
        ("text-for-a-bool", "true"),
        ("mode", "Shadow"),
        ("warn-tenant", "mallory"),
        ("rewrite-bounds", "maxTokens"),
        ("policy-test", "ready"),
    ] {
        let (_, text) =
            cases().into_iter().find(|(f, _)| f.file_stem().is_some_and(|s| s == case)).expect("the case is there");
        let found: Vec<_> = findings(&text).into_iter().filter_map(|f| f.suggestion).collect();
        assert!(found.iter().any(|s| s == suggestion), "{case}: {found:?}");
    }
}

/// Every message of a case, as a person sees it.
fn shown(case: &str) -> String {
    let (_, text) =
        cases().into_iter().find(|(f, _)| f.file_stem().is_some_and(|s| s == case)).expect("the case is there");
    findings(&text).iter().map(|f| f.human(Some(&text))).collect()
}

#[test]
fn an_unclosed_bracket_or_quote_is_told_where_it_opens() {
    for (case, message, underlined) in [
        ("unclosed", "the `{` is opened here and not closed", "3 | metadata: { name: pool\n  |           ^\n"),
        ("unclosed-at-the-end", "the `[` is opened here", "5 |   destinations: [\n  |                 ^\n"),
        ("unclosed-list", "the `[` opened at line 5, column 32 is not closed by this", "= expected: `]`"),
        ("unclosed-inner", "the `{` opened at line 7, column 17 is not closed by this", "= expected: `}`"),
        ("wrong-bracket", "the `{` opened at line 7, column 17 is not closed by this", "= expected: `}`"),
        ("comma-missing", "within the `[` opened at line 5, column 17", "= expected: `,` or `]` before it"),
        ("unclosed-quote", "the quote is opened here", "3 | metadata: { name: \"pool }\n  |                   ^\n"),
    ] {
        let text = shown(case);
        assert!(text.contains(message) && text.contains(underlined), "{case}:\n{text}");
    }
}

#[test]
fn a_leak_is_shown_with_a_request_that_takes_it() {
    let text = shown("warn-personal-data");
    assert!(
        text.contains("a request for `m` by the tenant `anonymous`, tagged `pii` is taken by no earlier rule"),
        "{text}"
    );
    assert!(text.contains("to `cloud` by the rule `r`"), "{text}");
    assert!(shown("warn-shadow-leak").contains("once the rule is enforced"));
}

#[test]
fn files_beyond_a_bound_are_refused_at_once() {
    let large = format!("kind: InferencePool\n{}", "# nothing\n".repeat(1 << 20));
    let nested = format!("kind: {}", "{ a: ".repeat(100_000));
    let many = format!("kind: InferencePolicy\nspec: [{}]", "x,".repeat(300_000));
    // Each level is ten of the one above; the last would be more nodes than there are atoms to make them of.
    let mut laughs = String::from("l0: &l0 [x]\n");
    for level in 1..100 {
        let above = format!("*l{},", level - 1).repeat(10);
        laughs.push_str(&format!("l{level}: &l{level} [{above}]\n"));
    }
    for (name, text, part) in [
        ("large", large, "bytes; at most"),
        ("nested", nested, "nested deeper"),
        ("many", many, "nodes"),
        ("laughs", laughs, "aliases expanded"),
    ] {
        let found = findings(&text);
        assert_eq!(found.len(), 1, "{name}: {found:?}");
        assert_eq!(found[0].code, policy::Code::OverLimit, "{name}");
        assert!(found[0].message.contains(part), "{name}: {}", found[0].message);
    }
}

#[test]
fn lists_have_bounds_of_their_own() {
    let entry = "{ model: m },".repeat(65);
    let text = format!(
        "apiVersion: kinference.buoyant.io/v1alpha1\nkind: InferencePolicy\nmetadata: {{ name: p }}\nspec:\n  rules:\n  \
         - {{ name: r, matches: [{entry}], route: {{}} }}\n"
    );
    let found = findings(&text);
    assert_eq!(
        (found.len(), found[0].code, found[0].path.as_str()),
        (1, policy::Code::OverLimit, "spec.rules[0].matches")
    );
}

#[test]
fn what_is_no_text_is_refused_and_nothing_at_all_serves_nothing() {
    let file = SourceFile { name: "case.yaml".into(), bytes: b"kind: \xff\n".to_vec() };
    let found = load(&[file], &Lookup::Skip).expect_err("refused");
    assert_eq!((found[0].code, found[0].message.as_str()), (policy::Code::Syntax, "the file is not UTF-8 (byte 6)"));
    for empty in ["", "\n", "# nothing\n", "---\n---\n...\n", "\u{feff}"] {
        assert!(findings(empty).is_empty(), "{empty:?}");
    }
}

#[test]
fn no_beginning_of_a_document_and_no_letter_too_many_makes_the_loader_fail() {
    for (file, text) in cases() {
        let marks: Vec<usize> = text.char_indices().map(|(at, _)| at).collect();
        for at in marks.into_iter().step_by(61) {
            let (before, after) = text.split_at(at);
            findings(before);
            for letter in ["{", "\"", "\t", "&a ", "*a", "\0", "- "] {
                let found = findings(&format!("{before}{letter}{after}"));
                for finding in found.iter().take(1) {
                    assert!(!finding.human(Some(&text)).is_empty(), "{}", file.display());
                }
            }
        }
    }
}

#[test]
fn one_finding_in_each_of_the_three_forms() {
    let (_, text) =
        cases().into_iter().find(|(f, _)| f.file_stem().is_some_and(|s| s == "mode")).expect("the case is there");
    let found = findings(&text);
    assert_eq!(
        found[0].human(Some(&text)),
        "error[K0014 unknown-value]: the text \"Shdow\" is not possible here\n --> case.yaml:7:13\n  |\n\
         7 |       mode: Shdow\n  |             ^^^^^\n  = field: spec.rules[0].mode\n  = expected: `Enforced` or `Shadow`\n  \
         = help: did you mean `Shadow`?\n"
    );
    assert_eq!(
        found[0].json(),
        r#"{"severity":"error","code":"K0014","name":"unknown-value","message":"the text \"Shdow\" is not possible here","path":"spec.rules[0].mode","expected":"`Enforced` or `Shadow`","suggestion":"Shadow","file":"case.yaml","line":7,"column":13,"endLine":7,"endColumn":18}"#
    );
    assert_eq!(
        found[0].github(),
        "::error file=case.yaml,line=7,col=13,endLine=7,endColumn=18,title=K0014 unknown-value::the text \"Shdow\" is not \
         possible here (field spec.rules[0].mode)%0Aexpected: `Enforced` or `Shadow`%0Adid you mean `Shadow`?"
    );
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
