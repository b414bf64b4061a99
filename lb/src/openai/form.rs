//! `multipart/form-data` bodies (RFC 7578), looked at in place: where the value of each field is. One pass over the bytes,
//! nothing is copied, and the file of an upload is only passed over.

use std::ops::Range;

use config::limits::{FORM_PART_HEAD_BYTES_MAX, FORM_PARTS_MAX};
use memchr::memmem;

/// Longest boundary. RFC 2046 allows 70 characters; some clients do not count.
const BOUNDARY_BYTES_MAX: usize = 256;

/// The boundary that a `Content-Type` names.
pub(crate) fn boundary(content_type: &[u8]) -> Option<&[u8]> {
    let media = content_type.split(|&b| b == b';').next()?;
    if !media.trim_ascii().eq_ignore_ascii_case(b"multipart/form-data") {
        return None;
    }
    parameter(content_type, b"boundary").filter(|boundary| (1..=BOUNDARY_BYTES_MAX).contains(&boundary.len()))
}

/// Calls `each(name, range of the value)` for every field that is not a file. `None` when `body` is no whole form.
pub(crate) fn fields<'a>(body: &'a [u8], boundary: &[u8], mut each: impl FnMut(&'a [u8], Range<usize>)) -> Option<()> {
    let delimiter = [b"\r\n--", boundary].concat();
    let finder = memmem::Finder::new(&delimiter);
    let mut at = first_part(body, &delimiter, &finder)?;
    for _ in 0..FORM_PARTS_MAX {
        let Some(start) = at else { return Some(()) };
        let (end, next) = next_delimiter(body, start, &delimiter, &finder)?;
        if let Some((name, value)) = field(body, start..end) {
            each(name, value);
        }
        at = next;
    }
    None
}

/// What follows a delimiter: the start of a part, or `None` for the last delimiter. Nothing when it is no delimiter but
/// content that begins like one.
fn behind_delimiter(body: &[u8], at: usize) -> Option<Option<usize>> {
    match body.get(at..at + 2)? {
        b"\r\n" => Some(Some(at + 2)),
        b"--" => Some(None),
        _ => None,
    }
}

fn first_part(body: &[u8], delimiter: &[u8], finder: &memmem::Finder<'_>) -> Option<Option<usize>> {
    // The line break before the first delimiter is that of the preamble, which is missing most of the time.
    let dashes = delimiter.get(2..)?;
    if body.starts_with(dashes)
        && let Some(next) = behind_delimiter(body, dashes.len())
    {
        return Some(next);
    }
    next_delimiter(body, 0, delimiter, finder).map(|(_, next)| next)
}

/// Where the part from `from` ends, and where the next one begins.
fn next_delimiter(
    body: &[u8],
    from: usize,
    delimiter: &[u8],
    finder: &memmem::Finder<'_>,
) -> Option<(usize, Option<usize>)> {
    // A part may be empty to its last line break, which then belongs to the delimiter.
    let from = from.saturating_sub(2);
    let mut candidates = finder.find_iter(body.get(from..)?).map(|at| from + at);
    candidates.find_map(|at| behind_delimiter(body, at + delimiter.len()).map(|next| (at, next)))
}

/// The name and the value of a part; `None` when it is a file, or has no name.
fn field(body: &[u8], part: Range<usize>) -> Option<(&[u8], Range<usize>)> {
    let bytes = body.get(part.clone())?;
    let head = &bytes[..bytes.len().min(FORM_PART_HEAD_BYTES_MAX)];
    let head_end = memmem::find(head, b"\r\n\r\n")?;
    let disposition = head[..head_end].split(|&b| b == b'\n').find_map(|line| {
        let colon = memchr::memchr(b':', line)?;
        line[..colon].trim_ascii().eq_ignore_ascii_case(b"content-disposition").then(|| line[colon + 1..].trim_ascii())
    })?;
    if parameter(disposition, b"filename").is_some() || parameter(disposition, b"filename*").is_some() {
        return None;
    }
    Some((parameter(disposition, b"name")?, part.start + head_end + 4..part.end))
}

/// The value of a parameter of a header value, without its quotes (its escapes stay).
fn parameter<'a>(value: &'a [u8], name: &[u8]) -> Option<&'a [u8]> {
    let mut rest = behind_semicolon(value);
    while !rest.is_empty() {
        let equals = memchr::memchr2(b'=', b';', rest).filter(|&at| rest[at] == b'=');
        let Some(equals) = equals else {
            rest = behind_semicolon(rest);
            continue;
        };
        let (key, after) = (rest[..equals].trim_ascii(), rest[equals + 1..].trim_ascii_start());
        let (found, behind) = match after.split_first() {
            Some((b'"', quoted)) => {
                let end = quoted_end(quoted)?;
                (&quoted[..end], &quoted[end + 1..])
            }
            Some(_) | None => {
                let end = memchr::memchr(b';', after).unwrap_or(after.len());
                (after[..end].trim_ascii(), &after[end..])
            }
        };
        if key.eq_ignore_ascii_case(name) {
            return Some(found);
        }
        rest = behind_semicolon(behind);
    }
    None
}

fn behind_semicolon(text: &[u8]) -> &[u8] {
    memchr::memchr(b';', text).map_or(&[][..], |at| &text[at + 1..])
}

/// Where the closing quote is (RFC 9110, 5.6.4).
fn quoted_end(quoted: &[u8]) -> Option<usize> {
    let mut from = 0;
    loop {
        let found = from + memchr::memchr2(b'"', b'\\', quoted.get(from..)?)?;
        if quoted[found] == b'"' {
            return Some(found);
        }
        from = found + 2;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn read(body: &[u8], boundary: &[u8]) -> Option<Vec<(String, Vec<u8>)>> {
        let mut found = Vec::new();
        fields(body, boundary, |name, value| {
            found.push((String::from_utf8_lossy(name).into_owned(), body[value].to_vec()));
        })?;
        Some(found)
    }

    const FORM: &[u8] = b"--XX\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a; name=\\\"model\\\".wav\"\r\nContent-Type: audio/wav\r\n\r\n\
        RIFF\r\n--X\r\n--XXY\r\n\r\n\r\n--XX\r\ncontent-disposition:form-data;name=model\r\n\r\nwhisper\r\n--XX\r\n\
        Content-Type: text/plain\r\nContent-Disposition: form-data; name=\"prompt\"\r\n\r\n\r\n--XX--\r\nepilogue";

    #[test]
    fn fields_are_found_behind_a_file_that_looks_like_a_form() {
        let want = [("model".to_owned(), b"whisper".to_vec()), ("prompt".to_owned(), Vec::new())];
        assert_eq!(read(FORM, b"XX").unwrap(), want);
        let preamble = [b"to be ignored\r\n", FORM].concat();
        assert_eq!(read(&preamble, b"XX").unwrap(), want);
    }

    #[test]
    fn what_is_no_whole_form_is_refused() {
        assert_eq!(read(b"", b"XX"), None);
        assert_eq!(read(b"{\"model\":\"m\"}", b"XX"), None);
        assert_eq!(read(FORM, b"YY"), None);
        let last = memmem::rfind(FORM, b"--XX--").unwrap();
        assert_eq!(read(&FORM[..last], b"XX"), None);
        assert_eq!(read(b"--XX--", b"XX").unwrap(), []);
    }

    #[test]
    fn there_is_an_end_to_parts_and_to_their_heads() {
        let part = |name: &str, pad: usize| {
            format!("\r\n--b\r\nX: {}\r\nContent-Disposition: form-data; name={name}\r\n\r\nv", "x".repeat(pad))
        };
        let many = part("n", 0).repeat(FORM_PARTS_MAX) + "\r\n--b--";
        assert_eq!(read(many.as_bytes(), b"b"), None);
        let long = part("long", FORM_PART_HEAD_BYTES_MAX) + &part("short", 9) + "\r\n--b--";
        assert_eq!(read(long.as_bytes(), b"b").unwrap(), [("short".to_owned(), b"v".to_vec())]);
    }

    #[test]
    fn the_boundary_is_read_in_every_way_of_writing_it() {
        for text in [
            "multipart/form-data; boundary=a-b",
            "Multipart/Form-Data;charset=utf-8; BOUNDARY=\"a-b\"",
            "multipart/form-data; x=\"; boundary=no\"; boundary=a-b ; y=1",
        ] {
            assert_eq!(boundary(text.as_bytes()), Some(&b"a-b"[..]), "{text}");
        }
        for text in
            ["application/json", "multipart/form-data", "multipart/form-data; boundary=", "multipart/mixed; boundary=a"]
        {
            assert_eq!(boundary(text.as_bytes()), None, "{text}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(300))]
        #[test]
        fn what_was_written_is_found(parts in proptest::collection::vec(("[a-z]{1,6}", any::<bool>(), proptest::collection::vec(prop_oneof![Just(b'\r'), Just(b'\n'), Just(b'-'), Just(b'b'), any::<u8>()], 0..30)), 0..6)) {
            // A boundary that no part holds.
            let boundary = "b-!-b";
            let (mut body, mut want) = (Vec::new(), Vec::new());
            for (name, file, value) in parts {
                let filename = if file { "; filename=\"f\"" } else { "" };
                body.extend(format!("--{boundary}\r\nContent-Disposition: form-data; name=\"{name}\"{filename}\r\n\r\n").bytes());
                body.extend(&value);
                body.extend(b"\r\n");
                if !file { want.push((name, value)); }
            }
            body.extend(format!("--{boundary}--\r\n").bytes());
            prop_assert_eq!(read(&body, boundary.as_bytes()).unwrap(), want);
        }

        #[test]
        fn no_bytes_panic(bytes in proptest::collection::vec(prop_oneof![Just(b'\r'), Just(b'\n'), Just(b'-'), Just(b'b'), Just(b'"'), Just(b';'), Just(b'='), any::<u8>()], 0..80)) {
            let _ = read(&bytes, b"b");
            let _ = (parameter(&bytes, b"b"), boundary(&[b"multipart/form-data;", &bytes[..]].concat()).is_some());
            let _ = field(&bytes, 0..bytes.len());
        }
    }
}
