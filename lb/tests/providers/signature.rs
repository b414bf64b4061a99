//! AWS's signature of a request as it came in, computed by the rules of its documentation
//! (<https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_sigv-create-signed-request.html>) and not by the signer that is
//! tested: from the bytes on the wire and the headers that the request itself says are signed.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use ring::{digest, hmac};

use crate::server::Seen;

pub(crate) const KEY_ID: &str = "AKIDEXAMPLE";
pub(crate) const SECRET_KEY: &str = "wJalrXUtnFEMI/EXAMPLEKEY";
pub(crate) const SESSION_TOKEN: &str = "session/+=";
pub(crate) const REGION: &str = "eu-central-1";

/// The `number`-th request that was seen has a signature that holds; gives the names of the headers under it.
pub(crate) fn expect_signed(seen: &Seen, number: usize) -> String {
    expect_signed_by(seen, number, SECRET_KEY, SESSION_TOKEN)
}

/// The same with other keys.
pub(crate) fn expect_signed_by(seen: &Seen, number: usize, secret_key: &str, session_token: &str) -> String {
    let (head, body) = (&seen.heads[number], &seen.bodies[number]);
    let mut lines = head.lines();
    let mut request_line = lines.next().unwrap().split(' ');
    let (method, target) = (request_line.next().unwrap(), request_line.next().unwrap());
    let mut headers: BTreeMap<String, Vec<&str>> = BTreeMap::new();
    for (name, value) in lines.filter_map(|line| line.split_once(": ")) {
        headers.entry(name.to_ascii_lowercase()).or_default().push(value);
    }
    let only = |name: &str| match headers.get(name).map(Vec::as_slice) {
        Some([value]) => *value,
        other => panic!("{name} is here {other:?}: {head}"),
    };
    let (date, authorization) = (only("x-amz-date"), only("authorization"));
    assert_eq!(only("x-amz-security-token"), session_token);
    let scope = format!("{}/{REGION}/bedrock/aws4_request", &date[..8]);
    let names = authorization
        .strip_prefix(&format!("AWS4-HMAC-SHA256 Credential={KEY_ID}/{scope}, SignedHeaders="))
        .and_then(|rest| rest.split_once(", Signature="))
        .unwrap_or_else(|| panic!("{authorization}"));
    let (names, signature) = names;
    // Whatever begins so must be signed, as the host must.
    let must = headers.keys().filter(|name| name.starts_with("x-amz-") || *name == "host");
    let signed: Vec<&str> = names.split(';').collect();
    assert!(must.clone().all(|name| signed.contains(&name.as_str())), "{names}: {head}");
    assert!(signed.is_sorted(), "{names}");

    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let mut pairs: Vec<&str> = query.split('&').filter(|pair| !pair.is_empty()).collect();
    pairs.sort_unstable();
    // What is escaped on the wire is escaped once more.
    let mut canonical = format!("{method}\n{}\n{}\n", path.replace('%', "%25"), pairs.join("&"));
    for name in &signed {
        let value = only(name).split(' ').filter(|word| !word.is_empty()).collect::<Vec<_>>().join(" ");
        writeln!(canonical, "{name}:{value}").unwrap();
    }
    write!(canonical, "\n{names}\n{}", sha256(body)).unwrap();
    let to_sign = format!("AWS4-HMAC-SHA256\n{date}\n{scope}\n{}", sha256(canonical.as_bytes()));
    let mut key = format!("AWS4{secret_key}").into_bytes();
    for part in [&date[..8], REGION, "bedrock", "aws4_request", &to_sign] {
        key = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, &key), part.as_bytes()).as_ref().to_vec();
    }
    assert_eq!(signature, hex(&key), "{canonical}");
    names.to_owned()
}

fn sha256(bytes: &[u8]) -> String {
    hex(digest::digest(&digest::SHA256, bytes).as_ref())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
