//! What the parser says of broken YAML, in words that tell a person what to mend and where.

use std::sync::Arc;

use policy::{Code, Diagnostic};
use saphyr_parser::ScanError;

use super::number;
use crate::node::Place;

/// The finding for a syntax error. `open` are the collections that were not closed yet, the outermost first.
pub(super) fn syntax(error: &ScanError, text: &str, file: &Arc<str>, open: &[Place]) -> Box<Diagnostic> {
    let (line, column) = (number(error.marker().line()), number(error.marker().col()) + 1);
    let here = one_letter(line, column);
    let finding =
        |place: Place, message: &str| Diagnostic::new(Code::Syntax, message).at("", Some(place.in_file(file)));
    if let Some(place) = tab(text, line) {
        return Box::new(finding(place, "a tab is used for indentation; YAML allows only spaces").expected("spaces"));
    }
    let quoted = error.info().starts_with("while scanning a quoted scalar");
    let from = open.iter().find(|place| letter(text, **place).is_some_and(|c| matches!(c, '[' | '{')));
    let fault = from.filter(|_| !quoted).and_then(|from| brackets(text, *from, here));
    Box::new(match fault {
        Some(Fault::NeverClosed { bracket, opened }) => {
            let message = format!("the `{bracket}` is opened here and not closed");
            finding(opened, &message).expected(format!("`{}` before line {line}, column {column}", closing(bracket)))
        }
        Some(Fault::ClosedByAnother { bracket, opened, at }) => {
            let Place { line, column, .. } = opened;
            let message = format!("the `{bracket}` opened at line {line}, column {column} is not closed by this");
            finding(at, &message).expected(format!("`{}`", closing(bracket)))
        }
        Some(Fault::CommaMissing { bracket, opened }) => {
            let Place { line, column, .. } = opened;
            let message =
                format!("this cannot stand here, within the `{bracket}` opened at line {line}, column {column}");
            finding(here, &message).expected(format!("`,` or `{}` before it", closing(bracket)))
        }
        None => {
            let (message, expected) = in_words(error.info());
            let mut finding = finding(here, message);
            finding.expected = expected.map(str::to_owned);
            finding
        }
    })
}

fn one_letter(line: u32, column: u32) -> Place {
    Place { line, column, end_line: line, end_column: column + 1 }
}

/// What is wrong with brackets.
enum Fault {
    NeverClosed { bracket: char, opened: Place },
    ClosedByAnother { bracket: char, opened: Place, at: Place },
    CommaMissing { bracket: char, opened: Place },
}

/// Follows the brackets of a document from `from`, outside of quotes and comments, to what made the parser stop at `error`.
fn brackets(text: &str, from: Place, error: Place) -> Option<Fault> {
    let mut open: Vec<(char, Place)> = Vec::new();
    // The innermost collection where the parser stopped: the one that a comma or a bracket is missing in.
    let mut around: Option<(char, Place)> = None;
    let mut quote = None;
    for (line, text) in (1_u32..).zip(text.lines()).skip(from.line.saturating_sub(1) as usize) {
        if text.starts_with("---") {
            break;
        }
        let first = if line == from.line { from.column } else { 1 };
        let mut before = ' ';
        let mut letters = (1_u32..).zip(text.chars()).skip(first.saturating_sub(1) as usize).peekable();
        while let Some((column, c)) = letters.next() {
            if around.is_none() && (line, column) >= (error.line, error.column) {
                around = open.last().copied();
            }
            match (quote, c) {
                (Some('"'), '\\') => _ = letters.next(),
                (Some(q), c) if q == c => quote = None,
                (Some(_), _) => {}
                (None, '#') if before == ' ' => break,
                (None, '"' | '\'') if " [{,:".contains(before) => quote = Some(c),
                (None, '[' | '{') if " [{,:".contains(before) => open.push((c, one_letter(line, column))),
                (None, ']' | '}') => {
                    let (bracket, opened) = open.pop()?;
                    if closing(bracket) != c {
                        return Some(Fault::ClosedByAnother { bracket, opened, at: one_letter(line, column) });
                    }
                    if around == Some((bracket, opened)) {
                        return Some(Fault::CommaMissing { bracket, opened });
                    }
                }
                (None, _) => {}
            }
            before = c;
        }
        if open.is_empty() {
            return None;
        }
    }
    let (bracket, opened) = around.or(open.last().copied())?;
    Some(Fault::NeverClosed { bracket, opened })
}

/// A tab in the indentation of the line or the one before; the parser may notice it only on the next line.
fn tab(text: &str, line: u32) -> Option<Place> {
    let before = text.lines().skip(line.saturating_sub(2) as usize).take(2);
    (line.saturating_sub(1)..).zip(before).find_map(|(line, text)| {
        let indent = text.get(..text.len() - text.trim_start().len())?;
        let column = number(indent.chars().position(|c| c == '\t')?) + 1;
        let line = line.max(1);
        Some(one_letter(line, column))
    })
}

fn letter(text: &str, place: Place) -> Option<char> {
    text.lines().nth(place.line.saturating_sub(1) as usize)?.chars().nth(place.column.saturating_sub(1) as usize)
}

fn closing(bracket: char) -> char {
    if bracket == '[' { ']' } else { '}' }
}

/// The mistakes that people make, in other words than the parser's, with what would be right.
fn in_words(info: &str) -> (&str, Option<&'static str>) {
    match info {
        "while parsing a block mapping, did not find expected key"
        | "while parsing a block collection, did not find expected '-' indicator"
        | "invalid indentation" => {
            ("the line is indented like none of those it could belong to", Some("the indentation of a line above"))
        }
        "mapping values are not allowed in this context" => (
            "there is a second `: ` in the line, or the line is indented wrongly",
            Some("quotes around a text that holds `: `, or the indentation of the line above"),
        ),
        "misplaced bracket" => ("the bracket closes nothing", None),
        "while scanning a quoted scalar, found unexpected end of stream" => {
            ("the quote is opened here and not closed", Some("the same quote behind the text"))
        }
        "while parsing node, found unknown anchor" => ("nothing above has an anchor of this name", None),
        "simple key expected" | "simple key expect ':'" => ("the line is no `key: value`", Some("`: ` behind the key")),
        "found unprintable character" => ("there is a control character, which YAML does not allow", None),
        other => (other, None),
    }
}
