//! Whether a chat template takes the content of a message as text or as a list of parts.
//!
//! vLLM looks for a loop over the content of a message (`vllm/renderers/hf.py`, `_detect_content_format`); this looks for the same
//! in the statements of the template, by the same names.

use std::collections::BTreeSet;

/// What the content of a message is for a template.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ContentFormat {
    /// Text.
    Text,
    /// A list of parts with a `type`.
    Parts,
}

/// The format that vLLM would detect.
pub(crate) fn content_format(source: &str) -> ContentFormat {
    let code = code_of(source);
    let statements: Vec<Statement<'_>> = code.iter().filter_map(|code| Statement::of(code)).collect();
    let messages = related_to(&statements, "messages");
    let said: BTreeSet<&str> = statements
        .iter()
        .filter_map(|statement| match statement {
            Statement::For { name, over } => messages.iter().any(|var| is_variable(over, var)).then_some(*name),
            Statement::Set { .. } | Statement::Macro { .. } | Statement::EndMacro => None,
        })
        .collect();
    let is_content = |expression: &str| said.iter().any(|message| is_member(expression, message, "content"));
    let mut inside: Option<BTreeSet<&str>> = None;
    for statement in &statements {
        match statement {
            Statement::Macro { name, parameters } => {
                inside = Some(parameters_with_content(&code, name, parameters, &is_content));
            }
            Statement::EndMacro => inside = None,
            Statement::For { over, .. } => {
                let by_name = match &inside {
                    Some(parameters) => parameters.contains(over),
                    None => *over == "content",
                };
                if by_name || is_content(over) {
                    return ContentFormat::Parts;
                }
            }
            Statement::Set { .. } => {}
        }
    }
    ContentFormat::Text
}

/// A statement that says something about where content goes.
#[derive(Debug)]
enum Statement<'a> {
    For { name: &'a str, over: &'a str },
    Set { name: &'a str, to: &'a str },
    Macro { name: &'a str, parameters: Vec<&'a str> },
    EndMacro,
}

impl<'a> Statement<'a> {
    fn of(code: &'a str) -> Option<Self> {
        let (word, rest) = code.split_once(|c: char| c.is_whitespace()).unwrap_or((code, ""));
        match word {
            "for" => {
                let (name, over) = rest.split_once(" in ")?;
                let over = over.split(" if ").next().unwrap_or(over);
                is_name(name.trim()).then(|| Statement::For { name: name.trim(), over: bare(over) })
            }
            "set" => {
                let (name, to) = rest.split_once('=')?;
                is_name(name.trim()).then(|| Statement::Set { name: name.trim(), to: bare(to) })
            }
            "macro" => {
                let (name, parameters) = rest.split_once('(')?;
                let parameters = arguments(parameters).into_iter();
                let parameters = parameters.map(|p| p.split('=').next().unwrap_or(p).trim()).collect();
                Some(Statement::Macro { name: name.trim(), parameters })
            }
            "endmacro" => Some(Statement::EndMacro),
            _ => None,
        }
    }
}

/// What stands between `{%` and `%}` or `{{` and `}}`, trimmed; comments are left out.
fn code_of(source: &str) -> Vec<&str> {
    let mut found = Vec::new();
    let mut rest = source;
    while let Some(start) = rest.find('{') {
        let end = match rest.as_bytes().get(start + 1) {
            Some(b'%') => "%}",
            Some(b'{') => "}}",
            Some(b'#') => "#}",
            _ => {
                rest = &rest[start + 1..];
                continue;
            }
        };
        let Some(length) = rest[start + 2..].find(end) else { break };
        let inside = &rest[start + 2..start + 2 + length];
        if end != "#}" {
            found.push(inside.trim_matches(|c: char| c.is_whitespace() || c == '-' || c == '+'));
        }
        rest = &rest[start + 2 + length + 2..];
    }
    found
}

/// `variable` and everything that is set to it or to a piece of it.
fn related_to<'a>(statements: &[Statement<'a>], variable: &'a str) -> BTreeSet<&'a str> {
    let mut related = BTreeSet::from([variable]);
    loop {
        let before = related.len();
        for statement in statements {
            if let Statement::Set { name, to } = statement
                && related.iter().any(|var| is_variable(to, var))
            {
                related.insert(name);
            }
        }
        if related.len() == before {
            return related;
        }
    }
}

/// The parameters of a macro that are given the content of a message in some call.
fn parameters_with_content<'a>(
    code: &[&str],
    name: &str,
    parameters: &[&'a str],
    is_content: &impl Fn(&str) -> bool,
) -> BTreeSet<&'a str> {
    let call = format!("{name}(");
    let mut found = BTreeSet::new();
    for code in code.iter().filter(|code| !code.starts_with("macro")) {
        for (at, _) in code.match_indices(&call) {
            let given = arguments(&code[at + call.len()..]);
            for (place, argument) in given.iter().enumerate() {
                let (parameter, argument) = match argument.split_once('=') {
                    Some((named, argument)) if is_name(named.trim()) => {
                        (parameters.iter().find(|p| **p == named.trim()), argument)
                    }
                    Some(_) | None => (parameters.get(place), *argument),
                };
                if is_content(bare(argument)) {
                    found.extend(parameter.copied());
                }
            }
        }
    }
    found
}

/// The arguments up to the parenthesis that ends them.
fn arguments(text: &str) -> Vec<&str> {
    let (mut found, mut start, mut depth, mut quote) = (Vec::new(), 0, 0_usize, None);
    for (at, c) in text.char_indices() {
        match (quote, c) {
            (Some(q), _) if c == q => quote = None,
            (Some(_), _) => {}
            (None, '\'' | '"') => quote = Some(c),
            (None, '(' | '[' | '{') => depth += 1,
            (None, ')') if depth == 0 => {
                found.push(text[start..at].trim());
                return found;
            }
            (None, ')' | ']' | '}') => depth = depth.saturating_sub(1),
            (None, ',') if depth == 0 => {
                found.push(text[start..at].trim());
                start = at + 1;
            }
            (None, _) => {}
        }
    }
    found
}

/// An expression without its filters, its test and its slice.
fn bare(expression: &str) -> &str {
    let expression = expression.split('|').next().unwrap_or(expression);
    let expression = expression.split(" is ").next().unwrap_or(expression).trim();
    match expression.strip_suffix(']').and_then(|inner| inner.rsplit_once('[')) {
        Some((list, slice)) if slice.contains(':') => list.trim(),
        Some(_) | None => expression,
    }
}

fn is_name(text: &str) -> bool {
    !text.is_empty() && text.chars().all(|c| c.is_alphanumeric() || c == '_')
}

fn is_variable(expression: &str, name: &str) -> bool {
    expression == name
}

fn is_member(expression: &str, name: &str, member: &str) -> bool {
    let Some(rest) = expression.strip_prefix(name) else { return false };
    let rest = rest.trim();
    if let Some(attribute) = rest.strip_prefix('.') {
        return attribute.trim() == member;
    }
    let item = rest.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).map(str::trim);
    item.is_some_and(|item| {
        ['\'', '"'].iter().any(|&q| item.strip_prefix(q).and_then(|i| i.strip_suffix(q)) == Some(member))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loop_over_the_content_of_a_message_takes_parts() {
        for source in [
            "{% for m in messages %}{% for part in m['content'] %}{{ part.text }}{% endfor %}{% endfor %}",
            "{%- for message in messages[1:] -%}{%- for p in message.content | selectattr('type') -%}{%- endfor -%}{%- endfor -%}",
            "{% set rest = messages[1:] %}{% set loop_messages = rest %}{% for m in loop_messages %}{% for c in m.content %}{% endfor %}{% endfor %}",
            "{% for m in messages %}{% set content = m.content %}{% for c in content %}{% endfor %}{% endfor %}",
            "{% macro show(c, n=1) %}{% for item in c %}{% endfor %}{% endmacro %}{% for m in messages %}{{ show(m.content, 2) }}{% endfor %}",
            "{% macro show(n, c) %}{% for item in c %}{% endfor %}{% endmacro %}{% for m in messages if m %}{% set x = show(c=m[\"content\"]) %}{% endfor %}",
        ] {
            assert_eq!(content_format(source), ContentFormat::Parts, "{source}");
        }
    }

    #[test]
    fn everything_else_takes_text() {
        for source in [
            "",
            "{% for message in messages %}{{ message['role'] + message.content }}{% endfor %}",
            "{# {% for m in messages %}{% for c in m.content %} #}{% for m in messages %}{{ m.content }}{% endfor %}",
            "{% for tool in tools %}{% for c in tool.content %}{% endfor %}{% endfor %}",
            "{% macro show(content) %}{% for item in content %}{% endfor %}{% endmacro %}{% for m in messages %}{{ m.content }}{% endfor %}",
            "{% for m in messages %}{% for c in m.contents %}{% endfor %}{% endfor %}",
            "{% for",
        ] {
            assert_eq!(content_format(source), ContentFormat::Text, "{source}");
        }
    }
}
