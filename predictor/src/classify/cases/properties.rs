//! Properties of the scanner, over cards and prompts made at random.

use proptest::prelude::*;

use super::*;

/// Card numbers of every network, by prefix and length; the check digit is worked out.
fn card(prefix: &str, len: usize, body: &str) -> String {
    let mut number = format!("{prefix}{body}");
    number.truncate(len - 1);
    (0..10).map(|digit| format!("{number}{digit}")).find(|number| checksum::luhn(number.as_bytes())).unwrap_or_default()
}

fn any_card() -> impl Strategy<Value = String> {
    let networks = [
        ("4", 16),
        ("51", 16),
        ("2720", 16),
        ("34", 15),
        ("37", 15),
        ("6011", 16),
        ("65", 16),
        ("3566", 16),
        ("36", 14),
        ("6759", 18),
        ("62", 19),
    ];
    (proptest::sample::select(networks.to_vec()), "[0-9]{18}")
        .prop_map(|((prefix, len), body)| card(prefix, len, &body))
}

fn any_prompt() -> impl Strategy<Value = String> {
    let part = "[a-zA-Z ,.]{0,30}|\\PC{0,8}|[0-9]{1,4} |[0-9]{2}:[0-9]{2} |\n|- item |\\{\"k\": \"v\"\\}|see 2024-05-01 |価格は|é ";
    proptest::collection::vec(part, 0..20).prop_map(|parts| parts.concat())
}

proptest::proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]
    #[test]
    fn a_card_is_found_wherever_it_is_put_into_a_prompt(front in any_prompt(), number in any_card(), back in any_prompt()) {
        let text = format!("{front} {number} {back}");
        let found = found(scanner(), &text);
        prop_assert!(found.iter().any(|(kind, range)| *kind == Kind::CreditCard && range.contains(&number)), "{text:?}: {found:?}");
    }

    #[test]
    fn a_number_that_fails_its_check_is_no_card(number in any_card(), step in 1u8..10) {
        let mut digits = number.into_bytes();
        let last = digits.len() - 1;
        digits[last] = b'0' + (digits[last] - b'0' + step) % 10;
        let text = format!("the card {} was typed wrongly", String::from_utf8_lossy(&digits));
        let found = found(scanner(), &text);
        prop_assert!(found.iter().all(|(kind, _)| *kind != Kind::CreditCard), "{text}: {found:?}");
    }

    #[test]
    fn where_a_text_is_cut_into_slices_changes_nothing(front in 0usize..SLICE_BYTES, number in any_card(), mail in "[a-z]{3,9}@[a-z]{3,9}\\.org") {
        let filler = "The committee met again and read what the others had written, and nothing was decided. ";
        let document = filler.repeat(2 * SLICE_BYTES / filler.len());
        let sentence = format!("{number} or write to {mail}");
        let text = format!("{} {sentence} {}", &document[..front], &document[front..]);
        let kinds = |text: &str| {
            let mut kinds: Vec<Kind> = found(scanner(), text).into_iter().map(|(kind, _)| kind).collect();
            kinds.sort_unstable();
            kinds
        };
        // The words of the document are around it either way.
        prop_assert_eq!(kinds(&text), kinds(&format!("{filler} {sentence} {filler}")));
    }
}

proptest::proptest! {
    #![proptest_config(proptest::prelude::ProptestConfig::with_cases(96))]
    #[test]
    fn any_text_is_scanned_without_panic_and_hits_lie_between_characters(parts in proptest::collection::vec("[ -~]{0,12}|\\PC{0,6}|[0-9 .-]{0,20}|@[a-z.]{0,8}|\\\\u[0-9a-f]{0,4}|:// a:b@|sk-[a-z0-9]{0,40}", 0..24)) {
        let text = parts.concat();
        let scanner = scanner();
        let mut scratch = Scratch::default();
        let findings = scanner.scan(&mut scratch, [Piece { scope: Scope::Tool, text: &text }], &Shape::default());
        for hit in findings.hits() {
            proptest::prop_assert!(hit.start < hit.end && text.get(hit.start as usize..hit.end as usize).is_some(), "{:?} of {} bytes", hit, text.len());
        }
    }
}
