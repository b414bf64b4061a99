//! The reference of diagnostics is printed from the table of codes. `UPDATE=1 cargo test -p config` prints it anew.

use std::fmt::Write as _;
use std::path::Path;

use policy::{Code, signal};

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
