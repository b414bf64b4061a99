//! `InferenceTenant`: who is calling, how they prove it, and what they may use.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::provider::Limits;
use crate::secret::SecretRef;

/// Who is calling, how they prove it, and what they may use. With no tenant at all, every caller is `anonymous`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schemars(extend("x-at-least-one-of" = ["apiKeys", "jwt", "clientCertificate"]))]
pub struct InferenceTenantSpec {
    /// Keys, any of which names this tenant.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(min = 1, max = 1024))]
    pub api_keys: Vec<ApiKey>,
    /// A signed token that names this tenant.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub jwt: Option<Jwt>,
    /// A client certificate that names this tenant, whatever key is sent too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client_certificate: Option<ClientCertificate>,
    /// Limits over all requests of the tenant.
    #[serde(default)]
    pub limits: Limits,
    /// Higher goes first when requests wait in the queue of a route.
    #[serde(default)]
    pub priority: i32,
}

/// A key, as its hash or by reference. Exactly one of the fields.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schemars(extend("x-exactly-one-of" = ["sha256", "fromEnv", "fromFile", "secretRef"]))]
pub struct ApiKey {
    /// SHA-256 of the key, 64 hexadecimal digits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("format" = "sha256"), pattern("^[0-9a-fA-F]{64}$"))]
    pub sha256: Option<String>,
    /// Name of an environment variable of the balancer's process that holds the key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1))]
    pub from_env: Option<String>,
    /// A file that holds the key, relative to the document it is named in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1))]
    pub from_file: Option<String>,
    /// A key of a Kubernetes Secret in the same namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret_ref: Option<SecretRef>,
}

/// How a JSON Web Token names a tenant: signed with RS256, ES256 or EdDSA (Ed25519) by one of the issuer's keys, with `exp`, sent
/// as `Authorization: Bearer TOKEN`. Exactly one of `jwksFile` and `jwksUrl`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schemars(extend("x-exactly-one-of" = ["jwksFile", "jwksUrl"]))]
pub struct Jwt {
    /// Required `iss`.
    #[schemars(length(min = 1))]
    pub issuer: String,
    /// Required member of `aud`; absent: any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1))]
    pub audience: Option<String>,
    /// The claim that is compared: a text, or a list of texts one of which is enough.
    #[serde(default = "claim")]
    #[schemars(length(min = 1))]
    pub claim: String,
    /// What the claim must equal.
    #[schemars(length(min = 1))]
    pub equals: String,
    /// The issuer's public keys as a JSON Web Key Set, relative to the document it is named in; read again when it changes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1))]
    pub jwks_file: Option<String>,
    /// Where the issuer publishes its keys. They are fetched again every ten minutes, and when a token names a key that is not
    /// among them (every ten seconds at most).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("format" = "url"))]
    pub jwks_url: Option<String>,
}

fn claim() -> String {
    "sub".to_owned()
}

/// How a client certificate names a tenant.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ClientCertificate {
    /// A subject alternative name of the certificate: a URI such as `spiffe://cluster/ns/alice/sa/app`, compared exactly, or a
    /// host name, compared without regard to case.
    #[schemars(length(min = 1))]
    pub san: String,
}
