//! The public keys of an issuer.

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::signature::{
    ECDSA_P256_SHA256_FIXED, ED25519, RSA_PKCS1_2048_8192_SHA256, RsaPublicKeyComponents, UnparsedPublicKey,
};
use serde::Deserialize;

use super::token::{Algorithm, Refusal, Token};

/// Keys of one set that are used; issuers have a handful. A token without `kid` is checked against each.
const KEYS_MAX: usize = 64;
/// Shortest and longest RSA modulus, as RFC 7518 (3.3) asks for and ring checks: 2048 to 8192 bits.
const RSA_MODULUS_BYTES: std::ops::RangeInclusive<usize> = 256..=1_024;

/// The keys of a JSON Web Key Set that can check a signature here.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeySet {
    keys: Vec<Key>,
}

/// Why a text is no set of keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NoKeys {
    /// It is not JSON, or has no list `keys`.
    NotASet(String),
    /// None of its keys is of a kind and use that is known here.
    NoneUsable {
        /// How many there are.
        keys: usize,
    },
}

impl fmt::Display for NoKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotASet(why) => write!(f, "not a JSON Web Key Set: {why}"),
            Self::NoneUsable { keys } => write!(
                f,
                "none of its {keys} keys can be used: RSA of 2048 to 8192 bits, EC with P-256 and OKP with Ed25519 are known, for signatures"
            ),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Key {
    id: Option<String>,
    public: Public,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Public {
    Rsa {
        /// Big-endian, without leading zeros.
        modulus: Vec<u8>,
        exponent: Vec<u8>,
    },
    /// An uncompressed point: 4, x, y.
    P256([u8; 65]),
    Ed25519([u8; 32]),
}

/// A key as it is written (RFC 7517, 4; RFC 7518, 6; RFC 8037, 2).
#[derive(Deserialize)]
struct Written {
    kty: String,
    kid: Option<String>,
    #[serde(rename = "use")]
    usage: Option<String>,
    key_ops: Option<Vec<String>>,
    alg: Option<String>,
    crv: Option<String>,
    n: Option<String>,
    e: Option<String>,
    x: Option<String>,
    y: Option<String>,
}

impl KeySet {
    /// Reads a set. Keys of kinds that are not known here are passed over, as RFC 7517 (5) asks.
    ///
    /// # Errors
    /// When it is no set, or holds no key of use.
    pub fn parse(json: &[u8]) -> Result<Self, NoKeys> {
        #[derive(Deserialize)]
        struct Set {
            keys: Vec<serde_json::Value>,
        }
        // What serde says of the place is kept; it says nothing of the content.
        let set: Set = serde_json::from_slice(json).map_err(|error| NoKeys::NotASet(error_place(&error)))?;
        let count = set.keys.len();
        let written = set.keys.into_iter().filter_map(|key| serde_json::from_value::<Written>(key).ok());
        let keys: Vec<Key> = written.filter_map(|key| Key::of(&key)).take(KEYS_MAX).collect();
        if keys.is_empty() { Err(NoKeys::NoneUsable { keys: count }) } else { Ok(Self { keys }) }
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.keys.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// Whether `token` was signed with one of them.
    ///
    /// # Errors
    /// [`Refusal::UnknownKey`] when the token names a key that is not here: the issuer may have a new one. Else why not.
    pub fn verify(&self, token: &Token<'_>) -> Result<(), Refusal> {
        let mut named =
            self.keys.iter().filter(|key| token.key_id().is_none() || key.id.as_deref() == token.key_id()).peekable();
        if named.peek().is_none() {
            return Err(Refusal::UnknownKey);
        }
        let mut fitting = named.filter(|key| key.public.algorithm() == token.algorithm()).peekable();
        if fitting.peek().is_none() {
            return Err(Refusal::Algorithm);
        }
        match fitting.any(|key| key.public.signed(token)) {
            true => Ok(()),
            false => Err(Refusal::Signature),
        }
    }
}

fn error_place(error: &serde_json::Error) -> String {
    format!("no JSON object with a list `keys` (line {}, column {})", error.line(), error.column())
}

impl Key {
    /// `None` for one that signs nothing here.
    fn of(written: &Written) -> Option<Self> {
        let decoded = |text: &Option<String>| URL_SAFE_NO_PAD.decode(text.as_deref()?).ok();
        let for_signatures = written.usage.as_deref().is_none_or(|usage| usage == "sig")
            && written.key_ops.as_ref().is_none_or(|ops| ops.iter().any(|op| op == "verify"));
        let public = match (written.kty.as_str(), written.crv.as_deref()) {
            ("RSA", _) => {
                let trimmed = |bytes: Vec<u8>| bytes.into_iter().skip_while(|byte| *byte == 0).collect::<Vec<u8>>();
                let modulus = trimmed(decoded(&written.n)?);
                let exponent = trimmed(decoded(&written.e)?);
                RSA_MODULUS_BYTES.contains(&modulus.len()).then_some(Public::Rsa { modulus, exponent })?
            }
            ("EC", Some("P-256")) => {
                let (x, y) = (decoded(&written.x)?, decoded(&written.y)?);
                let mut point = [4; 65];
                point.get_mut(1..33)?.copy_from_slice(x.first_chunk::<32>().filter(|_| x.len() == 32)?);
                point.get_mut(33..)?.copy_from_slice(y.first_chunk::<32>().filter(|_| y.len() == 32)?);
                Public::P256(point)
            }
            ("OKP", Some("Ed25519")) => Public::Ed25519(decoded(&written.x)?.try_into().ok()?),
            (_, _) => return None,
        };
        let fits = written.alg.as_deref().is_none_or(|alg| Algorithm::of(alg) == Some(public.algorithm()));
        (for_signatures && fits).then(|| Self { id: written.kid.clone(), public })
    }
}

impl Public {
    /// The only one it may be used with.
    fn algorithm(&self) -> Algorithm {
        match self {
            Self::Rsa { .. } => Algorithm::Rs256,
            Self::P256(_) => Algorithm::Es256,
            Self::Ed25519(_) => Algorithm::EdDsa,
        }
    }

    fn signed(&self, token: &Token<'_>) -> bool {
        let (message, signature) = (token.signed_part().as_bytes(), token.signature());
        let verified = match self {
            Self::Rsa { modulus, exponent } => RsaPublicKeyComponents { n: modulus, e: exponent }.verify(
                &RSA_PKCS1_2048_8192_SHA256,
                message,
                signature,
            ),
            Self::P256(point) => UnparsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, point).verify(message, signature),
            Self::Ed25519(key) => UnparsedPublicKey::new(&ED25519, key).verify(message, signature),
        };
        verified.is_ok()
    }
}
