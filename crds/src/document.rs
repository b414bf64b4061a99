//! A document: one resource, whatever its kind.

use std::collections::BTreeMap;
use std::fmt;

use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::classifier::InferenceClassifierSpec;
use crate::policy::InferencePolicySpec;
use crate::policy_test::Case;
use crate::pool::InferencePoolSpec;
use crate::provider::InferenceProviderSpec;
use crate::tenant::InferenceTenantSpec;
use crate::worker_set::InferenceWorkerSetSpec;

/// Kinds of document.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    /// Which endpoint answers which request.
    InferencePolicy,
    /// Destinations that stand in for each other.
    InferencePool,
    /// vLLM servers that serve the same model.
    InferenceWorkerSet,
    /// A hosted API outside the cluster.
    InferenceProvider,
    /// Who is calling.
    InferenceTenant,
    /// Puts tags on prompts.
    InferenceClassifier,
    /// Requests with what should come of them; files only.
    PolicyTest,
}

impl Kind {
    /// Every kind.
    pub const ALL: [Kind; 7] = [
        Kind::InferencePolicy,
        Kind::InferencePool,
        Kind::InferenceWorkerSet,
        Kind::InferenceProvider,
        Kind::InferenceTenant,
        Kind::InferenceClassifier,
        Kind::PolicyTest,
    ];

    /// The kinds that are also Kubernetes resources.
    pub const CUSTOM_RESOURCES: [Kind; 6] = [
        Kind::InferencePolicy,
        Kind::InferencePool,
        Kind::InferenceWorkerSet,
        Kind::InferenceProvider,
        Kind::InferenceTenant,
        Kind::InferenceClassifier,
    ];

    /// The kind's name in documents.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Kind::InferencePolicy => "InferencePolicy",
            Kind::InferencePool => "InferencePool",
            Kind::InferenceWorkerSet => "InferenceWorkerSet",
            Kind::InferenceProvider => "InferenceProvider",
            Kind::InferenceTenant => "InferenceTenant",
            Kind::InferenceClassifier => "InferenceClassifier",
            Kind::PolicyTest => "PolicyTest",
        }
    }

    /// The kind of a name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|k| k.as_str() == name)
    }

    /// The plural in lower case, as in the paths of the Kubernetes API.
    #[must_use]
    pub fn plural(self) -> &'static str {
        match self {
            Kind::InferencePolicy => "inferencepolicies",
            Kind::InferencePool => "inferencepools",
            Kind::InferenceWorkerSet => "inferenceworkersets",
            Kind::InferenceProvider => "inferenceproviders",
            Kind::InferenceTenant => "inferencetenants",
            Kind::InferenceClassifier => "inferenceclassifiers",
            Kind::PolicyTest => "policytests",
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// What tells a resource from others. What only an API server writes is ignored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Metadata {
    /// Name, unique for its kind in its namespace.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
    /// Namespace; references stay inside it.
    #[serde(default = "namespace")]
    #[schemars(length(min = 1, max = 63))]
    pub namespace: String,
    /// Labels.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Annotations.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
}

fn namespace() -> String {
    "default".to_owned()
}

/// A resource of one kind.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Resource<S> {
    /// What tells it from others.
    pub metadata: Metadata,
    /// What is wanted.
    pub spec: S,
}

/// A `PolicyTest` document.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PolicyTest {
    /// What tells it from others.
    pub metadata: Metadata,
    /// The cases.
    pub cases: Vec<Case>,
}

/// A document of any kind.
#[derive(Clone, Debug, PartialEq)]
pub enum Document {
    /// `InferencePolicy`
    Policy(Resource<InferencePolicySpec>),
    /// `InferencePool`
    Pool(Resource<InferencePoolSpec>),
    /// `InferenceWorkerSet`
    WorkerSet(Box<Resource<InferenceWorkerSetSpec>>),
    /// `InferenceProvider`
    Provider(Box<Resource<InferenceProviderSpec>>),
    /// `InferenceTenant`
    Tenant(Resource<InferenceTenantSpec>),
    /// `InferenceClassifier`
    Classifier(Box<Resource<InferenceClassifierSpec>>),
    /// `PolicyTest`
    Test(PolicyTest),
}

impl Document {
    /// Reads a document of a known kind.
    ///
    /// # Errors
    /// When `value` does not have the kind's shape.
    pub fn from_value(kind: Kind, value: Value) -> Result<Self, serde_json::Error> {
        fn read<T: DeserializeOwned>(value: Value) -> Result<T, serde_json::Error> {
            serde_json::from_value(value)
        }
        Ok(match kind {
            Kind::InferencePolicy => Document::Policy(read(value)?),
            Kind::InferencePool => Document::Pool(read(value)?),
            Kind::InferenceWorkerSet => Document::WorkerSet(read(value)?),
            Kind::InferenceProvider => Document::Provider(read(value)?),
            Kind::InferenceTenant => Document::Tenant(read(value)?),
            Kind::InferenceClassifier => Document::Classifier(read(value)?),
            Kind::PolicyTest => Document::Test(read(value)?),
        })
    }

    /// The document's kind.
    #[must_use]
    pub fn kind(&self) -> Kind {
        match self {
            Document::Policy(_) => Kind::InferencePolicy,
            Document::Pool(_) => Kind::InferencePool,
            Document::WorkerSet(_) => Kind::InferenceWorkerSet,
            Document::Provider(_) => Kind::InferenceProvider,
            Document::Tenant(_) => Kind::InferenceTenant,
            Document::Classifier(_) => Kind::InferenceClassifier,
            Document::Test(_) => Kind::PolicyTest,
        }
    }

    /// The document's metadata.
    #[must_use]
    pub fn metadata(&self) -> &Metadata {
        match self {
            Document::Policy(r) => &r.metadata,
            Document::Pool(r) => &r.metadata,
            Document::WorkerSet(r) => &r.metadata,
            Document::Provider(r) => &r.metadata,
            Document::Tenant(r) => &r.metadata,
            Document::Classifier(r) => &r.metadata,
            Document::Test(t) => &t.metadata,
        }
    }
}
