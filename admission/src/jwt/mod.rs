//! Signed tokens (JWT, RFC 7519) that say who is calling, and the keys they are checked with (JWKS, RFC 7517).
//!
//! The key says which algorithm a token must have been signed with, never the token (RFC 8725, 3.1): a public key is not taken
//! for the secret of an HMAC, and `none` is no algorithm. RS256, ES256 and EdDSA with Ed25519 are known; all else is refused.

mod cache;
mod keys;
mod token;

pub use cache::VerifiedTokens;
pub use keys::{KeySet, NoKeys};
pub use token::{Algorithm, Refusal, TOKEN_BYTES_MAX, Token, looks_like_token};
