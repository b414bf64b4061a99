//! Label and field selectors.

use serde_json::Value;

use crate::refusal::Refusal;
use crate::resource::Resource;
use crate::table::look_up;

/// Which objects are meant.
#[derive(Clone, Debug, Default)]
pub(crate) struct Selector {
    labels: Vec<(String, Test)>,
    fields: Vec<(String, Test)>,
}

#[derive(Clone, Debug)]
enum Test {
    Is(String),
    IsNot(String),
    In(Vec<String>),
    NotIn(Vec<String>),
    There,
    NotThere,
}

impl Selector {
    /// From `labelSelector` and `fieldSelector` of a query.
    pub(crate) fn new(resource: &Resource, labels: Option<&str>, fields: Option<&str>) -> Result<Self, Refusal> {
        let labels = terms(labels.unwrap_or_default()).iter().map(|term| label(term)).collect::<Option<_>>();
        let fields = terms(fields.unwrap_or_default());
        let fields: Option<Vec<(String, Test)>> = fields.iter().map(|term| equality(term)).collect();
        match (labels, fields) {
            (Some(labels), Some(fields)) => {
                let known = selectable(resource);
                let mut names = fields.iter().map(|(name, _)| name);
                match names.find(|name| !known.contains(&name.as_str())) {
                    Some(name) => Err(Refusal::bad_request(format!("field label not supported: {name}"))),
                    None => Ok(Self { labels, fields }),
                }
            }
            (None, _) | (_, None) => Err(Refusal::bad_request("unable to parse requirement of the selector")),
        }
    }

    pub(crate) fn matches(&self, object: &Value) -> bool {
        let label = |name: &str| object["metadata"]["labels"][name].as_str();
        let field = |name: &str| look_up(object, &format!(".{name}")).and_then(Value::as_str).or(Some(""));
        self.labels.iter().all(|(name, test)| test.holds(label(name)))
            && self.fields.iter().all(|(name, test)| test.holds(field(name)))
    }
}

/// Fields that a real server selects by.
fn selectable(resource: &Resource) -> &'static [&'static str] {
    match resource.name().as_str() {
        "pods" => &["metadata.name", "metadata.namespace", "spec.nodeName", "status.phase", "status.podIP"],
        "secrets" => &["metadata.name", "metadata.namespace", "type"],
        "events" => &[
            "metadata.name",
            "metadata.namespace",
            "involvedObject.kind",
            "involvedObject.namespace",
            "involvedObject.name",
            "involvedObject.uid",
            "involvedObject.apiVersion",
            "involvedObject.resourceVersion",
            "involvedObject.fieldPath",
            "reason",
            "reportingComponent",
            "source",
            "type",
        ],
        _ => &["metadata.name", "metadata.namespace"],
    }
}

impl Test {
    fn holds(&self, found: Option<&str>) -> bool {
        match self {
            Test::Is(wanted) => found == Some(wanted),
            Test::IsNot(unwanted) => found != Some(unwanted),
            Test::In(wanted) => found.is_some_and(|found| wanted.iter().any(|wanted| wanted == found)),
            Test::NotIn(unwanted) => !found.is_some_and(|found| unwanted.iter().any(|unwanted| unwanted == found)),
            Test::There => found.is_some(),
            Test::NotThere => found.is_none(),
        }
    }
}

/// Splits at commas outside of parentheses.
fn terms(text: &str) -> Vec<String> {
    let mut terms = vec![String::new()];
    let mut depth = 0;
    for character in text.chars() {
        match character {
            '(' => depth += 1,
            ')' => depth -= 1,
            _ => {}
        }
        match terms.last_mut() {
            Some(_) if character == ',' && depth == 0 => terms.push(String::new()),
            Some(term) => term.push(character),
            None => {}
        }
    }
    terms.into_iter().map(|term| term.trim().to_owned()).filter(|term| !term.is_empty()).collect()
}

fn equality(term: &str) -> Option<(String, Test)> {
    let made = |name: &str, test: Test| Some((name.trim().to_owned(), test));
    if let Some((name, value)) = term.split_once("!=") {
        return made(name, Test::IsNot(value.trim().to_owned()));
    }
    let (name, value) = term.split_once("==").or_else(|| term.split_once('='))?;
    made(name, Test::Is(value.trim().to_owned()))
}

fn label(term: &str) -> Option<(String, Test)> {
    if let Some(found) = equality(term) {
        return Some(found);
    }
    let list = |text: &str| -> Option<Vec<String>> {
        let inner = text.trim().strip_prefix('(')?.strip_suffix(')')?;
        Some(inner.split(',').map(|value| value.trim().to_owned()).collect())
    };
    if let Some((name, values)) = term.split_once(" notin ") {
        return Some((name.trim().to_owned(), Test::NotIn(list(values)?)));
    }
    if let Some((name, values)) = term.split_once(" in ") {
        return Some((name.trim().to_owned(), Test::In(list(values)?)));
    }
    match term.strip_prefix('!') {
        Some(name) => Some((name.to_owned(), Test::NotThere)),
        None => Some((term.to_owned(), Test::There)),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pods() -> Resource {
        crate::resource::built_in().into_iter().find(|resource| resource.plural == "pods").unwrap()
    }

    #[test]
    fn selectors_take_equality_sets_and_presence() {
        let object = json!({ "metadata": { "name": "n", "labels": { "app": "a", "tier": "x" } } });
        let matches =
            |labels: &str, fields: &str| Selector::new(&pods(), Some(labels), Some(fields)).unwrap().matches(&object);
        for good in ["app=a", "app==a,tier!=y", "tier in (x,y),app", "tier notin (z),!gone", ""] {
            assert!(matches(good, ""), "{good}");
        }
        for bad in ["app=b", "gone", "!app", "tier in (z)"] {
            assert!(!matches(bad, ""), "{bad}");
        }
        assert!(matches("", "metadata.name=n"));
        assert!(!matches("", "metadata.name=m"));
        assert!(Selector::new(&pods(), None, Some("no operator")).is_err());
        let refusal = Selector::new(&pods(), None, Some("spec.port=1")).unwrap_err();
        assert_eq!(refusal.message, "field label not supported: spec.port");
    }
}
