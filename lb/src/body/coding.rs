//! Content codings of request bodies (RFC 9110, 8.4), decoded in steps of bounded work: no step makes more than it is given
//! room for, or reads much more, so that a bomb costs no more than the limit of the body it would become.

use std::io::Read;

use flate2::{Crc, Decompress, FlushDecompress, Status};
use ruzstd::decoding::errors::{FrameDecoderError, ReadFrameHeaderError};
use ruzstd::decoding::{BlockDecodingStrategy, FrameDecoder};

use crate::http1::Name;
use crate::http1::head::Headers;

/// What a client may send, as the value of `Accept-Encoding` in a 415 (RFC 9110, 15.5.16).
pub(crate) const ACCEPTED: &str = "gzip, deflate, zstd";

/// Largest window of a zstd frame in bytes, hence most memory of one decoder: what RFC 9659 lets senders use.
pub(super) const ZSTD_WINDOW_BYTES_MAX: usize = config::limits::ZSTD_WINDOW_BYTES_MAX;

/// A coding that is understood.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Coding {
    /// RFC 1952, one member or several.
    Gzip,
    /// RFC 1950; the bare RFC 1951 that some clients send under that name is taken as well.
    Deflate,
    /// RFC 8878, one frame or several.
    Zstd,
}

/// What the head says about the coding of its body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Named {
    /// None.
    Plain,
    /// One that is understood.
    Known(Coding),
    /// Another one, or several on top of each other.
    Unknown,
}

impl Named {
    /// Reads `Content-Encoding`.
    pub(super) fn of(headers: &Headers, buffer: &[u8]) -> Self {
        let is = |token: &[u8], name: &str| token.eq_ignore_ascii_case(name.as_bytes());
        let mut tokens = headers.tokens(buffer, Name::ContentEncoding).filter(|token| !is(token, "identity"));
        match (tokens.next(), tokens.next()) {
            (None, _) => Self::Plain,
            // RFC 9110, 8.4.1.3: x-gzip is the same.
            (Some(token), None) if is(token, "gzip") || is(token, "x-gzip") => Self::Known(Coding::Gzip),
            (Some(token), None) if is(token, "deflate") => Self::Known(Coding::Deflate),
            (Some(token), None) if is(token, "zstd") => Self::Known(Coding::Zstd),
            (Some(_), _) => Self::Unknown,
        }
    }
}

/// The bytes are not what their coding says. The text is for the client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Broken(pub(crate) &'static str);

const CUT_OFF: Broken = Broken("it ends before its end");
const CORRUPT: Broken = Broken("its bytes are corrupt");
const BEHIND: Broken = Broken("there are bytes behind its end");

/// Most bytes that one step reads.
const STEP_BYTES_MAX: usize = 64 << 10;

/// What one step did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    /// So many bytes were made; none when it only got further.
    Made(usize),
    /// The body has ended, as it should.
    End,
}

/// A body being decoded.
pub(super) enum Decoder<'a> {
    Gzip(Box<Gzip<'a>>),
    Deflate(Box<Deflate<'a>>),
    Zstd(Box<Zstd<'a>>),
}

impl<'a> Decoder<'a> {
    /// Begins to decode `body`.
    pub(super) fn new(coding: Coding, body: &'a [u8]) -> Self {
        match coding {
            Coding::Gzip => Self::Gzip(Box::new(Gzip::new(body))),
            Coding::Deflate => Self::Deflate(Box::new(Deflate::new(body))),
            Coding::Zstd => Self::Zstd(Box::new(Zstd::new(body))),
        }
    }

    /// Puts what comes next into `to`.
    ///
    /// # Errors
    /// When the body is broken.
    pub(super) fn step(&mut self, to: &mut [u8]) -> Result<Step, Broken> {
        match self {
            Self::Gzip(gzip) => gzip.step(to),
            Self::Deflate(deflate) => deflate.step(to),
            Self::Zstd(zstd) => zstd.step(to),
        }
    }
}

/// A deflate stream, with or without zlib's frame, and what stands behind it.
struct Inflate<'a> {
    state: Decompress,
    rest: &'a [u8],
}

impl Inflate<'_> {
    /// The bytes made, and whether the stream has ended.
    fn step(&mut self, to: &mut [u8]) -> Result<(usize, Status), Broken> {
        let (taken, made) = (self.state.total_in(), self.state.total_out());
        let from = &self.rest[..self.rest.len().min(STEP_BYTES_MAX)];
        let status = self.state.decompress(from, to, FlushDecompress::None).map_err(|_| CORRUPT)?;
        let taken = usize::try_from(self.state.total_in() - taken).unwrap_or(usize::MAX);
        let made = usize::try_from(self.state.total_out() - made).unwrap_or(usize::MAX);
        self.rest = self.rest.get(taken..).unwrap_or_default();
        if taken == 0 && made == 0 && status != Status::StreamEnd {
            // There was room, and all there is was given: nothing more will ever come.
            return Err(CUT_OFF);
        }
        Ok((made, status))
    }
}

/// A zlib or bare deflate stream.
pub(super) struct Deflate<'a> {
    inflate: Inflate<'a>,
    ended: bool,
}

impl<'a> Deflate<'a> {
    fn new(body: &'a [u8]) -> Self {
        // RFC 1950, 2.2: method 8, a window of at most 32 KiB, and a checksum of the two bytes.
        let zlib = matches!(*body, [cmf, flg, ..]
            if cmf & 15 == 8 && cmf >> 4 <= 7 && (u16::from(cmf) << 8 | u16::from(flg)).is_multiple_of(31));
        Self { inflate: Inflate { state: Decompress::new(zlib), rest: body }, ended: false }
    }

    fn step(&mut self, to: &mut [u8]) -> Result<Step, Broken> {
        if self.ended {
            return if self.inflate.rest.is_empty() { Ok(Step::End) } else { Err(BEHIND) };
        }
        let (made, status) = self.inflate.step(to)?;
        self.ended = status == Status::StreamEnd;
        Ok(Step::Made(made))
    }
}

/// Gzip members, one behind the other.
pub(super) struct Gzip<'a> {
    inflate: Inflate<'a>,
    crc: Crc,
    /// Between the header and the trailer of a member.
    inside: bool,
}

impl<'a> Gzip<'a> {
    fn new(body: &'a [u8]) -> Self {
        Self { inflate: Inflate { state: Decompress::new(false), rest: body }, crc: Crc::new(), inside: false }
    }

    fn step(&mut self, to: &mut [u8]) -> Result<Step, Broken> {
        if !self.inside {
            if self.inflate.rest.is_empty() {
                return Ok(Step::End);
            }
            self.inflate.rest = behind_gzip_header(self.inflate.rest)?;
            self.inflate.state.reset(false);
            self.crc.reset();
            self.inside = true;
        }
        let (made, status) = self.inflate.step(to)?;
        self.crc.update(to.get(..made).unwrap_or_default());
        if status == Status::StreamEnd {
            self.inside = false;
            let (trailer, rest) = self.inflate.rest.split_first_chunk::<8>().ok_or(CUT_OFF)?;
            let [a, b, c, d, e, f, g, h] = *trailer;
            if u32::from_le_bytes([a, b, c, d]) != self.crc.sum()
                || u32::from_le_bytes([e, f, g, h]) != self.crc.amount()
            {
                return Err(CORRUPT);
            }
            self.inflate.rest = rest;
        }
        Ok(Step::Made(made))
    }
}

/// What follows the header of a gzip member (RFC 1952, 2.3).
fn behind_gzip_header(member: &[u8]) -> Result<&[u8], Broken> {
    const HEADER_CRC: u8 = 1 << 1;
    const EXTRA: u8 = 1 << 2;
    const NAME: u8 = 1 << 3;
    const COMMENT: u8 = 1 << 4;
    const RESERVED: u8 = 7 << 5;
    let (fixed, mut rest) = member.split_first_chunk::<10>().ok_or(CUT_OFF)?;
    let flags = fixed[3];
    if fixed[..3] != [0x1F, 0x8B, 8] || flags & RESERVED != 0 {
        return Err(CORRUPT);
    }
    if flags & EXTRA != 0 {
        let (length, extra) = rest.split_first_chunk::<2>().ok_or(CUT_OFF)?;
        rest = extra.get(usize::from(u16::from_le_bytes(*length))..).ok_or(CUT_OFF)?;
    }
    for text in [NAME, COMMENT] {
        if flags & text != 0 {
            rest = &rest[memchr::memchr(0, rest).ok_or(CUT_OFF)? + 1..];
        }
    }
    if flags & HEADER_CRC != 0 {
        rest = rest.get(2..).ok_or(CUT_OFF)?;
    }
    Ok(rest)
}

/// Zstandard frames, one behind the other.
pub(super) struct Zstd<'a> {
    decoder: FrameDecoder,
    rest: &'a [u8],
    /// A frame has begun and is not used up.
    inside: bool,
}

impl<'a> Zstd<'a> {
    fn new(body: &'a [u8]) -> Self {
        let mut decoder = FrameDecoder::new();
        decoder.set_max_window_size(ZSTD_WINDOW_BYTES_MAX as u64);
        Self { decoder, rest: body, inside: false }
    }

    fn step(&mut self, to: &mut [u8]) -> Result<Step, Broken> {
        if !self.inside {
            return if self.rest.is_empty() { Ok(Step::End) } else { self.enter_frame().map(|()| Step::Made(0)) };
        }
        if self.decoder.can_collect() == 0 && !self.decoder.is_finished() {
            // One block makes at most 128 KiB (RFC 8878, 3.1.1.2.4).
            let block = self.decoder.decode_blocks(&mut self.rest, BlockDecodingStrategy::UptoBlocks(1));
            block.map_err(|_| if self.rest.is_empty() { CUT_OFF } else { CORRUPT })?;
        }
        let made = self.decoder.read(to).map_err(|_| CORRUPT)?;
        if self.decoder.is_finished() && self.decoder.can_collect() == 0 {
            self.inside = false;
            let told = self.decoder.get_checksum_from_data();
            if told.is_some() && told != self.decoder.get_calculated_checksum() {
                return Err(CORRUPT);
            }
        }
        Ok(Step::Made(made))
    }

    fn enter_frame(&mut self) -> Result<(), Broken> {
        match self.decoder.reset(&mut self.rest) {
            Ok(()) => {
                self.inside = true;
                Ok(())
            }
            // RFC 8878, 3.1.2: frames for others, to be passed over.
            Err(FrameDecoderError::ReadFrameHeaderError(ReadFrameHeaderError::SkipFrame { length, .. })) => {
                let length = usize::try_from(length).unwrap_or(usize::MAX);
                self.rest = self.rest.get(length..).ok_or(CUT_OFF)?;
                Ok(())
            }
            Err(FrameDecoderError::WindowSizeTooBig { .. }) => {
                Err(Broken("its window is larger than the 8 MiB that RFC 9659 allows"))
            }
            Err(FrameDecoderError::DictNotProvided { .. }) => Err(Broken("it needs a dictionary")),
            Err(_) => Err(CORRUPT),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use flate2::Compression;
    use flate2::write::{DeflateEncoder, GzEncoder, ZlibEncoder};
    use proptest::prelude::*;
    use ruzstd::encoding::{CompressionLevel, compress_to_vec};

    use super::*;
    use crate::http1::RequestHead;

    fn encode(coding: Coding, text: &[u8]) -> Vec<u8> {
        match coding {
            Coding::Gzip => {
                let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
                encoder.write_all(text).unwrap();
                encoder.finish().unwrap()
            }
            Coding::Deflate => {
                let mut encoder = ZlibEncoder::new(Vec::new(), Compression::fast());
                encoder.write_all(text).unwrap();
                encoder.finish().unwrap()
            }
            Coding::Zstd => compress_to_vec(text, CompressionLevel::Fastest),
        }
    }

    /// Everything that comes out, in steps of `step_bytes`.
    fn decode(coding: Coding, body: &[u8], step_bytes: usize) -> Result<Vec<u8>, Broken> {
        let (mut decoder, mut out) = (Decoder::new(coding, body), Vec::new());
        let mut to = vec![0; step_bytes];
        loop {
            match decoder.step(&mut to)? {
                Step::Made(made) => out.extend_from_slice(&to[..made]),
                Step::End => return Ok(out),
            }
        }
    }

    const ALL: [Coding; 3] = [Coding::Gzip, Coding::Deflate, Coding::Zstd];

    fn named(value: &str) -> Named {
        let text = format!("POST / HTTP/1.1\r\nHost: a\r\n{value}\r\n");
        let mut head = RequestHead::default();
        assert!(head.parse(text.as_bytes()).unwrap());
        Named::of(&head.headers, text.as_bytes())
    }

    #[test]
    fn one_coding_is_understood_and_a_stack_is_not() {
        assert_eq!(named(""), Named::Plain);
        assert_eq!(named("Content-Encoding: identity\r\n"), Named::Plain);
        for (text, coding) in [
            ("gzip", Coding::Gzip),
            ("X-GZIP", Coding::Gzip),
            ("deflate", Coding::Deflate),
            ("identity, zstd", Coding::Zstd),
        ] {
            assert_eq!(named(&format!("content-encoding: {text}\r\n")), Named::Known(coding), "{text}");
        }
        for text in ["br", "gzip, gzip", "gzip\r\nContent-Encoding: zstd", "compress", "gzip;q=1"] {
            assert_eq!(named(&format!("Content-Encoding: {text}\r\n")), Named::Unknown, "{text}");
        }
    }

    #[test]
    fn members_and_frames_follow_each_other() {
        for coding in [Coding::Gzip, Coding::Zstd] {
            let body = [encode(coding, b"one "), encode(coding, b""), encode(coding, b"two")].concat();
            assert_eq!(decode(coding, &body, 100).unwrap(), b"one two");
        }
        let skipped = [&[0x50, 0x2A, 0x4D, 0x18, 3, 0, 0, 0, 1, 2, 3][..], &encode(Coding::Zstd, b"two")].concat();
        assert_eq!(decode(Coding::Zstd, &skipped, 100).unwrap(), b"two");
    }

    #[test]
    fn deflate_without_its_frame_is_taken() {
        let mut encoder = DeflateEncoder::new(Vec::new(), Compression::best());
        encoder.write_all(b"{\"model\":\"m\"}").unwrap();
        assert_eq!(decode(Coding::Deflate, &encoder.finish().unwrap(), 7).unwrap(), b"{\"model\":\"m\"}");
    }

    #[test]
    fn every_field_of_a_gzip_header_is_passed_over() {
        let plain = encode(Coding::Gzip, b"text");
        let fields = b"\x04\0abcdname\0comment\0\x01\x02";
        let mut full = [&plain[..10], fields, &plain[10..]].concat();
        full[3] = 0b1_1110;
        assert_eq!(decode(Coding::Gzip, &full, 100).unwrap(), b"text");
        full[3] = 1 << 5;
        assert_eq!(decode(Coding::Gzip, &full, 100), Err(CORRUPT));
    }

    #[test]
    fn a_wrong_checksum_or_length_is_corrupt() {
        for coding in ALL {
            let mut body = encode(coding, b"some text that is checked");
            *body.last_mut().unwrap() ^= 1;
            assert_eq!(decode(coding, &body, 100), Err(CORRUPT), "{coding:?}");
        }
    }

    #[test]
    fn bytes_behind_a_body_are_refused() {
        for coding in ALL {
            let body = [encode(coding, b"text"), b"more".to_vec()].concat();
            assert!(decode(coding, &body, 100).is_err(), "{coding:?}");
        }
    }

    #[test]
    fn a_large_window_is_refused_before_it_is_made() {
        // A frame header that asks for 2 GiB (RFC 8878, 3.1.1.1), and an empty last block.
        let body = [0x28, 0xB5, 0x2F, 0xFD, 0, 21 << 3, 1, 0, 0];
        assert!(decode(Coding::Zstd, &body, 100).unwrap_err().0.contains("window"));
    }

    #[test]
    fn a_step_makes_no_more_than_it_has_room_for() {
        let text = vec![b'a'; 3 << 20];
        for coding in ALL {
            let body = encode(coding, &text);
            assert!(body.len() < text.len() / 100, "{coding:?}");
            assert_eq!(decode(coding, &body, 1_000).unwrap(), text, "{coding:?}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(100))]
        #[test]
        fn what_was_encoded_comes_back_in_steps_of_any_size(text in proptest::collection::vec(0_u8..4, 0..5_000), step in 1_usize..2_000) {
            for coding in ALL {
                let body = encode(coding, &text);
                prop_assert_eq!(decode(coding, &body, step).unwrap(), text.as_slice());
            }
        }

        #[test]
        fn a_body_that_is_cut_off_is_broken(text in ".{0,200}", cut in any::<prop::sample::Index>()) {
            for coding in ALL {
                let body = encode(coding, text.as_bytes());
                let cut = 1 + cut.index(body.len() - 1);
                prop_assert!(cut == body.len() || decode(coding, &body[..cut], 100).is_err(), "{:?} {}", coding, cut);
            }
        }

        #[test]
        fn no_bytes_panic(text in ".{0,80}", at in any::<prop::sample::Index>(), with: u8, noise in proptest::collection::vec(any::<u8>(), 0..60)) {
            for coding in ALL {
                let mut body = encode(coding, text.as_bytes());
                let at = at.index(body.len());
                body[at] = with;
                for bytes in [&body, &noise, &[&body[..at], &noise].concat()] {
                    let (mut decoder, mut to) = (Decoder::new(coding, bytes), [0; 64]);
                    // A changed length may promise a lot: some steps are enough.
                    for _ in 0..200 {
                        if !matches!(decoder.step(&mut to), Ok(Step::Made(_))) { break; }
                    }
                }
            }
        }
    }
}
