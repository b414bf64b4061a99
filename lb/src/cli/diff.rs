//! `kinfctl diff`: what two sets of documents do differently: field by field, and with the requests of an access log.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, ValueEnum};
use config::difference::{Comparison, FieldChange, Load, fields};
use config::trial::{FleetState, read_state};
use crds::policy_test::TestRequest;
use serde_json::{Map, Value, json};

use super::set::{Set, each_line, read_file};
use super::{counted, print_out};
use crate::http1::target::path_of;
use crate::openai::request::api_of_path;

/// Tell what two sets do differently: exit code 0 when nothing, 1 when something, 2 when they cannot be compared.
#[derive(Debug, Args)]
pub(super) struct Diff {
    /// A file or folder of *.yaml: what is in force
    old: PathBuf,
    /// A file or folder of *.yaml: what would be
    new: PathBuf,
    /// Files and folders that belong to both sets
    #[arg(long, value_name = "PATH")]
    with: Vec<PathBuf>,
    /// An access log: what would become of its requests; - is stdin
    #[arg(long, value_name = "FILE")]
    log: Option<PathBuf>,
    /// What is known of endpoints meanwhile, written as `state` in a PolicyTest
    #[arg(long, value_name = "FILE", requires = "log")]
    state: Option<PathBuf>,
    /// How it is shown
    #[arg(short = 'o', long, value_enum, default_value_t = Format::Human)]
    format: Format,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Format {
    /// For people
    Human,
    /// One JSON object
    Json,
}

impl Diff {
    /// Compares and shows.
    pub(super) fn run(&self) -> ExitCode {
        match self.compared() {
            Ok((text, Verdict::Same)) => print_out(&text),
            Ok((text, Verdict::Different)) => {
                print_out(&text);
                ExitCode::FAILURE
            }
            Err(code) => code,
        }
    }

    fn compared(&self) -> Result<(String, Verdict), ExitCode> {
        let advice = match self.with.is_empty() {
            true => "; what belongs to both sets and stands elsewhere is given by `--with resources.yaml`",
            false => "",
        };
        let load =
            |path: &PathBuf| Set::load_part(&self.with.iter().chain([path]).cloned().collect::<Vec<_>>(), advice);
        let (old, new) = (load(&self.old)?, load(&self.new)?);
        let changes = fields(&old.files, &new.files);
        let replayed = match &self.log {
            None => None,
            Some(log) => {
                let state = match &self.state {
                    Some(path) => {
                        let files = [read_file(path)?];
                        read_state(&files).map_err(|findings| old.refuse(&findings, &files))?
                    }
                    None => FleetState::new(),
                };
                Some(Replayed::of(log, &old, &new, &state)?)
            }
        };
        let different = !changes.is_empty() || replayed.as_ref().is_some_and(|r| r.comparison.requests_changed > 0);
        let text = match self.format {
            Format::Human => human(&changes, replayed.as_ref()),
            Format::Json => format!("{:#}\n", as_json(&changes, replayed.as_ref())),
        };
        Ok((text, if different { Verdict::Different } else { Verdict::Same }))
    }
}

enum Verdict {
    Same,
    Different,
}

/// A log's requests, compared.
struct Replayed<'s> {
    comparison: Comparison<'s>,
    /// Lines that are no request with a model.
    lines_skipped: u64,
    /// Lines that are no JSON object.
    lines_unreadable: u64,
    /// Why some requests may come out otherwise than the comparison says.
    blind: Vec<String>,
}

impl<'s> Replayed<'s> {
    fn of(log: &Path, old: &'s Set, new: &'s Set, state: &FleetState) -> Result<Self, ExitCode> {
        let comparison = Comparison::new(&old.loaded.snapshot, &new.loaded.snapshot, state);
        let mut replayed = Self { comparison, lines_skipped: 0, lines_unreadable: 0, blind: blind(old, new) };
        each_line(log, &mut |_, line| {
            match read_line(line) {
                Line::Request(request, label) => replayed.comparison.add(&request, &label),
                Line::Other => replayed.lines_skipped += 1,
                Line::Unreadable => replayed.lines_unreadable += 1,
                Line::Blank => {}
            }
            Ok(())
        })?;
        Ok(replayed)
    }
}

/// What rules look at and a log does not tell.
fn blind(old: &Set, new: &Set) -> Vec<String> {
    let mut blind = Vec::new();
    let pools = || [old, new].into_iter().flat_map(|set| &set.loaded.snapshot.pools);
    let looks_at_headers =
        pools().flat_map(|p| p.program.rules()).flat_map(|r| &r.matches).any(|m| !m.headers.is_empty());
    if looks_at_headers {
        blind.push("rules look at headers, and a log has none: they are taken as absent".to_owned());
    }
    let tags = |set: &Set| -> Vec<String> {
        set.loaded.snapshot.pools.iter().flat_map(|p| p.program.tags_referenced()).cloned().collect()
    };
    let known = tags(old);
    let mut unknown: Vec<String> = tags(new).into_iter().filter(|tag| !known.contains(tag)).collect();
    unknown.sort();
    unknown.dedup();
    if !unknown.is_empty() {
        let names = unknown.join("`, `");
        blind.push(format!("only the new rules look at the tags `{names}`: requests logged before do not carry them"));
    }
    blind
}

/// A line of an access log.
enum Line {
    /// A request with a model, and how it is named.
    Request(Box<TestRequest>, String),
    /// An entry of another kind.
    Other,
    /// No JSON object.
    Unreadable,
    /// Nothing.
    Blank,
}

fn read_line(line: &[u8]) -> Line {
    if line.trim_ascii().is_empty() {
        return Line::Blank;
    }
    match serde_json::from_slice(line) {
        Ok(entry @ Value::Object(_)) => {
            request_of(&entry).map_or(Line::Other, |(request, label)| Line::Request(Box::new(request), label))
        }
        Ok(_) | Err(_) => Line::Unreadable,
    }
}

/// The request of an entry, and how it is named.
fn request_of(entry: &Value) -> Option<(TestRequest, String)> {
    let model = entry.get("model")?.as_str()?;
    let mut fields = Map::new();
    fields.insert("model".to_owned(), model.into());
    let path = entry.get("path").and_then(Value::as_str).unwrap_or_default();
    fields.insert("api".to_owned(), api_of_path(path_of(path.as_bytes())).as_str().into());
    for (from, to) in
        [("tenant", "tenant"), ("tags", "tags"), ("stream", "stream"), ("estimated_prompt_tokens", "promptTokens")]
    {
        fields.extend(entry.get(from).map(|value| (to.to_owned(), value.clone())));
    }
    let request: TestRequest = serde_json::from_value(Value::Object(fields)).ok()?;
    let id = entry.get("request_id").and_then(Value::as_str).unwrap_or("without an id").to_owned();
    Some((request, id))
}

fn human(changes: &[FieldChange], replayed: Option<&Replayed<'_>>) -> String {
    let mut out = String::new();
    for change in changes {
        let _ = writeln!(out, "{change}");
    }
    let _ = match changes.len() {
        0 => writeln!(out, "no field is different"),
        1 => writeln!(out, "1 field is different"),
        n => writeln!(out, "{n} fields are different"),
    };
    let Some(Replayed { comparison, lines_skipped, lines_unreadable, blind }) = replayed else { return out };
    let Comparison { requests, requests_changed, .. } = comparison;
    if (*requests, *lines_skipped, *lines_unreadable) == (0, 0, 0) {
        out.push_str("\nthe log is empty: nothing is compared\n");
        return out;
    }
    let _ =
        writeln!(out, "\n{} compared, {requests_changed} would come out differently", counted(*requests, "request"));
    for (lines, what) in [(*lines_skipped, "no request with a model"), (*lines_unreadable, "not readable as JSON")] {
        if lines > 0 {
            let are = if lines == 1 { "is" } else { "are" };
            let _ = writeln!(out, "{} {are} {what}", counted(lines, "line"));
        }
    }
    let mut load = None;
    for ((at, old, new), change) in &comparison.changes {
        if load != Some(*at) {
            load = Some(*at);
            let _ = writeln!(out, "{}:", words(*at));
        }
        let examples = change.examples.join(", ");
        let _ = writeln!(out, "{:>8}  {old}\n      ->  {new}\n          for example {examples}", change.count);
    }
    if comparison.changes_uncounted > 0 {
        let _ = writeln!(out, "{:>8}  of other kinds", comparison.changes_uncounted);
    }
    let by_tag: Vec<String> =
        comparison.newly_leaving_by_tag.iter().map(|(tag, count)| format!("{tag} {count}")).collect();
    let by_tag = if by_tag.is_empty() { String::new() } else { format!(" ({})", by_tag.join(", ")) };
    let count = comparison.tagged_newly_leaving;
    let _ = writeln!(out, "tagged requests that would newly leave the cluster: {count}{by_tag}");
    for note in blind {
        let _ = writeln!(out, "note: {note}");
    }
    out
}

fn words(load: Load) -> &'static str {
    match load {
        Load::Given => "with room in the cluster",
        Load::LocalFull => "with every Local endpoint at its limit",
    }
}

fn as_json(changes: &[FieldChange], replayed: Option<&Replayed<'_>>) -> Value {
    let fields: Vec<Value> =
        changes.iter().map(|c| json!({ "resource": c.resource, "path": c.path, "old": c.old, "new": c.new })).collect();
    let log = replayed.map(|Replayed { comparison, lines_skipped, lines_unreadable, blind }| {
        let changes: Vec<Value> = comparison
            .changes
            .iter()
            .map(|((load, old, new), change)| {
                let load = match load {
                    Load::Given => "given",
                    Load::LocalFull => "localFull",
                };
                json!({ "load": load, "old": old, "new": new, "count": change.count, "examples": change.examples })
            })
            .collect();
        json!({
            "requests": comparison.requests,
            "requestsChanged": comparison.requests_changed,
            "linesSkipped": lines_skipped,
            "linesUnreadable": lines_unreadable,
            "changes": changes,
            "changesUncounted": comparison.changes_uncounted,
            "taggedNewlyLeaving": comparison.tagged_newly_leaving,
            "newlyLeavingByTag": comparison.newly_leaving_by_tag,
            "notes": blind,
        })
    });
    json!({ "fields": fields, "log": log })
}
