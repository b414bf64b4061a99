//! Checksums of identifiers. Input is ASCII digits (or upper-case letters and digits where said), already without separators;
//! every function looks at each character once.

/// The value of the digit at `at`; 0 when there is none, so that a short input fails its checksum and never panics.
fn digit(text: &[u8], at: usize) -> u32 {
    text.get(at).map_or(0, |byte| u32::from(byte.wrapping_sub(b'0')).min(9))
}

fn number(text: &[u8]) -> u64 {
    text.iter().fold(0, |sum, byte| sum.wrapping_mul(10).wrapping_add(u64::from(byte.wrapping_sub(b'0').min(9))))
}

fn weighted(text: &[u8], weights: &[u32]) -> u32 {
    weights.iter().enumerate().map(|(at, weight)| digit(text, at) * weight).sum()
}

/// ISO/IEC 7812-1 annex B: the mod-10 check of payment cards.
pub(super) fn luhn(text: &[u8]) -> bool {
    let mut sum = 0;
    for (from_right, byte) in text.iter().rev().enumerate() {
        let value = u32::from(byte.wrapping_sub(b'0').min(9));
        sum += if from_right % 2 == 1 { value * 2 - if value > 4 { 9 } else { 0 } } else { value };
    }
    sum.is_multiple_of(10) && text.iter().any(|byte| *byte != b'0')
}

/// ISO 13616: the IBAN with its first four characters moved to the end is 1 modulo 97. Upper-case letters count from 10.
pub(super) fn iban(text: &[u8]) -> bool {
    let mut rest = 0u32;
    for at in 0..text.len() {
        let byte = text[(at + 4) % text.len()];
        rest = match byte {
            b'0'..=b'9' => (rest * 10 + u32::from(byte - b'0')) % 97,
            b'A'..=b'Z' => (rest * 100 + u32::from(byte - b'A') + 10) % 97,
            _ => return false,
        };
    }
    rest == 1
}

const VERHOEFF_D: [[u8; 10]; 10] = [
    [0, 1, 2, 3, 4, 5, 6, 7, 8, 9],
    [1, 2, 3, 4, 0, 6, 7, 8, 9, 5],
    [2, 3, 4, 0, 1, 7, 8, 9, 5, 6],
    [3, 4, 0, 1, 2, 8, 9, 5, 6, 7],
    [4, 0, 1, 2, 3, 9, 5, 6, 7, 8],
    [5, 9, 8, 7, 6, 0, 4, 3, 2, 1],
    [6, 5, 9, 8, 7, 1, 0, 4, 3, 2],
    [7, 6, 5, 9, 8, 2, 1, 0, 4, 3],
    [8, 7, 6, 5, 9, 3, 2, 1, 0, 4],
    [9, 8, 7, 6, 5, 4, 3, 2, 1, 0],
];
const VERHOEFF_P: [[u8; 10]; 8] = [
    [0, 1, 2, 3, 4, 5, 6, 7, 8, 9],
    [1, 5, 7, 6, 2, 8, 3, 0, 9, 4],
    [5, 8, 0, 3, 7, 9, 6, 1, 4, 2],
    [8, 9, 1, 6, 0, 4, 3, 5, 2, 7],
    [9, 4, 5, 3, 1, 2, 6, 8, 7, 0],
    [4, 2, 8, 6, 5, 7, 3, 9, 0, 1],
    [2, 7, 9, 3, 8, 0, 6, 4, 1, 5],
    [7, 0, 4, 6, 9, 1, 3, 2, 5, 8],
];

/// Aadhaar: Verhoeff's dihedral check, first digit 2 to 9.
pub(super) fn aadhaar(text: &[u8]) -> bool {
    let mut state = 0u8;
    for from_right in 0..text.len() {
        let value = digit(text, text.len() - 1 - from_right) as usize;
        state = VERHOEFF_D[state as usize][VERHOEFF_P[from_right % 8][value] as usize];
    }
    state == 0 && text.len() == 12 && digit(text, 0) >= 2
}

/// Whether year (two digits or four), month and day can be a date. Day 41 to 71 and the like are the caller's business.
pub(super) fn date(month: u32, day: u32) -> bool {
    (1..=12).contains(&month) && (1..=31).contains(&day)
}

fn pair(text: &[u8], at: usize) -> u32 {
    digit(text, at) * 10 + digit(text, at + 1)
}

/// SSN area, group and serial rules (SSA, randomised since 2011): no 000, 666, 9xx; no group 00; no serial 0000.
pub(super) fn us_ssn(text: &[u8]) -> bool {
    let area = number(&text[..3.min(text.len())]);
    let serial = text.get(5..9).map_or(0, number);
    text.len() == 9 && area != 0 && area != 666 && area < 900 && pair(text, 3) != 0 && serial != 0
}

/// ITIN: 9xx, and a fourth and fifth digit that the IRS gives out (50-65, 70-88, 90-92, 94-99).
pub(super) fn us_itin(text: &[u8]) -> bool {
    let group = pair(text, 3);
    // 987-65-4320 to -4329 are set aside for advertisements.
    if text.starts_with(b"98765432") {
        return false;
    }
    text.len() == 9 && digit(text, 0) == 9 && matches!(group, 50..=65 | 70..=88 | 90..=92 | 94..=99)
}

/// ABA routing number: weights 3, 7, 1; first two digits name a Federal Reserve district.
pub(super) fn us_routing(text: &[u8]) -> bool {
    let district = pair(text, 0);
    text.len() == 9
        && matches!(district, 1..=12 | 21..=32 | 61..=72 | 80)
        && weighted(text, &[3, 7, 1, 3, 7, 1, 3, 7, 1]).is_multiple_of(10)
}

/// Canadian SIN: Luhn over nine digits, first digit not 0.
pub(super) fn ca_sin(text: &[u8]) -> bool {
    text.len() == 9 && digit(text, 0) != 0 && luhn(text)
}

/// Australian TFN of nine digits.
pub(super) fn au_tfn(text: &[u8]) -> bool {
    text.len() == 9 && weighted(text, &[1, 4, 3, 7, 5, 8, 6, 9, 10]).is_multiple_of(11) && number(text) != 0
}

/// Dutch BSN: the eleven test with the last weight -1.
pub(super) fn nl_bsn(text: &[u8]) -> bool {
    let sum = weighted(text, &[9, 8, 7, 6, 5, 4, 3, 2]) + 10 * digit(text, 8);
    text.len() == 9 && sum.is_multiple_of(11) && number(text) != 0
}

/// NHS number: weights 10 to 2, check digit 11 minus the rest.
pub(super) fn uk_nhs(text: &[u8]) -> bool {
    let rest = weighted(text, &[10, 9, 8, 7, 6, 5, 4, 3, 2]) % 11;
    text.len() == 10 && (11 - rest) % 11 == digit(text, 9) && number(text) != 0
}

/// Swedish personal number: ten digits (a century in front is dropped), date with day up to 91, Luhn.
pub(super) fn se_personnummer(text: &[u8]) -> bool {
    let short = if text.len() == 12 { &text[2..] } else { text };
    let day = pair(short, 4);
    short.len() == 10
        && (text.len() == 10 || matches!(pair(text, 0), 18..=20))
        && date(pair(short, 2), if day > 60 { day - 60 } else { day })
        && luhn(short)
}

/// Brazilian CPF: two mod-11 digits, not all the same.
pub(super) fn br_cpf(text: &[u8]) -> bool {
    let check = |weights: &[u32]| (weighted(text, weights) * 10) % 11 % 10;
    text.len() == 11
        && check(&[10, 9, 8, 7, 6, 5, 4, 3, 2]) == digit(text, 9)
        && check(&[11, 10, 9, 8, 7, 6, 5, 4, 3, 2]) == digit(text, 10)
        && text.iter().any(|byte| *byte != text[0])
}

/// German tax number: ISO 7064 mod 11,10, first digit not 0, and among the first ten digits one stands twice or three times.
pub(super) fn de_steuer_id(text: &[u8]) -> bool {
    let mut product = 10;
    let mut seen = [0u8; 10];
    for at in 0..10 {
        seen[digit(text, at) as usize] += 1;
        let sum = (digit(text, at) + product) % 10;
        product = (if sum == 0 { 10 } else { sum }) * 2 % 11;
    }
    let repeated = seen.iter().filter(|count| **count > 1).count();
    text.len() == 11
        && digit(text, 0) != 0
        && (11 - product) % 10 == digit(text, 10)
        && repeated == 1
        && seen.iter().all(|count| *count <= 3)
}

/// Belgian national number: 97 minus the first nine digits modulo 97, with a 2 in front for births since 2000.
pub(super) fn be_nn(text: &[u8]) -> bool {
    if text.len() != 11 || pair(text, 2) % 20 > 12 || pair(text, 4) > 31 {
        return false;
    }
    let base = number(&text[..9]);
    let check = number(&text[9..]);
    97 - base % 97 == check || 97 - (2_000_000_000 + base) % 97 == check
}

/// Polish PESEL: date with the century in the month, weights 1, 3, 7, 9.
pub(super) fn pl_pesel(text: &[u8]) -> bool {
    let sum = weighted(text, &[1, 3, 7, 9, 1, 3, 7, 9, 1, 3]);
    text.len() == 11 && date(pair(text, 2) % 20, pair(text, 4)) && (10 - sum % 10) % 10 == digit(text, 10)
}

/// South African identity number: date, citizenship 0 to 2, Luhn.
pub(super) fn za_id(text: &[u8]) -> bool {
    text.len() == 13 && date(pair(text, 2), pair(text, 4)) && digit(text, 10) <= 2 && luhn(text)
}

/// EAN-13 (GS1): weights 1 and 3 in turn.
pub(super) fn ean_13(text: &[u8]) -> bool {
    let sum = weighted(text, &[1, 3, 1, 3, 1, 3, 1, 3, 1, 3, 1, 3]);
    text.len() == 13 && (10 - sum % 10) % 10 == digit(text, 12)
}

/// EAN-13 check with the Swiss prefix 756.
pub(super) fn ch_ahv(text: &[u8]) -> bool {
    text.starts_with(b"756") && ean_13(text)
}

/// Korean RRN: date, century digit; the check digit held until October 2020, so the caller says how sure it must be.
pub(super) fn kr_rrn(text: &[u8]) -> bool {
    kr_rrn_shape(text) && (11 - weighted(text, &[2, 3, 4, 5, 6, 7, 8, 9, 2, 3, 4, 5]) % 11) % 10 == digit(text, 12)
}

/// Korean RRN without its check digit, which numbers given since October 2020 do not have.
pub(super) fn kr_rrn_shape(text: &[u8]) -> bool {
    text.len() == 13 && date(pair(text, 2), pair(text, 4)) && (1..=8).contains(&digit(text, 6))
}

/// French NIR with its key, 97 minus the number modulo 97. Corsica writes 2A and 2B, which count as 19 and 18.
pub(super) fn fr_nir(text: &[u8]) -> bool {
    if text.len() != 15 || !matches!(text[0], b'1' | b'2' | b'3' | b'4' | b'7' | b'8') {
        return false;
    }
    let month = pair(text, 3);
    let month_fits = matches!(month, 1..=12 | 20 | 30..=42 | 50..=99);
    let mut plain = [0u8; 15];
    plain.copy_from_slice(text);
    if plain[5] == b'2' && matches!(plain[6], b'A' | b'B') {
        (plain[5], plain[6]) = (b'1', if plain[6] == b'A' { b'9' } else { b'8' });
    }
    month_fits && plain.iter().all(u8::is_ascii_digit) && 97 - number(&plain[..13]) % 97 == number(&plain[13..])
}

/// Chinese identity number, GB 11643: date, ISO 7064 mod 11-2 with X for 10.
pub(super) fn cn_ric(text: &[u8]) -> bool {
    if text.len() != 18 || !text[..17].iter().all(u8::is_ascii_digit) || text[0] == b'0' {
        return false;
    }
    let sum = weighted(text, &[7, 9, 10, 5, 8, 4, 2, 1, 6, 3, 7, 9, 10, 5, 8, 4, 2]);
    let check = b"10X98765432"[(sum % 11) as usize];
    matches!(pair(text, 6), 18..=20) && date(pair(text, 10), pair(text, 12)) && text[17] == check
}

/// Spanish letter of a number: position modulo 23.
fn es_letter(value: u64) -> u8 {
    b"TRWAGMYFPDXBNJZSQVHLCKE"[(value % 23) as usize]
}

/// Spanish DNI: eight digits and the letter.
pub(super) fn es_dni(text: &[u8]) -> bool {
    text.len() == 9 && text[..8].iter().all(u8::is_ascii_digit) && text[8] == es_letter(number(&text[..8]))
}

/// Spanish NIE: X, Y or Z for 0, 1, 2, seven digits, the letter.
pub(super) fn es_nie(text: &[u8]) -> bool {
    text.len() == 9
        && matches!(text[0], b'X'..=b'Z')
        && text[1..8].iter().all(u8::is_ascii_digit)
        && text[8] == es_letter(u64::from(text[0] - b'X') * 10_000_000 + number(&text[1..8]))
}

/// Finnish code without its century sign: six digits of date, three of serial, the character modulo 31.
pub(super) fn fi_hetu(text: &[u8]) -> bool {
    if text.len() != 10 || !text[..9].iter().all(u8::is_ascii_digit) || !date(pair(text, 2), pair(text, 0)) {
        return false;
    }
    let expected = b"0123456789ABCDEFHJKLMNPRSTUVWXY"[(number(&text[..9]) % 31) as usize];
    number(&text[6..9]) >= 2 && text[9] == expected
}

/// Singaporean NRIC or FIN: weights 2, 7, 6, 5, 4, 3, 2, an offset and a letter table per series.
pub(super) fn sg_nric(text: &[u8]) -> bool {
    if text.len() != 9 || !text[1..8].iter().all(u8::is_ascii_digit) {
        return false;
    }
    let sum = weighted(&text[1..], &[2, 7, 6, 5, 4, 3, 2]);
    let (offset, letters): (u32, &[u8; 11]) = match text[0] {
        b'S' => (0, b"JZIHGFEDCBA"),
        b'T' => (4, b"JZIHGFEDCBA"),
        b'F' => (0, b"XWUTRQPNMLK"),
        b'G' => (4, b"XWUTRQPNMLK"),
        b'M' => (3, b"XWUTRQPNJLK"),
        _ => return false,
    };
    text[8] == letters[((sum + offset) % 11) as usize]
}

/// UK NINO: two prefix letters that HMRC gives out, six digits, A to D.
pub(super) fn uk_nino(text: &[u8]) -> bool {
    let first = |byte: u8| byte.is_ascii_uppercase() && !matches!(byte, b'D' | b'F' | b'I' | b'Q' | b'U' | b'V');
    text.len() == 9
        && first(text[0])
        && first(text[1])
        && text[1] != b'O'
        && !matches!(&text[..2], b"BG" | b"GB" | b"KN" | b"NK" | b"NT" | b"TN" | b"ZZ")
        && text[2..8].iter().all(u8::is_ascii_digit)
        && matches!(text[8], b'A'..=b'D')
}

/// Italian tax code: six letters, year, month letter, day, place, check letter (DM 23/12/1976); letters may stand for
/// digits where two people would share a code.
pub(super) fn it_codice_fiscale(text: &[u8]) -> bool {
    const ODD: [u32; 26] =
        [1, 0, 5, 7, 9, 13, 15, 17, 19, 21, 2, 4, 18, 20, 11, 3, 6, 8, 12, 14, 16, 10, 22, 25, 24, 23];
    if text.len() != 16 {
        return false;
    }
    let shape = text.iter().enumerate().all(|(at, byte)| match at {
        0..=5 | 11 | 15 => byte.is_ascii_uppercase(),
        8 => b"ABCDEHLMPRST".contains(byte),
        _ => byte.is_ascii_digit() || b"LMNPQRSTUV".contains(byte),
    });
    let mut sum = 0;
    for (at, byte) in text[..15].iter().enumerate() {
        let value = if byte.is_ascii_digit() { byte - b'0' } else { byte.wrapping_sub(b'A').min(25) };
        sum += if at % 2 == 0 { ODD[value as usize] } else { u32::from(value) };
    }
    shape && text[15] == b'A' + (sum % 26) as u8
}

/// Mexican CURP: letters, birth date, sex, state, consonants, and a weighted mod-10 digit.
pub(super) fn mx_curp(text: &[u8]) -> bool {
    if text.len() != 18 || !date(pair(text, 6), pair(text, 8)) {
        return false;
    }
    let shape = text.iter().enumerate().all(|(at, byte)| match at {
        0..=3 | 11..=15 => byte.is_ascii_uppercase(),
        10 => matches!(byte, b'H' | b'M' | b'X'),
        4..=9 | 17 => byte.is_ascii_digit(),
        _ => byte.is_ascii_alphanumeric(),
    });
    let mut sum = 0;
    for (at, byte) in text[..17].iter().enumerate() {
        let value = match byte {
            b'0'..=b'9' => u32::from(byte - b'0'),
            b'A'..=b'N' => u32::from(byte - b'A') + 10,
            _ => u32::from(byte.wrapping_sub(b'A').min(25)) + 11,
        };
        sum += value * (18 - at as u32);
    }
    shape && (10 - sum % 10) % 10 == digit(text, 17)
}

/// Indian PAN: five letters (the fourth names the holder's type), four digits, a letter.
pub(super) fn in_pan(text: &[u8]) -> bool {
    text.len() == 10
        && text[..5].iter().all(u8::is_ascii_uppercase)
        && b"ABCFGHLJPTK".contains(&text[3])
        && text[5..9].iter().all(u8::is_ascii_digit)
        && text[9].is_ascii_uppercase()
}

/// Medicare beneficiary identifier (CMS): positions of digits and letters are fixed, S, L, O, I, B and Z are not used.
pub(super) fn us_mbi(text: &[u8]) -> bool {
    let letter = |byte: u8| byte.is_ascii_uppercase() && !b"SLOIBZ".contains(&byte);
    text.len() == 11
        && text.iter().enumerate().all(|(at, &byte)| match at {
            0 => matches!(byte, b'1'..=b'9'),
            1 | 4 | 7 | 8 => letter(byte),
            2 | 5 => letter(byte) || byte.is_ascii_digit(),
            _ => byte.is_ascii_digit(),
        })
}

/// ISO 9362: four letters, a country, two letters or digits, and perhaps three more.
pub(super) fn swift_bic(text: &[u8]) -> bool {
    matches!(text.len(), 8 | 11)
        && text[..6].iter().all(u8::is_ascii_uppercase)
        && text[6..].iter().all(|byte| byte.is_ascii_uppercase() || byte.is_ascii_digit())
        && COUNTRIES.as_bytes().chunks_exact(3).any(|country| country[..2] == text[4..6])
}

const COUNTRIES: &str = "AD AE AF AG AI AL AM AO AR AS AT AU AW AX AZ BA BB BD BE BF BG BH BI BJ BM BN BO BR BS BT BW BY BZ CA CD CF \
CG CH CI CK CL CM CN CO CR CU CV CW CY CZ DE DJ DK DM DO DZ EC EE EG ER ES ET FI FJ FK FM FO FR GA GB GD GE GF GG GH GI GL GM GN GP GQ \
GR GT GU GW GY HK HN HR HT HU ID IE IL IM IN IQ IR IS IT JE JM JO JP KE KG KH KI KM KN KP KR KW KY KZ LA LB LC LI LK LR LS LT LU LV LY \
MA MC MD ME MG MH MK ML MM MN MO MP MQ MR MS MT MU MV MW MX MY MZ NA NC NE NF NG NI NL NO NP NR NZ OM PA PE PF PG PH PK PL PR PS PT PW \
PY QA RE RO RS RU RW SA SB SC SD SE SG SH SI SK SL SM SN SO SR SS ST SV SX SY SZ TC TD TG TH TJ TL TM TN TO TR TT TV TW TZ UA UG US UY \
UZ VA VC VE VG VI VN VU WS XK YE YT ZA ZM ZW ";

/// ICAO 9303, part 3, section 4.9: weights 7, 3, 1; letters count from 10. The last character is the check digit.
pub(super) fn icao_9303(text: &[u8]) -> bool {
    let Some((check, number)) = text.split_last() else { return false };
    let value = |byte: &u8| match byte {
        b'A'..=b'Z' => u32::from(byte - b'A') + 10,
        _ => u32::from(byte.wrapping_sub(b'0').min(9)),
    };
    let sum: u32 = number.iter().zip([7, 3, 1].into_iter().cycle()).map(|(byte, weight)| value(byte) * weight).sum();
    check.is_ascii_digit() && sum % 10 == value(check)
}

/// How a country writes its IBANs, by the SWIFT IBAN registry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct IbanForm {
    /// Characters in all.
    pub(super) len: usize,
    /// Behind the country there are only digits.
    pub(super) is_digits: bool,
    /// Behind the check digits stand four letters for the bank.
    pub(super) names_bank: bool,
}

/// The form of the IBANs of a country.
pub(super) fn iban_form(country: [u8; 2]) -> Option<IbanForm> {
    let [first, second] = country.map(|letter| usize::from(letter.wrapping_sub(b'A')));
    let form = *IBAN_FORMS.get(first)?.get(second)?;
    (form != 0).then_some(IbanForm {
        len: usize::from(form & IBAN_LEN),
        is_digits: form & IBAN_DIGITS != 0,
        names_bank: form & IBAN_BANK != 0,
    })
}

const IBAN_LEN: u8 = 0x3f;
const IBAN_DIGITS: u8 = 0x40;
const IBAN_BANK: u8 = 0x80;

/// By the letters of the country; 0 where there are none.
const IBAN_FORMS: [[u8; 26]; 26] = {
    const ROWS: [(u8, &str); 20] = [
        (15, "NO"),
        (16, "BE"),
        (18, "DKFIFKFOGLNLSD"),
        (19, "MKSI"),
        (20, "ATBAEEKZLTLUMNXK"),
        (21, "CHHRLILV"),
        (22, "BGBHCRDEGBGEIEMERSVA"),
        (23, "AEGIILIQOMSOTL"),
        (24, "ADCZESMDPKROSASESKTNVG"),
        (25, "LYPTST"),
        (26, "ISTR"),
        (27, "BIDJFRGRITMCMRSM"),
        (28, "ALAZBYCYDOGTHULBNIPLSV"),
        (29, "BREGPSQAUA"),
        (30, "JOKWMUYE"),
        (31, "MTSC"),
        (32, "LC"),
        (33, "RU"),
        (IBAN_DIGITS, "ATBABECRCZDEDKEEESFIFOGLHRHUILISLTLYMEMRNOPLPTRSSDSESISKSOSTTLTNXK"),
        (IBAN_BANK, "AZBGBHGBGIIEIQJOKWLCLVMTNLPKPSQAROSCSVVG"),
    ];
    let mut table = [[0; 26]; 26];
    let mut row = 0;
    while row < ROWS.len() {
        table = iban_marked(table, ROWS[row].1, ROWS[row].0);
        row += 1;
    }
    table
};

/// The table with `mark` set for `countries`.
const fn iban_marked(mut table: [[u8; 26]; 26], countries: &str, mark: u8) -> [[u8; 26]; 26] {
    let (countries, mut at) = (countries.as_bytes(), 0);
    while at < countries.len() {
        table[(countries[at] - b'A') as usize][(countries[at + 1] - b'A') as usize] |= mark;
        at += 2;
    }
    table
}

/// Whether a card number of this length can begin like this, by the issuer ranges of the card networks.
pub(super) fn card_range(text: &[u8]) -> bool {
    let len = text.len();
    let (two, three, four) = (pair(text, 0), number(&text[..3.min(len)]), number(&text[..4.min(len)]));
    let visa = digit(text, 0) == 4 && matches!(len, 13 | 16 | 19);
    let mastercard = len == 16 && (matches!(two, 51..=55) || matches!(four, 2221..=2720));
    let amex = len == 15 && matches!(two, 34 | 37);
    let discover = (16..=19).contains(&len) && (four == 6011 || matches!(three, 644..=649) || two == 65);
    let jcb = ((16..=19).contains(&len) && matches!(four, 3528..=3589)) || (len == 15 && matches!(four, 2131 | 1800));
    let diners = ((14..=19).contains(&len) && matches!(two, 36 | 38 | 39))
        || ((14..=19).contains(&len) && (matches!(three, 300..=305) || four == 3095));
    let union_pay = (16..=19).contains(&len) && matches!(two, 62 | 81 | 82);
    // 12 digits are the shortest in use, so only the ranges Maestro still has: others collide with account numbers.
    let maestro = (12..=19).contains(&len)
        && matches!(
            four,
            604 | 5018 | 5020 | 5038 | 5893 | 6304 | 6759 | 6761 | 6762 | 6763 | 6390 | 6799 | 6706 | 6709 | 6771
        );
    let maestro_wide = (16..=19).contains(&len) && matches!(two, 50 | 56..=58 | 60 | 63 | 67);
    let mir = (16..=19).contains(&len) && matches!(four, 2200..=2204);
    let troy = len == 16 && four == 9792;
    visa || mastercard || amex || discover || jcb || diners || union_pay || maestro || maestro_wide || mir || troy
}

/// Ranges that were given out once or are reserved, and lengths that collide with other numbers: cards where a word says so.
pub(super) fn card_range_wide(text: &[u8]) -> bool {
    let len = text.len();
    let two = pair(text, 0);
    (len == 16 && matches!(two, 34 | 35 | 37)) || ((12..=19).contains(&len) && matches!(two, 50 | 56..=69))
}

/// Bech32 and bech32m (BIP 173, 350) of a `bc1` address; either checksum constant is taken.
pub(super) fn bech32(text: &[u8]) -> bool {
    const CHARSET: &[u8] = b"qpzry9x8gf2tvdw0s3jn54khce6mua7l";
    const GENERATOR: [u32; 5] = [0x3b6a_57b2, 0x2650_8e6d, 0x1ea1_19fa, 0x3d42_33dd, 0x2a14_62b3];
    let step = |state: u32, value: u32| {
        let top = state >> 25;
        let next = ((state & 0x01ff_ffff) << 5) ^ value;
        GENERATOR.iter().enumerate().fold(next, |sum, (bit, poly)| if top >> bit & 1 == 1 { sum ^ poly } else { sum })
    };
    let Some(data) = text.strip_prefix(b"bc1").or_else(|| text.strip_prefix(b"BC1")) else { return false };
    let mut state = [3u32, 3, 0, 2, 3].iter().fold(1, |state, value| step(state, *value));
    for byte in data {
        let Some(value) = CHARSET.iter().position(|known| *known == byte.to_ascii_lowercase()) else { return false };
        state = step(state, value as u32);
    }
    (14..=74).contains(&text.len()) && (state == 1 || state == 0x2bc8_30a3)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn published_examples_pass_and_one_changed_digit_fails() {
        type Check = fn(&[u8]) -> bool;
        // Examples printed by the issuing authorities or in the standards.
        let cases: &[(Check, &str)] = &[
            (luhn, "4111111111111111"),
            (iban, "GB29NWBK60161331926819"),
            (iban, "DE89370400440532013000"),
            (us_routing, "021000021"),
            (ca_sin, "130692544"),
            (au_tfn, "123456782"),
            (nl_bsn, "111222333"),
            (uk_nhs, "9434765919"),
            (br_cpf, "11144477735"),
            (pl_pesel, "44051401359"),
            (za_id, "8001015009087"),
            (ch_ahv, "7569217076985"),
            (fr_nir, "255081416802538"),
            (de_steuer_id, "86095742719"),
            (be_nn, "85073003328"),
            (aadhaar, "234123412346"),
            (cn_ric, "11010519491231002X"),
            (es_dni, "12345678Z"),
            (es_nie, "X1234567L"),
            (fi_hetu, "131052308T"),
            (it_codice_fiscale, "RSSMRA85T10A562S"),
            (sg_nric, "S1234567D"),
            (mx_curp, "HEGG560427MVZRRL04"),
        ];
        for (check, example) in cases {
            assert!(check(example.as_bytes()), "{example}");
            let mut changed = example.as_bytes().to_vec();
            let at = changed.iter().rposition(u8::is_ascii_digit).expect("a digit");
            changed[at] = b'0' + (changed[at] - b'0' + 1) % 10;
            assert!(!check(&changed), "{example} changed at {at}");
        }
    }

    #[test]
    fn bech32_takes_the_examples_of_its_standards() {
        assert!(bech32(b"bc1qar0srrr7xfkvy5l643lydnw9re59gtzzwf5mdq"));
        assert!(bech32(b"bc1p5cyxnuxmeuwuvkwfem96lqzszd02n6xdcjrs20cac6yqjjwudpxqkedrcr"));
        assert!(!bech32(b"bc1qar0srrr7xfkvy5l643lydnw9re59gtzzwf5mdp"));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn no_checksum_panics_on_any_upper_case_token(text in "[A-Z0-9]{0,40}") {
            let bytes = text.as_bytes();
            let checks: &[fn(&[u8]) -> bool] = &[
                luhn, iban, aadhaar, us_ssn, us_itin, us_routing, ca_sin, au_tfn, nl_bsn, uk_nhs, se_personnummer, br_cpf,
                de_steuer_id, be_nn, pl_pesel, za_id, ch_ahv, kr_rrn, fr_nir, cn_ric, es_dni, es_nie, fi_hetu, sg_nric,
                uk_nino, it_codice_fiscale, mx_curp, in_pan, us_mbi, swift_bic, card_range, bech32,
            ];
            let passed = checks.iter().filter(|check| check(bytes)).count();
            prop_assert!(passed <= 8);
        }
    }
}
