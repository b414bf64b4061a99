//! The reference of diagnostics is printed from the table of codes. `UPDATE=1 cargo test -p config` prints it anew.

use std::fmt::Write as _;
use std::path::Path;

use config::SourceFile;
use config::check::Checker;
use config::load::documents;
use crds::Kind;
use crds::schema::reference::{Field, each_field};
use crds::schema::{self, example};
use policy::{Code, signal};
use serde_json::Value;

fn markdown() -> String {
    let mut out = String::from(
        "# Diagnostics and signals\n\nPrinted from `policy/src/diagnostic.rs` and `policy/src/signal.rs`; do not edit. \
         Numbers and names never change once released.\n\n| code | name | severity | meaning |\n|---|---|---|---|\n",
    );
    for code in Code::ALL {
        let (number, name, severity) = (code.number(), code.name(), code.severity().as_str());
        let _ = writeln!(out, "| {number} | `{name}` | {severity} | {} |", code.summary());
    }
    out.push_str("\n## Signals\n\nWhat a policy may know about a candidate.\n\n| field | unit | range | source |\n|---|---|---|---|\n");
    for signal in signal::ALL {
        let row = signal.row();
        let high = if row.range.1.is_finite() { row.range.1.to_string() } else { "any".to_owned() };
        let _ = writeln!(out, "| `{}` | {} | {} to {high} | {:?} |", row.field, row.unit, row.range.0, row.source);
    }
    out
}

#[test]
fn the_committed_reference_of_diagnostics_is_that_of_the_code() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/reference/diagnostics.md");
    let generated = markdown();
    if std::env::var_os("UPDATE").is_some_and(|v| v == "1") {
        std::fs::write(&path, &generated).expect("writes");
    }
    assert!(
        std::fs::read_to_string(&path).unwrap_or_default() == generated,
        "{} is not what the code prints; run `UPDATE=1 cargo test -p config`",
        path.display()
    );
}

/// Calls `each` with every field of every kind and of the server's own file.
fn every_field(each: &mut dyn FnMut(Field<'_>)) {
    for kind in Kind::ALL {
        each_field(kind.as_str(), &schema::spec(kind), each);
    }
    each_field("server", &schema::server(), each);
}

#[test]
fn every_field_has_an_example_that_its_schema_takes() {
    let mut faults = Vec::new();
    every_field(&mut |Field { path, schema, .. }| {
        let Some(example) = example::example(path, schema) else {
            let nested =
                |schema: &Value| schema.get("properties").is_some() || schema.get("additionalProperties").is_some();
            if !nested(schema) && !schema.get("items").is_some_and(nested) {
                faults.push(format!("{path} has no example"));
            }
            return;
        };
        let mut findings = Vec::new();
        let read = documents(&SourceFile::new("example", &format!("{example}\n")), &mut findings);
        match read.first() {
            Some(document) => Checker::default().check(document, schema, &mut findings),
            None => faults.push(format!("{path}: `{example}` is no YAML")),
        }
        faults.extend(findings.iter().map(|finding| format!("{path}: `{example}`: {finding}")));
    });
    assert!(faults.is_empty(), "{faults:#?}");
}

#[test]
fn every_number_has_a_unit() {
    let mut missing = Vec::new();
    every_field(&mut |Field { path, schema, .. }| {
        let branches = schema.get("anyOf").and_then(Value::as_array).into_iter().flatten();
        let mut forms = branches.chain([schema]).filter_map(|form| form.get("type").and_then(Value::as_str));
        if forms.any(|form| matches!(form, "integer" | "number")) && example::unit(path, schema).is_none() {
            missing.push(path.to_owned());
        }
    });
    assert!(missing.is_empty(), "{missing:#?}");
}
