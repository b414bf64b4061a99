//! Credentials: never the value itself, always where it is.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Where a secret value is. Exactly one of the fields.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schemars(extend("x-exactly-one-of" = ["fromEnv", "fromFile", "secretRef"]))]
pub struct SecretValue {
    /// Name of an environment variable of the balancer's process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1))]
    pub from_env: Option<String>,
    /// A file, relative to the document it is named in; trailing line breaks are cut off.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1))]
    pub from_file: Option<String>,
    /// A key of a Kubernetes Secret in the same namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret_ref: Option<SecretRef>,
}

/// A key of a Kubernetes Secret in the same namespace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SecretRef {
    /// Name of the Secret.
    #[schemars(length(min = 1))]
    pub name: String,
    /// Key in the Secret.
    #[schemars(length(min = 1))]
    pub key: String,
}

/// The credential sent to a destination. Exactly one of the fields.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schemars(extend("x-exactly-one-of" = ["bearer", "apiKeyHeader", "awsSigV4"]))]
pub struct Auth {
    /// Sent as `Authorization: Bearer ...`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bearer: Option<SecretValue>,
    /// Sent as a header of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub api_key_header: Option<ApiKeyHeader>,
    /// Requests are signed with AWS Signature Version 4: for providers. A worker set's requests go without (K0112).
    #[serde(default, skip_serializing_if = "Option::is_none", rename = "awsSigV4")]
    pub aws_sig_v4: Option<AwsSigV4>,
}

/// A key sent as a header of its own.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ApiKeyHeader {
    /// Name of the header.
    #[serde(default = "api_key_header_name")]
    #[schemars(length(min = 1), pattern("^[!#$%&'*+.^_`|~0-9A-Za-z-]+$"))]
    pub name: String,
    /// Value of the header.
    pub value: SecretValue,
}

fn api_key_header_name() -> String {
    "api-key".to_owned()
}

/// Signing of requests to AWS.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct AwsSigV4 {
    /// AWS region, such as `eu-central-1`.
    #[schemars(length(min = 1))]
    pub region: String,
    /// AWS service name.
    #[serde(default = "aws_service")]
    #[schemars(length(min = 1))]
    pub service: String,
    /// Access key id.
    pub access_key_id: SecretValue,
    /// Secret access key.
    pub secret_access_key: SecretValue,
    /// Session token of temporary credentials.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session_token: Option<SecretValue>,
}

fn aws_service() -> String {
    "bedrock".to_owned()
}
