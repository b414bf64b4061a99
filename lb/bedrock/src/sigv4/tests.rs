use proptest::prelude::*;
use serde_json::Value;

use super::*;

/// AWS's vectors, as published (`tests/golden/README.md`).
const VECTORS: &str = include_str!("../../tests/golden/vectors.jsonl");
/// Requests signed by botocore: half of them whole Converse calls.
const SIGNED: &str = include_str!("../../tests/golden/signed.jsonl");

fn lines(text: &str) -> Vec<Value> {
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!(lines.len() >= 65, "{} lines", lines.len());
    lines
}

/// The parts of a raw HTTP request: method, path, query, headers with folded lines unfolded, body.
fn raw_request(text: &str) -> (String, String, String, Vec<(String, String)>, String) {
    let (head, body) = text.split_once("\n\n").unwrap_or((text, ""));
    let mut lines = head.lines();
    let (method, rest) = lines.next().unwrap().split_once(' ').unwrap();
    let target = rest.strip_suffix(" HTTP/1.1").unwrap();
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let mut headers: Vec<(String, String)> = Vec::new();
    for line in lines {
        if line.starts_with(char::is_whitespace) {
            let value = &mut headers.last_mut().unwrap().1;
            value.push_str(line);
        } else {
            let (name, value) = line.split_once(':').unwrap();
            headers.push((name.to_owned(), value.to_owned()));
        }
    }
    (method.to_owned(), path.to_owned(), query.to_owned(), headers, body.to_owned())
}

fn unix_s(date: &str) -> u64 {
    match date {
        "20150830T123600Z" => 1_440_938_160,
        "20210511T154045Z" => 1_620_747_645,
        other => panic!("{other}"),
    }
}

#[test]
fn awss_published_vectors_hold() {
    for vector in lines(VECTORS) {
        let name = format!("{} {}", vector["suite"], vector["name"]);
        let text = |field: &str| vector[field].as_str();
        let (method, path, query, headers, body) = raw_request(text("request").unwrap());
        let headers: Vec<(&str, &str)> = headers.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        let request =
            Request { method: &method, path: &path, query: &query, headers: &headers, body: &[body.as_bytes()] };
        let (date, token) = (text("time").unwrap(), text("token"));
        let signed = signed_headers(&headers, date, token);
        let names = join(signed.iter().map(|(name, _)| name.as_str()), ";");
        let canonical = canonical_request(&request, &signed, &names);
        assert_eq!(canonical, text("canonical").unwrap(), "{name}");
        if let Some(expected) = text("string_to_sign") {
            assert_eq!(string_to_sign(date, "20150830/us-east-1/service/aws4_request", &canonical), expected, "{name}");
        }
        if let Some(expected) = text("authorization") {
            let credentials =
                Credentials::new("AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY", token).unwrap();
            let signature = Signer::new(credentials, "us-east-1", "service").sign(&request, unix_s(date));
            assert_eq!(signature.authorization, expected, "{name}");
        }
    }
}

#[test]
fn requests_signed_by_botocore_are_signed_the_same() {
    for case in lines(SIGNED) {
        let ask = &case["sign"];
        let text = |field: &str| ask[field].as_str().unwrap();
        let headers = ask["headers"].as_array().unwrap();
        let headers: Vec<(&str, &str)> =
            headers.iter().map(|pair| (pair[0].as_str().unwrap(), pair[1].as_str().unwrap())).collect();
        let request = Request {
            method: text("method"),
            path: text("path"),
            query: text("query"),
            headers: &headers,
            body: &[text("body").as_bytes()],
        };
        let token = ask["session_token"].as_str();
        let credentials = Credentials::new(text("access_key_id"), text("secret_access_key"), token).unwrap();
        let signer = Signer::new(credentials, text("region"), text("service"));
        let signature = signer.sign(&request, ask["time_unix_s"].as_u64().unwrap());
        let headers: Vec<(&str, &str)> = signature.headers().collect();
        let expected = case["expected"].as_object().unwrap();
        assert_eq!(headers.len(), expected.len(), "{case}");
        for (name, value) in headers {
            assert_eq!(expected[name], value, "{case}");
        }
        if let Some(model) = case["model"].as_str() {
            let delivery = if case["stream"] == true { crate::Delivery::Streamed } else { crate::Delivery::Whole };
            assert_eq!(crate::path(model, delivery), request.path);
        }
    }
}

#[test]
fn ids_with_colons_and_slashes_are_one_segment_of_the_path() {
    let arn = "arn:aws:bedrock:eu-central-1:123456789012:inference-profile/eu.amazon.nova-pro-v1:0";
    assert_eq!(
        crate::path(arn, crate::Delivery::StreamedWithUsage),
        "/model/arn%3Aaws%3Abedrock%3Aeu-central-1%3A123456789012%3Ainference-profile%2Feu.amazon.nova-pro-v1%3A0/converse-stream"
    );
}

#[test]
fn a_signature_covers_every_part_of_the_request() {
    let headers = [("host", "h"), ("content-type", "application/json")];
    let request = Request { method: "POST", path: "/model/m/converse", query: "", headers: &headers, body: &[b"{}"] };
    let signer =
        |secret, token, region, service| Signer::new(Credentials::new("AKID", secret, token).unwrap(), region, service);
    let base = signer("s", Some("t"), "us-east-1", "bedrock");
    let now = 1_700_000_000;
    let signature = |signer: &Signer, request: &Request<'_>, now| {
        let signature = signer.sign(request, now);
        signature.authorization.split_once("Signature=").unwrap().1.to_owned()
    };
    let expected = signature(&base, &request, now);
    let others = [
        signature(&base, &Request { method: "GET", ..request }, now),
        signature(&base, &Request { path: "/model/n/converse", ..request }, now),
        signature(&base, &Request { query: "a=b", ..request }, now),
        signature(&base, &Request { headers: &headers[..1], ..request }, now),
        signature(&base, &Request { body: &[b"{", b" }"], ..request }, now),
        signature(&base, &request, now + 1),
        signature(&signer("S", Some("t"), "us-east-1", "bedrock"), &request, now),
        signature(&signer("s", Some("T"), "us-east-1", "bedrock"), &request, now),
        signature(&signer("s", None, "us-east-1", "bedrock"), &request, now),
        signature(&signer("s", Some("t"), "us-east-2", "bedrock"), &request, now),
        signature(&signer("s", Some("t"), "us-east-1", "lambda"), &request, now),
    ];
    for (number, other) in others.iter().enumerate() {
        assert_ne!(*other, expected, "{number}");
    }
}

#[test]
fn what_proxies_change_is_not_signed() {
    let sign = |headers: &[(&str, &str)]| {
        let request = Request { method: "POST", path: "/", query: "", headers, body: &[] };
        Signer::new(Credentials::new("AKID", "s", None).unwrap(), "r", "bedrock").sign(&request, 0).authorization
    };
    let plain = sign(&[("host", "h")]);
    assert_eq!(plain, sign(&[("User-Agent", "a"), ("host", "h"), ("traceparent", "b"), ("Authorization", "Bearer c")]));
    assert!(plain.contains("SignedHeaders=host;x-amz-date,"), "{plain}");
}

#[test]
fn credentials_with_a_line_end_are_refused_without_showing_them() {
    for (key, secret, token) in [("AKID\n", "s", None), ("AKID", "s ecret", None), ("AKID", "s", Some("tök"))] {
        let error = Credentials::new(key, secret, token).unwrap_err();
        assert!(matches!(error, CredentialError::Character(_)), "{error:?}");
        assert!(!error.to_string().contains("AKID"), "{error}");
    }
    assert_eq!(Credentials::new("AKID", "", None), Err(CredentialError::Empty("secret access key")));
    assert_eq!(Credentials::new("AKID", "s", Some("")), Err(CredentialError::Empty("session token")));
}

#[test]
fn nothing_that_is_printed_holds_a_credential() {
    let credentials = Credentials::new("AKIDEXAMPLE", "topsecret", Some("sessiontoken")).unwrap();
    let signer = Signer::new(credentials.clone(), "us-east-1", "bedrock");
    let request = Request { method: "POST", path: "/", query: "", headers: &[("host", "h")], body: &[b"prompt"] };
    let printed = format!("{credentials:?} {signer:?} {:?} {request:?}", signer.sign(&request, 1));
    for secret in ["AKIDEXAMPLE", "topsecret", "sessiontoken", "prompt", "Signature="] {
        assert!(!printed.contains(secret), "{printed}");
    }
}

/// The slow twin: years, months and days one by one.
fn slow_date(unix_s: u64) -> String {
    let leap = |year: u64| year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    let (mut days, mut year, mut month) = (unix_s / 86_400, 1970, 1);
    while days >= if leap(year) { 366 } else { 365 } {
        days -= if leap(year) { 366 } else { 365 };
        year += 1;
    }
    let lengths = [31, if leap(year) { 29 } else { 28 }, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    for length in lengths {
        if days < length {
            break;
        }
        days -= length;
        month += 1;
    }
    let second = unix_s % 86_400;
    format!("{year:04}{month:02}{:02}T{:02}{:02}{:02}Z", days + 1, second / 3600, second % 3600 / 60, second % 60)
}

#[test]
fn a_clock_beyond_the_year_9999_stays_in_it() {
    assert_eq!(amz_date(u64::MAX), "99991231T235959Z");
}

proptest! {
    #[test]
    fn dates_are_those_of_counting_days(unix_s in 0..=253_402_300_799_u64) {
        prop_assert_eq!(amz_date(unix_s), slow_date(unix_s));
    }

    #[test]
    fn what_is_encoded_is_read_back(bytes in prop::collection::vec(any::<u8>(), 0..60)) {
        let text = encoded(&bytes, Slash::Encoded);
        prop_assert!(text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.~%".contains(&byte)));
        prop_assert_eq!(&*decoded(&text), &bytes[..]);
    }

    #[test]
    fn anything_can_be_signed(path in ".*", query in ".*", name in ".*", value in ".*", now: u64) {
        let request = Request { method: "POST", path: &path, query: &query, headers: &[(&name, &value)], body: &[] };
        let credentials = Credentials::new("AKID", "s", None).unwrap();
        let signature = Signer::new(credentials, "us-east-1", "bedrock").sign(&request, now);
        prop_assert_eq!(signature.headers().count(), 2);
    }
}
