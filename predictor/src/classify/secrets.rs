//! Credentials: tokens with a prefix of their issuer, PEM keys, passwords in URLs, and random values beside a word such as "password".
//!
//! Prefixes are landmarks. A token is walked once from its prefix, and the next look begins behind it.

use super::kind::{Kind, KindSet};
use super::landmarks::Meaning;
use super::lane::Lane;

/// Longest token that is walked.
const TOKEN_BYTES_MAX: usize = 1024;
/// How far behind a word such as "password" its value may begin.
const VALUE_REACH_BYTES: usize = 48;
/// Shortest value taken for a secret.
const VALUE_BYTES_MIN: usize = 8;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Alphabet {
    /// Letters and digits.
    Plain,
    /// Capitals and digits.
    Capitals,
    /// Letters, digits, `-` and `_`.
    Url,
    /// The same and dots.
    Dotted,
}

impl Alphabet {
    const fn has(self, byte: u8) -> bool {
        match self {
            Alphabet::Plain => byte.is_ascii_alphanumeric(),
            Alphabet::Capitals => byte.is_ascii_uppercase() || byte.is_ascii_digit(),
            Alphabet::Url => byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'),
            Alphabet::Dotted => byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.'),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    /// This many characters of the alphabet behind the prefix.
    Token(Kind, Alphabet, usize, usize),
    Jwt,
    Pem,
    Url,
    SlackHook,
}

const ANY: usize = TOKEN_BYTES_MAX;

use Alphabet::{Capitals, Dotted, Plain, Url};
use Form::Token;

/// Prefix and form. The longest prefix at a place wins.
const PREFIXES: &[(&str, Form)] = &[
    ("sk-ant-", Token(Kind::AnthropicKey, Url, 24, ANY)),
    ("sk-proj-", Token(Kind::OpenaiKey, Url, 32, ANY)),
    ("sk-svcacct-", Token(Kind::OpenaiKey, Url, 32, ANY)),
    ("sk-admin-", Token(Kind::OpenaiKey, Url, 32, ANY)),
    ("sk-or-v1-", Token(Kind::ServiceToken, Plain, 32, ANY)),
    ("sk-", Token(Kind::OpenaiKey, Url, 32, ANY)),
    ("AKIA", Token(Kind::AwsAccessKey, Capitals, 16, 16)),
    ("ASIA", Token(Kind::AwsAccessKey, Capitals, 16, 16)),
    ("ABIA", Token(Kind::AwsAccessKey, Capitals, 16, 16)),
    ("ACCA", Token(Kind::AwsAccessKey, Capitals, 16, 16)),
    ("ghp_", Token(Kind::GithubToken, Plain, 30, ANY)),
    ("gho_", Token(Kind::GithubToken, Plain, 30, ANY)),
    ("ghs_", Token(Kind::GithubToken, Plain, 30, ANY)),
    ("ghu_", Token(Kind::GithubToken, Plain, 30, ANY)),
    ("ghr_", Token(Kind::GithubToken, Plain, 30, ANY)),
    ("github_pat_", Token(Kind::GithubToken, Url, 40, ANY)),
    ("glpat-", Token(Kind::GitlabToken, Dotted, 20, ANY)),
    ("gldt-", Token(Kind::GitlabToken, Url, 20, ANY)),
    ("glrt-", Token(Kind::GitlabToken, Url, 20, ANY)),
    ("AIza", Token(Kind::GoogleApiKey, Url, 35, 35)),
    ("ya29.", Token(Kind::ServiceToken, Url, 30, ANY)),
    ("GOCSPX-", Token(Kind::ServiceToken, Url, 24, ANY)),
    ("hf_", Token(Kind::HuggingfaceToken, Plain, 30, 44)),
    ("npm_", Token(Kind::NpmToken, Plain, 36, 36)),
    ("pypi-", Token(Kind::PypiToken, Url, 50, ANY)),
    ("SG.", Token(Kind::SendgridKey, Dotted, 50, 80)),
    ("xoxb-", Token(Kind::SlackToken, Url, 20, ANY)),
    ("xoxp-", Token(Kind::SlackToken, Url, 20, ANY)),
    ("xoxa-", Token(Kind::SlackToken, Url, 20, ANY)),
    ("xoxr-", Token(Kind::SlackToken, Url, 20, ANY)),
    ("xoxs-", Token(Kind::SlackToken, Url, 20, ANY)),
    ("xoxe-", Token(Kind::SlackToken, Url, 20, ANY)),
    ("xapp-", Token(Kind::SlackToken, Url, 20, ANY)),
    ("hooks.slack.com/services/", Form::SlackHook),
    ("sk_live_", Token(Kind::StripeKey, Plain, 16, ANY)),
    ("rk_live_", Token(Kind::StripeKey, Plain, 16, ANY)),
    ("sk_test_", Token(Kind::StripeKey, Plain, 16, ANY)),
    ("rk_test_", Token(Kind::StripeKey, Plain, 16, ANY)),
    ("whsec_", Token(Kind::StripeKey, Plain, 24, ANY)),
    ("dop_v1_", Token(Kind::ServiceToken, Plain, 40, ANY)),
    ("shpat_", Token(Kind::ServiceToken, Plain, 32, ANY)),
    ("shpss_", Token(Kind::ServiceToken, Plain, 32, ANY)),
    ("dckr_pat_", Token(Kind::ServiceToken, Url, 24, ANY)),
    ("ATATT3", Token(Kind::ServiceToken, Url, 60, ANY)),
    ("gsk_", Token(Kind::ServiceToken, Plain, 40, ANY)),
    ("r8_", Token(Kind::ServiceToken, Plain, 37, ANY)),
    ("xai-", Token(Kind::ServiceToken, Plain, 60, ANY)),
    ("nvapi-", Token(Kind::ServiceToken, Url, 40, ANY)),
    ("pplx-", Token(Kind::ServiceToken, Plain, 40, ANY)),
    ("hvs.", Token(Kind::ServiceToken, Url, 60, ANY)),
    ("figd_", Token(Kind::ServiceToken, Url, 36, ANY)),
    ("lin_api_", Token(Kind::ServiceToken, Plain, 36, ANY)),
    ("sntrys_", Token(Kind::ServiceToken, Dotted, 40, ANY)),
    ("PMAK-", Token(Kind::ServiceToken, Url, 50, ANY)),
    ("rubygems_", Token(Kind::ServiceToken, Plain, 40, ANY)),
    ("EAACEdEose0cBA", Token(Kind::ServiceToken, Plain, 20, ANY)),
    ("eyJ", Form::Jwt),
    ("-----BEGIN ", Form::Pem),
    ("://", Form::Url),
];

/// The prefixes, with their places in the table.
pub(super) fn prefixes() -> impl Iterator<Item = (u8, &'static str)> {
    (0u8..).zip(PREFIXES).map(|(index, (prefix, _))| (index, *prefix))
}

/// Looks for credentials.
pub(super) fn scan(lane: &mut Lane<'_>, values: &mut Vec<(usize, usize)>) {
    if !lane.wants(KindSet::secrets()) {
        return;
    }
    let text = lane.text;
    lane.work(text.len());
    let mut done = 0;
    let mut footer = Footer::Unknown;
    let marks = lane.marks;
    for mark in marks {
        let (start, Meaning::Prefix(index)) = (mark.start as usize, mark.meaning) else { continue };
        if start < done {
            continue;
        }
        let (prefix, form) = PREFIXES[index as usize];
        done = match form {
            Form::Token(kind, alphabet, least, most) => token(lane, start, prefix.len(), kind, alphabet, least..=most),
            Form::Jwt => jwt(lane, start),
            Form::Pem => pem(lane, start, &mut footer),
            Form::Url => url(lane, start),
            Form::SlackHook => token(lane, start, prefix.len(), Kind::SlackToken, Url, 8..=ANY),
        };
    }
    generic(lane, values);
}

fn run_end(text: &[u8], from: usize, alphabet: Alphabet) -> usize {
    let reach = text.len().min(from + TOKEN_BYTES_MAX);
    text[from..reach].iter().position(|byte| !alphabet.has(*byte)).map_or(reach, |at| from + at)
}

fn token(
    lane: &mut Lane<'_>,
    start: usize,
    prefix: usize,
    kind: Kind,
    alphabet: Alphabet,
    lengths: std::ops::RangeInclusive<usize>,
) -> usize {
    let text = lane.text;
    let mut end = run_end(text, start + prefix, alphabet);
    let next = end;
    lane.work(end - start);
    while end > start + prefix && matches!(text[end - 1], b'.' | b'-') && alphabet == Alphabet::Dotted {
        end -= 1;
    }
    let body = &text[start + prefix..end];
    let glued = lane.before(start).is_ascii_alphanumeric();
    let example = body.ends_with(b"EXAMPLE");
    if lengths.contains(&body.len()) && !glued && !example && random(body) {
        lane.take(kind, start, end);
    }
    next.max(start + prefix)
}

/// Whether a token body has the variety of a random one: placeholders of one repeated letter, or of words, have not.
fn random(body: &[u8]) -> bool {
    let mut seen = [false; 256];
    body.iter().for_each(|byte| seen[*byte as usize] = true);
    let distinct = seen.iter().filter(|seen| **seen).count();
    let classes = [u8::is_ascii_digit as fn(&u8) -> bool, u8::is_ascii_uppercase, u8::is_ascii_lowercase];
    let mixed = classes.iter().filter(|class| body.iter().any(class)).count();
    distinct >= 8 && mixed >= 2
}

/// RFC 7519: three base64url parts, the first two beginning with `{"`.
fn jwt(lane: &mut Lane<'_>, start: usize) -> usize {
    let text = lane.text;
    let end = run_end(text, start, Alphabet::Dotted);
    lane.work(end - start);
    let mut parts = text[start..end].split(|byte| *byte == b'.');
    let long = |part: Option<&[u8]>, least: usize| part.is_some_and(|part| part.len() >= least);
    let header = parts.next();
    let payload = parts.next();
    if long(header, 12)
        && long(payload, 8)
        && payload.is_some_and(|part| part.starts_with(b"ey"))
        && long(parts.next(), 16)
    {
        lane.take(Kind::Jwt, start, end);
    }
    end.max(start + 3)
}

/// Whether a slice may still hold the end of a key. A search that found none is not repeated for the next header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Footer {
    Unknown,
    Absent,
}

/// RFC 7468: any label that ends in PRIVATE KEY. The body is taken along when its end is in the slice.
fn pem(lane: &mut Lane<'_>, start: usize, footer: &mut Footer) -> usize {
    let text = lane.text;
    let label = &text[start + 11..text.len().min(start + 64)];
    let Some(close) = memchr::memmem::find(label, b"-----") else { return start + 11 };
    if memchr::memmem::find(&label[..close], b"PRIVATE KEY").is_none() {
        return start + 11 + close;
    }
    let body = start + 11 + close + 5;
    let end = match footer {
        Footer::Absent => None,
        Footer::Unknown => {
            lane.work(text.len() - body);
            memchr::memmem::find(&text[body..], b"-----END ")
        }
    };
    if end.is_none() {
        *footer = Footer::Absent;
    }
    let end = end.map_or(body, |at| {
        let label = body + at + 9;
        let reach = text.len().min(label + 64);
        memchr::memmem::find(&text[label..reach], b"-----").map_or(reach, |tail| label + tail + 5)
    });
    lane.take(Kind::PrivateKey, start, end);
    end
}

/// RFC 3986, section 3.2.1: `scheme://user:password@host`.
fn url(lane: &mut Lane<'_>, sign: usize) -> usize {
    let text = lane.text;
    let user = sign + 3;
    let reach = text.len().min(user + 256);
    let stop =
        |byte: &u8| byte.is_ascii_whitespace() || matches!(byte, b'/' | b'"' | b'\'' | b'<' | b'>' | b'`' | b'@');
    let Some(at) = text[user..reach].iter().position(stop).filter(|at| text[user + at] == b'@') else { return user };
    lane.work(at);
    let userinfo = &text[user..user + at];
    let Some(colon) = userinfo.iter().position(|byte| *byte == b':') else { return user };
    let password = &userinfo[colon + 1..];
    let host = user + at + 1;
    let host_end = text[host..].iter().position(|byte| !in_host(*byte)).map_or(text.len(), |at| host + at);
    let mut scheme = sign;
    while scheme > 0
        && sign - scheme < 24
        && (text[scheme - 1].is_ascii_alphanumeric() || matches!(text[scheme - 1], b'+' | b'-' | b'.'))
    {
        scheme -= 1;
    }
    if !password.is_empty() && !placeholder(password) && host_end > host && scheme < sign {
        lane.take(Kind::UrlCredentials, scheme, host_end);
    }
    // The password may be a token with a prefix of its own.
    user
}

const fn in_host(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_')
}

/// Values that stand for a secret in documentation and templates.
fn placeholder(value: &[u8]) -> bool {
    const WORDS: [&[u8]; 15] = [
        b"password",
        b"passwd",
        b"secret",
        b"changeme",
        b"example",
        b"your",
        b"pass",
        b"pwd",
        b"<",
        b"${",
        b"{{",
        b"xxxx",
        b"****",
        b"$(",
        b"%s",
    ];
    WORDS.iter().any(|word| value.get(..word.len()).is_some_and(|head| head.eq_ignore_ascii_case(word)))
        || value.iter().all(|byte| Some(byte) == value.first())
}

const fn in_value(byte: u8) -> bool {
    byte.is_ascii_graphic()
        && !matches!(
            byte,
            b'"' | b'\'' | b'`' | b'<' | b'>' | b'(' | b')' | b'[' | b']' | b'{' | b'}' | b',' | b';' | b'|'
        )
}

/// A random-looking value behind a word such as "password", or in its column.
fn generic(lane: &mut Lane<'_>, values: &mut Vec<(usize, usize)>) {
    if !lane.kinds.contains(Kind::GenericSecret) {
        return;
    }
    values.clear();
    let text = lane.text;
    let bit = Kind::GenericSecret.bit();
    values.extend(lane.context.words_of(bit));
    let mut done = 0;
    for &(word_start, word_end) in values.iter() {
        let mut at = word_end.max(done);
        let reach = text.len().min(word_end + VALUE_REACH_BYTES);
        let mut taken = false;
        while at < reach && !taken {
            while at < reach && !in_value(text[at]) {
                at += 1;
            }
            let start = at;
            while at < text.len() && at - start < TOKEN_BYTES_MAX && in_value(text[at]) {
                at += 1;
            }
            lane.work(at - start + 1);
            if let Some((start, end)) = secret_value(text, start, at) {
                lane.take(Kind::GenericSecret, start, end);
                taken = true;
            }
        }
        if !taken {
            value_in_front(lane, word_start);
        }
        done = done.max(at);
    }
}

/// Bytes between a value and a word behind it: `hunter2x! is the password`.
const BEHIND_GAP_BYTES: usize = 12;

/// Takes a value that stands right in front of the word at `word`: `x7Kp-9sQ2 <- password`, `x7Kp-9sQ2 is my password`.
fn value_in_front(lane: &mut Lane<'_>, word: usize) {
    let text = lane.text;
    let from = word.saturating_sub(BEHIND_GAP_BYTES);
    let gap = &text[from..word];
    lane.work(BEHIND_GAP_BYTES);
    let links = [&b" is my "[..], b" is the ", b" is our ", b" as ", b" as the ", b" for the ", b" (the ", b" (my "];
    let link = links.iter().find(|link| gap.ends_with(link)).map(|link| link.len());
    let marks =
        gap.iter().rev().take_while(|byte| byte.is_ascii_punctuation() && !in_secret(**byte) || **byte == b' ').count();
    let Some(end) = word.checked_sub(link.unwrap_or(marks)).filter(|end| *end > 0 && *end < word) else { return };
    // The marks may have eaten the end of the value; what is left must still look random.
    let start =
        (end.saturating_sub(64)..end).rev().find(|at| !in_value(text[*at])).map_or(end.saturating_sub(64), |at| at + 1);
    if end > start
        && !text[start..end].contains(&b'=')
        && random_value(&text[start..end])
        && mixed_case(&text[start..end])
    {
        lane.take(Kind::GenericSecret, start, end);
    }
}

/// Marks that end a secret more often than they follow one.
const fn in_secret(byte: u8) -> bool {
    matches!(byte, b'!' | b'$' | b'%' | b'&' | b'*' | b'@' | b'+' | b'_')
}

/// Whether there are capitals, small letters and digits: hashes and codes have not all three.
fn mixed_case(value: &[u8]) -> bool {
    value.iter().any(u8::is_ascii_uppercase) && value.iter().any(u8::is_ascii_lowercase)
}

/// The part of the token `start..end` that is a secret, if any: what follows a `key=`, without the full stop of the sentence.
fn secret_value(text: &[u8], start: usize, end: usize) -> Option<(usize, usize)> {
    let token = &text[start..end];
    let key = token
        .iter()
        .take(32)
        .position(|byte| matches!(byte, b'=' | b':'))
        .filter(|at| at + 1 < token.len() && !token[at + 1..].starts_with(b"/"));
    let start = key.map_or(start, |at| start + at + 1);
    let mut end = end;
    while end > start && matches!(text[end - 1], b'.' | b'?' | b'!' | b':' | b',') && end - start > VALUE_BYTES_MIN {
        end -= 1;
    }
    random_value(&text[start..end]).then_some((start, end))
}

/// Whether a value looks random: letters and digits mixed within it, or three classes of characters; no path, date, version or UUID-like name.
fn random_value(value: &[u8]) -> bool {
    if value.len() < VALUE_BYTES_MIN || value.len() > 256 || placeholder(value) {
        return false;
    }
    let count = |class: fn(&u8) -> bool| value.iter().filter(|byte| class(byte)).count();
    let (digits, upper, lower) =
        (count(u8::is_ascii_digit), count(u8::is_ascii_uppercase), count(u8::is_ascii_lowercase));
    let symbols = value.len() - digits - upper - lower;
    let classes = [digits, upper, lower, symbols].iter().filter(|count| **count > 0).count();
    let letters = upper + lower;
    let path = value.starts_with(b"/") || value.starts_with(b"./") || memchr::memmem::find(value, b"://").is_some();
    let mut seen = [false; 256];
    value.iter().for_each(|byte| seen[*byte as usize] = true);
    let distinct = seen.iter().filter(|seen| **seen).count();
    // `res2.json`, `item_1`: names in programs.
    let name = upper == 0
        && digits <= 2
        && value.iter().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_'));
    !name
        && !resource(value)
        && digits > 0
        && letters >= 2
        && classes >= 2
        && distinct >= 6
        && !path
        && symbols * 3 <= value.len()
        && switches(value) >= 2
}

/// Whether a value is a path of words and numbers: `projects/123456789012/secrets/db/versions/3`.
fn resource(value: &[u8]) -> bool {
    let word = |part: &[u8]| part.iter().all(|byte| byte.is_ascii_lowercase() || matches!(byte, b'-' | b'_' | b'.'));
    let number = |part: &[u8]| part.iter().all(u8::is_ascii_digit);
    let mut parts = value.split(|byte| *byte == b'/');
    value.iter().filter(|byte| **byte == b'/').count() >= 2 && parts.all(|part| word(part) || number(part))
}

/// How often the value changes between letters and digits, or between small letters and capitals.
fn switches(value: &[u8]) -> usize {
    let class = |byte: u8| match byte {
        b'0'..=b'9' => 1,
        b'A'..=b'Z' => 2,
        b'a'..=b'z' => 3,
        _ => 4,
    };
    value.windows(2).filter(|pair| class(pair[0]) != class(pair[1])).count()
}
