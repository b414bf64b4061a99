//! What the rules could cost. An API server refuses a definition whose rules could be too dear for the largest object its schema
//! allows, so every list above a rule and every list and text inside one needs a bound.
//!
//! The estimate follows the API server's: one for each name, field and call; a tenth of its bytes for a text that is read, with
//! four bytes a character; as many times as the lists around it are long.

use std::collections::HashMap;

use crds::Kind;
use kube_cel::cel::Program;
use kube_cel::cel::common::ast::{Expr, LiteralValue, operators};
use serde_json::Value;

use crate::server;

/// Most that one rule, and that all rules of a definition, may cost (`k8s.io/apiextensions-apiserver`).
const RULE_COST_MAX: u64 = 10_000_000;
const DEFINITION_COST_MAX: u64 = 100_000_000;

/// Names in a rule, and the schemas of what they stand for.
type Scope<'s> = HashMap<String, &'s Value>;

/// The schema of what an expression yields, where it is a part of the object.
fn resolve<'s>(expr: &Expr, scope: &Scope<'s>) -> Option<&'s Value> {
    match expr {
        Expr::Ident(name) => scope.get(name).copied(),
        Expr::Select(select) => resolve(&select.operand.expr, scope)?["properties"].get(&select.field),
        Expr::Call(_)
        | Expr::Comprehension(_)
        | Expr::List(_)
        | Expr::Literal(_)
        | Expr::Map(_)
        | Expr::Struct(_)
        | Expr::Unspecified => None,
    }
}

/// Bytes of a text at most; 0 for what is no text.
fn bytes(expr: &Expr, scope: &Scope<'_>) -> u64 {
    match expr {
        Expr::Literal(LiteralValue::String(text)) => text.inner().len() as u64,
        // Functions over one text give one of its length.
        Expr::Call(call) => call.target.as_ref().map_or(0, |target| bytes(&target.expr, scope)),
        // `has` reads nothing.
        Expr::Select(select) if select.test => 0,
        Expr::Select(_)
        | Expr::Comprehension(_)
        | Expr::Ident(_)
        | Expr::List(_)
        | Expr::Literal(_)
        | Expr::Map(_)
        | Expr::Struct(_)
        | Expr::Unspecified => {
            let Some(schema) = resolve(expr, scope).filter(|schema| schema["type"] == "string") else { return 0 };
            if let Some(values) = schema["enum"].as_array() {
                return values.iter().filter_map(Value::as_str).map(str::len).max().unwrap_or(0) as u64;
            }
            4 * schema["maxLength"].as_u64().unwrap_or_else(|| panic!("a text in a rule has no maxLength: {schema}"))
        }
    }
}

fn cost(expr: &Expr, scope: &Scope<'_>) -> u64 {
    match expr {
        Expr::Literal(_) | Expr::Unspecified => 0,
        Expr::Ident(_) => 1,
        Expr::Select(select) => 1 + cost(&select.operand.expr, scope),
        Expr::List(list) => 10 + list.elements.iter().map(|e| 1 + cost(&e.expr, scope)).sum::<u64>(),
        Expr::Map(_) | Expr::Struct(_) => 40,
        Expr::Call(call) => {
            let parts = || call.target.iter().map(AsRef::as_ref).chain(&call.args);
            let texts = parts().map(|part| bytes(&part.expr, scope));
            // Two texts are compared to the end of the shorter one.
            let read = if call.func_name == operators::EQUALS { texts.min().unwrap_or(0) } else { texts.sum() };
            1 + parts().map(|part| cost(&part.expr, scope)).sum::<u64>() + read.div_ceil(10)
        }
        Expr::Comprehension(all) => {
            let list = resolve(&all.iter_range.expr, scope).expect("a list of the object");
            let items = list["maxItems"].as_u64().unwrap_or_else(|| panic!("a list in a rule has no maxItems: {list}"));
            let mut inner = scope.clone();
            inner.insert(all.iter_var.clone(), &list["items"]);
            let step = cost(&all.loop_cond.expr, &inner) + cost(&all.loop_step.expr, &inner);
            cost(&all.iter_range.expr, scope) + items * step + cost(&all.result.expr, &inner)
        }
    }
}

/// Calls `each` with every rule below a schema, the schema it stands at, and how many times it may be asked.
fn each_rule<'s>(schema: &'s Value, path: &str, times: u64, each: &mut dyn FnMut(&str, &'s Value, &str, u64)) {
    let rules: Vec<&str> = schema["x-kubernetes-validations"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|r| r["rule"].as_str())
        .collect();
    rules.iter().for_each(|rule| each(path, schema, rule, times));
    for (name, child) in schema["properties"].as_object().into_iter().flatten() {
        each_rule(child, &format!("{path}.{name}"), times, each);
    }
    for (inner, most) in [("items", "maxItems"), ("additionalProperties", "maxProperties")] {
        let Some(child) = schema.get(inner) else { continue };
        let mut below = Vec::new();
        each_rule(child, "", 1, &mut |_, _, rule, _| below.push(rule.to_owned()));
        let most = schema[most].as_u64();
        assert!(below.is_empty() || most.is_some(), "{path} has no {most:?}, and rules below: {below:?}");
        each_rule(child, &format!("{path}[]"), times * most.unwrap_or(1), each);
    }
}

#[test]
fn no_rule_could_cost_more_than_an_api_server_allows() {
    for kind in Kind::CUSTOM_RESOURCES {
        let schema = server::schema(kind);
        let (mut sum, mut rules) = (0, 0);
        each_rule(&schema, "", 1, &mut |path, node, rule, times| {
            let program = Program::compile(rule).unwrap_or_else(|error| panic!("{kind}{path}: {rule}: {error}"));
            let scope = Scope::from([("self".to_owned(), node)]);
            let estimate = times * cost(&program.expression().expr, &scope);
            // By a quarter: the estimate here is rougher than the API server's.
            assert!(estimate < RULE_COST_MAX / 4 * 3, "{kind}{path}: {estimate} for {rule}");
            sum += estimate;
            rules += 1;
        });
        assert!(rules > 0 && sum < DEFINITION_COST_MAX / 2, "{kind}: {rules} rules, {sum}");
    }
}
