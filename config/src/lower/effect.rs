//! Warnings for fields that are understood and checked, and do nothing in this version.
//!
//! A limit that is believed to hold and does not is worse than one that is refused. A row leaves this table in the change that
//! makes its field work.

use policy::{Code, Diagnostic};

use super::Checked;
use crate::node::Path;

/// A field without effect, and what happens instead.
struct Idle {
    kind: &'static str,
    /// Below `spec`.
    path: &'static [&'static str],
    /// Only with this value; empty: whatever the value.
    value: &'static str,
    instead: &'static str,
}

const fn idle(kind: &'static str, path: &'static [&'static str], instead: &'static str) -> Idle {
    Idle { kind, path, value: "", instead }
}

const TABLE: [Idle; 17] = [
    idle("InferenceTenant", &["limits", "requestsPerMinute"], "requests are not limited"),
    idle("InferenceTenant", &["limits", "tokensPerMinute"], "tokens are not limited"),
    idle("InferenceTenant", &["limits", "maxInFlight"], "requests in flight are not limited"),
    idle("InferenceTenant", &["priority"], "all tenants are served alike"),
    idle("InferenceTenant", &["jwt"], "tokens are not accepted"),
    idle("InferenceProvider", &["limits", "requestsPerMinute"], "requests are not limited"),
    idle("InferenceProvider", &["limits", "tokensPerMinute"], "tokens are not limited"),
    idle("InferenceProvider", &["timeouts", "total"], "the whole request is not timed"),
    idle("InferenceProvider", &["auth", "awsSigV4"], "the provider is not used"),
    Idle { kind: "InferenceProvider", path: &["type"], value: "Bedrock", instead: "the provider is not used" },
    Idle { kind: "InferenceProvider", path: &["baseURL"], value: "https:", instead: "the provider is not used" },
    idle("InferenceWorkerSet", &["kvEvents"], "what is cached is estimated from this gateway's own requests"),
    idle("InferenceWorkerSet", &["tokenizer"], "tokens are estimated from bytes"),
    idle("InferenceWorkerSet", &["selector"], "there is no cluster to find pods in: the set has no endpoints"),
    Idle { kind: "InferenceClassifier", path: &["type"], value: "Examples", instead: "its tags are never given" },
    Idle { kind: "InferenceClassifier", path: &["type"], value: "HTTP", instead: "its tags are never given" },
    idle("InferenceClassifier", &["modelFile"], "the built-in model is used"),
];

pub(super) fn warn(checked: &[Checked], findings: &mut Vec<Diagnostic>) {
    for c in checked {
        let kind = c.document.kind().as_str();
        for row in TABLE.iter().filter(|row| row.kind == kind) {
            let mut node = c.raw.root.field("spec");
            let mut path = Path::spec();
            for key in row.path {
                node = node.and_then(|node| node.field(key));
                path = path.key(key);
            }
            let Some(node) = node else { continue };
            if row.value.is_empty() || node.text().is_some_and(|text| text.starts_with(row.value)) {
                let field = row.path.join(".");
                let what = if row.value.is_empty() {
                    format!("`{field}`")
                } else {
                    format!("`{field}: {}`", node.text().unwrap_or_default())
                };
                let message = format!("{what} has no effect in this version: {}", row.instead);
                findings.push(c.finding(Code::NoEffect, &path, message));
            }
        }
    }
}
