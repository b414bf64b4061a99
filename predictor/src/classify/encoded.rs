//! The second look: long base64 and hexadecimal tokens are decoded once, and readable results are scanned like text.
//!
//! One level only. Lines of wrapped base64 are read as one token. Random bytes are almost never readable (twelve random bytes are all
//! printable once in 150 000 tries), so images, hashes and keys cost their decoding and no more.

use super::classes::Classes;

/// Characters of a line of wrapped base64 (RFC 2045 allows 76, PEM uses 64).
const LINE_BYTES_MIN: usize = 60;

/// The value of a base64 character of either alphabet (RFC 4648, sections 4 and 5).
const fn sextet(byte: u8) -> Option<u8> {
    match byte {
        b'A'..=b'Z' => Some(byte - b'A'),
        b'a'..=b'z' => Some(byte - b'a' + 26),
        b'0'..=b'9' => Some(byte - b'0' + 52),
        b'+' | b'-' => Some(62),
        b'/' | b'_' => Some(63),
        _ => None,
    }
}

/// [`sextet`] of every byte; [`NO_SEXTET`] where there is none.
const SEXTETS: [u8; 256] = {
    let (mut table, mut byte) = ([NO_SEXTET; 256], 0);
    while byte < 256 {
        if let Some(value) = sextet(byte as u8) {
            table[byte] = value;
        }
        byte += 1;
    }
    table
};
const NO_SEXTET: u8 = u8::MAX;

/// The next token at or behind `from`, as offsets.
pub(super) fn next_token(text: &[u8], classes: &Classes, from: usize) -> Option<(usize, usize)> {
    let start = classes.next_sextets(from)?;
    let mut line = start;
    loop {
        let end = classes.next_no_sextet(line);
        let wrapped = end - line >= LINE_BYTES_MIN
            && (end - line).is_multiple_of(4)
            && text.get(end) == Some(&b'\n')
            && text.get(end + 1).is_some_and(|byte| sextet(*byte).is_some());
        if !wrapped {
            return Some((start, end));
        }
        line = end + 1;
    }
}

/// Decodes `token` into `out` if the result is text. Hexadecimal is tried first, as its digits are also base64.
pub(super) fn decode(token: &[u8], out: &mut Vec<u8>) -> bool {
    let letters_only = token.iter().all(|byte| byte.is_ascii_lowercase() || matches!(byte, b'-' | b'_' | b'/'));
    if letters_only {
        return false;
    }
    let hex = token.len().is_multiple_of(2) && token.iter().all(u8::is_ascii_hexdigit);
    if hex && decode_hex(token, out) {
        return true;
    }
    // A token cut by the edge of a slice begins anywhere in a group of four.
    (0..4).any(|skip| decode_base64(&token[skip..], out))
}

fn decode_hex(token: &[u8], out: &mut Vec<u8>) -> bool {
    out.clear();
    let digit = |byte: u8| char::from(byte).to_digit(16).unwrap_or(0) as u8;
    let mut reading = Reading::default();
    for pair in token.chunks_exact(2) {
        let byte = digit(pair[0]) * 16 + digit(pair[1]);
        if !reading.takes(byte) {
            return false;
        }
        out.push(byte);
    }
    readable(out)
}

fn decode_base64(token: &[u8], out: &mut Vec<u8>) -> bool {
    out.clear();
    let (mut bits, mut held) = (0u32, 0u32);
    let mut reading = Reading::default();
    for byte in token {
        let value = SEXTETS[*byte as usize];
        if value == NO_SEXTET {
            continue;
        }
        bits = bits << 6 | u32::from(value);
        held += 6;
        if held >= 8 {
            held -= 8;
            let byte = (bits >> held) as u8;
            if !reading.takes(byte) {
                return false;
            }
            out.push(byte);
        }
    }
    readable(out)
}

/// Tells with the first byte that does not belong there that bytes are no text: random ones end after two or three.
#[derive(Debug, Default)]
struct Reading {
    /// Bytes of a character that are still to come.
    more: u8,
}

impl Reading {
    fn takes(&mut self, byte: u8) -> bool {
        if self.more > 0 {
            self.more -= 1;
            return byte & 0xc0 == 0x80;
        }
        self.more = match byte {
            b'\n' | b'\r' | b'\t' | 0x20..=0x7e => 0,
            0xc2..=0xdf => 1,
            0xe0..=0xef => 2,
            0xf0..=0xf4 => 3,
            _ => return false,
        };
        true
    }
}

/// Whether bytes are text: printable ASCII, line ends, and perhaps a character of another script cut at the end.
fn readable(bytes: &[u8]) -> bool {
    let valid = match std::str::from_utf8(bytes) {
        Ok(_) => bytes.len(),
        Err(error) if error.error_len().is_none() => error.valid_up_to(),
        Err(_) => return false,
    };
    let ascii = bytes.iter().filter(|byte| byte.is_ascii()).count();
    valid > 0
        && ascii * 2 >= bytes.len()
        && bytes.iter().all(|byte| *byte >= 0x20 && *byte != 0x7f || matches!(byte, b'\n' | b'\r' | b'\t'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readable_tokens_are_decoded_and_random_ones_are_not() {
        let mut out = Vec::new();
        assert!(decode(b"YW5uQGZpcm0ub3JnIGNhbGw", &mut out));
        assert_eq!(out, b"ann@firm.org call");
        assert!(decode(b"616e6e406669726d2e6f7267", &mut out));
        assert_eq!(out, b"ann@firm.org");
        assert!(!decode(b"3c14b4f06673c62a7e9730c110b595f2f5d7dd9b9e18e843", &mut out));
        assert!(!decode(b"iVBORw0KGgoCQIEhvtVIfDTrNBhD4aW", &mut out));
    }

    #[test]
    fn a_token_cut_anywhere_is_still_read() {
        let whole = b"VGhlIGN1c3RvbWVyIHdyb3RlIGZyb20gYW5uQGZpcm0ub3JnIHRvZGF5";
        let mut out = Vec::new();
        for cut in 0..8 {
            assert!(decode(&whole[cut..], &mut out), "cut at {cut}");
            assert!(String::from_utf8_lossy(&out).contains("ann@firm.org"), "cut at {cut}");
        }
    }

    #[test]
    fn wrapped_lines_are_one_token() {
        let line = "QUJD".repeat(16);
        let text = format!("see {line}\n{line}\nQUJD end");
        assert_eq!(next_token(text.as_bytes(), &Classes::of(text.as_bytes()), 4), Some((4, 4 + 64 + 1 + 64 + 1 + 4)));
    }
}
