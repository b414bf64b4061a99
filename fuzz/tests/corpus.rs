//! Every body over its committed inputs, and over changed ones: the same ones every time.

use std::fs;
use std::panic::catch_unwind;
use std::path::{Path, PathBuf};

use fuzz::input::Choices;
use fuzz::{TARGETS, Target};

/// Bounds that keep the corpus a thing to read: files of one target, bytes of all.
const FILES_MAX: usize = 60;
const CORPUS_BYTES_MAX: u64 = 200 << 10;

fn here() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn corpus_of(target: &Target) -> Vec<(PathBuf, Vec<u8>)> {
    let folder = here().join("corpus").join(target.name);
    let entries = fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.expect("a readable entry").path()).collect();
    paths.sort();
    paths.into_iter().map(|path| (path.clone(), fs::read(&path).expect("a readable file"))).collect()
}

/// Runs a body; what it did not hold for is printed so that it can be kept.
fn run(target: &Target, origin: &Path, data: &[u8]) {
    if catch_unwind(|| (target.body)(data)).is_err() {
        panic!("{} does not hold for (from {}): {}", target.name, origin.display(), data.escape_ascii());
    }
}

#[test]
fn every_body_holds_for_its_corpus() {
    let mut bytes = 0;
    for target in TARGETS {
        let corpus = corpus_of(target);
        assert!(!corpus.is_empty() && corpus.len() <= FILES_MAX, "{}: {} files", target.name, corpus.len());
        for (path, data) in &corpus {
            bytes += data.len() as u64;
            run(target, path, data);
        }
        run(target, Path::new("nothing"), b"");
    }
    assert!(bytes <= CORPUS_BYTES_MAX, "the corpus has {bytes} bytes");
}

#[test]
fn every_body_holds_for_changed_inputs() {
    for target in TARGETS {
        let corpus = corpus_of(target);
        let mut choices = Choices::of(target.name.as_bytes());
        for _ in 0..target.mutations {
            let (path, data) = &corpus[choices.below(corpus.len())];
            let other = &corpus[choices.below(corpus.len())].1;
            run(target, path, &changed(data, other, &mut choices));
        }
    }
}

/// `data` with one to four changes: a bit, a byte, a part left out, doubled, moved, or taken from another input.
fn changed(data: &[u8], other: &[u8], choices: &mut Choices) -> Vec<u8> {
    const TELLING: &[u8] = b"\0\n\r\t \"\\{}[]:;,=-+0/%&'.<\x7F\x80\xC3\xFE\xFF";
    const PART_BYTES_MAX: usize = 32;
    let mut data = data.to_vec();
    for _ in 0..=choices.below(4) {
        let at = choices.below(data.len() + 1);
        let end = (at + 1 + choices.below(PART_BYTES_MAX)).min(data.len()).max(at);
        match choices.below(7) {
            0 if at < data.len() => data[at] ^= 1 << choices.below(8),
            1 if at < data.len() => data[at] = choices.one_of(TELLING),
            2 => data.insert(at, choices.one_of(TELLING)),
            3 => drop(data.drain(at..end)),
            4 => {
                let part = data[at..end].to_vec();
                let to = choices.below(data.len() + 1);
                data.splice(to..to, part);
            }
            5 => {
                let from = choices.below(other.len() + 1);
                let until = (from + choices.below(PART_BYTES_MAX)).min(other.len());
                data.splice(at..end, other[from..until].iter().copied());
            }
            _ => data.truncate(at),
        }
    }
    data
}

#[test]
fn every_body_has_a_binary_of_its_name_and_no_other_corpus_is_there() {
    let manifest = fs::read_to_string(here().join("targets/Cargo.toml")).expect("the manifest of the binaries");
    for Target { name, .. } in TARGETS {
        let source = fs::read_to_string(here().join(format!("targets/{name}.rs"))).expect("a binary");
        assert!(source.contains(&format!("fuzz::{name}(data)")), "targets/{name}.rs runs something else");
        assert!(
            manifest.contains(&format!("name = \"{name}\"\npath = \"{name}.rs\"")),
            "{name} is not in the manifest"
        );
    }
    assert_eq!(manifest.matches("[[bin]]").count(), TARGETS.len());
    let folders = fs::read_dir(here().join("corpus")).expect("the corpus").count();
    assert_eq!(folders, TARGETS.len(), "a corpus without a body");
}
