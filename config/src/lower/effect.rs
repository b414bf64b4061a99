//! Warnings for fields that are understood and checked, and do nothing in this version.
//!
//! A limit that is believed to hold and does not is worse than one that is refused. A row leaves this table in the change that
//! makes its field work.

use crds::Document;
use policy::{Action, Code, Diagnostic};

use super::{Checked, Origin};
use crate::node::Path;
use crate::snapshot::Snapshot;

/// A field without effect, and what comes of it.
struct Idle {
    kind: &'static str,
    /// Below `spec`.
    path: &'static [&'static str],
    /// Only with this value; empty: whatever the value.
    value: &'static str,
    /// Only where the `type` of the resource is this; empty: whatever the type.
    of_type: &'static str,
    outcome: Outcome,
}

/// What comes of a field that does nothing.
enum Outcome {
    /// The rest of the resource works as it would without the field.
    Instead(&'static str),
    /// The whole provider is out of use.
    NeverReached {
        /// What is not spoken, as it is written.
        unspoken: &'static str,
        /// What to write in its place.
        advice: &'static str,
    },
}

const fn idle(kind: &'static str, path: &'static [&'static str], instead: &'static str) -> Idle {
    Idle { kind, path, value: "", of_type: "", outcome: Outcome::Instead(instead) }
}

const fn never_reached(
    path: &'static [&'static str],
    of_type: &'static str,
    unspoken: &'static str,
    advice: &'static str,
) -> Idle {
    Idle { kind: "InferenceProvider", path, value: "", of_type, outcome: Outcome::NeverReached { unspoken, advice } }
}

/// Has an effect where there are pods.
const SELECTOR: &[&str] = &["selector"];

const TABLE: [Idle; 3] = [
    never_reached(
        &["auth", "awsSigV4"],
        "OpenAI",
        "awsSigV4 with type: OpenAI",
        "use `type: Bedrock`, or `bearer` with an API key of the provider",
    ),
    idle("InferenceWorkerSet", SELECTOR, "there is no cluster to find pods in: the set has no endpoints"),
    Idle {
        kind: "InferenceClassifier",
        path: &["http", "url"],
        value: "https:",
        of_type: "",
        outcome: Outcome::Instead(
            "the service is never asked, and what `onError` says is done; use `http://127.0.0.1:PORT/...` with a TLS forwarder",
        ),
    },
];

pub(super) fn warn(checked: &[Checked], origin: Origin, findings: &mut Vec<Diagnostic>) {
    for c in checked {
        let kind = c.document.kind().as_str();
        let written = c.raw.root.field("spec").and_then(|spec| spec.field("type")).and_then(|node| node.text());
        let in_cluster = origin == Origin::Cluster;
        let concerned = |row: &&Idle| {
            row.kind == kind
                && (row.of_type.is_empty() || written == Some(row.of_type))
                && !(in_cluster && row.path == SELECTOR)
        };
        for row in TABLE.iter().filter(concerned) {
            let mut node = c.raw.root.field("spec");
            let mut path = Path::spec();
            for key in row.path {
                node = node.and_then(|node| node.field(key));
                path = path.key(key);
            }
            let Some(node) = node else { continue };
            if row.value.is_empty() || node.text().is_some_and(|text| text.starts_with(row.value)) {
                findings.push(c.finding(Code::NoEffect, &path, row.message(&c.id.name, node.text())));
            }
        }
    }
}

/// A tenant's priority where no request ever waits.
pub(super) fn idle_priorities(snapshot: &Snapshot, checked: &[Checked], findings: &mut Vec<Diagnostic>) {
    let rules = snapshot.pools.iter().flat_map(|pool| pool.program.rules());
    let mut routes = rules.filter_map(|rule| match &rule.action {
        Action::Route(route) => Some(route),
        Action::Deny(_) => None,
    });
    // With no pool at all nothing has an effect, which is told once.
    if snapshot.pools.is_empty() || routes.any(|route| route.queue.is_some()) {
        return;
    }
    for c in checked {
        if let Document::Tenant(tenant) = &c.document
            && tenant.spec.priority != 0
        {
            let message = "`priority` has no effect: no route in use has a `queue`";
            findings.push(c.finding(Code::NoEffect, &Path::spec().key("priority"), message));
        }
    }
}

impl Idle {
    /// What is told of the field of a resource called `name`, where it has the value `written`.
    fn message(&self, name: &str, written: Option<&str>) -> String {
        match &self.outcome {
            Outcome::NeverReached { unspoken, advice } => format!(
                "`{unspoken}` is not spoken yet: `{name}` is never ready and never receives a request; {advice}"
            ),
            Outcome::Instead(instead) => {
                let field = self.path.join(".");
                let value = if self.value.is_empty() { None } else { written };
                let value = value.map(|value| format!(": {value}")).unwrap_or_default();
                format!("`{field}{value}` has no effect in this version: {instead}")
            }
        }
    }
}
