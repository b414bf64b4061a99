//! One token: read first, believed only when a key says so.

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::Deserialize;
use serde_json::{Map, Value};

/// Longest token that is read. Identity providers stay below 4 KiB; with many groups some more.
pub const TOKEN_BYTES_MAX: usize = 16 << 10;

/// How a token is signed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Algorithm {
    /// RSASSA-PKCS1-v1_5 with SHA-256.
    Rs256,
    /// ECDSA with P-256 and SHA-256.
    Es256,
    /// EdDSA with Ed25519.
    EdDsa,
}

impl Algorithm {
    /// By its name (RFC 7518, 3.1; RFC 8037, 3.1; RFC 9864, 2.2).
    pub(crate) fn of(name: &str) -> Option<Self> {
        match name {
            "RS256" => Some(Self::Rs256),
            "ES256" => Some(Self::Es256),
            "EdDSA" | "Ed25519" => Some(Self::EdDsa),
            _ => None,
        }
    }
}

/// Why a token is not believed. Nothing of the token is in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// Not three parts of base64url with JSON in them, or a claim of the wrong type.
    Malformed,
    /// Signed in a way that is not known here, or not the way of the key that it names.
    Algorithm,
    /// It names a key that is not known (yet).
    UnknownKey,
    /// The signature is not one of the issuer's.
    Signature,
    /// It says nothing of its end.
    Endless,
    /// It is over.
    Expired,
    /// It is not yet valid.
    NotYet,
    /// Nobody here trusts its issuer.
    Issuer,
    /// It is meant for somebody else.
    Audience,
    /// It is good, and names no tenant.
    Nobody,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Malformed => "it is not a signed JSON Web Token",
            Self::Algorithm => "its algorithm is not that of its key: RS256, ES256 and EdDSA are known",
            Self::UnknownKey => "its issuer has no key of that name",
            Self::Signature => "its signature is not its issuer's",
            Self::Endless => "it has no `exp`",
            Self::Expired => "it has expired",
            Self::NotYet => "it is not valid yet",
            Self::Issuer => "its issuer is not trusted here",
            Self::Audience => "it is meant for another audience",
            Self::Nobody => "it names no tenant",
        })
    }
}

/// A token as it is written. Nothing in it is to be believed before a [`super::KeySet`] has verified it.
#[derive(Clone, Debug)]
pub struct Token<'a> {
    signed: &'a str,
    signature: Vec<u8>,
    algorithm: Algorithm,
    key_id: Option<String>,
    issuer: String,
    expires_unix_s: f64,
    not_before_unix_s: Option<f64>,
    claims: Map<String, Value>,
}

#[derive(Deserialize)]
struct Header {
    alg: String,
    kid: Option<String>,
    crit: Option<Value>,
}

/// Whether a credential is written as a token is: three parts, the first of which begins as a JSON object does.
#[must_use]
pub fn looks_like_token(credential: &[u8]) -> bool {
    credential.starts_with(b"ey") && credential.iter().filter(|byte| **byte == b'.').count() == 2
}

impl<'a> Token<'a> {
    /// Reads one.
    ///
    /// # Errors
    /// When it is none, or one that could never be believed.
    pub fn parse(text: &'a [u8]) -> Result<Self, Refusal> {
        if text.len() > TOKEN_BYTES_MAX {
            return Err(Refusal::Malformed);
        }
        let text = std::str::from_utf8(text).map_err(|_| Refusal::Malformed)?;
        let (signed, signature) = text.rsplit_once('.').ok_or(Refusal::Malformed)?;
        let (header, payload) = signed.split_once('.').ok_or(Refusal::Malformed)?;
        let decoded = |part: &str| URL_SAFE_NO_PAD.decode(part).map_err(|_| Refusal::Malformed);
        let header: Header = serde_json::from_slice(&decoded(header)?).map_err(|_| Refusal::Malformed)?;
        // Extensions that must be understood, and are not (RFC 7515, 4.1.11).
        if header.crit.is_some() {
            return Err(Refusal::Malformed);
        }
        let algorithm = Algorithm::of(&header.alg).ok_or(Refusal::Algorithm)?;
        let claims: Map<String, Value> = serde_json::from_slice(&decoded(payload)?).map_err(|_| Refusal::Malformed)?;
        Ok(Self {
            signed,
            signature: decoded(signature)?,
            algorithm,
            key_id: header.kid,
            issuer: claims.get("iss").and_then(Value::as_str).ok_or(Refusal::Issuer)?.to_owned(),
            expires_unix_s: date(&claims, "exp")?.ok_or(Refusal::Endless)?,
            not_before_unix_s: date(&claims, "nbf")?,
            claims,
        })
    }

    /// `iss`.
    #[must_use]
    pub fn issuer(&self) -> &str {
        &self.issuer
    }

    /// The key it says it was signed with.
    #[must_use]
    pub fn key_id(&self) -> Option<&str> {
        self.key_id.as_deref()
    }

    /// How it says it was signed.
    #[must_use]
    pub fn algorithm(&self) -> Algorithm {
        self.algorithm
    }

    /// When it ends, in whole seconds since 1970.
    #[must_use]
    pub fn expires_unix_s(&self) -> u64 {
        // A negative or huge number becomes the nearest there is.
        self.expires_unix_s as u64
    }

    /// Whether it holds now, with clocks that differ by `leeway_s` at most.
    ///
    /// # Errors
    /// When it is over, or not yet valid.
    pub fn in_time(&self, now_unix_s: u64, leeway_s: u64) -> Result<(), Refusal> {
        let (now, leeway) = (now_unix_s as f64, leeway_s as f64);
        if now >= self.expires_unix_s + leeway {
            return Err(Refusal::Expired);
        }
        if self.not_before_unix_s.is_some_and(|from| now + leeway < from) {
            return Err(Refusal::NotYet);
        }
        Ok(())
    }

    /// Whether `aud` is or holds `audience`.
    #[must_use]
    pub fn is_for(&self, audience: &str) -> bool {
        self.says("aud", audience)
    }

    /// Whether a claim is the text `value`, or a list that holds it.
    #[must_use]
    pub fn says(&self, claim: &str, value: &str) -> bool {
        match self.claims.get(claim) {
            Some(Value::String(text)) => text == value,
            Some(Value::Array(list)) => list.iter().any(|one| one.as_str() == Some(value)),
            Some(Value::Null | Value::Bool(_) | Value::Number(_) | Value::Object(_)) | None => false,
        }
    }

    pub(super) fn signed_part(&self) -> &str {
        self.signed
    }

    pub(super) fn signature(&self) -> &[u8] {
        &self.signature
    }
}

/// A NumericDate (RFC 7519, 2).
fn date(claims: &Map<String, Value>, name: &str) -> Result<Option<f64>, Refusal> {
    claims.get(name).map(|value| value.as_f64().ok_or(Refusal::Malformed)).transpose()
}
