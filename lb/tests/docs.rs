//! What the documentation shows is accepted as written, and the examples do what their tests say.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use config::{Lookup, ServerFile, SourceFile};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the crate stands in the workspace").to_owned()
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn kinfctl(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kinference"));
    command.arg("ctl").args(arguments).output().expect("the binary runs")
}

fn examples() -> Vec<PathBuf> {
    let folder = root().join("examples/policies");
    let entries = fs::read_dir(folder).expect("the examples are there").map(|entry| entry.expect("reads").path());
    let mut files: Vec<PathBuf> = entries.collect();
    files.sort();
    files
}

/// README, `llms.txt` and all pages of `docs/`.
fn pages() -> Vec<PathBuf> {
    let mut pages = vec![root().join("README.md"), root().join("llms.txt")];
    let mut folders = vec![root().join("docs")];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).expect("reads") {
            let path = entry.expect("reads").path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "md") {
                pages.push(path);
            }
        }
    }
    pages.sort();
    pages
}

/// The YAML blocks of a page, each with the line it begins at.
fn blocks(text: &str) -> Vec<(usize, String)> {
    let mut blocks = Vec::new();
    let mut open: Option<(usize, String)> = None;
    for (number, line) in (1..).zip(text.lines()) {
        match (&mut open, line.trim_end()) {
            (None, "```yaml" | "```yml") => open = Some((number + 1, String::new())),
            (Some(_), "```") => blocks.extend(open.take()),
            (Some((_, block)), line) => {
                block.push_str(line);
                block.push('\n');
            }
            (None, _) => {}
        }
    }
    assert!(open.is_none(), "a block is not closed");
    blocks
}

/// The example whose part a block is: it names the file in its first line.
fn example_of(block: &str) -> Option<PathBuf> {
    let name = block.lines().next()?.strip_prefix("# ")?;
    Some(root().join("examples/policies").join(name)).filter(|path| path.is_file())
}

#[test]
fn every_example_lints_clean_and_passes_its_tests() {
    let examples = examples();
    assert!(examples.len() >= 10, "{examples:?}");
    for path in examples {
        let path = path.to_str().expect("a path of ASCII");
        let lint = kinfctl(&["lint", path]);
        let said = String::from_utf8_lossy(&lint.stdout);
        assert_eq!(said, "1 file, 0 errors, 0 warnings\n", "{path}");
        let test = kinfctl(&["test", path]);
        let said = String::from_utf8_lossy(&test.stdout);
        assert_eq!(test.status.code(), Some(0), "{path}:\n{said}");
        assert!(said.lines().count() > 2, "{path} has one case at most");
    }
}

#[test]
fn every_yaml_block_of_the_documentation_is_accepted_as_written() {
    let mut seen = 0;
    for page in pages() {
        for (line, block) in blocks(&read(&page)) {
            seen += 1;
            let place = format!("{}:{line}", page.display());
            if let Some(example) = example_of(&block) {
                let part = block.split_once('\n').map_or("", |(_, rest)| rest);
                assert!(read(&example).contains(part), "{place} is not as in {}", example.display());
                continue;
            }
            let file = SourceFile::new(&place, &block);
            let findings = if block.lines().any(|l| l.starts_with("listeners:")) {
                ServerFile::load(&file).err().unwrap_or_default()
            } else {
                match config::load(&[file], &Lookup::Skip) {
                    Ok(loaded) => loaded.snapshot.warnings,
                    Err(findings) => findings,
                }
            };
            // A block may be one document of a set; that nothing serves it is no fault of its own.
            let faults = findings.iter().filter(|f| f.code != policy::Code::NothingServed);
            let text: String = faults.map(|f| f.human(Some(&block))).collect();
            assert!(text.is_empty(), "{place}:\n{text}");
        }
    }
    assert!(seen >= 12, "only {seen} blocks");
}

#[test]
fn the_set_of_llms_txt_passes_its_own_tests() {
    let folder = tempfile::tempdir().expect("a folder");
    let (_, set) = blocks(&read(&root().join("llms.txt"))).into_iter().next().expect("there is a set");
    let file = folder.path().join("set.yaml");
    fs::write(&file, set).expect("writes");
    let path = file.to_str().expect("a path of ASCII");
    assert_eq!(String::from_utf8_lossy(&kinfctl(&["lint", path]).stdout), "1 file, 0 errors, 0 warnings\n");
    let test = kinfctl(&["test", path]);
    assert_eq!(test.status.code(), Some(0), "{}", String::from_utf8_lossy(&test.stdout));
}

/// Fields of the schemas that `llms.txt` must name, so that an assistant knows all that a policy can say.
#[test]
fn llms_txt_names_every_field_of_a_policy() {
    let text = read(&root().join("llms.txt"));
    let mut missing = Vec::new();
    let mut open = vec![crds::schema::spec(crds::Kind::InferencePolicy)];
    while let Some(schema) = open.pop() {
        for (name, field) in schema["properties"].as_object().into_iter().flatten() {
            // `predictedLatency` does nothing yet.
            if !text.contains(name.as_str()) && name != "predictedLatency" {
                missing.push(name.clone());
            }
            open.push(field.clone());
        }
        open.extend(schema.get("items").cloned());
        open.extend(schema["anyOf"].as_array().into_iter().flatten().cloned());
        for value in schema["enum"].as_array().into_iter().flatten().filter_map(|v| v.as_str()) {
            if !text.contains(value) && value != "PredictedLatency" {
                missing.push(value.to_owned());
            }
        }
    }
    assert!(missing.is_empty(), "{missing:?}");
}

/// The places that headings of a page give, as GitHub names them.
fn anchors(page: &str) -> Vec<String> {
    let headings = page.lines().filter(|line| line.starts_with('#')).map(|line| line.trim_start_matches('#').trim());
    let kept = |c: &char| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_');
    headings.map(|h| h.to_lowercase().chars().filter(kept).collect::<String>().replace(' ', "-")).collect()
}

#[test]
fn every_link_leads_somewhere_from_where_its_page_stands() {
    let mut links = 0;
    for page in pages() {
        let text = read(&page);
        let targets = text.split("](").skip(1).filter_map(|rest| rest.split_once(')')).map(|(target, _)| target);
        for target in targets.filter(|target| !target.contains("://") && !target.contains(' ')) {
            let (file, anchor) = target.split_once('#').unwrap_or((target, ""));
            let there = match file {
                "" => page.clone(),
                file => page.parent().expect("a page stands in a folder").join(file),
            };
            assert!(there.exists(), "{}: {target}", page.display());
            if !anchor.is_empty() {
                assert!(anchors(&read(&there)).iter().any(|a| a == anchor), "{}: {target}", page.display());
            }
            links += 1;
        }
    }
    assert!(links > 20, "{links} links");
}
