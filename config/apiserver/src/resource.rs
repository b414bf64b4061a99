//! Which resources there are: a few built-in ones, and those that CustomResourceDefinitions add.

use std::sync::Arc;

use serde_json::{Value, json};

/// Whether objects stand in a namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scope {
    Namespaced,
    Cluster,
}

/// A column of a table, as a CustomResourceDefinition writes it.
#[derive(Clone, Debug)]
pub(crate) struct Column {
    pub name: String,
    pub kind: String,
    pub path: String,
    pub priority: i64,
}

/// One resource in one version.
#[derive(Clone, Debug)]
pub(crate) struct Resource {
    pub group: String,
    pub version: String,
    pub plural: String,
    pub singular: String,
    pub kind: String,
    pub short_names: Vec<String>,
    pub categories: Vec<String>,
    pub scope: Scope,
    pub status_subresource: bool,
    /// Its schema, where it is a custom resource.
    pub schema: Option<Arc<Value>>,
    pub columns: Vec<Column>,
}

impl Resource {
    /// `plural.group`, or the plural alone in the core group.
    pub(crate) fn name(&self) -> String {
        if self.group.is_empty() { self.plural.clone() } else { format!("{}.{}", self.plural, self.group) }
    }

    /// `group/version`, or the version alone in the core group.
    pub(crate) fn api_version(&self) -> String {
        if self.group.is_empty() { self.version.clone() } else { format!("{}/{}", self.group, self.version) }
    }

    /// As discovery shows it.
    pub(crate) fn described(&self) -> Vec<Value> {
        let namespaced = self.scope == Scope::Namespaced;
        let verbs = ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"];
        let mut main = json!({
            "name": self.plural, "singularName": self.singular, "namespaced": namespaced, "kind": self.kind,
            "verbs": verbs,
        });
        for (name, list) in [("shortNames", &self.short_names), ("categories", &self.categories)] {
            if !list.is_empty() {
                main[name] = json!(list);
            }
        }
        let mut all = vec![main];
        if self.status_subresource {
            all.push(json!({
                "name": format!("{}/status", self.plural), "singularName": "", "namespaced": namespaced,
                "kind": self.kind, "verbs": ["get", "patch", "update"],
            }));
        }
        all
    }
}

/// The built-in resources.
pub(crate) fn built_in() -> Vec<Resource> {
    let rows: [(&str, &str, &str, &str, &str, Scope, bool); 9] = [
        ("", "v1", "namespaces", "Namespace", "ns", Scope::Cluster, false),
        ("", "v1", "pods", "Pod", "po", Scope::Namespaced, true),
        ("", "v1", "secrets", "Secret", "", Scope::Namespaced, false),
        ("", "v1", "configmaps", "ConfigMap", "cm", Scope::Namespaced, false),
        ("", "v1", "services", "Service", "svc", Scope::Namespaced, true),
        ("", "v1", "events", "Event", "ev", Scope::Namespaced, false),
        ("coordination.k8s.io", "v1", "leases", "Lease", "", Scope::Namespaced, false),
        ("discovery.k8s.io", "v1", "endpointslices", "EndpointSlice", "", Scope::Namespaced, false),
        (
            "apiextensions.k8s.io",
            "v1",
            "customresourcedefinitions",
            "CustomResourceDefinition",
            "crd",
            Scope::Cluster,
            true,
        ),
    ];
    let resource = |(group, version, plural, kind, short, scope, status_subresource): (
        &str,
        &str,
        &str,
        &str,
        &str,
        Scope,
        bool,
    )| Resource {
        group: group.to_owned(),
        version: version.to_owned(),
        plural: plural.to_owned(),
        singular: kind.to_lowercase(),
        kind: kind.to_owned(),
        short_names: if short.is_empty() { Vec::new() } else { vec![short.to_owned()] },
        categories: Vec::new(),
        scope,
        status_subresource,
        schema: None,
        columns: Vec::new(),
    };
    rows.into_iter().map(resource).collect()
}

/// The resources a CustomResourceDefinition defines, one for each version that is served.
pub(crate) fn defined(definition: &Value) -> Vec<Resource> {
    let spec = &definition["spec"];
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let texts = |value: &Value| value.as_array().into_iter().flatten().map(&text).collect::<Vec<_>>();
    let names = &spec["names"];
    let versions = spec["versions"].as_array().into_iter().flatten();
    versions
        .filter(|version| version["served"] == json!(true))
        .map(|version| {
            let columns = version["additionalPrinterColumns"].as_array().into_iter().flatten();
            Resource {
                group: text(&spec["group"]),
                version: text(&version["name"]),
                plural: text(&names["plural"]),
                singular: names["singular"].as_str().map_or_else(|| text(&names["kind"]).to_lowercase(), str::to_owned),
                kind: text(&names["kind"]),
                short_names: texts(&names["shortNames"]),
                categories: texts(&names["categories"]),
                scope: if spec["scope"] == "Cluster" { Scope::Cluster } else { Scope::Namespaced },
                status_subresource: version["subresources"].get("status").is_some(),
                schema: version["schema"].get("openAPIV3Schema").cloned().map(Arc::new),
                columns: columns
                    .map(|column| Column {
                        name: text(&column["name"]),
                        kind: text(&column["type"]),
                        path: text(&column["jsonPath"]),
                        priority: column["priority"].as_i64().unwrap_or(0),
                    })
                    .collect(),
            }
        })
        .collect()
}
