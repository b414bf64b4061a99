//! Single tokens: licences and passports beside their word, IBANs, wallets.

use super::checksum;
use super::kind::Kind;
use super::lane::Lane;
use super::runs::joins;

/// Passport and licence numbers have no checksum: a capital or two and digits, beside the word.
pub(super) fn licence(lane: &mut Lane<'_>, start: usize, end: usize) {
    let text = &lane.text[start..end];
    let digits = text.iter().filter(|byte| byte.is_ascii_digit()).count();
    if text.iter().any(u8::is_ascii_lowercase) || (digits < 2 && text.len() != 9) {
        return;
    }
    let leading = text.iter().take_while(|byte| byte.is_ascii_uppercase()).count();
    let serial = digits + leading == text.len();
    // German and some other passports mix letters and digits in nine places.
    if matches!(text.len(), 7..=9) && ((serial && leading <= 3) || text.len() == 9) {
        lane.take_if_supported(Kind::Passport, start, end);
    }
    if german(text) {
        lane.take_if_supported(Kind::Passport, start, end);
    }
    let british = text.len() == 16 && leading == 5 && text[5..11].iter().all(u8::is_ascii_digit);
    if (serial && leading <= 3) || british {
        lane.take_if_supported(Kind::UsDriverLicense, start, end);
    }
}

/// Whether a token is the number of a German passport or identity card with its check digit, and perhaps the nationality behind it, as in
/// the line for machines (ICAO 9303, part 3, section 4.9).
fn german(text: &[u8]) -> bool {
    let number = text.strip_suffix(b"D").filter(|rest| rest.len() == 10).unwrap_or(text);
    number.len() == 10 && checksum::icao_9303(number)
}

/// Separators in a row inside an IBAN.
const IBAN_GAP_BYTES_MAX: usize = 3;

/// An IBAN that begins at `start`, in one piece or in groups. The check and the country's length prove enough for any separators.
pub(super) fn iban(lane: &mut Lane<'_>, start: usize) {
    let text = lane.text;
    let named =
        text.get(start..start + 4).is_some_and(|word| word[0] | 0x20 == b'i' && word.eq_ignore_ascii_case(b"IBAN"));
    let start = if named { start + 4 } else { start };
    // Most words end here: a country and a check digit, or the next group, must follow each other.
    let Some([first, second, third]) = text.get(start..).and_then(<[u8]>::first_chunk) else { return };
    let close =
        if second.is_ascii_alphabetic() { third.is_ascii_digit() || joins(*third) != 0 } else { joins(*second) != 0 };
    let country = [*first, *second].map(|letter| letter.to_ascii_uppercase());
    if !close || second.is_ascii_alphabetic() && checksum::iban_form(country).is_none() {
        return;
    }
    let mut chars = [0u8; 34];
    let (mut len, mut wanted, mut at, mut gap_len) = (0, chars.len(), start, 0);
    let (mut is_digits, mut names_bank) = (false, false);
    while len < wanted && at < text.len() {
        let byte = text[at];
        if byte.is_ascii_alphanumeric() {
            chars[len] = byte.to_ascii_uppercase();
            len += 1;
            gap_len = 0;
            if len == 2 {
                let Some(form) = checksum::iban_form([chars[0], chars[1]]) else { return };
                (wanted, is_digits, names_bank) = (form.len, form.is_digits, form.names_bank);
            }
            let misplaced = is_digits && !byte.is_ascii_digit() || names_bank && len <= 8 && byte.is_ascii_digit();
            if len > 4 && misplaced {
                return;
            }
            if (len <= 2) != byte.is_ascii_alphabetic() && len <= 4 {
                return;
            }
        } else {
            gap_len += 1;
            if gap_len > IBAN_GAP_BYTES_MAX || joins(byte) == 0 {
                return;
            }
        }
        at += 1;
    }
    lane.work(at - start);
    if len == wanted && !lane.byte(at).is_ascii_alphanumeric() && checksum::iban(&chars[..len]) {
        lane.take(Kind::Iban, start, at);
    }
}

/// Bitcoin (base58 by its alphabet and mix, bech32 by checksum) and Ethereum (40 hexadecimal digits) addresses.
pub(super) fn wallet(lane: &mut Lane<'_>, start: usize, end: usize) {
    let text = &lane.text[start..end];
    let inside_base64 = |byte: u8| matches!(byte, b'+' | b'/' | b'=' | b'_');
    if inside_base64(lane.before(start)) || inside_base64(lane.byte(end)) {
        return;
    }
    let ethereum = text.len() == 42 && text.starts_with(b"0x") && text[2..].iter().all(u8::is_ascii_hexdigit);
    let mixed_case = text.iter().any(u8::is_ascii_uppercase) && text.iter().any(u8::is_ascii_lowercase);
    let base58 = text.len() <= 35
        && matches!(text[0], b'1' | b'3')
        && mixed_case
        && !text.iter().any(|byte| matches!(byte, b'0' | b'O' | b'I' | b'l'));
    if ethereum || base58 || checksum::bech32(text) {
        lane.take(Kind::CryptoWallet, start, end);
    }
}
