//! Decoding of the chunked transfer coding (RFC 9112, 7.1), byte for byte, in any split.

use std::ops::Range;

/// Longest chunk-size line (extensions included); they carry nothing here.
const SIZE_LINE_MAX: u32 = 4096;
/// Longest trailer section; it is read and dropped.
const TRAILERS_MAX: u32 = 16 << 10;

/// The coding is broken; the rest of the stream cannot be understood.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ChunkError(pub(crate) &'static str);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// At the first digit of a size.
    SizeStart,
    Size,
    /// White space behind a size: only an extension or the line's end may follow (RFC 9112, 7.1.1).
    SizeSpace,
    Extension,
    SizeLf,
    Data,
    DataCr,
    DataLf,
    /// At the start of a trailer line.
    TrailerStart,
    Trailer,
    TrailerLf,
    EndLf,
    Done,
}

/// Where in the coding the next byte stands.
#[derive(Debug, Clone)]
pub(crate) struct ChunkedDecoder {
    state: State,
    left: u64,
    line: u32,
}

impl Default for ChunkedDecoder {
    fn default() -> Self {
        Self { state: State::SizeStart, left: 0, line: 0 }
    }
}

impl ChunkedDecoder {
    /// The last chunk and its trailers have been read.
    pub(crate) fn is_done(&self) -> bool {
        self.state == State::Done
    }

    /// The next byte starts a chunk: what came so far can be passed on as it is.
    pub(crate) fn is_between_chunks(&self) -> bool {
        matches!(self.state, State::SizeStart | State::Done)
    }

    /// Reads `input`, calls `payload` with each range of content in it, returns the bytes taken (fewer than all only
    /// when the body is done).
    ///
    /// # Errors
    /// When the coding is broken.
    pub(crate) fn decode(&mut self, input: &[u8], mut payload: impl FnMut(Range<usize>)) -> Result<usize, ChunkError> {
        let mut at = 0;
        while at < input.len() && self.state != State::Done {
            if self.state == State::Data {
                let rest = (input.len() - at) as u64;
                let n = self.left.min(rest) as usize;
                payload(at..at + n);
                at += n;
                self.left -= n as u64;
                if self.left == 0 {
                    self.state = State::DataCr;
                }
                continue;
            }
            self.step(input[at])?;
            at += 1;
        }
        Ok(at)
    }

    fn step(&mut self, byte: u8) -> Result<(), ChunkError> {
        self.line = self.line.saturating_add(1);
        self.state = match (self.state, byte) {
            (State::SizeStart, _) => {
                self.left = u64::from(hex(byte).ok_or(ChunkError("a chunk does not start with its size"))?);
                self.line = 1;
                State::Size
            }
            (State::Size, b'\r') => State::SizeLf,
            (State::Size | State::SizeSpace, b';') => State::Extension,
            (State::Size | State::SizeSpace, b' ' | b'\t') if self.line <= SIZE_LINE_MAX => State::SizeSpace,
            (State::SizeSpace, b'\r') => State::SizeLf,
            (State::SizeSpace, _) => return Err(ChunkError("a chunk has two sizes")),
            (State::Size, _) => {
                let digit = hex(byte).ok_or(ChunkError("bad digit in a chunk size"))?;
                if self.left >> 48 != 0 || self.line > 16 {
                    return Err(ChunkError("chunk size out of range"));
                }
                self.left = self.left << 4 | u64::from(digit);
                State::Size
            }
            (State::Extension, b'\r') => State::SizeLf,
            (State::Extension, b'\n') => return Err(ChunkError("line feed in a chunk extension")),
            (State::Extension, _) if self.line > SIZE_LINE_MAX => return Err(ChunkError("chunk extension too long")),
            (State::Extension, _) => State::Extension,
            (State::SizeLf, b'\n') if self.left == 0 => {
                self.line = 0;
                State::TrailerStart
            }
            (State::SizeLf, b'\n') => State::Data,
            (State::DataCr, b'\r') => State::DataLf,
            (State::DataLf, b'\n') => State::SizeStart,
            (State::TrailerStart, b'\r') => State::EndLf,
            (State::TrailerStart | State::Trailer, b'\n') => return Err(ChunkError("bare line feed in trailers")),
            (State::TrailerStart | State::Trailer, _) if self.line > TRAILERS_MAX => {
                return Err(ChunkError("trailers too long"));
            }
            (State::Trailer, b'\r') => State::TrailerLf,
            (State::TrailerStart | State::Trailer, _) => State::Trailer,
            (State::TrailerLf, b'\n') => State::TrailerStart,
            (State::EndLf, b'\n') => State::Done,
            (State::SizeLf | State::TrailerLf | State::EndLf | State::DataLf, _) => {
                return Err(ChunkError("carriage return without line feed"));
            }
            (State::DataCr, _) => return Err(ChunkError("a chunk is longer than its size")),
            (State::Data | State::Done, _) => return Ok(()),
        };
        Ok(())
    }
}

fn hex(byte: u8) -> Option<u8> {
    match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        b'A'..=b'F' => Some(byte - b'A' + 10),
        _ => None,
    }
}

/// Appends the head of a chunk of `len` bytes.
pub(crate) fn push_chunk_head(to: &mut Vec<u8>, len: usize) {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let digits = (usize::BITS - len.max(1).leading_zeros()).div_ceil(4);
    for i in (0..digits).rev() {
        to.push(DIGITS[len >> (4 * i) & 15]);
    }
    to.extend_from_slice(b"\r\n");
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn decode_split(input: &[u8], cuts: &[usize]) -> Result<(Vec<u8>, usize, bool), ChunkError> {
        let mut decoder = ChunkedDecoder::default();
        let (mut out, mut taken, mut from) = (Vec::new(), 0, 0);
        for &cut in cuts.iter().chain([&input.len()]) {
            let part = &input[from..cut];
            let n = decoder.decode(part, |range| out.extend_from_slice(&part[range]))?;
            taken += n;
            if n < part.len() {
                break;
            }
            from = cut;
        }
        Ok((out, taken, decoder.is_done()))
    }

    #[test]
    fn content_comes_out_and_what_follows_stays() {
        let input = b"4 ;name=\"v\"\r\nwiki\r\n0A\r\n0123456789\r\n0\r\nX-T: 1\r\n\r\nGET /";
        let (out, taken, done) = decode_split(input, &[]).unwrap();
        assert_eq!(out, b"wiki0123456789");
        assert_eq!(&input[taken..], b"GET /");
        assert!(done);
    }

    #[test]
    fn broken_codings_are_refused() {
        let cases: [&[u8]; 13] = [
            b"\r\n",
            b"g\r\n",
            b"4\nwiki",
            b"4\r\nwikis\r\n",
            b"-4\r\n",
            b"+4\r\n",
            b"0x4\r\n",
            b"4\rX",
            b" 4\r\n",
            b"fffffffffffffffff\r\n",
            b"0\r\nx: 1\n\r\n",
            b"4 4\r\nwiki\r\n",
            b"4 x\r\nwiki\r\n",
        ];
        for case in cases {
            assert!(decode_split(case, &[]).is_err(), "{:?} was taken", String::from_utf8_lossy(case));
        }
        let mut long = b"1;".to_vec();
        long.resize(10_000, b'x');
        assert!(decode_split(&long, &[]).is_err());
    }

    #[test]
    fn chunk_heads_are_read_back() {
        for len in [1_usize, 15, 16, 255, 256, 65_535, 1 << 20] {
            let mut text = Vec::new();
            push_chunk_head(&mut text, len);
            assert_eq!(text, format!("{len:x}\r\n").into_bytes());
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(300))]
        #[test]
        fn split_anywhere_equals_whole(
            chunks in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 1..40), 0..6),
            cuts in proptest::collection::vec(0_usize..400, 0..8),
        ) {
            let mut input = Vec::new();
            for chunk in &chunks {
                push_chunk_head(&mut input, chunk.len());
                input.extend(chunk);
                input.extend(b"\r\n");
            }
            input.extend(b"0\r\nA: b\r\n\r\nrest");
            let mut cuts: Vec<usize> = cuts.into_iter().filter(|&c| c < input.len()).collect();
            cuts.sort_unstable();
            let (out, taken, done) = decode_split(&input, &cuts).unwrap();
            prop_assert_eq!(out, chunks.concat());
            prop_assert_eq!(taken, input.len() - 4);
            prop_assert!(done);
        }

        #[test]
        fn any_bytes_give_the_same_in_any_split(
            input in proptest::collection::vec(prop_oneof![Just(b'\r'), Just(b'\n'), Just(b'1'), Just(b'0'), Just(b';'), any::<u8>()], 0..80),
            cut in 0_usize..80,
        ) {
            prop_assume!(cut < input.len());
            prop_assert_eq!(decode_split(&input, &[]).ok(), decode_split(&input, &[cut]).ok());
        }
    }
}
