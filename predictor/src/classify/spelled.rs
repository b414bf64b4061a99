//! Digits written as words: "four one one one", "vier eins eins", "double four". Seven or more in a row are read as the number they spell.

use super::landmarks::{Landmark, Meaning};

/// Fewest digits in a row that are read.
const DIGITS_MIN: usize = 7;
/// Most digits in a row that are read; an IBAN has 34 characters.
const DIGITS_MAX: usize = 40;
/// Longest gap between two words: ", " or " - ".
const GAP_BYTES_MAX: usize = 3;

/// What a word says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Word {
    /// This digit.
    Digit(u8),
    /// The next digit, this many times.
    Times(u8),
}

/// The words for 0 to 9 in one language, several where there are several. A word two languages share says the same in both.
const LANGUAGES: [[&[&str]; 10]; 16] = [
    [
        &["zero", "oh", "nought"],
        &["one"],
        &["two"],
        &["three"],
        &["four"],
        &["five"],
        &["six"],
        &["seven"],
        &["eight"],
        &["nine"],
    ],
    [
        &["null"],
        &["eins"],
        &["zwei", "zwo"],
        &["drei"],
        &["vier"],
        &["fünf", "fuenf"],
        &["sechs"],
        &["sieben"],
        &["acht"],
        &["neun"],
    ],
    [&["zéro"], &["un"], &["deux"], &["trois"], &["quatre"], &["cinq"], &[], &["sept"], &["huit"], &["neuf"]],
    [&["cero"], &["uno"], &["dos"], &["tres"], &["cuatro"], &["cinco"], &["seis"], &["siete"], &["ocho"], &["nueve"]],
    [&[], &[], &["due"], &["tre"], &["quattro"], &["cinque"], &["sei"], &["sette"], &["otto"], &["nove"]],
    [&[], &["um", "uma"], &["dois", "duas"], &["três"], &[], &[], &["meia"], &["sete"], &["oito"], &[]],
    [&["nul"], &["een", "één"], &["twee"], &["drie"], &[], &["vijf"], &["zes"], &["zeven"], &[], &["negen"]],
    [&[], &["jeden"], &["dwa"], &["trzy"], &["cztery"], &["pięć"], &["sześć"], &["siedem"], &["osiem"], &["dziewięć"]],
    [&["noll"], &["ett"], &["två"], &[], &["fyra"], &["fem"], &["sex"], &["sju"], &["åtta"], &["nio"]],
    [&["ноль"], &["один"], &["два"], &["три"], &["четыре"], &["пять"], &["шесть"], &["семь"], &["восемь"], &["девять"]],
    [&["sıfır"], &["bir"], &["iki"], &["üç"], &["dört"], &["beş"], &["altı"], &["yedi"], &["sekiz"], &["dokuz"]],
    [
        &["ゼロ", "れい", "まる"],
        &["いち"],
        &["に"],
        &["さん"],
        &["よん", "し"],
        &["ご"],
        &["ろく"],
        &["なな", "しち"],
        &["はち"],
        &["きゅう", "く"],
    ],
    [&["공", "영"], &["일"], &["이"], &["삼"], &["사"], &["오"], &["육"], &["칠"], &["팔"], &["구"]],
    [&["शून्य"], &["एक"], &["दो"], &["तीन"], &["चार"], &["पांच", "पाँच"], &["छह", "छः"], &["सात"], &["आठ"], &["नौ"]],
    [
        &["صفر"],
        &["واحد"],
        &["اثنان", "اثنين"],
        &["ثلاثة"],
        &["أربعة", "اربعة"],
        &["خمسة"],
        &["ستة"],
        &["سبعة"],
        &["ثمانية"],
        &["تسعة"],
    ],
    [&["〇", "零"], &["一"], &["二"], &["三"], &["四"], &["五"], &["六"], &["七"], &["八"], &["九"]],
];

/// Every word and its text.
pub(super) fn words() -> impl Iterator<Item = (Word, &'static str)> {
    let digits = LANGUAGES.iter().flat_map(|language| {
        language.iter().zip(0u8..).flat_map(|(words, digit)| words.iter().map(move |text| (Word::Digit(digit), *text)))
    });
    digits.chain([(Word::Times(2), "double"), (Word::Times(3), "triple")])
}

/// A number being read.
struct Number {
    digits: [u8; DIGITS_MAX],
    len: usize,
    start: usize,
    end: usize,
    /// How often the next digit stands.
    times: u8,
}

impl Number {
    const fn empty() -> Number {
        Number { digits: [0; DIGITS_MAX], len: 0, start: 0, end: 0, times: 1 }
    }

    /// Whether a word that begins at `start` goes on with the number.
    fn joins(&self, text: &[u8], start: usize) -> bool {
        self.end > self.start
            && start >= self.end
            && self.len + 3 <= DIGITS_MAX
            && start - self.end <= GAP_BYTES_MAX
            && text[self.end..start].iter().all(|byte| matches!(byte, b' ' | b'-' | b',' | b'.' | b'\n'))
    }

    fn add(&mut self, word: Word, end: usize) {
        match word {
            Word::Times(times) => self.times = times,
            Word::Digit(digit) => {
                for _ in 0..self.times {
                    self.digits[self.len] = b'0' + digit;
                    self.len += 1;
                }
                self.times = 1;
            }
        }
        self.end = end;
    }
}

/// Calls `each` with every number spelled in `text` and where its words begin and end.
pub(super) fn each(text: &[u8], marks: &[Landmark], mut each: impl FnMut(&[u8], usize, usize)) {
    let letter = |at: Option<&u8>| at.is_some_and(u8::is_ascii_alphabetic);
    let mut number = Number::empty();
    for mark in marks {
        let Meaning::Digit(word) = mark.meaning else { continue };
        let (start, end) = (mark.start as usize, mark.end as usize);
        // A word inside the one just read, as seven is in the Russian for eight.
        if start < number.end {
            continue;
        }
        let latin = text[start].is_ascii_alphabetic();
        let in_word = latin && letter(start.checked_sub(1).and_then(|at| text.get(at)));
        if in_word || (text[end - 1].is_ascii_alphabetic() && letter(text.get(end))) {
            continue;
        }
        if !number.joins(text, start) {
            if number.len >= DIGITS_MIN {
                each(&number.digits[..number.len], number.start, number.end);
            }
            number = Number { start, end: start, ..Number::empty() };
        }
        number.add(word, end);
    }
    if number.len >= DIGITS_MIN {
        each(&number.digits[..number.len], number.start, number.end);
    }
}

#[cfg(test)]
mod tests {
    use super::super::classes::Classes;
    use super::super::kind::KindSet;
    use super::super::landmarks::Landmarks;
    use super::*;

    #[test]
    fn only_long_rows_of_digit_words_are_numbers() {
        let landmarks = Landmarks::compile(KindSet::EMPTY);
        let read = |text: &str| {
            let (mut all, mut marks) = (Vec::new(), Vec::new());
            landmarks.find(text.as_bytes(), &Classes::of(text.as_bytes()), &mut marks, &mut Vec::new());
            each(text.as_bytes(), &marks, |digits, start, end| {
                all.push((String::from_utf8_lossy(digits).into_owned(), text[start..end].to_owned()));
            });
            all
        };
        let text = "ring Two one two, six oh six - four seven on Monday";
        assert_eq!(read(text), [("21260647".to_owned(), "Two one two, six oh six - four seven".to_owned())]);
        assert!(read("one two three four five six").is_empty());
        assert!(read("phone two stone one bone").is_empty());
        for (text, digits) in [
            ("null eins fünf acht neun drei drei", "0158933"),
            ("zéro six douze", ""),
            ("seis cero ocho tres nueve uno cero uno tres", "608391013"),
            ("zero double seven triple four one two", "077444\u{31}2"),
            ("一三八〇〇一三八〇〇〇", "13800138000"),
            ("ноль пять ноль один два три четыре", "0501234"),
            ("восемь девять один восемь семь ноль два", "8918702"),
            ("공일공이삼사오육칠팔", "0102345678"),
            ("ゼロ きゅう ゼロ いち に さん し", "0901234"),
            ("sıfır beş üç iki bir dört yedi", "0532147"),
        ] {
            let found = read(text);
            assert_eq!(found.first().map_or("", |(found, _)| found.as_str()), digits, "{text}");
        }
    }
}
