//! HTTP: which resource and object a path means, what the query asks for, and how the answer is sent.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use http_body_util::{BodyExt, Limited};
use hyper::body::{Body, Bytes, Frame, Incoming};
use hyper::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HeaderMap, USER_AGENT, WARNING};
use hyper::{Method, Request, Response};
use serde_json::{Value, json};
use tokio::sync::mpsc;

use crate::owners::Conflicts;
use crate::query::{self, Query};
use crate::read::{Bookmarks, ListOrder, Shown, WatchOrder};
use crate::refusal::Refusal;
use crate::resource::{Resource, Scope};
use crate::selector::Selector;
use crate::state::{Shared, State};
use crate::store::{Deleted, Effect, Key, Part};
use crate::write::{Existence, FieldValidation, PATCHES, PatchKind, Terms};
use crate::{Seen, discovery, openapi2, read, table, write};

/// A real server's own bound on a request.
const BODY_BYTES_MAX: usize = 3 << 20;
/// How long a watch lasts that does not say.
const WATCH_TIMEOUT: Duration = Duration::from_secs(1_800);

/// The body of an answer.
#[derive(Debug)]
pub(crate) enum Reply {
    Whole(Option<Bytes>),
    Stream(mpsc::Receiver<Bytes>),
}

impl Body for Reply {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        match self.get_mut() {
            Reply::Whole(bytes) => Poll::Ready(bytes.take().map(|bytes| Ok(Frame::data(bytes)))),
            Reply::Stream(lines) => lines.poll_recv(context).map(|line| line.map(|line| Ok(Frame::data(line)))),
        }
    }
}

/// What a path means.
#[derive(Clone, Debug)]
struct Target {
    resource: Resource,
    namespace: String,
    name: Option<String>,
    part: Part,
}

/// Answers one request.
pub(crate) async fn answer(
    shared: Arc<Shared>,
    connection: u64,
    request: Request<Incoming>,
) -> Result<Response<Reply>, Infallible> {
    while shared.lock().dead_below > connection {
        std::future::pending::<()>().await;
    }
    let (head, body) = request.into_parts();
    let body = match Limited::new(body, BODY_BYTES_MAX).collect().await {
        Ok(body) => body.to_bytes(),
        Err(_) => return Ok(refused(&Refusal::new(413, "RequestEntityTooLarge", "the request is too large"))),
    };
    let query = query::parse(head.uri.query().unwrap_or_default());
    if let Some(token) = &shared.options.token {
        let given = head.headers.get(AUTHORIZATION).and_then(|value| value.to_str().ok());
        if given != Some(&format!("Bearer {token}")) {
            return Ok(refused(&Refusal::new(401, "Unauthorized", "Unauthorized")));
        }
    }
    let path = head.uri.path();
    if matches!(path, "/healthz" | "/readyz" | "/livez") {
        return Ok(response(200, "text/plain", Bytes::from_static(b"ok")));
    }
    let target = {
        let state = shared.lock();
        if path == "/openapi/v2" {
            return Ok(response(200, openapi2::MEDIA_TYPE, Bytes::from(openapi2::document(&state.resources))));
        }
        if let Some(found) = discovery::answer(&state.resources, path) {
            return Ok(answered(200, &found, &[]));
        }
        target(path, |group, version, plural| state.resource(group, version, plural).cloned())
    };
    let Some(target) = target else {
        // What a real server's router says where no API is: no Status, no JSON.
        return Ok(response(404, "text/plain; charset=utf-8", Bytes::from_static(b"404 page not found\n")));
    };
    let asked = Asked { method: head.method, headers: head.headers, query, body, connection };
    let changes = asked.method != Method::GET;
    let result = serve(&shared, &target, &asked);
    if changes {
        shared.publish();
    }
    Ok(result.unwrap_or_else(|refusal| refused(&refusal)))
}

struct Asked {
    method: Method,
    headers: HeaderMap,
    query: Query,
    body: Bytes,
    connection: u64,
}

fn serve(shared: &Arc<Shared>, target: &Target, asked: &Asked) -> Result<Response<Reply>, Refusal> {
    let watch = matches!(asked.query.get("watch").map(String::as_str), Some("1" | "true"));
    let verb = match (&asked.method, &target.name) {
        (&Method::GET, None) if watch => "watch",
        (&Method::GET, None) => "list",
        (&Method::GET, Some(_)) => "get",
        (&Method::POST, _) => "create",
        (&Method::PUT, _) => "update",
        (&Method::PATCH, _) => "patch",
        (&Method::DELETE, None) => "deletecollection",
        (&Method::DELETE, Some(_)) => "delete",
        (_, _) => return Err(Refusal::new(405, "MethodNotAllowed", "the server does not allow this method")),
    };
    let resource = &target.resource;
    let subresource = if target.part == Part::Status { "/status" } else { "" };
    let plural = format!("{}{subresource}", resource.plural);
    {
        let mut state = shared.lock();
        state.saw(Seen {
            verb: verb.to_owned(),
            resource: plural.clone(),
            namespace: target.namespace.clone(),
            name: target.name.clone().unwrap_or_default(),
            query: asked.query.clone(),
        });
        if state.forbidden.contains(&(verb.to_owned(), plural.clone())) {
            let place = if target.namespace.is_empty() {
                "at the cluster scope".to_owned()
            } else {
                format!("in the namespace \"{}\"", target.namespace)
            };
            let message = format!(
                "{} is forbidden: User \"system:anonymous\" cannot {verb} resource \"{plural}\" in API group \"{}\" {place}",
                resource.name(),
                resource.group
            );
            return Err(Refusal::new(403, "Forbidden", message));
        }
    }
    match (&target.name, verb) {
        (None, "watch") => begin_watch(shared, target, asked),
        (None, "list") => {
            let order = ListOrder {
                namespace: target.namespace.clone(),
                selector: selector(resource, &asked.query)?,
                limit: query::limit(&asked.query)?,
                token: asked.query.get("continue").filter(|token| !token.is_empty()).cloned(),
                shown: shown(&asked.headers),
            };
            Ok(answered(200, &read::list(&mut shared.lock(), resource, &order)?, &[]))
        }
        (Some(name), "get") => {
            let state = shared.lock();
            let found = state.store.object(&key(target, name)).ok_or_else(|| Refusal::not_found(resource, name))?;
            Ok(one(resource, found, &asked.headers, 200, &[]))
        }
        (name, _) => change(shared, target, name.as_deref(), asked),
    }
}

fn begin_watch(shared: &Arc<Shared>, target: &Target, asked: &Asked) -> Result<Response<Reply>, Refusal> {
    let from = asked.query.get("resourceVersion").filter(|version| !version.is_empty() && *version != "0");
    let from = match from.map(|version| version.parse::<u64>()) {
        None => None,
        Some(Ok(version)) => Some(version),
        Some(Err(_)) => return Err(Refusal::bad_request("resourceVersion: Invalid value: must be an integer")),
    };
    let timeout = asked.query.get("timeoutSeconds").and_then(|seconds| seconds.parse().ok());
    let order = WatchOrder {
        namespace: target.namespace.clone(),
        selector: selector(&target.resource, &asked.query)?,
        from,
        timeout: timeout.map_or(WATCH_TIMEOUT, Duration::from_secs),
        bookmarks: match asked.query.get("allowWatchBookmarks").map(String::as_str) {
            Some("true" | "1") => Bookmarks::Sent,
            Some(_) | None => Bookmarks::None,
        },
        shown: shown(&asked.headers),
        connection: asked.connection,
    };
    let lines = read::watch(shared, &target.resource, order)?;
    let mut response = Response::new(Reply::Stream(lines));
    response.headers_mut().insert(CONTENT_TYPE, hyper::header::HeaderValue::from_static("application/json"));
    Ok(response)
}

fn change(
    shared: &Arc<Shared>,
    target: &Target,
    name: Option<&str>,
    asked: &Asked,
) -> Result<Response<Reply>, Refusal> {
    let resource = &target.resource;
    let terms = Terms {
        part: target.part,
        validation: match asked.query.get("fieldValidation").map(String::as_str) {
            Some("Strict") => FieldValidation::Strict,
            Some("Ignore") => FieldValidation::Ignore,
            Some(_) | None => FieldValidation::Warn,
        },
        effect: if asked.query.contains_key("dryRun") { Effect::DryRun } else { Effect::Kept },
        manager: manager(asked),
    };
    let media_type = asked.headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let media_type = media_type.split(';').next().unwrap_or_default().trim();
    query::judge_options(&asked.query, media_type)?;
    let mut state = shared.lock();
    match (&asked.method, name) {
        (&Method::POST, None) => {
            let object = json_body(asked, media_type)?;
            let written = write::create(&mut state, resource, &target.namespace, object, terms)?;
            Ok(one(resource, &written.object, &asked.headers, 201, &written.warnings))
        }
        (&Method::PUT, Some(name)) => {
            let object = json_body(asked, media_type)?;
            let conditional = resource.schema.is_some() || resource.name() == "leases.coordination.k8s.io";
            if conditional && object["metadata"]["resourceVersion"].as_str().is_none_or(str::is_empty) {
                let cause = crate::refusal::Cause {
                    field: "metadata.resourceVersion".into(),
                    reason: "FieldValueInvalid",
                    message: "Invalid value: 0: must be specified for an update".into(),
                };
                return Err(Refusal::invalid(resource, name, &[cause]));
            }
            let written = write::update(&mut state, resource, &key(target, name), object, terms)?;
            Ok(one(resource, &written.object, &asked.headers, 200, &written.warnings))
        }
        (&Method::PATCH, Some(name)) => {
            let kind = match media_type {
                "application/merge-patch+json" => PatchKind::Merge,
                "application/json-patch+json" => PatchKind::Json,
                "application/strategic-merge-patch+json" => PatchKind::Strategic,
                "application/apply-patch+yaml" => return apply(&mut state, target, name, asked, terms),
                _ => return Err(Refusal::unsupported_media_type(PATCHES)),
            };
            let patch = parsed(&asked.body)?;
            let written = write::patch(&mut state, resource, &key(target, name), kind, &patch, terms)?;
            Ok(one(resource, &written.object, &asked.headers, 200, &written.warnings))
        }
        (&Method::DELETE, Some(name)) => {
            let mut options = if asked.body.is_empty() { json!({}) } else { parsed(&asked.body)? };
            let grace = asked.query.get("gracePeriodSeconds").and_then(|seconds| seconds.parse::<u64>().ok());
            if let Some(seconds) = grace {
                options["gracePeriodSeconds"] = json!(seconds);
            }
            match write::delete(&mut state, resource, &key(target, name), &options, terms.effect)? {
                Deleted::Marked(object) => Ok(one(resource, &object, &asked.headers, 200, &[])),
                Deleted::Gone(object) => {
                    let uid = &object["metadata"]["uid"];
                    let details = json!({ "name": name, "group": resource.group, "kind": resource.plural, "uid": uid });
                    let status = json!({
                        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details,
                    });
                    Ok(answered(200, &status, &[]))
                }
            }
        }
        (&Method::DELETE, None) => {
            let selector = selector(resource, &asked.query)?;
            let all = state.store.list(&resource.name(), &target.namespace);
            let doomed: Vec<Key> = all
                .filter(|object| selector.matches(object))
                .map(|object| {
                    let text = |name: &str| object["metadata"][name].as_str().unwrap_or_default().to_owned();
                    Key { resource: resource.name(), namespace: text("namespace"), name: text("name") }
                })
                .collect();
            for key in doomed {
                write::delete(&mut state, resource, &key, &json!({}), terms.effect)?;
            }
            Ok(answered(200, &json!({ "kind": "Status", "apiVersion": "v1", "status": "Success" }), &[]))
        }
        (_, _) => Err(Refusal::new(405, "MethodNotAllowed", "the server does not allow this method on the resource")),
    }
}

/// Who writes, as a real server tells it: as the client says, or by the first word of its user agent.
fn manager(asked: &Asked) -> &str {
    let agent = asked.headers.get(USER_AGENT).and_then(|value| value.to_str().ok());
    let agent = agent.and_then(|agent| agent.split('/').next()).unwrap_or("unknown");
    asked.query.get("fieldManager").filter(|name| !name.is_empty()).map_or(agent, String::as_str)
}

fn apply(
    state: &mut State,
    target: &Target,
    name: &str,
    asked: &Asked,
    terms: Terms<'_>,
) -> Result<Response<Reply>, Refusal> {
    if asked.query.get("fieldManager").is_none_or(String::is_empty) {
        let message =
            "PatchOptions.meta.k8s.io \"\" is invalid: fieldManager: Required value: is required for apply patch";
        return Err(Refusal::new(422, "Invalid", message));
    }
    let conflicts = match asked.query.get("force").map(String::as_str) {
        Some("true" | "1") => Conflicts::Force,
        Some(_) | None => Conflicts::Refuse,
    };
    let config = parsed(&asked.body)?;
    let (written, existence) = write::apply(state, &target.resource, &key(target, name), config, conflicts, terms)?;
    let code = match existence {
        Existence::New => 201,
        Existence::Old => 200,
    };
    Ok(one(&target.resource, &written.object, &asked.headers, code, &written.warnings))
}

fn key(target: &Target, name: &str) -> Key {
    Key { resource: target.resource.name(), namespace: target.namespace.clone(), name: name.to_owned() }
}

fn json_body(asked: &Asked, media_type: &str) -> Result<Value, Refusal> {
    if !matches!(media_type, "application/json" | "") {
        return Err(Refusal::unsupported_media_type("application/json"));
    }
    parsed(&asked.body)
}

fn parsed(body: &[u8]) -> Result<Value, Refusal> {
    serde_json::from_slice(body).map_err(|error| Refusal::bad_request(format!("error decoding the body: {error}")))
}

fn selector(resource: &Resource, query: &Query) -> Result<Selector, Refusal> {
    Selector::new(
        resource,
        query.get("labelSelector").map(String::as_str),
        query.get("fieldSelector").map(String::as_str),
    )
}

fn shown(headers: &HeaderMap) -> Shown {
    let accepted = headers.get(ACCEPT).and_then(|value| value.to_str().ok()).unwrap_or_default();
    if accepted.contains("as=Table") { Shown::Tables } else { Shown::Objects }
}

fn one(resource: &Resource, object: &Value, headers: &HeaderMap, code: u16, warnings: &[String]) -> Response<Reply> {
    match shown(headers) {
        Shown::Objects => answered(code, object, warnings),
        Shown::Tables => {
            let version = object["metadata"]["resourceVersion"].as_str().unwrap_or_default();
            answered(code, &table::table(resource, std::slice::from_ref(object), version), warnings)
        }
    }
}

fn refused(refusal: &Refusal) -> Response<Reply> {
    answered(refusal.code, &refusal.body(), &[])
}

fn answered(code: u16, value: &Value, warnings: &[String]) -> Response<Reply> {
    let mut response = response(code, "application/json", Bytes::from(value.to_string()));
    for warning in warnings {
        let text = format!("299 - \"{}\"", warning.replace('\\', "\\\\").replace('"', "\\\""));
        if let Ok(value) = text.parse() {
            response.headers_mut().append(WARNING, value);
        }
    }
    response
}

fn response(code: u16, media_type: &'static str, body: Bytes) -> Response<Reply> {
    let mut response = Response::new(Reply::Whole(Some(body)));
    *response.status_mut() = hyper::StatusCode::from_u16(code).unwrap_or(hyper::StatusCode::INTERNAL_SERVER_ERROR);
    response.headers_mut().insert(CONTENT_TYPE, hyper::header::HeaderValue::from_static(media_type));
    response
}

fn target(path: &str, resource: impl Fn(&str, &str, &str) -> Option<Resource>) -> Option<Target> {
    let steps: Vec<String> = path.trim_matches('/').split('/').map(query::decoded).collect();
    let steps: Vec<&str> = steps.iter().map(String::as_str).collect();
    let (group, version, rest) = match steps.as_slice() {
        ["api", version, rest @ ..] => ("", *version, rest),
        ["apis", group, version, rest @ ..] => (*group, *version, rest),
        _ => return None,
    };
    let made = |plural: &str, namespace: &str, name: Option<&str>, part: Part| {
        let resource = resource(group, version, plural)?;
        let fits = (resource.scope == Scope::Cluster) == namespace.is_empty() || name.is_none();
        let part_fits = part == Part::Main || resource.status_subresource;
        (fits && part_fits).then(|| Target {
            resource,
            namespace: namespace.to_owned(),
            name: name.map(str::to_owned),
            part,
        })
    };
    match rest {
        ["namespaces", name, "status"] => made("namespaces", "", Some(name), Part::Status),
        ["namespaces", namespace, plural] => made(plural, namespace, None, Part::Main),
        ["namespaces", namespace, plural, name] => made(plural, namespace, Some(name), Part::Main),
        ["namespaces", namespace, plural, name, "status"] => made(plural, namespace, Some(name), Part::Status),
        [plural] => made(plural, "", None, Part::Main),
        [plural, name] => made(plural, "", Some(name), Part::Main),
        [plural, name, "status"] => made(plural, "", Some(name), Part::Status),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resource::built_in;

    #[test]
    fn paths_name_resources_objects_and_their_status() {
        let resources = built_in();
        let find = |group: &str, version: &str, plural: &str| {
            resources.iter().find(|r| r.group == group && r.version == version && r.plural == plural).cloned()
        };
        let found = |path: &str| {
            target(path, find).map(|t| (t.resource.plural, t.namespace, t.name.unwrap_or_default(), t.part))
        };
        let made = |plural: &str, namespace: &str, name: &str, part| {
            Some((plural.to_owned(), namespace.to_owned(), name.to_owned(), part))
        };
        assert_eq!(found("/api/v1/pods"), made("pods", "", "", Part::Main));
        assert_eq!(found("/api/v1/namespaces/a/pods/p/status"), made("pods", "a", "p", Part::Status));
        assert_eq!(found("/api/v1/namespaces/a"), made("namespaces", "", "a", Part::Main));
        assert_eq!(found("/apis/coordination.k8s.io/v1/namespaces/a/leases/l"), made("leases", "a", "l", Part::Main));
        assert_eq!(found("/apis/coordination.k8s.io/v1/namespaces/a/leases/l/status"), None);
        assert_eq!(found("/apis/nothing/v1/things"), None);
    }
}
