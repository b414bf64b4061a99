//! The YAML loader: bounds, the core schema, positions.

use config::limits::{FILE_BYTES_MAX, NODE_DEPTH_MAX};
use config::load::{SourceFile, documents};
use config::node::{Content, Path, RawDocument};
use policy::{Code, Diagnostic};
use proptest::prelude::*;

fn read(text: &str) -> (Vec<RawDocument>, Vec<Diagnostic>) {
    let mut findings = Vec::new();
    let documents = documents(&SourceFile::new("f.yaml", text), &mut findings);
    (documents, findings)
}

fn one(text: &str) -> RawDocument {
    let (mut documents, findings) = read(text);
    assert_eq!(findings, []);
    assert_eq!(documents.len(), 1);
    documents.remove(0)
}

#[test]
fn plain_scalars_follow_the_core_schema_of_yaml_1_2() {
    for (text, content) in [
        ("yes", Content::Text("yes".into())),
        ("no", Content::Text("no".into())),
        ("on", Content::Text("on".into())),
        ("true", Content::Bool(true)),
        ("~", Content::Null),
        ("0123", Content::Integer(123)),
        ("0o17", Content::Integer(15)),
        ("0x1F", Content::Integer(31)),
        ("-5", Content::Integer(-5)),
        ("1.5", Content::Float(1.5)),
        ("1e3", Content::Float(1000.0)),
        (".5", Content::Float(0.5)),
        ("12:30:45", Content::Text("12:30:45".into())),
        ("127.0.0.1", Content::Text("127.0.0.1".into())),
        ("1.2.3", Content::Text("1.2.3".into())),
        ("2m", Content::Text("2m".into())),
        ("\"7\"", Content::Text("7".into())),
        ("!!str 7", Content::Text("7".into())),
    ] {
        let root = one(&format!("k: [{text}]\n"));
        let Some(Content::List(items)) = root.root.field("k").map(|n| n.content.clone()) else { panic!("a list") };
        assert_eq!(items[0].content, content, "{text}");
    }
}

#[test]
fn positions_count_characters_from_one() {
    let document = one("a: ü\nlist:\n  - x: [1, \"two\"]\n");
    let at = |path: &Path| {
        let p = document.root.place_of(path);
        (p.line, p.column, p.end_line, p.end_column)
    };
    assert_eq!(at(&Path::default().key("a")), (1, 4, 1, 5));
    let x = Path::default().key("list").index(0).key("x");
    assert_eq!(at(&x), (3, 5, 3, 6), "a collection is named by its key");
    assert_eq!(at(&x.index(1)), (3, 12, 3, 17));
    assert_eq!(at(&x.key("missing")), (3, 5, 3, 6), "what is missing stands where it should be");
}

#[test]
fn aliases_are_expanded_and_stand_where_they_are_used() {
    let document = one("a: &x { k: 1 }\nb: *x\n");
    assert_eq!(
        document.root.field("b").and_then(|b| b.field("k")).map(|n| n.content.clone()),
        Some(Content::Integer(1))
    );
    assert_eq!(document.root.field("b").map(|b| b.place.line), Some(2));
}

#[test]
fn a_billion_laughs_is_refused() {
    let mut text = String::from("a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n");
    for i in 1..12 {
        let last = i - 1;
        text.push_str(&format!(
            "a{i}: &a{i} [*a{last}, *a{last}, *a{last}, *a{last}, *a{last}, *a{last}, *a{last}, *a{last}]\n"
        ));
    }
    let (documents, findings) = read(&text);
    assert_eq!(documents, []);
    assert_eq!(findings.iter().map(|f| f.code).collect::<Vec<_>>(), [Code::OverLimit]);
}

#[test]
fn an_alias_to_what_it_stands_in_is_refused() {
    let (_, findings) = read("a: &a [*a]\n");
    assert_eq!(findings.iter().map(|f| f.code).collect::<Vec<_>>(), [Code::Syntax]);
}

#[test]
fn depth_and_size_are_bounded() {
    let depth = NODE_DEPTH_MAX + 10;
    let (_, findings) = read(&format!("{}{}", "[".repeat(depth), "]".repeat(depth)));
    assert_eq!(findings.iter().map(|f| f.code).collect::<Vec<_>>(), [Code::OverLimit]);
    let (_, findings) = read(&"#".repeat(FILE_BYTES_MAX + 1));
    assert_eq!(findings.iter().map(|f| f.code).collect::<Vec<_>>(), [Code::OverLimit]);
}

#[test]
fn bytes_that_are_no_text_are_refused() {
    let mut findings = Vec::new();
    documents(&SourceFile { name: "f".into(), bytes: vec![b'a', 0xFF] }, &mut findings);
    assert_eq!(findings.iter().map(|f| f.code).collect::<Vec<_>>(), [Code::Syntax]);
}

#[test]
fn documents_before_a_syntax_error_are_still_read() {
    let (documents, findings) = read("a: 1\n---\nb: [\n");
    assert_eq!((documents.len(), findings.len()), (1, 1));
}

#[test]
fn empty_documents_are_nothing() {
    let (documents, findings) = read("---\n---\n# only a comment\n---\na: 1\n");
    assert_eq!((documents.len(), findings), (1, vec![]));
}

#[test]
fn a_byte_order_mark_is_skipped() {
    assert_eq!(one("\u{feff}a: 1\n").root.place_of(&Path::default().key("a")).column, 4);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn no_input_panics(text in "[a-z0-9:\\-\\[\\]{},&*!#|>'\"%@`\\\\ \t\n~?.]{0,60}") {
        let _ = config::load(&[SourceFile::new("f.yaml", &text)], &config::Lookup::Skip);
        let _ = config::ServerFile::load(&SourceFile::new("f.yaml", &text));
    }

    #[test]
    fn a_damaged_document_is_read_or_refused_but_never_panics(cut in 0..900_usize, put in "[\\[\\]{}:&*\t\n\"' -]{0,3}") {
        let good = include_str!("cases/seed-policies/overflow.yaml");
        let cut = (0..=cut.min(good.len())).rev().find(|i| good.is_char_boundary(*i)).unwrap_or(0);
        let text = format!("{}{put}{}", &good[..cut], &good[cut..]);
        let result = config::load(&[SourceFile::new("f.yaml", &text)], &config::Lookup::Skip);
        // What the schema lets through, the types can read: a fault of the whole document would be theirs.
        let faults = result.err().unwrap_or_default();
        prop_assert!(!faults.iter().any(|f| f.code == Code::WrongType && f.path.is_empty()), "{:?}", faults);
    }

    #[test]
    fn json_reads_as_itself(value in any_json()) {
        let document = one(&format!("v: {value}\n"));
        prop_assert_eq!(document.root.field("v").map(config::node::Node::to_value), Some(value));
    }
}

fn any_json() -> impl Strategy<Value = serde_json::Value> {
    let leaf = prop_oneof![
        Just(serde_json::Value::Null),
        any::<bool>().prop_map(Into::into),
        any::<i64>().prop_map(Into::into),
        "[ -~äß]{0,12}".prop_map(Into::into),
    ];
    leaf.prop_recursive(3, 24, 4, |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..4).prop_map(serde_json::Value::from),
            proptest::collection::btree_map("[a-z]{1,6}", inner, 0..4)
                .prop_map(|m| serde_json::Value::Object(m.into_iter().collect())),
        ]
    })
}
