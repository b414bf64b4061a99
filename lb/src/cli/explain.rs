//! `kinfctl explain`: the decision for one request as a person would tell it: rule by rule, candidate by candidate.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, ValueEnum};
use config::SourceFile;
use config::snapshot::PoolScope;
use config::trial::{Explained, Facts, Trial, read_request, read_state, unknown_names, unknown_tags};
use crds::policy_test::TestRequest;
use policy::Diagnostic;
use serde_json::{Map, Value, json};

use super::set::{Set, read_file};
use super::{body, print_out, usage};

/// Explain which endpoint answers a request, and why.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  kinfctl explain resources --model qwen-3.6 --tenant alice --tag pii \\\n    \
                        --signal qwen-vllm.queuedPrompts=5 --signal databricks.ready=false")]
pub(super) struct Explain {
    /// Files and folders of *.yaml, taken together as one set
    #[arg(required_unless_present = "config", value_name = "PATH")]
    paths: Vec<PathBuf>,
    /// The same
    #[arg(long, value_name = "PATH")]
    config: Vec<PathBuf>,
    /// The request, written as `request` in a PolicyTest; options stand over it
    #[arg(long, value_name = "FILE")]
    request: Option<PathBuf>,
    /// The model name asked for
    #[arg(long)]
    model: Option<String>,
    /// Who is calling
    #[arg(long)]
    tenant: Option<String>,
    /// A tag of the prompt; may be given several times
    #[arg(long = "tag", value_name = "TAG")]
    tags: Vec<String>,
    /// A header, as NAME=VALUE; may be given several times
    #[arg(long = "header", value_name = "NAME=VALUE", value_parser = pair)]
    headers: Vec<(String, String)>,
    /// The API: ChatCompletions, Completions, ...
    #[arg(long)]
    api: Option<String>,
    /// A streamed answer is asked for
    #[arg(long)]
    stream: bool,
    /// Length of the prompt in tokens
    #[arg(long, value_name = "N")]
    prompt_tokens: Option<f64>,
    /// Any text that requests of one conversation share
    #[arg(long, value_name = "TEXT")]
    conversation: Option<String>,
    /// A request body in JSON; model, streaming, tags and length are read from it
    #[arg(long, value_name = "FILE")]
    body: Option<PathBuf>,
    /// What is known of endpoints, written as `state` in a PolicyTest
    #[arg(long, value_name = "FILE")]
    state: Option<PathBuf>,
    /// One value of an endpoint, worker set or provider, as NAME.FIELD=VALUE; may be given several times
    #[arg(long = "signal", value_name = "NAME.FIELD=VALUE", value_parser = signal)]
    signals: Vec<Signal>,
    /// Settles ties
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// How it is shown
    #[arg(short = 'o', long, value_enum, default_value_t = Format::Human)]
    format: Format,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Format {
    /// Line by line
    Human,
    /// One JSON object
    Json,
}

/// A value on the command line.
#[derive(Debug, Clone)]
struct Signal {
    name: String,
    field: String,
    value: String,
}

fn pair(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("expected NAME=VALUE")?;
    Ok((name.to_owned(), value.to_owned()))
}

/// `NAME.FIELD=VALUE`; names have dots and colons of their own.
fn signal(text: &str) -> Result<Signal, String> {
    let expected = "expected NAME.FIELD=VALUE, for example 10.0.0.5:8000.queuedPrompts=3 or databricks.ready=false";
    let (place, value) = text.split_once('=').ok_or(expected)?;
    let (name, field) = place.rsplit_once('.').filter(|(n, f)| !n.is_empty() && !f.is_empty()).ok_or(expected)?;
    Ok(Signal { name: name.to_owned(), field: field.to_owned(), value: value.to_owned() })
}

impl Explain {
    /// Explains and shows.
    pub(super) fn run(&self) -> ExitCode {
        match self.explained() {
            Ok(text) => print_out(&text),
            Err(code) => code,
        }
    }

    fn explained(&self) -> Result<String, ExitCode> {
        let paths: Vec<PathBuf> = self.paths.iter().chain(&self.config).cloned().collect();
        let set = Set::load(&paths)?;
        let snapshot = &set.loaded.snapshot;
        let (request, found) = self.read_request(&set)?;
        let state_files = self.state.iter().map(|path| read_file(path)).chain(self.signals_file().map(Ok));
        let state_files = state_files.collect::<Result<Vec<SourceFile>, ExitCode>>()?;
        let state = read_state(&state_files)
            .map_err(|findings| set.refuse(&cited(findings, SIGNALS, &|path| self.signal_at(path)), &state_files))?;
        if let Some((name, nearest)) = unknown_names(snapshot, &state).into_iter().next() {
            let meant = nearest.map(|n| format!("; did you mean `{n}`?")).unwrap_or_default();
            return Err(usage(format!("there is no endpoint, worker set or provider `{name}`{meant}")));
        }
        let facts = Facts::new(&request, &found);
        let trial = Trial { snapshot, request: facts.request(), state: &state };
        let explained = trial.explain(self.seed);
        let notes = notes(&trial, self.seed, &request);
        Ok(match (self.format, explained) {
            (Format::Human, Some(explained)) => human(&facts.request(), &explained, &notes),
            (Format::Human, None) => {
                let names: Vec<&str> = snapshot.model_names(&PoolScope::All).collect();
                let meant = config::check::nearest(&request.model, names.iter().copied());
                let meant = meant.map(|n| format!("; did you mean `{n}`?")).unwrap_or_default();
                format!("no pool serves a model `{}`{meant}\n=> 404 model_not_found\n", request.model)
            }
            (Format::Json, explained) => json_text(&facts.request(), explained.as_ref(), &notes),
        })
    }

    /// The request and the tags that the classifiers find in its body.
    fn read_request(&self, set: &Set) -> Result<(TestRequest, Vec<String>), ExitCode> {
        let mut fields = Map::new();
        if let Some(path) = &self.request {
            let file = read_file(path)?;
            let request = read_request(&file).map_err(|findings| set.refuse(&findings, &[file]))?;
            if let Ok(Value::Object(written)) = serde_json::to_value(request) {
                fields.extend(written);
            }
        }
        let body = match &self.body {
            Some(path) => {
                let file = read_file(path)?;
                let name = &file.name;
                Some(serde_json::from_slice(&file.bytes).map_err(|error| usage(format!("{name}: not JSON: {error}")))?)
            }
            None => fields.get("body").cloned(),
        };
        let looked_at = body.as_ref().map(|body| body::look_at(&set.loaded.snapshot, body, self.model.as_deref()));
        if let Some(body) = &looked_at {
            fields.extend(body.fields());
        }
        fields.extend(self.given());
        if !fields.contains_key("model") {
            return Err(usage("which model is asked for? give --model, or a --request or --body that names it"));
        }
        let file = SourceFile::new(REQUEST, &Value::Object(fields).to_string());
        let request = read_request(&file)
            .map_err(|findings| set.refuse(&cited(findings, REQUEST, &|path| self.option_at(path)), &[]))?;
        Ok((request, looked_at.map(|body| body.tags).unwrap_or_default()))
    }

    /// What the options say of the request.
    fn given(&self) -> Map<String, Value> {
        let mut fields = Map::new();
        let texts = [
            ("model", &self.model),
            ("tenant", &self.tenant),
            ("api", &self.api),
            ("conversation", &self.conversation),
        ];
        fields.extend(texts.into_iter().filter_map(|(key, text)| Some((key.to_owned(), text.clone()?.into()))));
        if !self.tags.is_empty() {
            fields.insert("tags".to_owned(), self.tags.clone().into());
        }
        if !self.headers.is_empty() {
            let headers: BTreeMap<&String, &String> = self.headers.iter().map(|(n, v)| (n, v)).collect();
            fields.insert("headers".to_owned(), json!(headers));
        }
        if self.stream {
            fields.insert("stream".to_owned(), true.into());
        }
        fields.extend(self.prompt_tokens.map(|n| ("promptTokens".to_owned(), n.into())));
        fields
    }

    /// The option that a field of the request comes from.
    fn option_at(&self, path: &str) -> Option<String> {
        let field = path.split(['.', '[']).next().unwrap_or(path);
        let option = match field {
            "tags" => "tag",
            "headers" => "header",
            "promptTokens" => "prompt-tokens",
            other => other,
        };
        self.given().contains_key(field).then(|| format!("--{option}"))
    }

    /// The option that a value of a state comes from.
    fn signal_at(&self, path: &str) -> Option<String> {
        let is_at = |s: &&Signal| format!("{}.{}", s.name, camel_case(&s.field)) == path;
        let Signal { name, field, value } = self.signals.iter().find(is_at)?;
        Some(format!("--signal {name}.{field}={value}"))
    }

    /// The values on the command line as a file of their own, so that they are read and checked like one.
    fn signals_file(&self) -> Option<SourceFile> {
        let mut by_name: BTreeMap<&str, Vec<&Signal>> = BTreeMap::new();
        for signal in &self.signals {
            by_name.entry(&signal.name).or_default().push(signal);
        }
        let text: String = by_name
            .iter()
            .map(|(name, signals)| {
                let fields: String =
                    signals.iter().map(|s| format!("  {}: {}\n", camel_case(&s.field), s.value)).collect();
                format!("{}:\n{fields}", Value::from(*name))
            })
            .collect();
        (!text.is_empty()).then(|| SourceFile::new(SIGNALS, &text))
    }
}

/// The names of the files that options are read as.
const SIGNALS: &str = "--signal";
const REQUEST: &str = "the request given";

/// Findings about the file called `file`, which nobody has written: each says the option it comes from, in place of a line.
fn cited(findings: Vec<Diagnostic>, file: &str, option: &dyn Fn(&str) -> Option<String>) -> Vec<Diagnostic> {
    let cite = |mut finding: Diagnostic| {
        if finding.span.as_ref().is_some_and(|span| &*span.file == file)
            && let Some(option) = option(&finding.path)
        {
            finding.message = format!("{option}: {}", finding.message);
            finding.span = None;
            finding.path.clear();
        }
        finding
    };
    findings.into_iter().map(cite).collect()
}

/// What makes the decision differ from what a server would do.
fn notes(trial: &Trial<'_>, seed: u64, request: &TestRequest) -> Vec<String> {
    let unknown = unknown_tags(trial.snapshot, &request.tags).into_iter().map(|(tag, nearest)| {
        let meant = nearest.map(|n| format!("; did you mean `{n}`?")).unwrap_or_default();
        format!("no classifier gives the tag `{tag}`{meant}")
    });
    // A request that names no tenant asks what the rules do with anybody.
    let stranger = trial.stranger().filter(|_| request.tenant != "anonymous");
    unknown.chain(stranger).chain(trial.missed_by_name()).chain(trial.caveat(&trial.outcome(seed))).collect()
}

/// `queued_prompts` is `queuedPrompts`.
fn camel_case(field: &str) -> String {
    let mut out = String::new();
    for (i, word) in field.split('_').enumerate() {
        let mut letters = word.chars();
        match letters.next().filter(|_| i > 0) {
            Some(first) => out.extend(first.to_uppercase().chain(letters)),
            None => out.push_str(word),
        }
    }
    out
}

fn about(request: &policy::Request<'_>) -> String {
    let stream = match request.stream {
        policy::Streaming::Yes => "streamed",
        policy::Streaming::No => "not streamed",
    };
    let tokens = match request.prompt_tokens {
        n if n.is_nan() => "of unknown length".to_owned(),
        n => format!("{n} prompt tokens"),
    };
    format!(
        "request: model {}, tenant {}, tags [{}], {}, {stream}, {tokens}\n",
        request.model,
        request.tenant,
        request.tags.join(", "),
        request.api.as_str()
    )
}

fn human(request: &policy::Request<'_>, explained: &Explained, notes: &[String]) -> String {
    let mut out = format!("{}pool: {}\n{}", about(request), explained.pool, explained.decision.human());
    if let Some(shadow) = &explained.shadow {
        out.push_str("\nif the rule in mode Shadow were enforced:\n");
        out.push_str(&shadow.human());
    }
    for note in notes {
        out.push_str(&format!("note: {note}\n"));
    }
    out
}

fn json_text(request: &policy::Request<'_>, explained: Option<&Explained>, notes: &[String]) -> String {
    let read = |text: String| serde_json::from_str::<Value>(&text).unwrap_or_default();
    let tokens = Some(request.prompt_tokens).filter(|n| !n.is_nan());
    let value = json!({
        "request": {
            "model": request.model, "tenant": request.tenant, "tags": request.tags, "api": request.api.as_str(),
            "stream": request.stream == policy::Streaming::Yes, "promptTokens": tokens,
        },
        "pool": explained.map(|e| e.pool.to_string()),
        "decision": explained.map_or_else(
            || json!({ "rules": [], "candidates": [], "outcome": { "status": 404, "code": "model_not_found" } }),
            |e| read(e.decision.json()),
        ),
        "notes": notes,
        "shadow": explained.and_then(|e| e.shadow.as_ref()).map(|shadow| read(shadow.json())),
    });
    format!("{value:#}\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_field_of_a_signal_stands_behind_the_last_dot() {
        let Signal { name, field, value } = signal("10.0.0.5:8000.queued_prompts=2.5").unwrap();
        assert_eq!(
            (name.as_str(), camel_case(&field).as_str(), value.as_str()),
            ("10.0.0.5:8000", "queuedPrompts", "2.5")
        );
        for wrong in ["queuedPrompts=3", "a.b", ".b=1", "a.=1"] {
            assert!(signal(wrong).is_err(), "{wrong}");
        }
    }
}
