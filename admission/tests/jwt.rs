//! Tokens of every kind that is believed, and of many that must not be. Keys are made here: no secret stands in the repository.
#![allow(clippy::unwrap_used, reason = "a test may fail by panic")]

use admission::jwt::{KeySet, NoKeys, Refusal, Token, looks_like_token};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use proptest::prelude::*;
use ring::rand::SystemRandom;
use ring::signature::{
    ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, Ed25519KeyPair, KeyPair as _, RSA_PKCS1_SHA256, RsaKeyPair,
    RsaPublicKeyComponents,
};
use serde_json::{Value, json};

const NOW: u64 = 1_800_000_000;

fn b64(bytes: impl AsRef<[u8]>) -> String {
    URL_SAFE_NO_PAD.encode(bytes)
}

enum Signer {
    Ec(EcdsaKeyPair),
    Ed(Ed25519KeyPair),
    Rsa(RsaKeyPair),
}

impl Signer {
    fn ec() -> Self {
        let (alg, random) = (&ECDSA_P256_SHA256_FIXED_SIGNING, SystemRandom::new());
        let pkcs8 = EcdsaKeyPair::generate_pkcs8(alg, &random).unwrap();
        Self::Ec(EcdsaKeyPair::from_pkcs8(alg, pkcs8.as_ref(), &random).unwrap())
    }

    fn ed() -> Self {
        let pkcs8 = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new()).unwrap();
        Self::Ed(Ed25519KeyPair::from_pkcs8(pkcs8.as_ref()).unwrap())
    }

    /// Made once with `openssl genpkey -algorithm RSA`, for these tests alone: ring makes none.
    fn rsa() -> Self {
        Self::Rsa(RsaKeyPair::from_pkcs8(include_bytes!("rsa-2048-for-tests.pk8")).unwrap())
    }

    fn alg(&self) -> &'static str {
        match self {
            Self::Ec(_) => "ES256",
            Self::Ed(_) => "EdDSA",
            Self::Rsa(_) => "RS256",
        }
    }

    fn jwk(&self, kid: &str) -> Value {
        match self {
            Self::Ec(pair) => {
                let point = pair.public_key().as_ref();
                json!({ "kty": "EC", "crv": "P-256", "kid": kid, "x": b64(&point[1..33]), "y": b64(&point[33..]) })
            }
            Self::Ed(pair) => json!({ "kty": "OKP", "crv": "Ed25519", "kid": kid, "x": b64(pair.public_key()) }),
            Self::Rsa(pair) => {
                let public = RsaPublicKeyComponents::<Vec<u8>>::from(pair.public());
                json!({ "kty": "RSA", "kid": kid, "use": "sig", "alg": "RS256",
                    "n": b64(public.n),
                    "e": b64(public.e) })
            }
        }
    }

    fn token(&self, header: &Value, claims: &Value) -> String {
        let signed = format!("{}.{}", b64(header.to_string()), b64(claims.to_string()));
        let random = SystemRandom::new();
        let signature = match self {
            Self::Ec(pair) => pair.sign(&random, signed.as_bytes()).unwrap().as_ref().to_vec(),
            Self::Ed(pair) => pair.sign(signed.as_bytes()).as_ref().to_vec(),
            Self::Rsa(pair) => {
                let mut signature = vec![0; pair.public().modulus_len()];
                pair.sign(&RSA_PKCS1_SHA256, &random, signed.as_bytes(), &mut signature).unwrap();
                signature
            }
        };
        format!("{signed}.{}", b64(signature))
    }
}

fn set(keys: &[Value]) -> KeySet {
    KeySet::parse(json!({ "keys": keys }).to_string().as_bytes()).unwrap()
}

fn claims() -> Value {
    json!({ "iss": "https://issuer", "aud": ["one", "two"], "sub": "alice", "groups": ["a", "b"], "exp": NOW + 60 })
}

fn verdict(keys: &KeySet, token: &str) -> Result<(), Refusal> {
    let token = Token::parse(token.as_bytes())?;
    keys.verify(&token)?;
    token.in_time(NOW, 0)
}

#[test]
fn tokens_of_each_algorithm_are_believed_with_their_key_alone() {
    let signers = [Signer::ec(), Signer::ed(), Signer::rsa()];
    for signer in &signers {
        let keys = set(&[signer.jwk("k1")]);
        let header = json!({ "alg": signer.alg(), "kid": "k1", "typ": "JWT" });
        let text = signer.token(&header, &claims());
        assert_eq!(verdict(&keys, &text), Ok(()), "{}", signer.alg());
        assert!(looks_like_token(text.as_bytes()));
        let token = Token::parse(text.as_bytes()).unwrap();
        assert!(
            token.is_for("two") && !token.is_for("three") && token.says("sub", "alice") && token.says("groups", "b")
        );
        assert!(!token.says("sub", "bob") && !token.says("exp", "1800000060") && !token.says("none", ""));
        for other in &signers {
            if other.alg() != signer.alg() {
                assert_eq!(verdict(&set(&[other.jwk("k1")]), &text), Err(Refusal::Algorithm));
                // Without a name every key is tried; those of another kind are never asked.
                let nameless = signer.token(&json!({ "alg": signer.alg() }), &claims());
                assert_eq!(verdict(&set(&[other.jwk("a"), signer.jwk("b")]), &nameless), Ok(()));
            }
        }
        assert_eq!(verdict(&set(&[signer.jwk("k2")]), &text), Err(Refusal::UnknownKey));
    }
    let (stranger, header) = (Signer::ec(), json!({ "alg": "ES256", "kid": "k1" }));
    assert_eq!(verdict(&set(&[signers[0].jwk("k1")]), &stranger.token(&header, &claims())), Err(Refusal::Signature));
}

#[test]
fn the_token_never_chooses_how_it_is_checked() {
    let rsa = Signer::rsa();
    let keys = set(&[rsa.jwk("k1")]);
    for alg in ["none", "None", "HS256", "RS512", "PS256", "rs256", ""] {
        let unsigned =
            format!("{}.{}.", b64(json!({ "alg": alg, "kid": "k1" }).to_string()), b64(claims().to_string()));
        assert_eq!(verdict(&keys, &unsigned), Err(Refusal::Algorithm), "{alg}");
    }
    // The public key as the secret of an HMAC: the classic confusion.
    let signed = format!("{}.{}", b64(json!({ "alg": "HS256", "kid": "k1" }).to_string()), b64(claims().to_string()));
    let secret = ring::hmac::Key::new(ring::hmac::HMAC_SHA256, rsa.jwk("k1")["n"].as_str().unwrap().as_bytes());
    let forged = format!("{signed}.{}", b64(ring::hmac::sign(&secret, signed.as_bytes())));
    assert_eq!(verdict(&keys, &forged), Err(Refusal::Algorithm));
    // A key of its own in the header is passed over.
    let thief = Signer::ed();
    let header = json!({ "alg": "EdDSA", "kid": "k1", "jwk": thief.jwk("k1") });
    assert_eq!(verdict(&keys, &thief.token(&header, &claims())), Err(Refusal::Algorithm));
    // Extensions that must be understood are not.
    let header = json!({ "alg": "RS256", "kid": "k1", "crit": ["b64"], "b64": false });
    assert_eq!(verdict(&keys, &rsa.token(&header, &claims())), Err(Refusal::Malformed));
}

#[test]
fn a_token_holds_from_nbf_to_exp_and_must_have_an_end() {
    let signer = Signer::ed();
    let (keys, header) = (set(&[signer.jwk("k")]), json!({ "alg": "EdDSA", "kid": "k" }));
    for (exp, nbf, leeway_s, expected) in [
        (json!(NOW + 1), json!(NOW), 0, Ok(())),
        (json!(NOW as f64 + 0.5), json!(NOW), 0, Ok(())),
        (json!(NOW), json!(NOW), 0, Err(Refusal::Expired)),
        (json!(NOW - 29), json!(NOW), 30, Ok(())),
        (json!(NOW - 30), json!(NOW), 30, Err(Refusal::Expired)),
        (json!(NOW + 60), json!(NOW + 31), 30, Err(Refusal::NotYet)),
        (json!(NOW + 60), json!(NOW + 30), 30, Ok(())),
        (json!(-1e300), json!(NOW), 30, Err(Refusal::Expired)),
    ] {
        let mut claims = claims();
        (claims["exp"], claims["nbf"]) = (exp, nbf);
        let text = signer.token(&header, &claims);
        let token = Token::parse(text.as_bytes()).unwrap();
        assert_eq!(keys.verify(&token), Ok(()));
        assert_eq!(token.in_time(NOW, leeway_s), expected, "{claims}");
    }
    let refused = |claims: Value| Token::parse(signer.token(&header, &claims).as_bytes()).unwrap_err();
    assert_eq!(refused(json!({ "iss": "i", "sub": "a" })), Refusal::Endless);
    assert_eq!(refused(json!({ "iss": "i", "exp": "tomorrow" })), Refusal::Malformed);
    assert_eq!(refused(json!({ "exp": NOW })), Refusal::Issuer);
    assert_eq!(refused(json!(["iss"])), Refusal::Malformed);
}

#[test]
fn keys_that_are_not_for_signatures_are_passed_over() {
    let ec = Signer::ec();
    let with = |field: &str, value: Value| {
        let mut key = ec.jwk("k");
        key[field] = value;
        KeySet::parse(json!({ "keys": [key] }).to_string().as_bytes()).map(|keys| keys.len())
    };
    assert_eq!(with("use", json!("sig")), Ok(1));
    assert_eq!(with("key_ops", json!(["verify"])), Ok(1));
    let none = Err(NoKeys::NoneUsable { keys: 1 });
    for (field, value) in [
        ("use", json!("enc")),
        ("key_ops", json!(["sign"])),
        ("alg", json!("ES384")),
        ("crv", json!("P-384")),
        ("kty", json!("oct")),
        ("kty", json!(7)),
        ("x", json!("AA")),
        ("y", json!("not base64!")),
    ] {
        assert_eq!(with(field, value.clone()), none, "{field} {value}");
    }
    assert!(matches!(KeySet::parse(b"{}"), Err(NoKeys::NotASet(_))));
    assert!(matches!(KeySet::parse(b"<html>"), Err(NoKeys::NotASet(_))));
    let weak = json!({ "kty": "RSA", "kid": "k", "e": "AQAB", "n": b64([0xff; 128]) });
    assert_eq!(KeySet::parse(json!({ "keys": [weak] }).to_string().as_bytes()), Err(NoKeys::NoneUsable { keys: 1 }));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn a_token_with_any_byte_changed_is_not_believed(at in 0_usize..10_000, to in any::<u8>()) {
        let signer = Signer::ed();
        let keys = set(&[signer.jwk("k")]);
        let mut text = signer.token(&json!({ "alg": "EdDSA", "kid": "k" }), &claims()).into_bytes();
        let at = at % text.len();
        prop_assume!(text[at] != to);
        text[at] = to;
        let believed = Token::parse(&text).and_then(|token| keys.verify(&token));
        prop_assert!(believed.is_err());
    }

    #[test]
    fn no_bytes_panic(bytes in prop::collection::vec(any::<u8>(), 0..400), json in "[{\\[\"a-z:,0-9\\]}.]{0,200}") {
        let keys = KeySet::parse(&bytes).or_else(|_| KeySet::parse(json.as_bytes())).unwrap_or_default();
        let text = format!("{}.{}.{}", b64(&json), b64(&bytes), b64(&json));
        for text in [bytes.as_slice(), text.as_bytes()] {
            let _ = Token::parse(text).map(|token| keys.verify(&token));
        }
    }
}
