//! Tests of the scanner as a whole: sentences of many hands, disguises, neighbours, long texts, and what must not be found.

mod forms;
mod properties;
mod requests;
mod texts;

use super::*;

/// One scanner for all tests: it is immutable, and compiling it takes longer than most scans.
fn scanner() -> &'static Scanner {
    static SCANNER: std::sync::OnceLock<Scanner> = std::sync::OnceLock::new();
    SCANNER.get_or_init(compile)
}

fn compile() -> Scanner {
    let kinds = KindSet::personal().union(KindSet::of_groups(&[Group::Network, Group::Crypto]));
    Scanner::compile(&[
        Builtin::Pii(PiiSpec { kinds, on_unknown: OnUnknown::AddTag, scopes: Scopes::ALL }),
        Builtin::Secrets(Scopes::ALL),
    ])
    .expect("the built-ins compile")
}

fn found(scanner: &Scanner, text: &str) -> Vec<(Kind, String)> {
    let mut scratch = Scratch::default();
    let findings = scanner.scan(&mut scratch, [Piece { scope: Scope::User, text }], &Shape::default());
    findings.hits().iter().map(|hit| (hit.kind, text[hit.start as usize..hit.end as usize].to_owned())).collect()
}

fn assert_found(cases: &[(Kind, &str)]) {
    let scanner = scanner();
    let missed: Vec<_> =
        cases.iter().filter(|(kind, text)| !found(scanner, text).iter().any(|(found, _)| found == kind)).collect();
    assert!(missed.is_empty(), "missed {} of {}: {missed:#?}", missed.len(), cases.len());
}
