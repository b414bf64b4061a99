//! Normalisation: one look at the text that makes disguised and typographic forms plain, and remembers where each byte came from.
//!
//! It turns no-break and thin spaces into spaces, Unicode hyphens and dots into ASCII, full-width and other decimal digits into `0-9`,
//! drops zero-width characters, and decodes escapes of JSON (`\u0040`), other languages (`\x40`), URLs (`%40`), HTML (`&#64;`) and, where
//! an address or a number is broken by them, of quoted-printable text (`=40`, `=` at the end of a line). Other bytes are kept.
//! A text without such bytes is not copied. Linear: each source byte is looked at once, each escape is bounded in length.

use super::classes::{BLOCK_BYTES, specials};

/// A place from which plain bytes correspond one to one to source bytes.
#[derive(Debug, Clone, Copy)]
struct Mark {
    plain: u32,
    source: u32,
}

/// The reused buffers of normalisation.
#[derive(Debug, Default)]
pub(super) struct Buffer {
    bytes: Vec<u8>,
    marks: Vec<Mark>,
}

/// A plain text and the way back to its source.
#[derive(Debug, Clone, Copy)]
pub(super) struct Plain<'a> {
    /// What the lanes read.
    pub(super) bytes: &'a [u8],
    marks: &'a [Mark],
}

impl<'a> Plain<'a> {
    /// A text that is its own source.
    pub(super) fn verbatim(bytes: &'a [u8]) -> Plain<'a> {
        Plain { bytes, marks: &[] }
    }

    /// The source offset of the plain offset `at`.
    pub(super) fn source(&self, at: usize) -> usize {
        let after = self.marks.partition_point(|mark| mark.plain as usize <= at);
        match after.checked_sub(1).and_then(|index| self.marks.get(index)) {
            Some(mark) => mark.source as usize + (at - mark.plain as usize),
            None => at,
        }
    }
}

impl Buffer {
    /// The plain form of `source`. What stays as it is is copied in long stretches, or not at all when everything does.
    pub(super) fn normalise<'a>(&'a mut self, source: &'a str) -> Plain<'a> {
        let bytes = source.as_bytes();
        self.bytes.clear();
        self.marks.clear();
        // What has been copied, and what has been looked at.
        let (mut copied, mut next) = (0, 0);
        for start in (0..bytes.len()).step_by(BLOCK_BYTES) {
            let mut places = specials(&bytes[start..]);
            while places != 0 {
                let at = start + places.trailing_zeros() as usize;
                places &= places - 1;
                if at < next {
                    continue;
                }
                let (read, form) = special_at(source, at);
                next = at + read;
                if let Some(form) = form {
                    self.bytes.extend_from_slice(&bytes[copied..at]);
                    copied = next;
                    self.put(form, next);
                }
            }
        }
        if copied == 0 {
            return Plain::verbatim(bytes);
        }
        self.bytes.extend_from_slice(&bytes[copied..]);
        Plain { bytes: &self.bytes, marks: &self.marks }
    }

    /// Writes the form of a character that ends at `source`.
    fn put(&mut self, form: Form, source: usize) {
        match form {
            Form::Byte(byte) => self.bytes.push(byte),
            Form::Nothing => {}
            Form::Same(char) => self.bytes.extend_from_slice(char.encode_utf8(&mut [0; 4]).as_bytes()),
        }
        self.marks.push(Mark { plain: self.bytes.len() as u32, source: source as u32 });
    }
}

/// How many bytes the escape or character at `at` takes, and its plain form if that is another.
fn special_at(source: &str, at: usize) -> (usize, Option<Form>) {
    let (front, rest) = source.as_bytes().split_at(at);
    let (read, decoded) = match rest[0] {
        b'\\' => match broken_number(front, &rest[1..]) {
            Some(line_end) => return (1 + line_end, Some(Form::Nothing)),
            None => backslash_escape(rest),
        },
        b'=' => return quoted_printable(front, rest),
        b'%' => percent_escape(rest),
        b'&' => html_escape(rest),
        // Kana have no other form. The blocks of which this is told by the first byte are not looked at: see `specials`.
        0xe3 if rest.get(1).is_some_and(|second| *second > 0x80) => return (3, None),
        _ => {
            let Some(char) = source.get(at..).and_then(|rest| rest.chars().next()) else { return (1, None) };
            let form = plain_form(char);
            return (char.len_utf8(), Some(form).filter(|form| !matches!(form, Form::Same(_))));
        }
    };
    (read, decoded.map(plain_form))
}

/// `\uXXXX`, `\n`, `\t`, `\r`, `\"`, `\/`, `\\` (RFC 8259, section 7), and `\xXX` and `\u{XX}` of programs. Tool arguments are JSON inside
/// JSON, so one level is still there.
fn backslash_escape(rest: &[u8]) -> (usize, Option<char>) {
    match rest.get(1) {
        Some(b'u') if rest.get(2) == Some(&b'{') => {
            let end = rest.iter().take(BRACED_BYTES_MAX).position(|byte| *byte == b'}');
            match end.and_then(|end| Some((end + 1, hex(rest.get(3..end)?)?))) {
                Some((read, code)) if read > 4 => (read, char::from_u32(code)),
                Some(_) | None => (1, None),
            }
        }
        Some(b'u') => match rest.get(2..6).and_then(hex) {
            Some(code) => (6, char::from_u32(code)),
            None => (1, None),
        },
        Some(b'x') => match rest.get(2..4).and_then(hex).and_then(char::from_u32) {
            Some(char) if char.is_ascii_graphic() || char == ' ' => (4, Some(char)),
            Some(_) | None => (1, None),
        },
        Some(b'n' | b'r') => (2, Some('\n')),
        Some(b't') => (2, Some('\t')),
        Some(byte @ (b'"' | b'/' | b'\\')) => (2, Some(char::from(*byte))),
        Some(_) | None => (1, None),
    }
}

/// Bytes of `\u{...}`, with six digits.
const BRACED_BYTES_MAX: usize = 10;
/// Characters of a line of quoted-printable text (RFC 2045, section 6.7: at most 76), as programs that write it fill one.
const QUOTED_LINE_BYTES: std::ops::RangeInclusive<usize> = 68..=76;

/// `=40` inside an address, and a `=` at the end of a line (RFC 2045, section 6.7). Both mean something else in most texts: `limit=40`, and
/// a name without a value in a file of settings. So the sign must have a local part in front and a letter behind, and be in no query
/// of a URL; the line must break a number, or be as long as such lines are.
fn quoted_printable(front: &[u8], rest: &[u8]) -> (usize, Option<Form>) {
    if rest.starts_with(b"=40") {
        let local =
            front.iter().rev().take_while(|byte| byte.is_ascii_alphanumeric() || b"._-+".contains(byte)).count();
        let in_query = front[..front.len() - local].last().is_some_and(|byte| matches!(byte, b'?' | b'&'));
        let joins = local > 0 && !in_query && rest.get(3).is_some_and(u8::is_ascii_alphabetic);
        return if joins { (3, Some(Form::Byte(b'@'))) } else { (1, None) };
    }
    let line = front.len() + 1 - memchr::memrchr(b'\n', front).map_or(0, |end| end + 1);
    let full = QUOTED_LINE_BYTES.contains(&line) && front.last().is_some_and(u8::is_ascii_graphic);
    let broken = broken_number(front, &rest[1..]).or_else(|| line_end(&rest[1..]).filter(|_| full));
    broken.map_or((1, None), |line_end| (1 + line_end, Some(Form::Nothing)))
}

/// The length of the line end at the front of `text`, if one is there.
fn line_end(text: &[u8]) -> Option<usize> {
    [&b"\n"[..], b"\r\n"].into_iter().find(|end| text.starts_with(end)).map(<[u8]>::len)
}

/// The length of the line end that `rest` begins with, if a sign between `front` and it continues a number, or a code of capitals, in the
/// next line. A space or a dash may stand on either side.
fn broken_number(front: &[u8], rest: &[u8]) -> Option<usize> {
    let end = line_end(rest)?;
    let of_number = |byte: &&u8| !matches!(byte, b' ' | b'-');
    let before = front.iter().rev().take(2).find(of_number)?;
    let after = rest[end..].iter().take(2).find(of_number)?;
    let code = |byte: &u8| byte.is_ascii_digit() || byte.is_ascii_uppercase();
    (code(before) && code(after) && (before.is_ascii_digit() || after.is_ascii_digit())).then_some(end)
}

/// `%40` and other printable ASCII (RFC 3986, section 2.1).
fn percent_escape(rest: &[u8]) -> (usize, Option<char>) {
    match rest.get(1..3).and_then(hex).and_then(char::from_u32) {
        Some(char) if char.is_ascii_graphic() || char == ' ' => (3, Some(char)),
        Some(_) | None => (1, None),
    }
}

/// `&#64;`, `&#x40;`, `&nbsp;`, `&commat;`, `&period;`.
fn html_escape(rest: &[u8]) -> (usize, Option<char>) {
    for (name, char) in [("&nbsp;", ' '), ("&commat;", '@'), ("&period;", '.')] {
        if rest.starts_with(name.as_bytes()) {
            return (name.len(), Some(char));
        }
    }
    let Some(end) = rest.iter().take(10).position(|byte| *byte == b';') else { return (1, None) };
    let code = match rest.get(1..end) {
        Some([b'#', b'x' | b'X', digits @ ..]) if !digits.is_empty() => hex(digits),
        Some([b'#', digits @ ..]) if !digits.is_empty() => {
            std::str::from_utf8(digits).ok().and_then(|text| text.parse().ok())
        }
        Some(_) | None => None,
    };
    match code.and_then(char::from_u32) {
        Some(char) => (end + 1, Some(char)),
        None => (1, None),
    }
}

fn hex(digits: &[u8]) -> Option<u32> {
    digits.iter().try_fold(0u32, |sum, byte| Some(sum.checked_mul(16)? + char::from(*byte).to_digit(16)?))
}

/// What a character is read as.
#[derive(Debug, Clone, Copy)]
enum Form {
    Byte(u8),
    Nothing,
    Same(char),
}

/// First characters of the blocks of ten decimal digits that people type or paste (Unicode category Nd), and two that look alike.
const DIGIT_ZEROS: [u32; 17] = [
    0x0660, 0x06f0, 0x07c0, 0x0966, 0x09e6, 0x0a66, 0x0ae6, 0x0b66, 0x0be6, 0x0c66, 0x0ce6, 0x0d66, 0x0e50, 0x0ed0,
    0x1040, 0x17e0, 0x1810,
];

fn plain_form(char: char) -> Form {
    let code = char as u32;
    match code {
        0x00a0 | 0x1680 | 0x2000..=0x200a | 0x2028 | 0x2029 | 0x202f | 0x205f | 0x3000 => Form::Byte(b' '),
        0x00ad
        | 0x034f
        | 0x061c
        | 0x180e
        | 0x200b..=0x200f
        | 0x202a..=0x202e
        | 0x2060..=0x2069
        | 0x20e3
        | 0xfe00..=0xfe0f
        | 0xfeff => Form::Nothing,
        0xff01..=0xff5e => Form::Byte((code - 0xff01) as u8 + b'!'),
        0x2010..=0x2015 | 0x2043 | 0x2212 | 0xfe58 | 0xfe63 => Form::Byte(b'-'),
        0x2018 | 0x2019 | 0x02bc => Form::Byte(b'\''),
        0x201c..=0x201e => Form::Byte(b'"'),
        0x00b7 | 0x2022 | 0x2024 | 0x2027 | 0x3002 | 0xff61 => Form::Byte(b'.'),
        0xfe6b => Form::Byte(b'@'),
        0x2044 | 0x2215 => Form::Byte(b'/'),
        0x00b9 => Form::Byte(b'1'),
        0x00b2 | 0x00b3 => Form::Byte((code - 0x00b0) as u8 + b'0'),
        0x2070 | 0x2074..=0x2079 => Form::Byte((code - 0x2070) as u8 + b'0'),
        0x2080..=0x2089 => Form::Byte((code - 0x2080) as u8 + b'0'),
        0x2460..=0x2468 => Form::Byte((code - 0x2460) as u8 + b'1'),
        0x24ea => Form::Byte(b'0'),
        0x1d7ce..=0x1d7ff => Form::Byte(((code - 0x1d7ce) % 10) as u8 + b'0'),
        0x1d400..=0x1d433 => Form::Byte(letter(code - 0x1d400)),
        _ if code < 0x80 => Form::Byte(code as u8),
        _ => match DIGIT_ZEROS.iter().find(|zero| (**zero..**zero + 10).contains(&code)) {
            Some(zero) => Form::Byte((code - zero) as u8 + b'0'),
            None => Form::Same(char),
        },
    }
}

/// Mathematical bold capitals, then small letters.
fn letter(index: u32) -> u8 {
    if index < 26 { b'A' + index as u8 } else { b'a' + (index - 26) as u8 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn plain(source: &str) -> String {
        String::from_utf8_lossy(Buffer::default().normalise(source).bytes).into_owned()
    }

    #[test]
    fn typographic_and_escaped_forms_become_plain() {
        assert_eq!(plain("4111\u{a0}1111\u{2009}1111\u{2011}1111"), "4111 1111 1111-1111");
        assert_eq!(plain("４１１１\u{200b}١١"), "411111");
        assert_eq!(plain("a\\u0040b.org a%40b.org a&#64;b.org a&#x40;b.org"), "a@b.org a@b.org a@b.org a@b.org");
        assert_eq!(plain("a\\x40b.org a\\u{40}b.org a&commat;b.org a=40b.org"), "a@b.org a@b.org a@b.org a@b.org");
        assert_eq!(plain("4111 1111=\n1111=\r\n1111 12 \\\n34"), "4111 111111111111 12 34");
        for same in
            ["limit=40 ?a=40b.org&b=40c.org =40b.org", "NAME=\nSSN=1\nA=\nb=2", "C:\\dir\\\nnext", "\\x4 \\u{} \\u{zz"]
        {
            assert_eq!(plain(same), same);
        }
        let line = "x".repeat(QUOTED_LINE_BYTES.end() - 1);
        assert_eq!(plain(&format!("{line}=\nyz")), format!("{line}yz"));
        assert_eq!(plain("100% of R&D in C:\\dir"), "100% of R&D in C:\\dir");
        assert_eq!(plain("é身份证号420"), "é身份证号420");
    }

    #[test]
    fn offsets_lead_back_to_the_source() {
        let source = "é １２\u{200b}3 %40x";
        let mut buffer = Buffer::default();
        let form = buffer.normalise(source);
        for (wanted, original) in [("1", "１"), ("2", "２"), ("3", "3"), ("@", "%40"), ("x", "x")] {
            let at = form.bytes.iter().position(|byte| *byte == wanted.as_bytes()[0]).expect("in the plain form");
            let start = form.source(at);
            assert!(source[start..].trim_start_matches('\u{200b}').starts_with(original), "{wanted} at {start}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(128))]
        #[test]
        fn offsets_never_go_back_and_never_pass_the_end(source in "[\\\\%&#;=\n{}ux0-9a-f@ ×é１\u{200b}\u{2011}]{0,40}") {
            let mut buffer = Buffer::default();
            let form = buffer.normalise(&source);
            let mut last = 0;
            for at in 0..=form.bytes.len() {
                let here = form.source(at);
                prop_assert!(here >= last && here <= source.len());
                last = here;
            }
            prop_assert_eq!(last, source.len());
        }
    }
}
