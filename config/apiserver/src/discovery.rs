//! Discovery, and as much OpenAPI as kubectl asks for: which resources there are, and that writes may be validated strictly.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

use crate::resource::{Resource, Scope};

/// The answer to a path of discovery, or `None` for one that is none.
pub(crate) fn answer(resources: &[Resource], path: &str) -> Option<Value> {
    match path {
        "/version" => {
            Some(json!({ "major": "1", "minor": "34", "gitVersion": "v1.34.0-stub", "platform": "linux/amd64" }))
        }
        "/api" => Some(json!({ "kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": [] })),
        "/apis" => Some(json!({ "kind": "APIGroupList", "apiVersion": "v1", "groups": groups(resources) })),
        "/openapi/v3" => Some(index(resources)),
        _ => {
            if let Some(group_version) = path.strip_prefix("/openapi/v3/") {
                return open_api(resources, group_version);
            }
            let group_version = path.strip_prefix("/apis/").or_else(|| path.strip_prefix("/api/"))?;
            if let Some(group) = groups(resources).into_iter().find(|group| group["name"] == group_version) {
                return Some(group);
            }
            let listed: Vec<Value> = resources
                .iter()
                .filter(|resource| resource.api_version() == group_version)
                .flat_map(Resource::described)
                .collect();
            (!listed.is_empty()).then(|| {
                json!({
                    "kind": "APIResourceList", "apiVersion": "v1", "groupVersion": group_version, "resources": listed,
                })
            })
        }
    }
}

fn groups(resources: &[Resource]) -> Vec<Value> {
    let found: BTreeSet<(&str, &str)> = resources
        .iter()
        .filter(|resource| !resource.group.is_empty())
        .map(|resource| (resource.group.as_str(), resource.version.as_str()))
        .collect();
    found
        .into_iter()
        .map(|(group, version)| {
            let version = json!({ "groupVersion": format!("{group}/{version}"), "version": version });
            json!({
                "kind": "APIGroup", "apiVersion": "v1", "name": group, "versions": [version],
                "preferredVersion": version,
            })
        })
        .collect()
}

fn prefix(resource: &Resource) -> String {
    let root = if resource.group.is_empty() { "api" } else { "apis" };
    format!("{root}/{}", resource.api_version())
}

fn index(resources: &[Resource]) -> Value {
    let paths: Map<String, Value> = resources
        .iter()
        .map(|resource| {
            let url = format!("/openapi/v3/{}", prefix(resource));
            (prefix(resource), json!({ "serverRelativeURL": url }))
        })
        .collect();
    json!({ "paths": paths })
}

fn open_api(resources: &[Resource], group_version: &str) -> Option<Value> {
    let mut paths = Map::new();
    let mut schemas = Map::new();
    let parameter = |name: &str| json!({ "name": name, "in": "query", "schema": { "type": "string" } });
    for resource in resources.iter().filter(|resource| prefix(resource) == group_version) {
        let kind = json!({ "group": resource.group, "version": resource.version, "kind": resource.kind });
        let place = match resource.scope {
            Scope::Namespaced => format!("/{group_version}/namespaces/{{namespace}}/{}", resource.plural),
            Scope::Cluster => format!("/{group_version}/{}", resource.plural),
        };
        let operation = |action: &str| {
            json!({
                "x-kubernetes-action": action, "x-kubernetes-group-version-kind": kind,
                "parameters": [parameter("fieldValidation"), parameter("dryRun"), parameter("fieldManager")],
                "responses": {},
            })
        };
        paths.insert(place.clone(), json!({ "post": operation("post") }));
        paths.insert(format!("{place}/{{name}}"), json!({ "put": operation("put"), "patch": operation("patch") }));
        let mut schema = resource.schema.as_deref().cloned().unwrap_or_else(|| json!({ "type": "object" }));
        schema["x-kubernetes-group-version-kind"] = json!([kind]);
        schemas.insert(format!("{}.{}.{}", resource.group, resource.version, resource.kind), schema);
    }
    if paths.is_empty() {
        return None;
    }
    let info = json!({ "title": "Kubernetes", "version": "stub" });
    Some(json!({ "openapi": "3.0.0", "info": info, "paths": paths, "components": { "schemas": schemas } }))
}
