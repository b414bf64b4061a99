//! `kinfctl tokenize`: the token ids that a worker set's tokenizer makes of requests, to be held against those of an engine.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{SystemTime, UNIX_EPOCH};

use clap::Args;
use config::snapshot::Tokenizer as Files;
use serde_json::{Value, json};
use tokenizer::Tokenizer;

use super::set::each_line;
use super::{print_out, usage};
use crate::control::load_tokenizer;

/// Show the token ids of requests, as exact mode counts them
#[derive(Debug, Args)]
pub(super) struct Tokenize {
    /// The body of a request on each line, chat or completion; - is stdin
    requests: PathBuf,
    /// What a worker set names in `tokenizer.file`: a tokenizer.json, or the folder it is in
    #[arg(long)]
    tokenizer: PathBuf,
    /// What a worker set names in `tokenizer.chatTemplateFile`
    #[arg(long)]
    chat_template: Option<PathBuf>,
}

impl Tokenize {
    /// One JSON object for each request: `count` and `tokens`, or `unfit` where they cannot be told.
    pub(super) fn run(&self) -> ExitCode {
        let files = Files { file: self.tokenizer.clone(), chat_template_file: self.chat_template.clone() };
        let tokenizer = match load_tokenizer(&files) {
            Ok(tokenizer) => tokenizer,
            Err(why) => return usage(why),
        };
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let now_unix_s = i64::try_from(now.as_secs()).unwrap_or(i64::MAX);
        let read = each_line(&self.requests, &mut |_, line| {
            print_out(&format!("{}\n", shown(&tokenizer, line, now_unix_s)));
            Ok(())
        });
        read.map_or_else(|code| code, |()| ExitCode::SUCCESS)
    }
}

fn shown(tokenizer: &Tokenizer, body: &[u8], now_unix_s: i64) -> Value {
    let is_chat = serde_json::from_slice::<Value>(body).is_ok_and(|body| body.get("messages").is_some());
    let tokens = if is_chat { tokenizer.chat(body, now_unix_s) } else { tokenizer.completion(body) };
    match tokens {
        Ok(tokens) => json!({ "count": tokens.ids.len(), "tokens": tokens.ids }),
        Err(unfit) => json!({ "unfit": unfit.label() }),
    }
}
