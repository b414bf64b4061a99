//! Warnings: what is in force and probably not meant.

use std::collections::BTreeMap;

use policy::Diagnostic;

use super::rules::Policy;
use crate::snapshot::{ResourceId, Snapshot};

pub(super) fn warn(
    _snapshot: &Snapshot,
    _policies: &BTreeMap<&ResourceId, Policy<'_>>,
    _findings: &mut Vec<Diagnostic>,
) {
}
