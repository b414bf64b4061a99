//! The shape of the workspace, held: crate edges, where `unsafe` and the runtimes may stand, one lint table.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

const OURS: [&str; 9] = ["admission", "bedrock", "policy", "predictor", "tokenizer", "crds", "config", "engine", "lb"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the crate stands in the workspace").to_owned()
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The names in `[section]` of a manifest.
fn names_in(manifest: &str, section: &str) -> BTreeSet<String> {
    manifest
        .lines()
        .skip_while(|line| line.trim() != format!("[{section}]"))
        .skip(1)
        .take_while(|line| !line.starts_with('['))
        .filter_map(|line| Some(line.split(['.', '=', ' ']).next()?.trim().to_owned()))
        .filter(|name| !name.is_empty() && !name.starts_with('#'))
        .collect()
}

fn sources(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display())) {
            let path = entry.expect("a readable entry").path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                found.push(path);
            }
        }
    }
    found
}

/// Lines of code that hold `word`, comments left out.
fn lines_with(path: &Path, word: &str) -> Vec<String> {
    read(path)
        .lines()
        .map(|line| line.split("//").next().unwrap_or_default())
        .filter(|code| code.contains(word))
        .map(str::to_owned)
        .collect()
}

#[test]
fn crates_only_know_the_crates_below_them() {
    let allowed: [(&str, &[&str]); 12] = [
        ("admission", &[]),
        ("lb/bedrock", &[]),
        ("policy", &[]),
        ("predictor", &[]),
        ("predictor/tokenizer", &[]),
        ("crds", &[]),
        ("config", &["crds", "policy", "predictor"]),
        ("config/apiserver", &[]),
        ("loadtest/engine", &[]),
        ("loadtest", &["engine", "lb", "config", "policy", "predictor"]),
        ("lb", &["admission", "bedrock", "config", "crds", "policy", "predictor", "tokenizer", "engine"]),
        ("fuzz", &["admission", "bedrock", "lb", "config", "crds", "policy", "predictor", "tokenizer"]),
    ];
    for (folder, below) in allowed {
        let manifest = read(&root().join(folder).join("Cargo.toml"));
        let ours: Vec<String> =
            names_in(&manifest, "dependencies").into_iter().filter(|name| OURS.contains(&name.as_str())).collect();
        for name in ours {
            assert!(below.contains(&name.as_str()), "{folder} must not depend on {name}");
        }
    }
}

#[test]
fn every_crate_takes_the_one_lint_table() {
    for folder in [
        "admission",
        "policy",
        "predictor",
        "predictor/tokenizer",
        "crds",
        "config",
        "config/apiserver",
        "loadtest/engine",
        "loadtest",
        "lb",
        "lb/bedrock",
        "bench",
        "fuzz",
    ] {
        let manifest = read(&root().join(folder).join("Cargo.toml"));
        assert!(
            manifest.contains("[lints]\nworkspace = true"),
            "{folder}/Cargo.toml has no `[lints] workspace = true`"
        );
    }
}

#[test]
fn unsafe_code_stands_only_where_it_may() {
    for folder in [
        "admission",
        "policy",
        "predictor",
        "predictor/tokenizer",
        "crds",
        "config",
        "config/apiserver",
        "lb/bedrock",
        "loadtest/engine",
        "fuzz",
    ] {
        let library = read(&root().join(folder).join("src/lib.rs"));
        assert!(library.contains("#![forbid(unsafe_code)]"), "{folder} must forbid unsafe code");
    }
    let source = root().join("lb/src");
    for path in sources(&source) {
        let inside = path.starts_with(source.join("io")) || path == source.join("sys.rs");
        let uses = lines_with(&path, "unsafe ");
        assert!(inside || uses.is_empty(), "{}: unsafe outside io/ and sys.rs: {uses:?}", path.display());
    }
}

#[test]
fn every_unsafe_block_says_what_holds_it_true() {
    let source = root().join("lb/src");
    for path in sources(&source) {
        let text = read(&path);
        let lines: Vec<&str> = text.lines().collect();
        for (index, line) in lines.iter().enumerate() {
            let code = line.split("//").next().unwrap_or_default();
            if code.contains("unsafe {") || code.contains("unsafe impl") {
                let above = &lines[index.saturating_sub(5)..=index];
                assert!(
                    above.iter().any(|line| line.contains("SAFETY")),
                    "{}:{}: no SAFETY comment above",
                    path.display(),
                    index + 1
                );
            }
        }
    }
}

#[test]
fn the_runtimes_stay_in_their_rooms() {
    let source = root().join("lb/src");
    for path in sources(&source) {
        let io = path.starts_with(source.join("io"));
        let monoio = lines_with(&path, "monoio");
        assert!(io || monoio.is_empty(), "{}: the io_uring runtime is named outside io/: {monoio:?}", path.display());
        let control = path.starts_with(source.join("control")) || path.starts_with(source.join("cli"));
        let hyper = lines_with(&path, "hyper");
        assert!(control || hyper.is_empty(), "{}: hyper outside the control thread: {hyper:?}", path.display());
        let tls = path.starts_with(source.join("tls"));
        let rustls = lines_with(&path, "rustls");
        assert!(tls || rustls.is_empty(), "{}: the TLS library is named outside tls/: {rustls:?}", path.display());
    }
    for folder in ["admission", "policy", "predictor", "predictor/tokenizer", "crds", "lb/bedrock"] {
        for path in sources(&root().join(folder).join("src")) {
            for word in [
                "tokio",
                "TcpStream",
                "TcpListener",
                "UdpSocket",
                "std::fs",
                "std::thread",
                "Instant::now",
                "SystemTime",
            ] {
                let uses = lines_with(&path, word);
                assert!(uses.is_empty(), "{}: {word} in a pure crate: {uses:?}", path.display());
            }
        }
    }
    let config = root().join("config/src");
    for path in sources(&config) {
        let inside = path.starts_with(config.join("source"));
        assert!(inside || lines_with(&path, "tokio").is_empty(), "{}: tokio outside config/src/source", path.display());
    }
}
