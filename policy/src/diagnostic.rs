//! Findings about the documents a person wrote.
//!
//! One finding names one place, says what was expected there, and suggests what was probably meant.
//! The same finding prints for a person, as JSON, and as an annotation of GitHub Actions.

use std::fmt::{self, Write as _};
use std::sync::Arc;

/// How bad a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Severity {
    /// The set of documents is not put in force.
    Error,
    /// It is put in force, and probably does not do what was meant.
    Warning,
}

impl Severity {
    /// The word used in output.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Severity::Error => "error",
            Severity::Warning => "warning",
        }
    }
}

macro_rules! codes {
    ($($(#[$doc:meta])* $variant:ident = $number:literal $name:literal $severity:ident $text:literal,)*) => {
        /// What a finding is about. The number and name of a code never change once released.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Code { $(#[doc = $text] $variant,)* }

        impl Code {
            /// Every code, by number.
            pub const ALL: &'static [Code] = &[$(Code::$variant,)*];

            /// The code's number, `K0012`.
            #[must_use]
            pub fn number(self) -> &'static str {
                match self { $(Code::$variant => $number,)* }
            }

            /// The code's name, `unknown-field`.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self { $(Code::$variant => $name,)* }
            }

            /// Whether the set is refused for it.
            #[must_use]
            pub fn severity(self) -> Severity {
                match self { $(Code::$variant => Severity::$severity,)* }
            }

            /// One sentence on what it means.
            #[must_use]
            pub fn summary(self) -> &'static str {
                match self { $(Code::$variant => $text,)* }
            }
        }
    };
}

codes! {
    Syntax = "K0001" "yaml-syntax" Error "The file is not valid YAML.",
    DuplicateKey = "K0002" "duplicate-key" Error "A mapping has the same key twice.",
    OverLimit = "K0003" "over-limit" Error "A file, or what it describes, is larger than a bound.",
    Unreadable = "K0004" "unreadable-file" Error "A file or folder cannot be read.",
    EmptySet = "K0005" "empty-set" Error "Nothing is left of a set that was in force; what was in force stays.",
    UnknownKind = "K0010" "unknown-kind" Error "The document's `kind` is not one of this product's.",
    UnknownApiVersion = "K0011" "unknown-api-version" Error "The document's `apiVersion` is not supported.",
    UnknownField = "K0012" "unknown-field" Error "There is no field of this name here.",
    WrongType = "K0013" "wrong-type" Error "The value is of another type than the field.",
    UnknownValue = "K0014" "unknown-value" Error "The value is not one of the field's possible values.",
    MissingField = "K0015" "missing-field" Error "A field that must be there is not.",
    BadFormat = "K0016" "bad-format" Error "The text does not have the field's format (a duration, a quantity, an address, ...).",
    OutOfRange = "K0017" "out-of-range" Error "The number is outside the field's range.",
    ExactlyOneOf = "K0018" "exactly-one-of" Error "Exactly one of several fields must be given.",
    EmptyList = "K0019" "empty-list" Error "The list or object must not be empty.",
    DuplicateName = "K0020" "duplicate-name" Error "Two things that must be told apart have the same name.",
    BadRegex = "K0021" "bad-regex" Error "The regular expression does not compile.",
    UnknownReference = "K0022" "unknown-reference" Error "Nothing of this kind and name exists in the namespace.",
    Unsupported = "K0023" "unsupported" Error "The value is understood but cannot be used from this kind of source.",
    TestFailed = "K0024" "test-failed" Error "A policy test's case did not come out as expected.",
    ReservedHeader = "K0025" "reserved-header" Error "The header is one that the gateway writes or keeps to itself.",
    UnreachableRule = "K0101" "unreachable-rule" Warning "No request can reach the rule: earlier rules take them all.",
    ModelNotServed = "K0102" "model-not-served" Warning "No destination serves a model of this name.",
    PolicyNotAttached = "K0103" "policy-not-attached" Warning "No pool refers to the policy, so it has no effect.",
    ExcludeNeverHolds = "K0104" "exclude-never-holds" Warning "The exclude entry can never drop a candidate.",
    SelectStepEmpty = "K0105" "select-step-empty" Warning "The select step can never have a candidate.",
    PersonalDataMayLeave = "K0106" "personal-data-may-leave" Warning "A request tagged `pii` can reach an External destination.",
    SecretMissing = "K0107" "secret-missing" Warning "A credential cannot be read, so its destination is not ready; or a key, so nobody is known by it. Told by a server only: `lint` looks for no secrets.",
    TagNeverSet = "K0108" "tag-never-set" Warning "No classifier gives the tag.",
    PlainTextCredential = "K0110" "plain-text-credential" Warning "A credential is sent over a connection that is not encrypted.",
    ReservedName = "K0111" "reserved-name" Warning "The name is one the product uses itself.",
    NoEffect = "K0112" "no-effect" Warning "The field does nothing in this version.",
    NothingServed = "K0113" "nothing-served" Warning "The set has no InferencePool, so every request is refused.",
    UnknownTenant = "K0114" "unknown-tenant" Warning "No InferenceTenant has the name, so nobody calls under it.",
    ClassifierUnused = "K0115" "classifier-unused" Warning "No rule refers to a tag of the classifier, so it never runs.",
    PoorExamples = "K0116" "poor-examples" Warning "The sentences of a tag do not tell each other apart.",
    TokenizerMissing = "K0120" "tokenizer-missing" Warning "A file of a tokenizer cannot be read, so the worker set's prompts are estimated by bytes. Told by a server only: `lint` looks for no files.",
    CredentialRefused = "K0121" "credential-refused" Warning "The provider refuses every request with such a credential, or without one.",
    UnknownPool = "K0122" "unknown-pool" Warning "A listener names a pool that does not exist. Told by a server only: `lint` knows no listeners.",
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.number(), self.name())
    }
}

/// A stretch of a file. Lines and columns count from 1, columns in characters; the end is exclusive.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Span {
    /// The file as it was named to the loader.
    pub file: Arc<str>,
    /// First line.
    pub line: u32,
    /// First column.
    pub column: u32,
    /// Line of the end.
    pub end_line: u32,
    /// Column just past the end.
    pub end_column: u32,
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}", self.file, self.line, self.column)
    }
}

/// One finding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Diagnostic {
    /// How bad it is.
    pub severity: Severity,
    /// What it is about.
    pub code: Code,
    /// One sentence for a person. Never holds a secret or a prompt.
    pub message: String,
    /// The field, `spec.rules[0].matches[1].model`; empty for a whole file.
    pub path: String,
    /// What was expected there.
    pub expected: Option<String>,
    /// The nearest valid thing to what was written.
    pub suggestion: Option<String>,
    /// Where it stands, when it stands in a file.
    pub span: Option<Span>,
}

impl Diagnostic {
    /// A finding of a code, with the code's own severity, about nowhere yet.
    #[must_use]
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        Self {
            severity: code.severity(),
            code,
            message: message.into(),
            path: String::new(),
            expected: None,
            suggestion: None,
            span: None,
        }
    }

    /// The same finding about a field.
    #[must_use]
    pub fn at(mut self, path: impl Into<String>, span: Option<Span>) -> Self {
        self.path = path.into();
        self.span = span;
        self
    }

    /// The same finding with what was expected.
    #[must_use]
    pub fn expected(mut self, expected: impl Into<String>) -> Self {
        self.expected = Some(expected.into());
        self
    }

    /// The same finding with what was probably meant.
    #[must_use]
    pub fn suggest(mut self, suggestion: Option<impl Into<String>>) -> Self {
        self.suggestion = suggestion.map(Into::into);
        self
    }

    /// For a person: code and message, the place, the line with the stretch underlined when `source`
    /// (the text of the finding's file) is given, then what was expected and what was probably meant.
    #[must_use]
    pub fn human(&self, source: Option<&str>) -> String {
        let mut out = String::new();
        let _ = writeln!(out, "{}[{}]: {}", self.severity.as_str(), self.code, self.message);
        let width = self.span.as_ref().map_or(1, |s| s.line.to_string().len());
        if let Some(span) = &self.span {
            let _ = writeln!(out, "{:width$}--> {span}", "");
            if let Some(line) = source.and_then(|s| s.lines().nth(span.line.saturating_sub(1) as usize)) {
                underline(&mut out, line, span, width);
            }
        }
        if !self.path.is_empty() {
            let _ = writeln!(out, "{:width$} = field: {}", "", self.path);
        }
        if let Some(expected) = &self.expected {
            let _ = writeln!(out, "{:width$} = expected: {expected}", "");
        }
        if let Some(suggestion) = &self.suggestion {
            let _ = writeln!(out, "{:width$} = help: did you mean `{suggestion}`?", "");
        }
        out
    }

    /// One JSON object without line breaks; keys that have no value are left out.
    #[must_use]
    pub fn json(&self) -> String {
        let mut out = String::from("{\"severity\":");
        json_string(&mut out, self.severity.as_str());
        for (key, value) in [
            ("code", Some(self.code.number())),
            ("name", Some(self.code.name())),
            ("message", Some(self.message.as_str())),
            ("path", Some(self.path.as_str()).filter(|p| !p.is_empty())),
            ("expected", self.expected.as_deref()),
            ("suggestion", self.suggestion.as_deref()),
            ("file", self.span.as_ref().map(|s| &*s.file)),
        ] {
            if let Some(value) = value {
                let _ = write!(out, ",\"{key}\":");
                json_string(&mut out, value);
            }
        }
        if let Some(s) = &self.span {
            let _ = write!(
                out,
                ",\"line\":{},\"column\":{},\"endLine\":{},\"endColumn\":{}",
                s.line, s.column, s.end_line, s.end_column
            );
        }
        out.push('}');
        out
    }

    /// A workflow command of GitHub Actions, which shows the finding beside the line in a review.
    /// Escaping as the runner's own toolkit does it (actions/toolkit, `command.ts`).
    #[must_use]
    pub fn github(&self) -> String {
        let mut out = format!("::{} ", self.severity.as_str());
        if let Some(s) = &self.span {
            let file = github_property(&s.file);
            let _ = write!(out, "file={file},line={},col={},endLine={}", s.line, s.column, s.end_line);
            if s.line == s.end_line {
                let _ = write!(out, ",endColumn={}", s.end_column);
            }
            out.push(',');
        }
        let _ = write!(out, "title={}::", github_property(&self.code.to_string()));
        let mut text = self.message.clone();
        if !self.path.is_empty() {
            let _ = write!(text, " (field {})", self.path);
        }
        if let Some(expected) = &self.expected {
            let _ = write!(text, "\nexpected: {expected}");
        }
        if let Some(suggestion) = &self.suggestion {
            let _ = write!(text, "\ndid you mean `{suggestion}`?");
        }
        out.push_str(&github_data(&text));
        out
    }
}

impl fmt::Display for Diagnostic {
    /// One line, for logs: `file:line:column: error[K0012 unknown-field]: message`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(span) = &self.span {
            write!(f, "{span}: ")?;
        }
        write!(f, "{}[{}]: {}", self.severity.as_str(), self.code, self.message)?;
        if let Some(suggestion) = &self.suggestion {
            write!(f, "; did you mean `{suggestion}`?")?;
        }
        Ok(())
    }
}

/// The source line with carets under the stretch. Lines are cut at 160 characters around the stretch.
fn underline(out: &mut String, line: &str, span: &Span, width: usize) {
    const SHOWN_MAX: usize = 160;
    let start = span.column.saturating_sub(1) as usize;
    let skip = start.saturating_sub(SHOWN_MAX / 2);
    let shown: String = line.chars().skip(skip).take(SHOWN_MAX).map(|c| if c.is_control() { ' ' } else { c }).collect();
    let end = if span.end_line == span.line { span.end_column as usize } else { line.chars().count() + 1 };
    let room = SHOWN_MAX.saturating_sub(start - skip);
    let carets = end.saturating_sub(span.column as usize).clamp(1, room.max(1));
    let _ = writeln!(out, "{:width$} |", "");
    let _ = writeln!(out, "{:>width$} | {shown}", span.line);
    let _ = writeln!(out, "{:width$} | {:indent$}{}", "", "", "^".repeat(carets), indent = start - skip);
}

/// Appends `text` as a JSON string (RFC 8259, section 7).
pub(crate) fn json_string(out: &mut String, text: &str) {
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if c < ' ' => {
                let _ = write!(out, "\\u{:04x}", u32::from(c));
            }
            c => out.push(c),
        }
    }
    out.push('"');
}

fn github_data(text: &str) -> String {
    text.replace('%', "%25").replace('\r', "%0D").replace('\n', "%0A")
}

fn github_property(text: &str) -> String {
    github_data(text).replace(':', "%3A").replace(',', "%2C")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn finding() -> Diagnostic {
        let span = Span { file: "a,b.yaml".into(), line: 2, column: 5, end_line: 2, end_column: 10 };
        Diagnostic::new(Code::UnknownField, "no field `modle`\nhere")
            .at("spec.modle", Some(span))
            .expected("one of `model`")
            .suggest(Some("model"))
    }

    #[test]
    fn the_line_is_shown_with_the_stretch_underlined() {
        let text = finding().human(Some("spec:\n  - modle: x\n"));
        let lines: Vec<_> = text.lines().collect();
        let shown = lines.iter().position(|l| l.ends_with("- modle: x")).expect("source line");
        assert_eq!(lines[shown], "2 |   - modle: x");
        assert_eq!(lines[shown + 1], "  |     ^^^^^");
        assert!(text.contains("did you mean `model`?"));
    }

    #[test]
    fn json_escapes_and_leaves_out_what_is_not_there() {
        let json = finding().json();
        assert!(json.contains(r#""message":"no field `modle`\nhere""#), "{json}");
        assert!(json.contains(r#""line":2,"column":5,"endLine":2,"endColumn":10"#));
        assert!(!Diagnostic::new(Code::Syntax, "x").json().contains("file"));
    }

    #[test]
    fn github_properties_escape_what_separates_them() {
        let line = finding().github();
        assert!(
            line.starts_with(
                "::error file=a%2Cb.yaml,line=2,col=5,endLine=2,endColumn=10,title=K0012 unknown-field::no field"
            ),
            "{line}"
        );
        assert!(!line.contains('\n'));
    }

    #[test]
    fn numbers_and_names_of_codes_are_unique_and_ascending() {
        let numbers: Vec<_> = Code::ALL.iter().map(|c| c.number()).collect();
        assert!(numbers.windows(2).all(|w| w[0] < w[1]));
        let mut names: Vec<_> = Code::ALL.iter().map(|c| c.name()).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), numbers.len());
    }

    #[test]
    fn a_stretch_outside_its_source_does_not_panic() {
        let span = Span { file: "f".into(), line: 1, column: 400, end_line: 1, end_column: 1 };
        let text = Diagnostic::new(Code::Syntax, "x").at("", Some(span)).human(Some("short"));
        assert!(text.contains('^'));
    }
}
