//! The command line.

mod chaos;
mod simulate;

use std::{
    io::{self, Write},
    net::SocketAddr,
    ops::RangeInclusive,
    path::PathBuf,
    process::ExitCode,
    time::Duration,
};

use clap::{Args, Parser, Subcommand};
use engine::{
    Embeddings, Engine, KvEvents, Settings, Tls,
    fault::Fault,
    kv_events::Stream,
    step::{Parameters, PrefixCaching, StepCost},
};

use crate::{
    http::Target,
    load::{Abandon, Plan, Shape},
    pace::Arrivals,
    replay::Replay,
    report::Verdict,
    run::{self, Progress},
    simulate::trace::{ROWS_MAX, Trace},
    verify::Strictness,
    workload::{Api, Workload},
};

/// Load for OpenAI-compatible endpoints, and simulated engines to send it to.
#[derive(Debug, Parser)]
#[command(version)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Simulated vLLM servers, until interrupted.
    Engine(Box<EngineArgs>),
    /// Load on a target; exit status 1 when an answer was wrong.
    Run(Box<RunArgs>),
    /// Named faults against a proxy; exit status 1 when one is not handled right.
    Chaos(Box<chaos::ChaosArgs>),
    /// A fleet in virtual time: traces under several ways to choose the engine.
    Simulate(Box<simulate::SimulateArgs>),
    /// The bars of prediction and choice, measured on traces in virtual time; exit status 1 when one is missed.
    Bars(Box<simulate::BarsArgs>),
}

#[derive(Debug, Args)]
struct EngineArgs {
    /// Address to listen on; give it several times for several engines. Port 0 takes a free one.
    #[arg(long, default_value = "127.0.0.1:8000")]
    listen: Vec<SocketAddr>,
    /// Name of the model; several names are aliases.
    #[arg(long, default_value = "mock")]
    model: Vec<String>,
    /// Answer as fast as possible: no step takes any time.
    #[arg(long)]
    instant: bool,
    /// Real seconds per second of the model; 0.1 is ten times as fast.
    #[arg(long, default_value_t = 1.0)]
    time_scale: f64,
    #[command(flatten)]
    model_step: StepArgs,
    /// Longest prompt and answer together, in tokens.
    #[arg(long, default_value_t = Settings::default().model_tokens_max)]
    max_model_len: u32,
    /// Idle connections are closed after this time.
    #[arg(long, default_value = "5s", value_parser = duration)]
    keep_alive: Duration,
    /// Answer /v1/embeddings, which is 404 otherwise.
    #[arg(long)]
    embeddings: bool,
    /// Standing faults, as NAME or NAME=NUMBER, separated by commas.
    #[arg(long, value_delimiter = ',')]
    fault: Vec<Fault>,
    /// Requests kept for GET /debug/requests; 0 is fastest.
    #[arg(long, default_value_t = Settings::default().records_max)]
    records: usize,
    /// Publish KV-cache events here, as vLLM does (ZeroMQ); for one --listen.
    #[arg(long, value_name = "ADDR")]
    kv_events: Option<SocketAddr>,
    /// Tell KV-cache events again here.
    #[arg(long, value_name = "ADDR", requires = "kv_events")]
    kv_replay: Option<SocketAddr>,
    /// Topic of KV-cache events.
    #[arg(long, default_value = "kv@")]
    kv_topic: String,
    /// Speak HTTPS with this certificate chain (PEM), as hosted APIs do.
    #[arg(long, requires = "tls_key", value_name = "FILE")]
    tls_cert: Option<PathBuf>,
    /// Its key (PEM).
    #[arg(long, requires = "tls_cert", value_name = "FILE")]
    tls_key: Option<PathBuf>,
}

/// The step model of an engine.
#[derive(Debug, Clone, Args)]
struct StepArgs {
    /// Tokens computed in one step at most.
    #[arg(long, default_value_t = Parameters::default().batched_tokens_max)]
    max_num_batched_tokens: u32,
    /// Requests in one step at most.
    #[arg(long, default_value_t = Parameters::default().running_max)]
    max_num_seqs: u32,
    /// Requests in the engine at most, further ones get 503; unbounded when not given.
    #[arg(long)]
    max_num_queued: Option<u32>,
    /// Tokens in a KV block.
    #[arg(long, default_value_t = Parameters::default().block_tokens)]
    block_size: u32,
    /// KV blocks.
    #[arg(long, default_value_t = Parameters::default().blocks_max)]
    num_gpu_blocks: u32,
    /// Compute every prompt in full.
    #[arg(long)]
    no_prefix_caching: bool,
    /// Time of any step, in microseconds.
    #[arg(long, default_value_t = Parameters::default().cost.base_us)]
    base_us: f64,
    /// Time of each prompt token, in microseconds.
    #[arg(long, default_value_t = Parameters::default().cost.prefill_token_us)]
    prefill_token_us: f64,
    /// Time of each pair of prompt tokens that attend to each other, in microseconds.
    #[arg(long, default_value_t = Parameters::default().cost.attention_pair_us)]
    attention_pair_us: f64,
    /// Time of each decoding request, in microseconds.
    #[arg(long, default_value_t = Parameters::default().cost.decode_us)]
    decode_us: f64,
    /// Time of each KV token read in decoding, in microseconds.
    #[arg(long, default_value_t = Parameters::default().cost.kv_token_us)]
    kv_token_us: f64,
}

impl StepArgs {
    fn parameters(&self) -> Parameters {
        Parameters {
            batched_tokens_max: self.max_num_batched_tokens,
            running_max: self.max_num_seqs,
            queued_max: self.max_num_queued,
            block_tokens: self.block_size,
            blocks_max: self.num_gpu_blocks,
            prefix_caching: if self.no_prefix_caching { PrefixCaching::Off } else { PrefixCaching::On },
            cost: StepCost {
                base_us: self.base_us,
                prefill_token_us: self.prefill_token_us,
                attention_pair_us: self.attention_pair_us,
                decode_us: self.decode_us,
                kv_token_us: self.kv_token_us,
            },
        }
    }
}

#[derive(Debug, Args)]
struct RunArgs {
    /// Base URL, such as http://127.0.0.1:8000; several take turns.
    #[arg(long, required = true)]
    target: Vec<Target>,
    /// Model to name.
    #[arg(long)]
    model: String,
    /// Requests a second, due at their times whether or not others are answered.
    #[arg(long, conflicts_with = "concurrency", value_parser = rate)]
    rate: Option<f64>,
    /// How the requests of --rate are spread.
    #[arg(long, value_enum, default_value_t = Arrivals::Poisson)]
    arrivals: Arrivals,
    /// Send a trace: JSON lines with timestamp, input_length, output_length and hash_ids, or Azure's CSV.
    #[arg(long, conflicts_with_all = ["rate", "concurrency", "conversations", "abandon_share"], value_name = "FILE")]
    trace: Option<PathBuf>,
    /// Divide the times of the trace by this.
    #[arg(long, default_value_t = 1.0, requires = "trace", value_parser = squeeze)]
    squeeze: f64,
    /// Requests in flight, each followed by the next; 8 when there is no --rate.
    #[arg(long)]
    concurrency: Option<u32>,
    /// Begin no request after this time.
    #[arg(long, default_value = "30s", value_parser = duration)]
    duration: Duration,
    /// Send no more requests than this.
    #[arg(long)]
    requests: Option<u64>,
    /// Longest time of one exchange.
    #[arg(long, default_value = "120s", value_parser = duration)]
    timeout: Duration,
    /// Which API to call.
    #[arg(long, value_enum, default_value_t = Api::Chat)]
    api: Api,
    /// Share of streamed requests, 0 to 1.
    #[arg(long, default_value_t = 1.0, value_parser = share)]
    stream_share: f64,
    /// Stream nothing.
    #[arg(long, conflicts_with = "stream_share")]
    no_stream: bool,
    /// Length of each user message or prompt in tokens of 4 bytes: N or MIN..MAX.
    #[arg(long, default_value = "128", value_parser = range)]
    prompt_tokens: RangeInclusive<u32>,
    /// Length of each answer in tokens: N or MIN..MAX.
    #[arg(long, default_value = "32", value_parser = range)]
    output_tokens: RangeInclusive<u32>,
    /// Length of a text that begins all prompts alike, in tokens.
    #[arg(long, default_value_t = 0)]
    shared_prefix_tokens: u32,
    /// Conversations open at a time; 0 sends every prompt alone.
    #[arg(long, default_value_t = 0)]
    conversations: u32,
    /// Turns of each conversation.
    #[arg(long, default_value_t = 5)]
    turns: u32,
    /// Share of the clients that close their connection before they have their answer, 0 to 1.
    #[arg(long, default_value_t = 0.0, value_parser = share)]
    abandon_share: f64,
    /// Longest time until such a client leaves; the moment is random.
    #[arg(long, default_value = "100ms", value_parser = duration)]
    abandon_within: Duration,
    /// How closely answers are checked.
    #[arg(long, value_enum, default_value_t = Strictness::Structure)]
    verify: Strictness,
    /// Connections open at a time; requests beyond wait, and the wait counts.
    #[arg(long, default_value_t = 4096)]
    connections: u32,
    /// Threads.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=256))]
    threads: u32,
    /// A further header, as "Name: value"; may be repeated.
    #[arg(long, value_parser = header)]
    header: Vec<String>,
    /// Seed of prompts and arrivals.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Write the report as JSON to this file; - is standard output, in place of the text.
    #[arg(long)]
    json: Option<PathBuf>,
    /// No progress on standard error.
    #[arg(long)]
    quiet: bool,
}

/// Runs the chosen command.
pub fn main(cli: Cli) -> ExitCode {
    let result = match cli.command {
        Command::Engine(args) => serve(&args),
        Command::Run(args) => load(*args),
        Command::Chaos(args) => chaos::run(*args),
        Command::Simulate(args) => simulate::simulate(&args),
        Command::Bars(args) => simulate::judge(&args),
    };
    result.unwrap_or_else(|error| {
        eprintln!("loadtest: {error}");
        ExitCode::from(2)
    })
}

fn serve(args: &EngineArgs) -> Result<ExitCode, Box<dyn std::error::Error>> {
    let mut engines = Vec::with_capacity(args.listen.len());
    let tls = args.tls()?;
    let scheme = if tls.is_some() { "https" } else { "http" };
    for &listen in &args.listen {
        let settings = Settings { tls: tls.clone(), ..args.settings(listen) };
        let engine = Engine::start(settings).map_err(|error| format!("{listen}: {error}"))?;
        writeln!(io::stdout(), "{scheme}://{}", engine.addr())?;
        engines.push(engine);
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let mut terminated = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())?;
        tokio::select! {
            interrupted = tokio::signal::ctrl_c() => interrupted,
            _ = terminated.recv() => Ok(()),
        }
    })?;
    Ok(ExitCode::SUCCESS)
}

impl EngineArgs {
    fn tls(&self) -> Result<Option<Tls>, Box<dyn std::error::Error>> {
        let (Some(chain), Some(key)) = (&self.tls_cert, &self.tls_key) else { return Ok(None) };
        let read = |file: &PathBuf| std::fs::read(file).map_err(|error| format!("{}: {error}", file.display()));
        Ok(Some(Tls::from_pem(&read(chain)?, &read(key)?)?))
    }

    fn settings(&self, listen: SocketAddr) -> Settings {
        let modelled = self.model_step.parameters();
        let parameters = if self.instant { Parameters { cost: StepCost::NONE, ..modelled } } else { modelled };
        Settings {
            listen,
            models: self.model.clone(),
            model_tokens_max: self.max_model_len,
            parameters,
            time_scale: if self.instant { 0.0 } else { self.time_scale },
            keep_alive: self.keep_alive,
            embeddings: if self.embeddings { Embeddings::Served } else { Embeddings::NotFound },
            faults: self.fault.clone(),
            records_max: self.records,
            kv_events: self.kv_events.map(|stream| KvEvents {
                stream: Stream::Bind(stream),
                replay: self.kv_replay,
                topic: self.kv_topic.clone(),
                ..KvEvents::default()
            }),
            ..Settings::default()
        }
    }
}

fn load(args: RunArgs) -> Result<ExitCode, Box<dyn std::error::Error>> {
    let progress = if args.quiet { Progress::Hidden } else { Progress::Shown };
    let json = args.json.clone();
    let report = run::run(&args.plan()?, progress)?;
    match json {
        Some(path) if path.as_os_str() == "-" => writeln!(io::stdout(), "{}", serde_json::to_string_pretty(&report)?)?,
        Some(path) => {
            std::fs::write(&path, serde_json::to_string_pretty(&report)?)
                .map_err(|error| format!("{}: {error}", path.display()))?;
            write!(io::stdout(), "{report}")?;
        }
        None => write!(io::stdout(), "{report}")?,
    }
    Ok(match report.verdict() {
        Verdict::Right => ExitCode::SUCCESS,
        Verdict::Wrong => ExitCode::FAILURE,
        Verdict::Unanswered => {
            eprintln!("no request was answered: is something listening at the target, under this model's name?");
            ExitCode::FAILURE
        }
    })
}

impl RunArgs {
    fn plan(self) -> Result<Plan, Box<dyn std::error::Error>> {
        let trace = self.trace.map(|path| Trace::read(&path, ROWS_MAX)).transpose()?;
        Ok(Plan {
            targets: self.target,
            workload: Workload {
                api: self.api,
                model: self.model,
                prompt_tokens: self.prompt_tokens,
                output_tokens: self.output_tokens,
                shared_prefix_tokens: self.shared_prefix_tokens,
                stream_share: if self.no_stream { 0.0 } else { self.stream_share },
                conversations: self.conversations,
                turns: self.turns,
            },
            shape: match (self.rate, trace) {
                (_, Some(mut trace)) => {
                    trace.spread_bursts();
                    Shape::Trace(Replay::new(trace, self.squeeze))
                }
                (Some(rate), None) => Shape::Open { rate, arrivals: self.arrivals },
                (None, None) => Shape::Closed { concurrency: self.concurrency.unwrap_or(8) },
            },
            duration: self.duration,
            requests_max: self.requests,
            timeout: self.timeout,
            connections_max: self.connections,
            threads: self.threads,
            strictness: self.verify,
            headers: self.header.concat(),
            abandon: Abandon { share: self.abandon_share, within: self.abandon_within },
            seed: self.seed,
        })
    }
}

/// Reads `500ms`, `30s` or `2m`.
fn duration(text: &str) -> Result<Duration, String> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let number: f64 = digits.parse().map_err(|_| format!("{text:?} is not a time such as 500ms, 30s or 2m"))?;
    let seconds = match &text[digits.len()..] {
        "ms" => number / 1e3,
        "s" => number,
        "m" => number * 60.0,
        "h" => number * 3600.0,
        _ => return Err(format!("{text:?} needs a unit: ms, s, m or h")),
    };
    Duration::try_from_secs_f64(seconds).map_err(|error| error.to_string())
}

/// Reads `N` or `MIN..MAX`, both included.
fn range(text: &str) -> Result<RangeInclusive<u32>, String> {
    let (low, high) = text.split_once("..").unwrap_or((text, text));
    let number = |part: &str| part.parse::<u32>().map_err(|_| format!("{text:?} is not N or MIN..MAX"));
    let (low, high) = (number(low)?, number(high)?);
    if low > high { Err(format!("{low} is above {high}")) } else { Ok(low..=high) }
}

fn squeeze(text: &str) -> Result<f64, String> {
    text.parse()
        .ok()
        .filter(|factor| (1e-3..=1e3).contains(factor))
        .ok_or_else(|| "a factor is from 0.001 to 1000".to_owned())
}

fn rate(text: &str) -> Result<f64, String> {
    let rate: f64 = text.parse().map_err(|_| format!("{text:?} is not a number"))?;
    if (1e-3..=1e7).contains(&rate) { Ok(rate) } else { Err("a rate is from 0.001 to 10000000 a second".to_owned()) }
}

fn share(text: &str) -> Result<f64, String> {
    text.parse().ok().filter(|share| (0.0..=1.0).contains(share)).ok_or_else(|| "a share is from 0 to 1".to_owned())
}

/// Reads `Name: value` into a header line.
fn header(text: &str) -> Result<String, String> {
    let (name, value) = text.split_once(':').ok_or("a header is \"Name: value\"")?;
    if name.is_empty() || text.bytes().any(|byte| byte < b' ') {
        return Err("a header has a name and no control characters".to_owned());
    }
    Ok(format!("{}: {}\r\n", name.trim(), value.trim()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        use clap::CommandFactory;
        Cli::command().debug_assert();
    }

    #[test]
    fn times_and_ranges_are_read() {
        assert_eq!(duration("1.5s"), Ok(Duration::from_millis(1500)));
        assert_eq!(duration("250ms"), Ok(Duration::from_millis(250)));
        assert!(duration("30").is_err() && duration("s").is_err() && duration("-1s").is_err());
        assert_eq!(range("7"), Ok(7..=7));
        assert_eq!(range("1..9"), Ok(1..=9));
        assert!(range("9..1").is_err() && range("x").is_err());
    }

    #[test]
    fn headers_cannot_smuggle_lines() {
        assert_eq!(header("x-a:  b "), Ok("x-a: b\r\n".to_owned()));
        assert!(header("x-a: b\r\nc: d").is_err());
    }
}
