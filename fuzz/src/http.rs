//! HTTP/1.1 framing: heads, chunked coding, targets.

use lb::probe::http1::{self, Chunked, Framing, Lines, Seen};
use policy::Api;

use crate::input::{prefixes, splits};

/// The head of a request: ranges are what a line by line reading finds, the length of the body is never ambiguous, what
/// travels on is no header of the hop, and a prefix is never complete, nor refused where the whole is not.
pub fn request_head(data: &[u8]) {
    let whole = http1::request_head(data);
    for end in prefixes(data) {
        match (http1::request_head(&data[..end]), &whole) {
            (Err(_), Ok(_)) => panic!("{end} bytes are refused and the whole is not"),
            (Ok(Some(part)), whole) => assert_eq!(Ok(Some(part)), *whole, "complete with {end} bytes"),
            (Ok(None), _) | (Err(_), Err(_)) => {}
        }
    }
    let Ok(Some(seen)) = whole else { return };
    let (first, second, lines) = check_shape(data, &seen, http1::request_head);
    assert_eq!((&seen.first, &seen.second), (&first, &second));
    assert!(!first.is_empty() && first.iter().all(u8::is_ascii_graphic), "a method of odd bytes");
    assert!(!second.is_empty() && second.iter().all(|byte| *byte > b' ' && *byte != 0x7F), "a target of odd bytes");
    if seen.minor_version == 1 {
        assert_eq!(values(&lines, "host").len(), 1, "exactly one Host header");
    }
    let lengths = lengths(&lines);
    let want = match (values(&lines, "transfer-encoding").is_empty(), lengths.first()) {
        (false, None) => Framing::Chunked,
        (false, Some(_)) => panic!("both lengths were taken"),
        (true, None | Some(0)) => Framing::None,
        (true, Some(bytes)) => Framing::Length(*bytes),
    };
    assert!(want != Framing::Chunked || seen.minor_version == 1, "chunks in HTTP/1.0");
    assert_eq!(seen.framing, want);
    check_travelling(&seen, &[&HOP[..], &OURS[..]].concat());
}

/// The head of an answer, as [`request_head`].
pub fn response_head(data: &[u8]) {
    for asked in ["POST", "HEAD"] {
        let whole = http1::response_head(data, asked);
        for end in prefixes(data) {
            match (http1::response_head(&data[..end], asked), &whole) {
                (Err(_), Ok(_)) => panic!("{end} bytes are refused and the whole is not"),
                (Ok(Some(part)), whole) => assert_eq!(Ok(Some(part)), *whole, "complete with {end} bytes"),
                (Ok(None), _) | (Err(_), Err(_)) => {}
            }
        }
        let Ok(Some(seen)) = whole else { continue };
        let (_, second, lines) = check_shape(data, &seen, |head| http1::response_head(head, asked));
        let status: u16 = text(&seen.first).parse().expect("a status is a number");
        assert!((100..=999).contains(&status), "status {status}");
        let rest = second.strip_prefix(&seen.first[..]).expect("the status stands behind the version");
        // A reason that is not ASCII is left out.
        let reason = if rest.is_ascii() { trimmed(rest) } else { b"" };
        assert_eq!(reason, trimmed(&seen.second), "the reason");
        let bodiless = asked == "HEAD" || status < 200 || status == 204 || status == 304;
        let want = match (bodiless, values(&lines, "transfer-encoding").is_empty(), lengths_if(!bodiless, &lines)) {
            (true, _, _) => Framing::None,
            (false, false, _) => Framing::Chunked,
            (false, true, Some(0)) => Framing::None,
            (false, true, Some(bytes)) => Framing::Length(bytes),
            (false, true, None) => Framing::UntilClose,
        };
        assert_eq!(seen.framing, want);
        if seen.framing == Framing::UntilClose {
            assert!(!seen.keep_alive, "nothing follows a body that ends with its connection");
        }
        check_travelling(&seen, &[&HOP[..], &["x-request-id"][..]].concat());
    }
}

fn lengths_if(read: bool, lines: &Lines) -> Option<u64> {
    (read && values(lines, "transfer-encoding").is_empty()).then(|| lengths(lines).first().copied()).flatten()
}

/// Names of headers that belong to one hop (RFC 9110, 7.6.1), or tell a length.
const HOP: [&str; 10] = [
    "connection",
    "content-length",
    "keep-alive",
    "proxy-authenticate",
    "proxy-authorization",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];
/// Names of headers that are the client's credentials, or are written anew.
const OURS: [&str; 12] = [
    "api-key",
    "authorization",
    "cookie",
    "expect",
    "host",
    "openai-organization",
    "openai-project",
    "x-api-key",
    "x-forwarded-for",
    "x-forwarded-proto",
    "x-goog-api-key",
    "x-request-id",
];

/// First and second part of the start line and the header lines, read line by line, and that they are what was seen.
fn check_shape(
    data: &[u8],
    seen: &Seen,
    again: impl Fn(&[u8]) -> Result<Option<Seen>, String>,
) -> (Vec<u8>, Vec<u8>, Lines) {
    let head = data.get(..seen.head_bytes).expect("a head is not longer than what there is");
    assert_eq!(again(head), Ok(Some(seen.clone())), "what follows a head is not part of it");
    let mut rows = head.split(|byte| *byte == b'\n').map(|row| row.strip_suffix(b"\r").unwrap_or(row));
    let start = rows.find(|row| !row.is_empty()).expect("a head has a start line");
    let mut words = start.splitn(2, |byte| *byte == b' ');
    let first = words.next().unwrap_or_default().to_vec();
    let mut second = words.next().unwrap_or_default().to_vec();
    let version = format!("HTTP/1.{}", seen.minor_version);
    if first != version.as_bytes() {
        let end = second.len() - version.len() - 1;
        assert_eq!(&second[end..], format!(" {version}").as_bytes());
        second.truncate(end);
    }
    let mut lines = Lines::new();
    for row in rows.by_ref() {
        if row.is_empty() {
            break;
        }
        let colon = row.iter().position(|byte| *byte == b':').expect("a header line has a colon");
        lines.push((row[..colon].to_vec(), trimmed(&row[colon + 1..]).to_vec()));
    }
    assert_eq!(rows.collect::<Vec<_>>(), [b""], "the empty line is the end");
    assert_eq!(seen.lines, lines);
    for (name, value) in &lines {
        let token = |byte: &u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(byte);
        assert!(!name.is_empty() && name.iter().all(token), "{name:?} is no name");
        let visible = |byte: &u8| *byte == b'\t' || (*byte >= b' ' && *byte != 0x7F);
        assert!(value.iter().all(visible), "{value:?} holds a forbidden byte");
    }
    (first, second, lines)
}

fn check_travelling(seen: &Seen, stay: &[&str]) {
    let named: Vec<&[u8]> = values(&seen.lines, "connection")
        .into_iter()
        .flat_map(|value| value.split(|byte| *byte == b','))
        .map(<[u8]>::trim_ascii)
        .collect();
    let travels = |name: &[u8]| {
        !stay.iter().any(|known| name.eq_ignore_ascii_case(known.as_bytes()))
            && !named.iter().any(|word| word.eq_ignore_ascii_case(name))
    };
    let want: Lines = seen.lines.iter().filter(|(name, _)| travels(name)).cloned().collect();
    assert_eq!(seen.travelling, want);
    // What is sent is read by the next one as what was meant.
    let mut sent = b"GET / HTTP/1.1\r\nhost: a\r\n".to_vec();
    for (name, value) in want.iter().take(100) {
        sent.extend([&name[..], b": ", value, b"\r\n"].concat());
    }
    sent.extend(b"\r\n");
    let again = http1::request_head(&sent).expect("lines that travel are good").expect("and whole");
    assert_eq!(again.head_bytes, sent.len());
    assert_eq!(again.lines[1..], want[..want.len().min(100)]);
    assert_eq!(again.framing, Framing::None);
}

fn values<'a>(lines: &'a Lines, name: &str) -> Vec<&'a [u8]> {
    let named = |line: &&(Vec<u8>, Vec<u8>)| line.0.eq_ignore_ascii_case(name.as_bytes());
    lines.iter().filter(named).map(|(_, value)| &value[..]).collect()
}

/// The lengths that are told, which are all the same.
fn lengths(lines: &Lines) -> Vec<u64> {
    let words = values(lines, "content-length").into_iter().flat_map(|value| value.split(|byte| *byte == b','));
    let lengths: Vec<u64> =
        words.map(|word| text(word.trim_ascii()).parse().expect("a length that was taken is a number")).collect();
    assert!(lengths.windows(2).all(|pair| pair[0] == pair[1]), "different lengths were taken");
    lengths
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).expect("numbers are text")
}

fn trimmed(value: &[u8]) -> &[u8] {
    let space = |byte: &u8| matches!(byte, b' ' | b'\t');
    let start = value.iter().position(|byte| !space(byte)).unwrap_or(value.len());
    let end = value.iter().rposition(|byte| !space(byte)).map_or(start, |at| at + 1);
    &value[start..end]
}

/// The chunked coding: the same in any split, the payload is that of a reading with all bytes at hand, and what comes out,
/// encoded again, comes out again.
pub fn chunked(data: &[u8]) {
    let whole = dechunked(&[data]);
    for parts in splits(data) {
        assert_eq!(dechunked(&parts), whole, "split");
    }
    let slow = slow_dechunked(data);
    match &whole {
        Ok((payload, taken, true)) => {
            assert_eq!(slow, Some((payload.clone(), *taken)));
            let mut again: Vec<u8> = payload.chunks(7).flat_map(http1::chunk_of).collect();
            again.extend(b"0\r\n\r\n");
            assert_eq!(dechunked(&[&again]), Ok((payload.clone(), again.len(), true)));
        }
        Ok((payload, taken, false)) => {
            assert_eq!(*taken, data.len(), "all is taken before the end");
            assert!(payload.len() <= data.len() && slow.is_none());
        }
        Err(_) => assert_eq!(slow, None),
    }
}

fn dechunked(parts: &[&[u8]]) -> Result<(Vec<u8>, usize, bool), &'static str> {
    let (mut decoder, mut payload, mut taken) = (Chunked::default(), Vec::new(), 0);
    for part in parts {
        let n = decoder.decode(part, &mut payload)?;
        taken += n;
        assert!(n == part.len() || decoder.is_done(), "bytes are left although the body is not over");
    }
    Ok((payload, taken, decoder.is_done()))
}

/// A whole chunked body at the start of `data`: its payload and its length.
fn slow_dechunked(data: &[u8]) -> Option<(Vec<u8>, usize)> {
    let (mut payload, mut at) = (Vec::new(), 0);
    let line = |at: usize| {
        let end = at + data.get(at..)?.windows(2).position(|pair| pair == b"\r\n")?;
        let row = &data[at..end];
        (!row.contains(&b'\r') && !row.contains(&b'\n')).then_some((row, end + 2))
    };
    loop {
        let (row, behind) = line(at)?;
        let digits = row.iter().position(|byte| !byte.is_ascii_hexdigit()).unwrap_or(row.len());
        let rest = trimmed(&row[digits..]);
        if row.len() > 4096 || digits == 0 || digits > 13 + row.iter().take_while(|byte| **byte == b'0').count() {
            return None;
        }
        if digits > 16 || !(rest.is_empty() || rest[0] == b';') {
            return None;
        }
        let size = usize::from_str_radix(std::str::from_utf8(&row[..digits]).ok()?, 16).ok()?;
        at = behind;
        if size == 0 {
            break;
        }
        payload.extend_from_slice(data.get(at..at.checked_add(size)?)?);
        at += size;
        at = data.get(at..)?.starts_with(b"\r\n").then_some(at + 2)?;
    }
    let trailers = at;
    loop {
        let (row, behind) = line(at)?;
        at = behind;
        if row.is_empty() {
            return Some((payload, at));
        }
        if at - trailers > 16 << 10 {
            return None;
        }
    }
}

/// Request targets: what is left is a part of what came, the same when read again, and an upstream is asked for the path that
/// was routed by.
pub fn target(data: &[u8]) {
    let seen = http1::target(data);
    assert!(data.ends_with(&seen.origin_form) || seen.origin_form == b"/");
    assert!(seen.origin_form.starts_with(&seen.path));
    assert!(!seen.path.contains(&b'?') && !seen.path.contains(&b'#'));
    assert!(seen.path.len() <= 1 || !seen.path.ends_with(b"/"), "a trailing slash is left");
    if seen.api == Api::Other {
        assert_eq!(seen.upstream, seen.origin_form);
    } else {
        assert!(seen.upstream.starts_with(&seen.path));
        let again = http1::target(&seen.upstream);
        assert_eq!((again.path, again.api), (seen.path, seen.api), "the upstream sees another path");
    }
    let decoded = http1::percent_decoded(data);
    if !data.contains(&b'%') {
        assert_eq!(decoded, String::from_utf8_lossy(data));
    }
    let encoded: String = decoded.bytes().map(|byte| format!("%{byte:02x}")).collect();
    assert_eq!(http1::percent_decoded(encoded.as_bytes()), decoded);
    if let Some(id) = http1::request_id(data) {
        assert!(id.as_bytes() == data && data.len() <= 128 && data.iter().all(u8::is_ascii_graphic));
    }
}
