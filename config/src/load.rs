//! Bytes to documents in which every node knows its place.
//!
//! A loader over the parser's events and not over its own tree, for three reasons: every bound is
//! enforced while reading (size, depth, nodes with aliases expanded), a repeated key is an error with both
//! places, and only YAML 1.2's core schema is understood, so `no` is text and `0123` a number.

use std::borrow::Cow;
use std::sync::Arc;

use ahash::AHashMap;
use policy::{Code, Diagnostic};
use saphyr_parser::{Event, Parser, ScalarStyle, Span as YamlSpan, Tag};

use crate::limits::{FILE_BYTES_MAX, NODE_DEPTH_MAX, NODES_MAX};
use crate::node::{Content, Entry, Node, Place, RawDocument};

mod syntax;

use syntax::syntax;

/// A file and its bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceFile {
    /// The name findings show; paths inside the file's documents are relative to its folder.
    pub name: Arc<str>,
    /// The content.
    pub bytes: Vec<u8>,
}

impl SourceFile {
    /// A file with a text.
    #[must_use]
    pub fn new(name: &str, text: &str) -> Self {
        Self { name: name.into(), bytes: text.as_bytes().to_vec() }
    }
}

/// Reads the documents of a file. What can be read before a syntax error is returned beside the error.
pub fn documents(file: &SourceFile, findings: &mut Vec<Diagnostic>) -> Vec<RawDocument> {
    let name = &file.name;
    if file.bytes.len() > FILE_BYTES_MAX {
        let message = format!("the file has {} bytes; at most {FILE_BYTES_MAX} are read", file.bytes.len());
        findings.push(about_file(Code::OverLimit, name, message));
        return Vec::new();
    }
    let text = match std::str::from_utf8(&file.bytes) {
        Ok(text) => text.strip_prefix('\u{feff}').unwrap_or(text),
        Err(error) => {
            let message = format!("the file is not UTF-8 (byte {})", error.valid_up_to());
            findings.push(about_file(Code::Syntax, name, message));
            return Vec::new();
        }
    };
    let mut loader = Loader {
        file: Arc::clone(name),
        findings,
        documents: Vec::new(),
        frames: Vec::new(),
        anchors: AHashMap::new(),
        nodes: 0,
    };
    let mut parser = Parser::new_from_str(text);
    // Each event consumes input or closes a node, and input is bounded.
    while let Some(next) = parser.next_event() {
        let step = match next {
            Ok((event, span)) => loader.event(event, span),
            Err(error) => {
                let open: Vec<Place> = loader.frames.iter().map(|frame| frame.place).collect();
                Err(syntax(&error, text, name, &open))
            }
        };
        if let Err(finding) = step {
            loader.findings.push(*finding);
            break;
        }
    }
    loader.documents
}

/// A finding about a whole file.
pub(crate) fn about_file(code: Code, file: &Arc<str>, message: impl Into<String>) -> Diagnostic {
    let start = Place { line: 1, column: 1, end_line: 1, end_column: 2 };
    Diagnostic::new(code, message).at("", Some(start.in_file(file)))
}

fn number(n: usize) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX)
}

/// A collection that is not closed yet.
struct Frame {
    place: Place,
    anchor: usize,
    kind: FrameKind,
    /// Nodes inside, for the cost of an alias to it.
    nodes: usize,
}

enum FrameKind {
    List(Vec<Node>),
    Mapping { entries: Vec<Entry>, seen: AHashMap<String, Place>, key: Option<(String, Place)> },
}

struct Loader<'f> {
    file: Arc<str>,
    findings: &'f mut Vec<Diagnostic>,
    documents: Vec<RawDocument>,
    frames: Vec<Frame>,
    anchors: AHashMap<usize, (Node, usize)>,
    /// Nodes made so far in this file, aliases expanded.
    nodes: usize,
}

impl Loader<'_> {
    fn event(&mut self, event: Event<'_>, span: YamlSpan) -> Result<(), Box<Diagnostic>> {
        let place = place(span);
        match event {
            Event::Nothing | Event::StreamStart | Event::StreamEnd | Event::DocumentEnd => Ok(()),
            Event::DocumentStart(_) => {
                self.anchors.clear();
                Ok(())
            }
            Event::Scalar(text, style, anchor, tag) => {
                if self.expects_key() {
                    return self.key(text.into_owned(), place);
                }
                let content = scalar(text, style, tag.as_deref()).map_err(|m| self.error(Code::Syntax, place, m))?;
                self.finish(Node { place, content }, anchor, 1)
            }
            Event::SequenceStart(anchor, tag) => self.open(anchor, tag.as_deref(), place, FrameKind::List(Vec::new())),
            Event::MappingStart(anchor, tag) => {
                let kind = FrameKind::Mapping { entries: Vec::new(), seen: AHashMap::new(), key: None };
                self.open(anchor, tag.as_deref(), place, kind)
            }
            Event::SequenceEnd | Event::MappingEnd => self.close(place),
            Event::Alias(anchor) => self.alias(anchor, place),
        }
    }

    fn expects_key(&self) -> bool {
        matches!(self.frames.last(), Some(Frame { kind: FrameKind::Mapping { key: None, .. }, .. }))
    }

    fn key(&mut self, text: String, place: Place) -> Result<(), Box<Diagnostic>> {
        if text == "<<" {
            let message = "`<<` merges mappings in YAML 1.1 only; write the fields out";
            return Err(self.error(Code::Syntax, place, message));
        }
        if let Some(Frame { kind: FrameKind::Mapping { key, seen, .. }, .. }) = self.frames.last_mut() {
            if let Some(first) = seen.get(&text) {
                let message = format!(
                    "the key `{text}` is here twice; the first is at line {}, column {}",
                    first.line, first.column
                );
                let finding =
                    Diagnostic::new(Code::DuplicateKey, message).at(text.clone(), Some(place.in_file(&self.file)));
                self.findings.push(finding);
            } else {
                seen.insert(text.clone(), place);
            }
            *key = Some((text, place));
        }
        Ok(())
    }

    fn open(&mut self, anchor: usize, tag: Option<&Tag>, place: Place, kind: FrameKind) -> Result<(), Box<Diagnostic>> {
        if let Some(tag) = tag.filter(|t| !(t.is_yaml_core_schema() && matches!(t.suffix.as_str(), "map" | "seq"))) {
            return Err(self.error(Code::Syntax, place, format!("the tag `{tag}` is not supported")));
        }
        if self.expects_key() {
            return Err(self.error(Code::Syntax, place, "a key must be plain text"));
        }
        if self.frames.len() >= NODE_DEPTH_MAX {
            let message = format!("nodes are nested deeper than {NODE_DEPTH_MAX} levels");
            return Err(self.error(Code::OverLimit, place, message));
        }
        self.frames.push(Frame { place, anchor, kind, nodes: 1 });
        Ok(())
    }

    fn close(&mut self, end: Place) -> Result<(), Box<Diagnostic>> {
        let Some(frame) = self.frames.pop() else { return Ok(()) };
        let place = Place { end_line: end.end_line, end_column: end.end_column, ..frame.place };
        let content = match frame.kind {
            FrameKind::List(items) => Content::List(items),
            FrameKind::Mapping { entries, .. } => Content::Mapping(entries),
        };
        self.finish(Node { place, content }, frame.anchor, frame.nodes)
    }

    fn alias(&mut self, anchor: usize, place: Place) -> Result<(), Box<Diagnostic>> {
        let Some((node, nodes)) = self.anchors.get(&anchor) else {
            return Err(self.error(Code::Syntax, place, "the alias stands inside what it refers to"));
        };
        let nodes = *nodes;
        if self.expects_key() {
            let Some(text) = node.text().map(str::to_owned) else {
                return Err(self.error(Code::Syntax, place, "a key must be plain text"));
            };
            return self.key(text, place);
        }
        // Counted before it is copied: an alias costs what it expands to.
        self.count(nodes, place)?;
        if let Some((node, _)) = self.anchors.get(&anchor) {
            let node = Node { place, content: node.content.clone() };
            self.attach(node, nodes);
        }
        Ok(())
    }

    fn count(&mut self, nodes: usize, place: Place) -> Result<(), Box<Diagnostic>> {
        self.nodes = self.nodes.saturating_add(nodes);
        if self.nodes > NODES_MAX {
            let message = format!("the file has more than {NODES_MAX} nodes with its aliases expanded");
            return Err(self.error(Code::OverLimit, place, message));
        }
        Ok(())
    }

    /// A node is complete: remember it for aliases, count it, hand it to what it stands in.
    fn finish(&mut self, node: Node, anchor: usize, nodes: usize) -> Result<(), Box<Diagnostic>> {
        self.count(1, node.place)?;
        if anchor > 0 {
            // The remembered copy counts too, so that anchors cannot double memory unseen.
            self.count(nodes, node.place)?;
            self.anchors.insert(anchor, (node.clone(), nodes));
        }
        self.attach(node, nodes);
        Ok(())
    }

    fn attach(&mut self, node: Node, nodes: usize) {
        match self.frames.last_mut() {
            None => {
                if node.content != Content::Null {
                    self.documents.push(RawDocument { file: Arc::clone(&self.file), root: node });
                }
            }
            Some(frame) => {
                frame.nodes = frame.nodes.saturating_add(nodes);
                match &mut frame.kind {
                    FrameKind::List(items) => items.push(node),
                    FrameKind::Mapping { entries, key, .. } => {
                        if let Some((key, key_place)) = key.take() {
                            entries.push(Entry { key, key_place, value: node });
                        }
                    }
                }
            }
        }
    }

    fn error(&self, code: Code, place: Place, message: impl Into<String>) -> Box<Diagnostic> {
        Box::new(Diagnostic::new(code, message).at("", Some(place.in_file(&self.file))))
    }
}

fn place(span: YamlSpan) -> Place {
    Place {
        line: number(span.start.line()),
        column: number(span.start.col()) + 1,
        end_line: number(span.end.line()),
        end_column: number(span.end.col()) + 1,
    }
}

/// What a scalar is: YAML 1.2.2, section 10.3.2 (core schema) for plain ones, text for all others.
fn scalar(text: Cow<'_, str>, style: ScalarStyle, tag: Option<&Tag>) -> Result<Content, String> {
    match tag {
        None if style == ScalarStyle::Plain => Ok(plain(text)),
        None => Ok(Content::Text(text.into_owned())),
        Some(tag) if tag.handle == "!" && tag.suffix.is_empty() => Ok(Content::Text(text.into_owned())),
        Some(tag) if tag.is_yaml_core_schema() => {
            let content =
                if tag.suffix == "str" { Content::Text(text.clone().into_owned()) } else { plain(text.clone()) };
            let fits = match (&content, tag.suffix.as_str()) {
                (Content::Text(_), "str")
                | (Content::Integer(_), "int" | "float")
                | (Content::Float(_), "float")
                | (Content::Bool(_), "bool")
                | (Content::Null, "null") => true,
                (
                    Content::Null
                    | Content::Bool(_)
                    | Content::Integer(_)
                    | Content::Float(_)
                    | Content::Text(_)
                    | Content::List(_)
                    | Content::Mapping(_),
                    _,
                ) => false,
            };
            if fits { Ok(content) } else { Err(format!("`{text}` is not of the type its tag `!!{}` says", tag.suffix)) }
        }
        Some(tag) => Err(format!("the tag `{tag}` is not supported")),
    }
}

fn plain(text: Cow<'_, str>) -> Content {
    match &*text {
        "" | "~" | "null" | "Null" | "NULL" => return Content::Null,
        "true" | "True" | "TRUE" => return Content::Bool(true),
        "false" | "False" | "FALSE" => return Content::Bool(false),
        ".nan" | ".NaN" | ".NAN" => return Content::Float(f64::NAN),
        ".inf" | ".Inf" | ".INF" | "+.inf" | "+.Inf" | "+.INF" => return Content::Float(f64::INFINITY),
        "-.inf" | "-.Inf" | "-.INF" => return Content::Float(f64::NEG_INFINITY),
        _ => {}
    }
    let based = |prefix: &str, radix| text.strip_prefix(prefix).and_then(|d| i64::from_str_radix(d, radix).ok());
    if let Some(integer) = based("0x", 16).or_else(|| based("0o", 8)) {
        return Content::Integer(integer);
    }
    let digits = text.strip_prefix(['+', '-']).unwrap_or(&text);
    let numeric = digits.starts_with(|c: char| c.is_ascii_digit())
        || (digits.starts_with('.') && digits[1..].starts_with(|c: char| c.is_ascii_digit()));
    if numeric && digits.bytes().all(|b| b.is_ascii_digit() || matches!(b, b'.' | b'e' | b'E' | b'+' | b'-')) {
        if let Ok(integer) = text.parse() {
            return Content::Integer(integer);
        }
        if let Ok(float) = text.parse() {
            return Content::Float(float);
        }
    }
    Content::Text(text.into_owned())
}
