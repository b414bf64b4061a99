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
    /// How the resource works with it.
    instead: &'static str,
}

/// Has an effect where there are pods.
const SELECTOR: &[&str] = &["selector"];

const TABLE: [Idle; 2] = [
    Idle {
        kind: "InferenceWorkerSet",
        path: &["auth", "awsSigV4"],
        instead: "only requests to providers are signed, and the set's go without a credential; use `bearer` or `apiKeyHeader`",
    },
    Idle {
        kind: "InferenceWorkerSet",
        path: SELECTOR,
        instead: "there is no cluster to find pods in: the set has no endpoints",
    },
];

pub(super) fn warn(checked: &[Checked], origin: Origin, findings: &mut Vec<Diagnostic>) {
    for c in checked {
        let kind = c.document.kind().as_str();
        let in_cluster = origin == Origin::Cluster;
        let concerned = |row: &&Idle| row.kind == kind && !(in_cluster && row.path == SELECTOR);
        for row in TABLE.iter().filter(concerned) {
            let mut node = c.raw.root.field("spec");
            let mut path = Path::spec();
            for key in row.path {
                node = node.and_then(|node| node.field(key));
                path = path.key(key);
            }
            if node.is_some() {
                findings.push(c.finding(Code::NoEffect, &path, row.message()));
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
    fn message(&self) -> String {
        format!("`{}` has no effect in this version: {}", self.path.join("."), self.instead)
    }
}
