//! A chat template, rendered as Hugging Face's `apply_chat_template` does.
//!
//! Jinja as transformers sets it up: blocks trimmed, loop controls, the methods of Python's strings and dicts, `tojson` without
//! HTML escapes, `raise_exception`, `strftime_now`, and `{% generation %}`, which only marks what it holds.

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Value};
use minijinja::{Environment, Error, ErrorKind, State, escape_formatter};
use minijinja_contrib::pycompat::unknown_method_callback;

use crate::format::{ContentFormat, content_format};
use crate::json::{Ascii, Order, Style, dumps};
use crate::python;

/// Instructions that one rendering may take: a chat of ten thousand messages takes a tenth of it.
const FUEL: u64 = 5_000_000;
/// Longest template. The largest known ones have 30 KiB.
pub const TEMPLATE_BYTES_MAX: usize = 1 << 20;

/// Name of the variable that holds the time, in seconds since 1970, for `strftime_now`.
pub(crate) const NOW: &str = "_now_unix_s";

/// A compiled chat template.
#[derive(Debug)]
pub(crate) struct Template {
    environment: Environment<'static>,
    format: ContentFormat,
    developer: Developer,
    names_content: bool,
}

/// What the template does with the role `developer`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Developer {
    /// It has a place for it.
    Known,
    /// Such messages become the system's.
    Unknown,
}

impl Template {
    /// Compiles a template.
    ///
    /// # Errors
    /// Says what is wrong with the template and on which line.
    pub(crate) fn compile(source: &str) -> Result<Self, String> {
        if source.len() > TEMPLATE_BYTES_MAX {
            return Err(format!("the template has more than {TEMPLATE_BYTES_MAX} bytes"));
        }
        // Jinja's lexer takes every kind of line end for a line feed.
        let source = source.replace("\r\n", "\n").replace('\r', "\n");
        let mut environment = environment();
        environment.add_template_owned("chat", plain_generation(&source)).map_err(|error| described(&error))?;
        Ok(Self {
            environment,
            format: content_format(&source),
            developer: match source.contains("\"developer\"") || source.contains("'developer'") {
                true => Developer::Known,
                false => Developer::Unknown,
            },
            names_content: source.contains("content"),
        })
    }

    /// How the template takes the content of a message.
    pub(crate) fn format(&self) -> ContentFormat {
        self.format
    }

    /// What it does with the role `developer`.
    pub(crate) fn developer(&self) -> Developer {
        self.developer
    }

    /// Whether the word `content` stands in it, without which transformers continues no message.
    pub(crate) fn names_content(&self) -> bool {
        self.names_content
    }

    /// Renders. `variables` hold what `strftime_now` takes for the time under [`NOW`].
    ///
    /// # Errors
    /// What the template raises, which is what the engine would refuse the request with.
    pub(crate) fn render(&self, variables: Value) -> Result<String, String> {
        let template = self.environment.get_template("chat").map_err(|error| described(&error))?;
        template.render(variables).map_err(|error| described(&error))
    }
}

fn environment() -> Environment<'static> {
    let mut environment = Environment::new();
    // Nothing to fail: the delimiters are Jinja's own.
    if let Ok(syntax) = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build() {
        environment.set_syntax(syntax);
    }
    environment.set_fuel(Some(FUEL));
    environment.set_unknown_method_callback(python_method);
    environment.set_formatter(|out, state, value| match float_text(value) {
        Some(text) => out.write_str(&text).map_err(Error::from),
        None => escape_formatter(out, state, value),
    });
    environment.add_filter("string", |value: &Value| match float_text(value) {
        Some(text) => Value::from(text),
        None if value.as_str().is_some() => value.clone(),
        None => Value::from(value.to_string()),
    });
    environment.add_filter("tojson", tojson);
    environment.add_filter("trim", |text: String, chars: Option<String>| stripped(&text, Side::Both, chars.as_deref()));
    environment.add_function("raise_exception", |message: String| -> Result<Value, Error> {
        Err(Error::new(ErrorKind::InvalidOperation, message))
    });
    environment.add_function("strftime_now", |state: &State<'_, '_>, format: &str| {
        let now_unix_s = state.lookup(NOW).and_then(|now| now.as_i64());
        now_unix_s
            .and_then(|now_unix_s| python::strftime(now_unix_s, format))
            .ok_or_else(|| Error::new(ErrorKind::InvalidOperation, format!("unknown form of a date: {format}")))
    });
    environment
}

/// A float as Python prints it; `None` for any other value.
fn float_text(value: &Value) -> Option<String> {
    (value.is_number() && !value.is_integer()).then(|| f64::try_from(value.clone()).ok().map(python::float))?
}

/// The methods of Python's types; those that depend on what white space is, as Python has it.
fn python_method(state: &mut State<'_, '_>, value: &Value, method: &str, args: &[Value]) -> Result<Value, Error> {
    let side = match method {
        "strip" => Side::Both,
        "lstrip" => Side::Left,
        "rstrip" => Side::Right,
        _ => return unknown_method_callback(state, value, method, args),
    };
    let chars = match args {
        [] => None,
        [chars] if chars.is_none() => None,
        [chars] if chars.as_str().is_some() => chars.as_str(),
        _ => return Err(Error::from(ErrorKind::InvalidOperation)),
    };
    match value.as_str() {
        Some(text) => Ok(Value::from(stripped(text, side, chars))),
        None => Err(Error::from(ErrorKind::UnknownMethod)),
    }
}

/// Where a string is stripped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    Left,
    Right,
    Both,
}

fn stripped(text: &str, side: Side, chars: Option<&str>) -> String {
    let goes = |c: char| chars.map_or_else(|| python::is_space(c), |chars| chars.contains(c));
    match side {
        Side::Left => text.trim_start_matches(goes),
        Side::Right => text.trim_end_matches(goes),
        Side::Both => text.trim_matches(goes),
    }
    .to_owned()
}

/// `tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False)`, as transformers defines it.
#[expect(clippy::needless_pass_by_value, reason = "the engine passes named arguments by value")]
fn tojson(value: &Value, ascii: Option<Value>, indent: Option<Value>, named: Kwargs) -> Result<Value, Error> {
    let given = |name: &str, place: Option<Value>| -> Result<Option<Value>, Error> {
        let named: Option<Value> = if named.has(name) { Some(named.get(name)?) } else { place };
        Ok(named.filter(|value| !value.is_none()))
    };
    let indent = given("indent", indent)?.map(|indent| match indent.as_usize() {
        Some(width) => " ".repeat(width.min(64)),
        None => indent.as_str().unwrap_or_default().to_owned(),
    });
    let between = if indent.is_some() { "," } else { ", " };
    let separators = match given("separators", None)? {
        Some(pair) => (pair.get_item_by_index(0)?.to_string(), pair.get_item_by_index(1)?.to_string()),
        None => (String::from(between), String::from(": ")),
    };
    let style = Style {
        ascii: if given("ensure_ascii", ascii)?.is_some_and(|is| is.is_true()) { Ascii::Only } else { Ascii::Any },
        indent,
        separators,
        order: if given("sort_keys", None)?.is_some_and(|is| is.is_true()) { Order::Sorted } else { Order::Written },
    };
    named.assert_all_used()?;
    let text = dumps(value, &style)
        .ok_or_else(|| Error::new(ErrorKind::InvalidOperation, "a value that is not JSON cannot be written as JSON"))?;
    Ok(Value::from(text))
}

/// The source with `{% generation %}` as a block that does nothing.
fn plain_generation(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(start) = rest.find("{%") {
        let Some(length) = rest[start..].find("%}") else { break };
        let inside = &rest[start + 2..start + length];
        let word = inside.trim_matches(|c: char| c.is_whitespace() || c == '-' || c == '+');
        out.push_str(&rest[..start + 2]);
        match word {
            "generation" => out.push_str(&inside.replace(word, "with _generation = true")),
            "endgeneration" => out.push_str(&inside.replace(word, "endwith")),
            _ => out.push_str(inside),
        }
        rest = &rest[start + length..];
    }
    out.push_str(rest);
    out
}

/// What went wrong and where. Texts of templates are the operator's; what a template raises may quote a prompt, so this is for
/// those who load templates, not for logs of requests.
fn described(error: &Error) -> String {
    let detail = error.detail().map_or_else(|| error.kind().to_string(), str::to_owned);
    match error.line() {
        Some(line) => format!("line {line}: {detail}"),
        None => detail,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::json::Json;

    fn rendered(source: &str, variables: &str) -> Result<String, String> {
        Template::compile(source)?.render(Json::parse(variables.as_bytes()).unwrap().value())
    }

    #[test]
    fn blocks_are_trimmed_and_loops_can_be_left() {
        let source = "{% for m in messages %}\n  {% if m == 'b' %}\n    {% continue %}\n  {% endif %}\n  {{ m }}\n\
                      {% if m == 'c' %}{% break %}{% endif %}{% endfor %}\n";
        assert_eq!(rendered(source, r#"{"messages":["a","b","c","d"]}"#).unwrap(), "  a\n  c\n");
    }

    #[test]
    fn values_are_written_as_python_writes_them() {
        let source = "{{ t }} {{ n }} {{ l }} {{ d }} {{ f }} {{ u }}|{{ 'a' ~ n ~ 1 }}|{{ ' \u{1d}x ' | trim }}|{{ 'xay'.strip('xy') }}";
        let variables = r#"{"t":true,"n":null,"l":["a",1,true,null],"d":{"k":"v'"},"f":1e20}"#;
        assert_eq!(
            rendered(source, variables).unwrap(),
            "True None ['a', 1, True, None] {'k': \"v'\"} 1e+20 |aNone1|x|a"
        );
    }

    #[test]
    fn json_is_written_without_escapes_for_html() {
        let source = "{{ d | tojson }}|{{ d | tojson(indent=2) }}|{{ d | tojson(true) }}|{{ d | tojson(separators=(',', ':'), sort_keys=true) }}";
        assert_eq!(
            rendered(source, r#"{"d":{"é":"<'>","a":[1,2]}}"#).unwrap(),
            "{\"é\": \"<'>\", \"a\": [1, 2]}|{\n  \"é\": \"<'>\",\n  \"a\": [\n    1,\n    2\n  ]\n}|{\"\\u00e9\": \"<'>\", \"a\": [1, 2]}|{\"a\":[1,2],\"é\":\"<'>\"}"
        );
    }

    #[test]
    fn a_marked_answer_is_rendered_like_any_text() {
        let source = "{%- for m in messages %}{%- generation -%} {{ m }} {%- endgeneration -%}\n{% endfor %}";
        assert_eq!(rendered(source, r#"{"messages":["a","b"]}"#).unwrap(), "ab");
    }

    #[test]
    fn the_time_is_the_one_given() {
        assert_eq!(rendered("{{ strftime_now('%d %b %Y') }}", r#"{"_now_unix_s":86400}"#).unwrap(), "02 Jan 1970");
        assert!(rendered("{{ strftime_now('%Q') }}", r#"{"_now_unix_s":86400}"#).is_err());
    }

    #[test]
    fn a_fault_is_told_with_its_line() {
        assert!(Template::compile("a\n{% if %}").unwrap_err().starts_with("line 2: "));
        assert_eq!(rendered("{{ raise_exception('not so') }}", "{}").unwrap_err(), "line 1: not so");
        assert!(rendered("{{ x | tojson }}", "{}").is_err());
    }

    #[test]
    fn a_template_without_end_is_ended() {
        let source = "{% for a in range(9999) %}{% for b in range(9999) %}{% for c in range(9999) %}{% set x = a %}{% endfor %}{% endfor %}{% endfor %}";
        assert!(rendered(source, "{}").is_err());
    }
}
