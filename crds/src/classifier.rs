//! `InferenceClassifier`: puts tags on prompts.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::value::Duration;

/// Puts tags on prompts. Runs only while a rule in force looks at one of its tags.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schemars(extend("x-cel" = [
    ["!has(self.kinds) || self.type == 'PII'", "kinds makes sense with the type PII only"],
    ["!has(self.modelFile) || self.type == 'Complexity'", "modelFile makes sense with the type Complexity only"],
    ["has(self.http) == (self.type == 'HTTP')", "http must be given with the type HTTP, and with no other"],
    [
        "has(self.tags) == (self.type in ['Keywords', 'Regex', 'Examples', 'HTTP'])",
        "tags must be given with the types Keywords, Regex, Examples and HTTP, and with no other"
    ],
    ["self.type != 'HTTP' || has(self.onError)", "onError must be given with the type HTTP"],
    [
        "self.type != 'Keywords' || !has(self.tags) || self.tags.all(t, has(t.any) || has(t.all))",
        "each of tags needs any or all with the type Keywords"
    ],
    [
        "self.type != 'Regex' || !has(self.tags) || self.tags.all(t, has(t.patterns))",
        "each of tags needs patterns with the type Regex"
    ],
    [
        "self.type != 'Examples' || !has(self.tags) || self.tags.all(t, has(t.positive) && has(t.negative))",
        "each of tags needs positive and negative with the type Examples"
    ],
]))]
pub struct InferenceClassifierSpec {
    /// What it looks for.
    #[serde(rename = "type")]
    pub classifier: ClassifierType,
    /// PII only: the kinds looked for. Absent: e-mail addresses, telephone numbers, payment and bank numbers, numbers of persons
    /// given by states and health systems. Network and wallet addresses only where they are named; names of persons and
    /// street addresses are not found, and addresses at `example.com` and the like do not count.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(min = 1))]
    pub kinds: Vec<PiiKind>,
    /// Which messages are read; absent: all. PII and Secrets read what belongs to no message (names of speakers, metadata) besides.
    /// Complexity reads the last turn of the user, whatever is written here.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(min = 1))]
    pub scope: Vec<Scope>,
    /// Keywords, Regex, Examples and HTTP: the tags it may give, and what gives them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(min = 1, max = 256), extend("x-list-map-keys" = ["tag"]))]
    pub tags: Vec<ClassifierTag>,
    /// Complexity only: a model file of the built-in format, relative to the document, instead of the built-in model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1))]
    pub model_file: Option<String>,
    /// HTTP only: the service that is asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub http: Option<HttpClassifier>,
    /// What happens when it cannot finish. HTTP must say; for all others absent means `AddTag`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_error: Option<OnError>,
}

/// What a classifier looks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ClassifierType {
    /// Personal data; tags `pii`, `pii-<kind>`, and `pii-unscanned` when it could not read the prompt.
    PII,
    /// How demanding the prompt is; tags `complexity-low`, `complexity-high`.
    Complexity,
    /// Credentials; tags `secret`, `secret-<kind>`.
    Secrets,
    /// Words.
    Keywords,
    /// Regular expressions.
    Regex,
    /// Sentences that do and do not belong.
    Examples,
    /// A service asked over HTTP.
    HTTP,
}

/// Kinds of personal data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum PiiKind {
    /// E-mail addresses.
    Email,
    /// Telephone numbers.
    Phone,
    /// Payment cards.
    CreditCard,
    /// International bank account numbers.
    IBAN,
    /// Bank codes and routing numbers.
    BankCode,
    /// Numbers a state gives to a person: tax, social security, identity cards.
    NationalID,
    /// Passports.
    Passport,
    /// Driving licences.
    DriverLicense,
    /// Numbers a health service gives to a person.
    HealthID,
    /// IP and hardware addresses.
    NetworkAddress,
    /// Wallets.
    CryptoWallet,
}

/// Which messages a classifier reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum Scope {
    /// System and developer messages.
    System,
    /// User messages and plain prompts.
    User,
    /// Earlier answers.
    Assistant,
    /// Tool calls' arguments and results.
    Tool,
}

/// A tag and what gives it. Which fields make sense depends on the classifier's type.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ClassifierTag {
    /// The tag.
    #[schemars(length(min = 1))]
    pub tag: String,
    /// Keywords: at least `minCount` occurrences of these. With `all` too, both must hold.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(min = 1), inner(length(min = 1)))]
    pub any: Vec<String>,
    /// Keywords: every one of these.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(min = 1), inner(length(min = 1)))]
    pub all: Vec<String>,
    /// Keywords: occurrences of words of `any` that are needed.
    #[serde(default = "min_count")]
    #[schemars(range(min = 1))]
    pub min_count: u32,
    /// Keywords: whether a word inside a longer one does not count.
    #[serde(default = "whole_word")]
    pub whole_word: bool,
    /// Regex: expressions (RE2 syntax), any of which gives the tag.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(min = 1), inner(length(min = 1)))]
    pub patterns: Vec<String>,
    /// Examples: sentences like those that should have the tag.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(min = 1), inner(length(min = 1)))]
    pub positive: Vec<String>,
    /// Examples: sentences like those that should not.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(min = 1), inner(length(min = 1)))]
    pub negative: Vec<String>,
}

fn min_count() -> u32 {
    1
}

fn whole_word() -> bool {
    true
}

/// The service an HTTP classifier asks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct HttpClassifier {
    /// Where the text is sent by POST: `{"classifier": NAME, "texts": [{"role": "user", "text": "..."}]}`. The answer is
    /// `{"tags": ["..."]}`. For `https://` the system's authorities are believed.
    #[schemars(extend("format" = "url"))]
    pub url: String,
    /// How long an answer may take.
    #[serde(default = "http_timeout")]
    pub timeout: Duration,
    /// Requests to it at once.
    #[serde(default = "http_max_in_flight")]
    #[schemars(range(min = 1))]
    pub max_in_flight: u32,
    /// Answers kept, by the text's hash; 0 keeps none.
    #[serde(default = "http_cache")]
    pub cache: u32,
}

fn http_timeout() -> Duration {
    Duration::from_millis(200)
}

fn http_max_in_flight() -> u32 {
    64
}

fn http_cache() -> u32 {
    10_000
}

/// What happens when a classifier cannot finish.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum OnError {
    /// Its tags are given: the safe side.
    AddTag,
    /// Its tags are not given.
    Ignore,
}
