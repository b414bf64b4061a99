//! When a certificate expires: the one field that the TLS library does not tell.

/// The end of a DER certificate's validity in seconds since 1970; `None` when it is not found.
///
/// Walks `Certificate.tbsCertificate` to `validity.notAfter` (RFC 5280, 4.1), and looks at nothing else: that the
/// certificate is one at all, the TLS library has found out.
pub(super) fn not_after_unix_s(certificate: &[u8]) -> Option<i64> {
    let mut outer = certificate;
    let mut certificate = expect(&mut outer, SEQUENCE)?;
    let mut fields = expect(&mut certificate, SEQUENCE)?;
    if fields.first() == Some(&VERSION) {
        read(&mut fields)?;
    }
    expect(&mut fields, INTEGER)?; // serialNumber
    expect(&mut fields, SEQUENCE)?; // signature
    expect(&mut fields, SEQUENCE)?; // issuer
    let mut validity = expect(&mut fields, SEQUENCE)?;
    read(&mut validity)?; // notBefore
    let (tag, text) = read(&mut validity)?;
    // RFC 5280, 4.1.2.5: seconds are there, the zone is Z, two-digit years from 50 up are of the last century.
    match (tag, text) {
        (UTC_TIME, [year @ .., _, _, _, _, _, _, _, _, _, _, b'Z']) if year.len() == 2 => {
            let year = number(year)?;
            unix_s(if year >= 50 { 1900 + year } else { 2000 + year }, text.get(2..12)?)
        }
        (GENERALIZED_TIME, [year @ .., _, _, _, _, _, _, _, _, _, _, b'Z']) if year.len() == 4 => {
            unix_s(number(year)?, text.get(4..14)?)
        }
        _ => None,
    }
}

const INTEGER: u8 = 0x02;
const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;
const SEQUENCE: u8 = 0x30;
/// `[0] EXPLICIT`
const VERSION: u8 = 0xA0;

fn expect<'a>(from: &mut &'a [u8], tag: u8) -> Option<&'a [u8]> {
    read(from).filter(|(found, _)| *found == tag).map(|(_, value)| value)
}

/// Takes one element off: its tag and its value.
fn read<'a>(from: &mut &'a [u8]) -> Option<(u8, &'a [u8])> {
    let (&[tag, length], rest) = from.split_first_chunk()?;
    let (length, rest) = match length {
        ..=0x7F => (usize::from(length), rest),
        0x81..=0x83 => {
            let (bytes, rest) = rest.split_at_checked(usize::from(length - 0x80))?;
            (bytes.iter().fold(0, |length, &byte| length << 8 | usize::from(byte)), rest)
        }
        _ => return None,
    };
    let (value, rest) = rest.split_at_checked(length)?;
    *from = rest;
    Some((tag, value))
}

fn number(digits: &[u8]) -> Option<i64> {
    digits.iter().try_fold(0, |number, digit| digit.is_ascii_digit().then(|| number * 10 + i64::from(digit - b'0')))
}

/// `rest` is `MMDDHHMMSS`. Days are counted from 1 March of the year 0, as leap days then end the years.
fn unix_s(year: i64, rest: &[u8]) -> Option<i64> {
    let mut two_digits = rest.chunks_exact(2).map(number);
    let mut next = || two_digits.next()?;
    let (month, day, hour, minute, second) = (next()?, next()?, next()?, next()?, next()?);
    if !(1..=12).contains(&month) || !(1..=31).contains(&day) || hour > 23 || minute > 59 || second > 60 {
        return None;
    }
    let year = if month > 2 { year } else { year - 1 };
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    let days = 365 * year + year.div_euclid(4) - year.div_euclid(100) + year.div_euclid(400) + day_of_year;
    const DAYS_TO_1970: i64 = 719_468;
    Some((days - DAYS_TO_1970) * 86_400 + hour * 3_600 + minute * 60 + second)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn certificate(year: i32, month: u8, day: u8) -> Vec<u8> {
        let mut wanted = rcgen::CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
        wanted.not_before = rcgen::date_time_ymd(1975, 1, 1);
        wanted.not_after = rcgen::date_time_ymd(year, month, day);
        wanted.self_signed(&rcgen::KeyPair::generate().unwrap()).unwrap().der().to_vec()
    }

    #[test]
    fn the_end_of_validity_is_found_in_both_forms_of_time() {
        for (year, month, day) in
            [(1999, 12, 31), (2024, 2, 29), (2026, 3, 1), (2049, 12, 31), (2050, 1, 1), (4096, 1, 1)]
        {
            let expected = rcgen::date_time_ymd(year, month, day).unix_timestamp();
            assert_eq!(not_after_unix_s(&certificate(year, month, day)), Some(expected), "{year}-{month}-{day}");
        }
    }

    #[test]
    fn a_certificate_cut_off_before_its_end_has_none() {
        let whole = certificate(2030, 1, 1);
        for len in 0..whole.len() {
            assert_eq!(not_after_unix_s(&whole[..len]), None, "{len} of {} bytes", whole.len());
        }
    }

    proptest! {
        #[test]
        fn damaged_certificates_do_no_harm(at in 0_usize..400, byte: u8) {
            let mut damaged = vec![0x30, 0x30, 0x30, 0x2e, 0xa0, 3, 2, 1, 2, 2, 1, 5, 0x30, 0, 0x30, 0, 0x30, 30, 0x17, 13];
            damaged.extend(b"250101000000Z");
            damaged.extend([0x17, 13]);
            damaged.extend(b"350101000000Z");
            let at = at % damaged.len();
            damaged[at] = byte;
            let _ = not_after_unix_s(&damaged);
        }
    }
}
