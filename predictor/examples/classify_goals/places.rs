//! Identifiers anywhere in long documents, and between other numbers.

use predictor::classify::{Kind, Piece, Scanner, Scope, Scratch, Shape};

use super::Row;

/// An identifier of each way of being found: checksum, layout, word.
const IDENTIFIERS: [(Kind, &str); 12] = [
    (Kind::CreditCard, "4111 1111 1111 1111"),
    (Kind::CreditCard, "378282246310005"),
    (Kind::Iban, "DE89 3704 0044 0532 0130 00"),
    (Kind::Email, "jane.roe@acme-corp.io"),
    (Kind::UsSsn, "536-90-4399"),
    (Kind::Phone, "+44 20 7946 0958"),
    (Kind::Phone, "call 07700 900123"),
    (Kind::NlBsn, "bsn: 111222333"),
    (Kind::UkNhs, "NHS number 943 476 5919"),
    (Kind::FrNir, "255081416802538"),
    (Kind::BrCpf, "CPF 111.444.777-35"),
    (Kind::ItCodiceFiscale, "RSSMRA85T10A562S"),
];

const PROSE: &str =
    "The committee met again and read what the others had written about the harbour; nothing was decided. ";
const LOG: &str = "2025-03-02T11:04:19.112Z INFO worker-7 took 4711 ms for 10240 bytes, id 0b9c44f1\n";
const TABLE: &str = "10023,44.12,7,2024-11-05\n";

/// Both rows.
pub(crate) fn rows(scanner: &Scanner) -> Vec<Row> {
    let mut scratch = Scratch::default();
    let mut found = |text: &str, kind: Kind| {
        let findings = scanner.scan(&mut scratch, [Piece { scope: Scope::User, text }], &Shape::default());
        findings.count(kind) > 0
    };
    let (mut places, mut all) = (0, 0);
    for filler in [PROSE, LOG, TABLE] {
        for bytes in [3_000, 9_000, 17_000, 40_000] {
            let document = filler.repeat(bytes / filler.len() + 1);
            // Places are odd on purpose: they fall within words, numbers and at the edges of slices.
            for step in 0..24 {
                let at = step * bytes / 23 / filler.len() * filler.len();
                for (kind, value) in IDENTIFIERS {
                    let text = format!("{} {value} {}", &document[..at], &document[at..]);
                    places += usize::from(found(&text, kind));
                    all += 1;
                }
            }
        }
    }
    let (mut beside, mut neighbours) = (0, 0);
    let surroundings = [
        ("17 ", " 99"),
        ("2024 0042 ", ", 1200"),
        ("a1 22-", " 33"),
        ("(7) ", " / 8 / 9"),
        ("1, 2, 3, ", ", 4, 5"),
        ("x=10;y=", ";z=12"),
    ];
    for (kind, value) in IDENTIFIERS {
        // A number that belongs to the group in front of it cannot be told from one.
        for (front, back) in surroundings
            .iter()
            .filter(|(front, _)| !(front.ends_with('-') && value.starts_with(|c: char| c.is_ascii_digit())))
        {
            beside += usize::from(found(&format!("{front}{value}{back}"), kind));
            neighbours += 1;
        }
    }
    vec![
        Row::at_least("found anywhere in 3 to 40 KB", 1.0, f64::from(places as u32) / f64::from(all as u32), all),
        Row::at_least(
            "found between other numbers",
            1.0,
            f64::from(beside as u32) / f64::from(neighbours as u32),
            neighbours,
        ),
    ]
}
