//! E-mail addresses, written plainly or disguised (`ann [at] firm [dot] org`).
//!
//! Each `@` is grown to the left over the local part and to the right over the domain. A domain ends in a known kind of top level, is
//! not one of those set aside for examples (RFC 2606, RFC 6761), and is not a file name. Bytes between two signs are visited at most twice.

use std::net::{Ipv4Addr, Ipv6Addr};

use super::kind::Kind;
use super::landmarks::Meaning;
use super::lane::Lane;

const LOCAL_BYTES_MAX: usize = 64;
const DOMAIN_BYTES_MAX: usize = 253;
/// Bytes around a written-out dot that are read again with the disguise taken off.
const DISGUISE_BYTES: usize = 96;

const fn in_local(byte: u8) -> bool {
    byte.is_ascii_alphanumeric()
        || matches!(byte, b'.' | b'_' | b'%' | b'+' | b'-' | b'\'' | b'&' | b'~' | b'!' | b'$' | b'*' | b'?' | b'^')
}

const fn in_domain(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-') || byte >= 0x80
}

/// Endings of file and unit names that look like a top-level domain.
const FILE_ENDINGS: &[&[u8]] = &[
    b"png",
    b"jpg",
    b"jpeg",
    b"gif",
    b"svg",
    b"webp",
    b"ico",
    b"bmp",
    b"pdf",
    b"js",
    b"ts",
    b"tsx",
    b"jsx",
    b"mjs",
    b"css",
    b"scss",
    b"html",
    b"htm",
    b"json",
    b"yaml",
    b"yml",
    b"toml",
    b"xml",
    b"txt",
    b"csv",
    b"log",
    b"lock",
    b"service",
    b"socket",
    b"timer",
    b"target",
    b"mount",
    b"conf",
    b"cfg",
    b"ini",
    b"exe",
    b"dll",
    b"tar",
    b"gz",
    b"tgz",
    b"jar",
    b"class",
    b"java",
    b"cpp",
    b"hpp",
    b"vue",
    b"rb",
    b"php",
    b"local",
    b"localhost",
    b"localdomain",
    b"internal",
    b"test",
    b"example",
    b"invalid",
    b"whl",
    b"mp4",
    b"mp3",
    b"ttf",
    b"woff",
];
const EXAMPLE_DOMAINS: &[&[u8]] = &[
    b"example.com",
    b"example.org",
    b"example.net",
    b"example.edu",
    b"domain.com",
    b"yourdomain.com",
    b"email.com.example",
];

/// Looks for e-mail addresses.
pub(super) fn scan(lane: &mut Lane<'_>) {
    if !lane.kinds.contains(Kind::Email) {
        return;
    }
    let text = lane.text;
    lane.work(text.len());
    let mut floor = 0;
    for sign in memchr::memchr_iter(b'@', text) {
        if let Some((start, end)) = around(text, sign, floor) {
            lane.take(Kind::Email, start, end);
        }
        lane.work(LOCAL_BYTES_MAX.min(sign - floor));
        floor = sign + 1;
    }
    disguised(lane);
}

/// The address around the sign at `sign`, not reaching in front of `floor`.
fn around(text: &[u8], sign: usize, floor: usize) -> Option<(usize, usize)> {
    let floor = floor.max(sign.saturating_sub(LOCAL_BYTES_MAX));
    let mut start = sign;
    while start > floor && in_local(text[start - 1]) {
        start -= 1;
    }
    while start < sign && matches!(text[start], b'.' | b'-' | b'\'' | b'&' | b'!' | b'*' | b'?' | b'^' | b'$' | b'~') {
        start += 1;
    }
    if sign > floor && text[sign - 1] == b'"' {
        start = quoted_local(text, sign - 1, floor)?;
    }
    // A letter of another script in front of the sign is part of a name that is written in it.
    let foreign = sign > floor && text[sign - 1] >= 0x80;
    if (start == sign && !foreign) || text[sign - 1] == b'.' {
        return None;
    }
    if text.get(sign + 1) == Some(&b'[') {
        return Some((start, literal_end(text, sign + 1)?));
    }
    let reach = text.len().min(sign + 1 + DOMAIN_BYTES_MAX);
    let mut end = sign + 1;
    while end < reach && in_domain(text[end]) {
        end += 1;
    }
    let end = domain_end(text, sign + 1, end)?;
    // `git@host` is the account of a service, no one's address.
    (&text[start..sign] != b"git").then_some((start, end))
}

/// Where the quoted local part (RFC 5322, section 3.4.1) begins that ends with the quote at `close`. A quote behind a letter or a sign that
/// binds is the end of something else.
fn quoted_local(text: &[u8], close: usize, floor: usize) -> Option<usize> {
    let inside = text[floor..close].iter().rev().take_while(|byte| !matches!(byte, b'"' | b'\n')).count();
    let open = (close - inside).checked_sub(1).filter(|open| *open >= floor && text[*open] == b'"')?;
    let apart = open.checked_sub(1).is_none_or(|before| !text[before].is_ascii_alphanumeric());
    (inside > 0 && apart && text[open + 1..close].iter().any(u8::is_ascii_alphanumeric)).then_some(open)
}

/// Longest address literal: an IPv6 address with its tag and brackets.
const LITERAL_BYTES_MAX: usize = 53;

/// Where the address literal (RFC 5321, section 4.1.3) ends that begins at `start`: `[192.0.2.1]`, `[IPv6:2001:db8::1]`.
fn literal_end(text: &[u8], start: usize) -> Option<usize> {
    let close = text[start..].iter().take(LITERAL_BYTES_MAX).position(|byte| *byte == b']')?;
    let inside = std::str::from_utf8(&text[start + 1..start + close]).ok()?;
    let (tag, address) = inside.split_at_checked(5).unwrap_or((inside, ""));
    let holds =
        inside.parse::<Ipv4Addr>().is_ok() || tag.eq_ignore_ascii_case("IPv6:") && address.parse::<Ipv6Addr>().is_ok();
    holds.then_some(start + close + 1)
}

/// Where the domain in `start..end` ends, if it is one a person can have.
fn domain_end(text: &[u8], start: usize, mut end: usize) -> Option<usize> {
    loop {
        while end > start && matches!(text[end - 1], b'.' | b'-') {
            end -= 1;
        }
        let domain = &text[start..end];
        let dot = domain.iter().rposition(|byte| *byte == b'.')?;
        let top = &domain[dot + 1..];
        // CJK text may follow without a space: the top level ends where its letters end.
        let ascii = top.iter().take_while(|byte| byte.is_ascii_alphabetic()).count();
        if ascii >= 2 && top.get(ascii).is_some_and(|byte| *byte >= 0x80) {
            end = start + dot + 1 + ascii;
            continue;
        }
        // Letters of Greek or Cyrillic among Latin ones are put there to look like them.
        let lookalike =
            ascii < 2 && top.iter().all(|byte| byte.is_ascii_alphabetic() || matches!(byte, 0x80..=0xbf | 0xce..=0xd3));
        let foreign = top.len() >= 3 && (lookalike || top.iter().all(|byte| *byte >= 0x80));
        let fits = foreign || ((2..=24).contains(&top.len()) && (ascii == top.len() || top.starts_with(b"xn--")));
        let lower: &mut [u8] = &mut [0u8; 24];
        let lower = &mut lower[..top.len().min(24)];
        lower.copy_from_slice(&top[..top.len().min(24)]);
        lower.make_ascii_lowercase();
        let file = FILE_ENDINGS.contains(&&*lower);
        let example = EXAMPLE_DOMAINS.iter().any(|known| {
            domain.len() >= known.len() && {
                let (front, tail) = domain.split_at(domain.len() - known.len());
                tail.eq_ignore_ascii_case(known) && (front.is_empty() || front.ends_with(b"."))
            }
        });
        let labels =
            domain[..dot].split(|byte| *byte == b'.').all(|label| !label.is_empty() && !label.starts_with(b"-"));
        return (fits && !file && !example && labels && dot > 0).then_some(end);
    }
}

/// Whether a form says by itself that an address may be disguised.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    Tells,
    /// A common word, or a plain sign: looked at only near one that tells.
    Common,
}

/// What is written for the sign or a dot, with the brackets or spaces people put around it, and what it stands for.
const FORMS: &[(&str, u8, Form)] = &[
    ("[at]", b'@', Form::Tells),
    ("(at)", b'@', Form::Tells),
    ("{at}", b'@', Form::Tells),
    ("<at>", b'@', Form::Tells),
    (" at ", b'@', Form::Common),
    ("_at_", b'@', Form::Common),
    ("-at-", b'@', Form::Common),
    (" @ ", b'@', Form::Tells),
    ("[@]", b'@', Form::Tells),
    ("(@)", b'@', Form::Tells),
    ("{@}", b'@', Form::Tells),
    ("[ät]", b'@', Form::Tells),
    ("(ät)", b'@', Form::Tells),
    (" ät ", b'@', Form::Tells),
    ("[arroba]", b'@', Form::Tells),
    ("(arroba)", b'@', Form::Tells),
    (" arroba ", b'@', Form::Tells),
    ("(arobase)", b'@', Form::Tells),
    (" arobase ", b'@', Form::Tells),
    (" chiocciola ", b'@', Form::Tells),
    ("(chiocciola)", b'@', Form::Tells),
    (" małpa ", b'@', Form::Tells),
    (" apenstaartje ", b'@', Form::Tells),
    (" snabel-a ", b'@', Form::Tells),
    (" собака ", b'@', Form::Tells),
    (" klammeraffe ", b'@', Form::Tells),
    ("[dot]", b'.', Form::Tells),
    ("(dot)", b'.', Form::Tells),
    ("{dot}", b'.', Form::Tells),
    ("<dot>", b'.', Form::Tells),
    (" dot ", b'.', Form::Tells),
    ("_dot_", b'.', Form::Tells),
    ("-dot-", b'.', Form::Tells),
    ("[.]", b'.', Form::Common),
    ("(.)", b'.', Form::Common),
    (" . ", b'.', Form::Common),
    ("[punkt]", b'.', Form::Common),
    ("(punkt)", b'.', Form::Common),
    (" punkt ", b'.', Form::Common),
    ("[punto]", b'.', Form::Common),
    ("(punto)", b'.', Form::Common),
    (" punto ", b'.', Form::Common),
    ("[point]", b'.', Form::Common),
    ("(point)", b'.', Form::Common),
    (" point ", b'.', Form::Common),
    ("(ponto)", b'.', Form::Common),
    (" ponto ", b'.', Form::Common),
    (" kropka ", b'.', Form::Common),
    (" punt ", b'.', Form::Common),
    (" точка ", b'.', Form::Common),
];
/// Behind these providers' names a plain " at " tells, and so does a shouted one.
const PLAINLY: &[&str] = &[
    " AT ",
    " at gmail.",
    " at googlemail.",
    " at outlook.",
    " at hotmail.",
    " at yahoo.",
    " at icloud.",
    " at proton",
    " at gmx.",
    " at web.de",
    " at aol.",
    " at qq.com",
    " at 163.com",
    " at mail.ru",
    " at yandex.",
    " at live.",
    " at orange.fr",
    " at naver.com",
];

/// The landmarks of this lane.
pub(super) fn marks() -> impl Iterator<Item = &'static str> {
    let telling = FORMS.iter().filter(|(_, _, form)| *form == Form::Tells);
    telling.map(|(text, _, _)| *text).chain(PLAINLY.iter().copied())
}

/// What the disguise that begins at the front of `text` stands for, and its length.
fn undisguise(text: &[u8]) -> Option<(u8, usize)> {
    let [first, second] = *text.first_chunk()?;
    let found = FORMS.iter().find(|(form, _, _)| {
        let form = form.as_bytes();
        form[0] == first
            && form[1] == second.to_ascii_lowercase()
            && text.get(..form.len()).is_some_and(|head| head.eq_ignore_ascii_case(form))
    })?;
    Some((found.1, found.0.len()))
}

/// Looks for addresses with a written-out dot or sign: the text around is copied with both put back, and read as usual.
fn disguised(lane: &mut Lane<'_>) {
    let (marks, text) = (lane.marks, lane.text);
    let mut done = 0;
    for mark in marks.iter().filter(|mark| mark.meaning == Meaning::Disguise) {
        let (start, end) = (mark.start as usize, mark.end as usize);
        // A shout tells something, the word in small letters nothing.
        let quiet = text[start..end].eq_ignore_ascii_case(b" at ") && &text[start..end] != b" AT ";
        if start >= done && !quiet {
            done = disguised_around(lane, start, done);
        }
    }
}

/// What makes a plain " at " with a plain domain behind it an address, and no place: " AT " behind small letters, or a name that is no word.
fn plainly_at(lane: &Lane<'_>, first: usize, last: usize, local: &[u8]) -> bool {
    let text = &lane.text[first..last];
    let shouted = memchr::memmem::find(text, b" AT ").is_some_and(|at| text[..at].iter().any(u8::is_ascii_lowercase));
    let quiet = memchr::memmem::find(text, b" at ").is_none() && memchr::memmem::find(text, b" AT ").is_none();
    let dotted = memchr::memchr(b'.', &text[local.len().min(text.len())..]).is_none();
    let name = local.iter().any(|byte| byte.is_ascii_digit() || matches!(byte, b'.' | b'_' | b'-'));
    // "OFF at any point during": a word for a dot in another language does not go with an English sign.
    let mixed = !quiet
        && [" point ", " punt ", " punto ", " ponto ", " punkt ", " kropka "]
            .iter()
            .any(|dot| memchr::memmem::find(text, dot.as_bytes()).is_some());
    !mixed && (quiet || shouted || dotted || name)
}

/// Whether a spelled-out domain begins with a word of prose: "look at the dot com boom".
fn prose(domain: &[u8]) -> bool {
    [&b"the."[..], b"a.", b"an.", b"this.", b"that.", b"my.", b"your.", b"our.", b"each.", b"every."]
        .iter()
        .any(|word| domain.get(..word.len()).is_some_and(|head| head.eq_ignore_ascii_case(word)))
}

/// Reads the bytes around `mark`, from `floor` on, without the disguise. Returns where the next look may begin.
fn disguised_around(lane: &mut Lane<'_>, mark: usize, floor: usize) -> usize {
    let text = lane.text;
    let from = mark.saturating_sub(DISGUISE_BYTES).max(floor.saturating_sub(DISGUISE_BYTES));
    let to = (mark + DISGUISE_BYTES).min(text.len());
    let mut plain = [0u8; 2 * DISGUISE_BYTES];
    let mut origin = [0u16; 2 * DISGUISE_BYTES];
    let (mut len, mut at, mut signs) = (0, from, [None; 8]);
    let mut sign_count = 0;
    while at < to {
        // Spaces inside the brackets' surroundings belong to the disguise: "ann [at] firm [dot] org".
        if !matches!(text[at], b' ' | b'[' | b'(' | b'{' | b'<' | b'_' | b'-' | b'@') {
            plain[len] = text[at];
            origin[len] = (at - from) as u16;
            len += 1;
            at += 1;
            continue;
        }
        let skipped = usize::from(text[at] == b' ' && matches!(lane.byte(at + 1), b'[' | b'(' | b'{' | b'<'));
        let (byte, width) = match undisguise(&text[at + skipped..to]) {
            Some((byte, width)) => (byte, width + skipped),
            None => (text[at], 1),
        };
        if byte == b'@' && sign_count < signs.len() {
            signs[sign_count] = Some(len);
            sign_count += 1;
        }
        plain[len] = byte;
        origin[len] = (at - from) as u16;
        len += 1;
        at += width;
        if width > 1
            && text[at - 1] != b' '
            && at < to
            && text[at] == b' '
            && text[at - 1] != b'_'
            && text[at - 1] != b'-'
        {
            at += 1;
        }
    }
    lane.work(to - from);
    for sign in signs.into_iter().flatten() {
        if let Some((start, end)) = around(&plain[..len], sign, 0) {
            let last = from + origin[end - 1] as usize + 1;
            let first = from + origin[start] as usize;
            // Without a disguise between them it has been found already.
            let local = &plain[start..sign];
            let disguised = last - first != end - start;
            if disguised && !prose(&plain[sign + 1..end]) && plainly_at(lane, first, last, local) {
                lane.take(Kind::Email, first, last);
            }
        }
    }
    to
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(text: &str) -> Option<&str> {
        let sign = text.find('@')?;
        around(text.as_bytes(), sign, 0).map(|(start, end)| &text[start..end])
    }

    #[test]
    fn addresses_end_where_their_domain_ends() {
        assert_eq!(found("write to ann.b+c@mail.firm.co.uk."), Some("ann.b+c@mail.firm.co.uk"));
        assert_eq!(found("<ann@firm.org>,"), Some("ann@firm.org"));
        assert_eq!(found("邮箱ann@firm.org谢谢"), Some("ann@firm.org"));
        assert_eq!(found("josé@firma.es"), Some("@firma.es"));
    }

    #[test]
    fn file_names_handles_examples_and_versions_are_not_addresses() {
        for text in [
            "icon@2x.png",
            "git@github.com:org/repo",
            "a@example.com",
            "a@mail.example.org",
            "pkg@9.0.2467",
            "@maria and",
            "a@b",
            "getty@tty1.service",
        ] {
            assert_eq!(found(text), None, "{text}");
        }
    }
}
