//! Signed tokens and the keys they are checked with.

use std::sync::LazyLock;

use admission::jwt::{KeySet, Token};

/// The one token that the issuer of these tests has ever signed; its secret key is nowhere.
const SIGNED: &str = "eyJhbGciOiJFZERTQSIsImtpZCI6ImsxIn0.eyJpc3MiOiJodHRwczovL2lzc3VlciIsImF1ZCI6WyJhIiwiYiJdLCJzdWIiOiJhbGljZSIsImV4cCI6MTkwMDAwMDAwMCwibmJmIjoxNzAwMDAwMDAwLjV9.HUygLB9Eqi9NCQITda5zKZUei5NaCXHVeLa14Ss4UmTrai_7njLRF1dt75ysVE7Rc_LbSXbURML9lTDtptyxDw";

static ISSUER: LazyLock<KeySet> = LazyLock::new(|| {
    let key =
        r#"{"keys":[{"kty":"OKP","crv":"Ed25519","kid":"k1","x":"nKApPGAj1Hm_mzi2-m1rqjV4qi5Dc8VGOllI-QTCrGI"}]}"#;
    KeySet::parse(key.as_bytes()).expect("a good key")
});

/// A set of keys and a token, told apart by a zero byte: nothing but what was signed is believed, and what is refused is refused
/// in the words of this program alone.
pub fn token(data: &[u8]) {
    let (keys, text) = match data.iter().position(|byte| *byte == 0) {
        Some(at) => (&data[..at], &data[at + 1..]),
        None => (data, data),
    };
    let theirs = KeySet::parse(keys).map_err(|why| assert!(why.to_string().len() < 200, "{why}"));
    let Ok(token) = Token::parse(text) else { return };
    assert!(ISSUER.verify(&token).is_err() || text == SIGNED.as_bytes(), "believed: {text:?}");
    if let Ok(theirs) = theirs {
        let _ = theirs.verify(&token);
    }
    let _ = token.in_time(token.expires_unix_s(), 30);
    assert!(!token.says("sub", "a subject that no input has"));
}
