//! Identifiers in sentences, in disguise and in rare forms, and harmless text.

use super::*;

#[test]
fn identifiers_are_found_in_sentences_of_many_hands() {
    assert_found(&[
        (Kind::CreditCard, "charge my visa 4539 1488 0343 6467 exp 04/27 cvv 123 pls"),
        (Kind::CreditCard, "Amex ending... no here is the full thing: 3782 822463 10005"),
        (Kind::CreditCard, "card_no=5555555555554444&amount=10"),
        (Kind::CreditCard, "The diners one is 3056 930902 5904"),
        (Kind::CreditCard, "pay w/ 6304 9506 0000 0000 00 maestro"),
        (Kind::CreditCard, "JCB:3530111333300000."),
        (Kind::CreditCard, "{\"pan\":\"4111111111111111\",\"cvc\":\"000\"}"),
        (Kind::CreditCard, "Kartennummer4111111111111111"),
        (Kind::CreditCard, "卡号4111111111111111请查收"),
        (Kind::CreditCard, "2 4111 1111 1111 1111 3"),
        (Kind::CreditCard, "12345 4111-1111-1111-1111 99"),
        (Kind::CreditCard, "7f9c24e8-3b12-4fef-91e0-9a1b6a2f3c4d then 4111111111111111"),
        (Kind::CreditCard, "7f9c24e8-3b12-4fef-91e0-9a1b6a2f3c4d,4111-1111-1111-1111"),
        (Kind::Iban, "überweise an DE89 3704 0044 0532 0130 00 bis freitag"),
        (Kind::Iban, "my iban's gb29nwbk60161331926819 thx"),
        (Kind::Iban, "IBAN:NL91ABNA0417164300,BIC:ABNANL2A"),
        (Kind::Iban, "compte FR14 2004 1010 0505 0001 3M02 606"),
        (Kind::SwiftBic, "IBAN:NL91ABNA0417164300,BIC:ABNANL2A"),
        (Kind::SwiftBic, "our bank is DEUTDEFF (swift) in Frankfurt"),
        (Kind::Phone, "hit me up at 415-555-2671 after 6"),
        (Kind::Phone, "Tel.: 030/12345678"),
        (Kind::Phone, "mon numéro de portable c'est le 06.12.34.56.78"),
        (Kind::Phone, "llámame al 612 345 678 por la tarde"),
        (Kind::Phone, "You can reach me on 07700 900123"),
        (Kind::Phone, "Call (212) 664-7665 for details"),
        (Kind::Phone, "whatsapp: +91 98765 43210"),
        (Kind::Phone, "我的手机号是13812345678"),
        (Kind::Phone, "携帯は090-1234-5678です"),
        (Kind::Phone, "phoneNumber\": \"2126647665\""),
        (Kind::Phone, "bel me op 06-12345678"),
        (Kind::Phone, "ligue para (11) 91234-5678"),
        (Kind::Phone, "her cell is 2126647665, leave a voicemail"),
        (Kind::Phone, "tel:+44-20-7946-0958"),
        (Kind::Phone, "00 49 151 23456789 ist meine Nummer"),
        (Kind::Email, "ping jane.doe+work@mail.acme-corp.co.uk asap"),
        (Kind::Email, "(mailto:j.o'neil@firma.de)"),
        (Kind::Email, "邮箱是zhang.wei@qq.com谢谢"),
        (Kind::UsSsn, "ssn on file 536-90-4399"),
        (Kind::UsSsn, "my social is 536904399"),
        (Kind::UsSsn, "customerSsn: 536904399"),
        (Kind::UsSsn, "SSN 536 90 4399"),
        (Kind::UkNino, "NI number AB123456C"),
        (Kind::UkNhs, "nhsNumber: 9434765919"),
        (Kind::NlBsn, "\"bsnNummer\": \"111222333\""),
        (Kind::NlBsn, "mijn burgerservicenummer is 111.222.333"),
        (Kind::EsNie, "Send it to X-1234567-L before Friday and keep a copy of it for the file."),
        (Kind::DeSteuerId, "Meine Steuer-ID lautet 86 095 742 719"),
        (Kind::PlPesel, "mój pesel to 44051401359"),
        (Kind::BrCpf, "meu CPF 111.444.777-35"),
        (Kind::InAadhaar, "aadhaarNo=234123412346"),
        (Kind::InAadhaar, "मेरा आधार 2341 2341 2346 है"),
        (Kind::InPan, "PAN card no. ABCPE1234F"),
        (Kind::CaSin, "SIN# 130 692 544"),
        (Kind::AuTfn, "TFN: 123 456 782"),
        (Kind::ZaId, "SA ID 8001015009087"),
        (Kind::CnRic, "我的身份证号11010519491231002X"),
        (Kind::UsRouting, "wire it: routing 021000021, checking"),
        (Kind::Passport, "my passport's number: X4RTBPFW4"),
        (Kind::Passport, "Reisepass C01X00T47"),
        (Kind::UsDriverLicense, "CA driver's license I1234568"),
        (Kind::UsMbi, "Medicare no 1EG4-TE5-MK73"),
        (Kind::IpAddress, "login from 81.2.69.142 failed"),
        (Kind::IpAddress, "client [2a02:c7f:8e3a:4b00::17]:443"),
        (Kind::MacAddress, "DHCP lease for 3c:22:fb:a1:07:9e"),
        (Kind::CryptoWallet, "send to bc1qar0srrr7xfkvy5l643lydnw9re59gtzzwf5mdq"),
        (Kind::GenericSecret, "password: Tr0ub4dor&3"),
        (Kind::GenericSecret, "DB_PASSWORD=9fX2kqLm77"),
        (Kind::UrlCredentials, concat!("amqp://svc:", "hunter2z@mq.corp:5672")),
        (Kind::PrivateKey, concat!("-----BEGIN OPENSSH PRIVATE", " KEY-----\nabc")),
        (Kind::AwsAccessKey, concat!("aws_access_key_id = AKI", "AQ4J3KXW7ZP2MVN5T")),
        (Kind::GithubToken, concat!("remote: https://gh", "p_3BffRAk6VGRwvQL9cSuMS1831MgCcTFN6Wog@github.com/o/r")),
        (
            Kind::Jwt,
            concat!(
                "Authorization: Bearer eyJhbGciOiJIUzI1NiJ9.",
                "eyJzdWIiOiIxMjM0NTY3ODkwIn0.",
                "dozjgNryP4J3jVmNHl0w5N_XgL0n3I9PlFUP0THsR8U"
            ),
        ),
    ]);
}

#[test]
fn disguised_identifiers_are_found() {
    assert_found(&[
        (Kind::CreditCard, "4111\u{a0}1111\u{a0}1111\u{a0}1111"),
        (Kind::CreditCard, "４１１１１１１１１１１１１１１１"),
        (Kind::CreditCard, "4111\u{200b}1111\u{200b}1111\u{200b}1111"),
        (Kind::CreditCard, "4111\u{2011}1111\u{2011}1111\u{2011}1111"),
        (Kind::CreditCard, "4111 - 1111 - 1111 - 1111"),
        (Kind::CreditCard, "4 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1"),
        (Kind::CreditCard, "4111.1111.1111.1111"),
        (Kind::CreditCard, "4111_1111_1111_1111"),
        (Kind::CreditCard, "4111/1111/1111/1111"),
        (Kind::CreditCard, "NDExMTExMTExMTExMTExMQ=="),
        (Kind::CreditCard, "٤١١١ ١١١١ ١١١١ ١١١١"),
        (Kind::CreditCard, "41 11 11 11 11 11 11 11"),
        (Kind::CreditCard, "card four one one one one one one one one one one one one one one one"),
        (Kind::Email, "jane [at] acme [dot] io"),
        (Kind::Email, "jane(at)acme(dot)io"),
        (Kind::Email, "jane at acme dot io"),
        (Kind::Email, "jane AT acme DOT co DOT uk"),
        (Kind::Email, "jane[at]acme.io"),
        (Kind::Email, "jane @ acme . io"),
        (Kind::Email, "jane＠acme.io"),
        (Kind::Email, "jane%40acme.io"),
        (Kind::Email, "jane&#64;acme.io"),
        (Kind::Email, "jane\\u0040acme.io"),
        (Kind::Email, "ja\u{200b}ne@ac\u{200b}me.io"),
        (Kind::Email, "amFuZUBhY21lLmlvIHdyb3Rl"),
        (Kind::Email, "jane_at_acme_dot_io"),
        (Kind::Email, "6a616e6540616 is not it, 6a616e654061636d652e696f is"),
        (Kind::UsSsn, "536\u{2013}90\u{2013}4399"),
        (Kind::UsSsn, "SSN 5 3 6 9 0 4 3 9 9"),
        (Kind::UsSsn, "NTM2LTkwLTQzOTk="),
        (Kind::UsSsn, "ssn: 536.90.4399"),
        (Kind::Iban, "DE89-3704-0044-0532-0130-00"),
        (Kind::Iban, "ＤＥ８９３７０４００４４０５３２０１３０００"),
        (Kind::Iban, "D E 8 9 3 7 0 4 0 0 4 4 0 5 3 2 0 1 3 0 0 0"),
        (Kind::Phone, "+1 (212) 664 7665".replace(' ', "\u{202f}").leak()),
        (Kind::Phone, "call me: two one two six six four seven six six five"),
    ]);
}

#[test]
fn numbers_are_found_whose_groups_stand_in_cells_or_lines_of_their_own() {
    assert_found(&[
        (Kind::CreditCard, "4111\t1111\t1111\t1111"),
        (Kind::CreditCard, "4111\n1111\n1111\n1111"),
        (Kind::CreditCard, "4111\r\n1111\r\n1111\r\n1111\r\n"),
        (Kind::CreditCard, "from the sheet:\n3782\t822463\t10005\nthanks"),
        (Kind::CreditCard, "card 4111 1111\n1111 1111"),
        (Kind::CreditCard, "card 41111111\n11111111"),
        (Kind::CreditCard, "card 411111=\n1111111111"),
        (Kind::CreditCard, "4111 1111=\r\n 1111 1111"),
        (Kind::CreditCard, "curl -d 4111 1111 \\\n1111 1111"),
        (Kind::Iban, "DE89\t3704\t0044\t0532\t0130\t00"),
        (Kind::Iban, "DE89\n3704\n0044\n0532\n0130\n00"),
        (Kind::Iban, "DE8937040044=\n0532013000"),
        (Kind::UkNhs, "NHS number\n943\n476\n5919"),
        (Kind::UsSsn, "ssn\t536\t90\t4399"),
        (Kind::NlBsn, "bsn 111\r\n222\r\n333"),
        (Kind::InAadhaar, "aadhaar 2341\n2341\n2346"),
        (Kind::UsSsn, "ssn 536-90=\n-4399"),
    ]);
    let scanner = scanner();
    for table in [
        "4111\t1111\t1111\t1111\n4539\t1488\t0343\t6467",
        "a\t4111\t1111\t1111\t1111",
        "4111\t1111\t1111\t1111\tx",
        "12\n4111\n1111\n1111\n1111",
        "4111\n1111\n1111\n1111\n1111",
        "4111,1111,1111,1111",
        "4111 | 1111 | 1111 | 1111",
        "41111111\n11111111",
        "943\n476\n5919",
        "NHS number\n943\n476\n5918",
        "NHS number 943, 476, 5919",
    ] {
        assert_eq!(found(scanner, table), [], "{table:?}");
    }
}

#[test]
fn addresses_of_rare_forms_are_found() {
    for (text, address) in [
        ("\"john smith\"@corp.de", "\"john smith\"@corp.de"),
        ("to \u{201c}john smith\u{201d}@corp.de", "\u{201c}john smith\u{201d}@corp.de"),
        ("{\"to\": \"\\\"j s\\\"@corp.de\"}", "\\\"j s\\\"@corp.de"),
        ("<john@[192.168.1.5]>", "john@[192.168.1.5]"),
        ("john@[IPv6:2001:db8::1].", "john@[IPv6:2001:db8::1]"),
        ("john\\x40corp.de", "john\\x40corp.de"),
        ("john\\u{40}corp.de", "john\\u{40}corp.de"),
        ("To: john=40corp.de", "john=40corp.de"),
        ("?mail=john%40corp.de", "john%40corp.de"),
        ("john&#64;corp.de", "john&#64;corp.de"),
        ("john&commat;corp.de", "john&commat;corp.de"),
    ] {
        let hits = found(scanner(), text);
        assert!(hits.iter().any(|(kind, found)| *kind == Kind::Email && found.contains(address)), "{text}: {hits:?}");
    }
    for text in [
        "\"Paris\"@fr . \"Rome\"@it .",
        "x\"y\"@corp.de",
        "\"\"@corp.de",
        "a@[1, 2, 3] b@[i][j] c@[x.y.z]",
        "john@[2001:db8::1]:/srv",
        "/list?limit=40items.all&n=1",
        "x=40 y=4012 z=40px",
        "C:\\x40 \\x4 \\u{110000}",
    ] {
        assert_eq!(found(scanner(), text), [], "{text}");
    }
}

#[test]
fn german_papers_are_known_with_their_check_digit_beside_their_word() {
    assert_found(&[
        (Kind::Passport, "Reisepass C01X00T478"),
        (Kind::Passport, "Reisepassnummer: C01X00T478D"),
        (Kind::Passport, "Personalausweis T220001293"),
        (Kind::Passport, "Personalausweisnummer 1220001297"),
        (Kind::Passport, "Ausweisnummer T22000129"),
        (Kind::Passport, "alter Perso, Ausweis-Nr. 1220001297D"),
    ]);
    for text in
        ["C01X00T478", "Reisepass C01X00T470", "Personalausweis ab 16, Antrag 1220001290", "T220001293 auf Lager"]
    {
        assert_eq!(found(scanner(), text), [], "{text}");
    }
}

#[test]
fn telephone_words_of_small_ads_count_in_their_languages() {
    assert_found(&[
        (Kind::Phone, "mi cel 55 1629 4899"),
        (Kind::Phone, "truqueu al 693304933"),
        (Kind::Phone, "telèfon 693304933"),
        (Kind::Phone, "للتواصل واتساب 583775238"),
        (Kind::Phone, "תתקשרו או וואטסאפ 583775238"),
        (Kind::Phone, "пишите в ватсап 9213334455"),
        (Kind::Phone, "liên hệ 583775238"),
        (Kind::Phone, "ফোন 5837752381"),
    ]);
}

#[test]
fn harmless_text_is_left_alone() {
    let scanner = scanner();
    let cases = [
        "Order 4111111111111112 shipped",
        "The call lasted 1:23:45",
        "my number one priority is 2024",
        "Call me Ishmael. Some years ago",
        "version 1.2.3.4 of the driver",
        "released 2024.01.15",
        "ping 192.168.0.17 and 10.1.2.3",
        "see RFC 2606 section 3",
        "ISBN 978-3-16-148410-0",
        "GPS 52.520008, 13.404954",
        "UUID 550e8400-e29b-41d4-a716-446655440000",
        "commit 9fceb02d0ae598e95dc970b74767f19372d61af8",
        "mail test@example.com or admin@localhost",
        "pi = 3.141592653589793",
        "phone: none",
        "the password is required",
        "password123 is a weak password? discuss hashing",
        "token: ${GITHUB_TOKEN}",
        "api_key: <your key here>",
        "My order number is 546503646",
        "2024-05-01 12:30:00",
        "Mobile World Congress 2024 had 101000 visitors",
        "std::vec::Vec and a::b::c",
        "json!(1_000_000_000), CelValue::Duration(1)",
        "0x7fff5fbff8a0 segfault",
        "SELECT 1234567890 FROM t",
        "ticket 123-456-7890",
        "1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12",
        "1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16",
        "192.0.2.1 is for documentation",
        "npm i lodash@4.17.21 react@18.2.0",
        "Tel Aviv has 460613 people",
        "the ring is 750 gold",
        "fax machines of 1985-1995",
        "at noon dot the map with pins",
        "Highway 401 exits 330-375, mile 1200-1450",
        "scores: 21-15 21-17 19-21",
        "look at the dot com boom",
        "user@host:~$ ls",
        "@media (max-width: 600px)",
        "lat/long 40.7128/-74.0060",
        "ratio 16:9 at 3840x2160",
        "the sun at 1391000 km",
        "cpu 3600 3200 2666 MHz",
        "call at 10 or 11, gate 22, seat 34",
        "Part number 4539-1488-0343",
        "CVE-2021-44228 and CVE-2024-3094",
        "Visa processed 276 billion transactions in 2023",
        "You can toggle Queue Shuffle ON or OFF at any point during the process",
        "const {username, password} = await res2.json()",
        "the meeting is AT NOON, at the usual point of the harbour",
    ];
    let flagged: Vec<_> =
        cases.iter().map(|text| (text, found(scanner, text))).filter(|(_, hits)| !hits.is_empty()).collect();
    assert!(flagged.is_empty(), "{flagged:#?}");
}
