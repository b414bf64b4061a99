//! Time of a scan, on one core. Each text is scanned several times and the least time counts: what other programs do to the core is
//! no property of the scanner.

use std::time::Instant;

use predictor::classify::{Piece, Progress, SLICE_BYTES, Scanner, Scope, Scratch, Shape};

use super::{Row, data};

/// Bytes of an ordinary prompt.
const PROMPT_BYTES: usize = 2_048;
/// Bytes that are scanned in one go where a rate is measured: short enough to pass between two turns of other programs.
const RATE_BYTES: usize = 16 * 1024;
const TRIES: usize = 40;

/// Texts made to be slow, repeated to the length asked for.
const HOSTILE: [&str; 47] = [
    "@",
    "a@",
    "a@b.",
    "4111111111111111 ",
    "1 ",
    "12 ",
    "12 34 567 ",
    "1.",
    "1.2.3.4.",
    "password ",
    "bsn ssn pan ",
    "phone 5551234 ",
    ":",
    "a:",
    "fe80::",
    "sk-",
    "eyJ",
    "://a:b@",
    " dot ",
    "[at]",
    "a at b dot ",
    "four one ",
    "&#64;",
    "\\u0034",
    "GB82 ",
    "D E 8 9 ",
    "1,",
    "|",
    "ssn,1\n",
    "QUJD",
    "QUJD\n",
    "-----BEGIN PRIVATE KEY-----",
    "０",
    "\u{200b}",
    "07700900123 ",
    "00 49 151 ",
    "[[[[",
    "}{",
    "4,1,1,1,",
    "token=a1",
    "tel 12 34 567 ",
    "card 4111 1111 1111 1112 ",
    "bsn ssn pan 12 345 6789 ",
    "reversed 12 ",
    "0023 4455 6677 ",
    "DEUTDEFF swift ",
    "공일이삼",
];

/// The rows of the table.
pub(crate) fn rows(everything: &Scanner, finder: &Scanner) -> Result<Vec<Row>, Box<dyn std::error::Error>> {
    let texts = |file: &str| -> Result<String, Box<dyn std::error::Error>> {
        let lines = std::fs::read_to_string(data(file))?;
        let text = lines.lines().filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
        Ok(text.filter_map(|row| Some(row["text"].as_str()?.to_owned() + "\n")).collect())
    };
    let (prompts, own) = (texts("complexity-train.jsonl")?, texts("pii-own.jsonl")?);
    let mut scratch = Scratch::default();
    let mut ordinary: Vec<f64> =
        windows(&prompts, PROMPT_BYTES).step_by(3).map(|text| seconds(everything, &mut scratch, text)).collect();
    ordinary.sort_by(f64::total_cmp);
    let p99 = ordinary.get(ordinary.len() * 99 / 100).copied().unwrap_or(f64::NAN);
    let hostile =
        HOSTILE.map(|part| (part, seconds(everything, &mut scratch, &part.repeat(PROMPT_BYTES / part.len()))));
    let (which, hostile) = slowest(hostile);
    let mut rows = vec![
        Row::at_most("all built-ins on 2 KB of a prompt, p99", 60.0, p99 * 1e6, " us"),
        Row::at_most(format!("the same, the worst text made to be slow ({which:?})"), 200.0, hostile * 1e6, " us"),
    ];
    let table: String = (0..20_000u64)
        .map(|row| format!("{} {} {}\n", row * 7_919 % 1_000_000, row * 104_729 % 10_000_000_000, row * 31 % 997))
        .collect();
    let base64: String = (0..1 << 18)
        .map(|at: u32| ["Qm9v", "x9Kd", "AAcd", "Zm+/"][(at.wrapping_mul(2_654_435_761) >> 30) as usize])
        .collect();
    let long = |part: &str| part.repeat((1 << 19) / part.len());
    let inputs = [
        ("prompts", prompts),
        ("sentences full of identifiers", own.repeat(8)),
        ("digit tables", table),
        ("1 MB of base64", base64),
        ("runs of @", long("@")),
        ("nested brackets", long("[{([{(")),
        ("Chinese", long("我们把下一次会议的时间定在星期三下午，请大家准时参加。")),
        ("Russian", long("Мы перенесли встречу на среду, пожалуйста, приходите вовремя. ")),
        ("numbers of one digit", long("1 2 3 4 5 6 7 8 9 0 ")),
        ("a list of numbers", long("1024,2048,4096,8192,")),
        ("JSON of a tool", long("{\"id\":10482,\"name\":\"widget\",\"price\":12.75,\"tags\":[\"a\",\"b\"]},")),
    ];
    // What is slow in one piece is slow in many: a turn must be short whatever is in it.
    let turns =
        HOSTILE.map(|part| (part, longest_turn(everything, &mut scratch, &part.repeat(4 * SLICE_BYTES / part.len()))));
    let mut longest = slowest(turns);
    for (name, text) in inputs {
        let turn = longest_turn(everything, &mut scratch, &text[..text.floor_char_boundary(1 << 20)]);
        longest = slowest([longest, (name, turn)]);
        let (mut total, mut bytes) = (0.0, 0);
        for block in windows(&text, RATE_BYTES) {
            total += seconds(finder, &mut scratch, block);
            bytes += block.len();
        }
        let rate = bytes as f64 / total / 1e6;
        rows.push(Row {
            what: format!("scan rate: {name}"),
            goal: "> 40 MB/s".to_owned(),
            reached: format!("{rate:.0} MB/s"),
            met: rate >= 40.0,
        });
    }
    // Between two turns the other requests of the thread go on.
    rows.push(Row::at_most(
        format!("longest turn of a long prompt, the worst text made to be slow ({:?})", longest.0),
        500.0,
        longest.1 * 1e6,
        " us",
    ));
    Ok(rows)
}

fn slowest<'t>(texts: impl IntoIterator<Item = (&'t str, f64)>) -> (&'t str, f64) {
    texts.into_iter().fold(("", 0.0), |worst, text| if text.1 > worst.1 { text } else { worst })
}

/// The longest time between two places where a scan can be left, in seconds.
fn longest_turn(scanner: &Scanner, scratch: &mut Scratch, text: &str) -> f64 {
    let mut least: Vec<f64> = Vec::new();
    for _ in 0..TRIES {
        let mut scan = scanner.start(scratch, &Shape::default());
        scan.begin(Piece { scope: Scope::User, text });
        for turn in 0.. {
            let begun = Instant::now();
            let progress = scan.step();
            let took = begun.elapsed().as_secs_f64();
            match least.get_mut(turn) {
                Some(least) => *least = least.min(took),
                None => least.push(took),
            }
            if progress == Progress::Done {
                break;
            }
        }
        scan.finish();
    }
    least.into_iter().fold(0.0, f64::max)
}

fn seconds(scanner: &Scanner, scratch: &mut Scratch, text: &str) -> f64 {
    let mut once = || {
        let begun = Instant::now();
        scanner.scan(scratch, [Piece { scope: Scope::User, text }], &Shape::default());
        begun.elapsed().as_secs_f64()
    };
    (0..TRIES).map(|_| once()).fold(f64::INFINITY, f64::min)
}

/// Pieces of about `bytes` bytes.
fn windows(text: &str, bytes: usize) -> impl Iterator<Item = &str> {
    let mut rest = text;
    std::iter::from_fn(move || {
        let end = rest.floor_char_boundary(bytes);
        let (window, tail) = rest.split_at(end.max(usize::from(!rest.is_empty() && end == 0)));
        rest = tail;
        (!window.is_empty()).then_some(window)
    })
}
