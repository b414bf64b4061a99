//! The kinds of identifier the built-in scanners know, with the group and the tier of each.
//!
//! Tier A: prefix, layout or checksum is proof enough. Tier B: the shape alone is common, so a context word must stand near it.
//! Names and addresses need understanding and are not here: a scanner that finds some of them would be trusted for all of them.

use std::fmt;

/// What an identifier is about. It decides the tag: `pii`, `secret`, `network` or `crypto`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Group {
    /// A way to reach a person.
    Contact,
    /// Cards and accounts.
    Financial,
    /// Numbers a state gives to a person.
    Government,
    /// Numbers a health service gives to a person.
    Health,
    /// Credentials. Never personal, always damaging.
    Secret,
    /// Addresses of machines.
    Network,
    /// Wallets.
    Crypto,
}

/// How much evidence a kind needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tier {
    /// Shape, prefix or checksum is enough.
    A,
    /// Shape or checksum, and a context word nearby.
    B,
}

macro_rules! kinds {
    ($($name:ident $text:literal $tag:literal $group:ident $tier:ident $doc:literal;)*) => {
        /// One kind of identifier.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(u8)]
        pub enum Kind { $(#[doc = $doc] $name,)* }

        impl Kind {
            /// Every kind, in the order of the bits of [`KindSet`].
            pub const ALL: &'static [Kind] = &[$(Kind::$name,)*];

            /// The name in reports: lower case, words joined by `_`.
            #[must_use]
            pub const fn name(self) -> &'static str { match self { $(Kind::$name => $text,)* } }

            /// The tag a prompt gets for this kind.
            #[must_use]
            pub const fn tag(self) -> &'static str { match self { $(Kind::$name => $tag,)* } }

            /// What it is about.
            #[must_use]
            pub const fn group(self) -> Group { match self { $(Kind::$name => Group::$group,)* } }

            /// The evidence it needs when it stands alone.
            #[must_use]
            pub const fn tier(self) -> Tier { match self { $(Kind::$name => Tier::$tier,)* } }
        }
    };
}

kinds! {
    Email "email" "pii-email" Contact A "E-mail address.";
    Phone "phone" "pii-phone" Contact A "Telephone number; national forms without a tell-tale layout need context.";
    CreditCard "credit_card" "pii-credit-card" Financial A "Payment card: known IIN range, its length, Luhn.";
    Iban "iban" "pii-iban" Financial A "International bank account number: country length, mod 97.";
    SwiftBic "swift_bic" "pii-swift-bic" Financial B "Bank identifier code.";
    UsRouting "us_routing" "pii-us-routing" Financial B "ABA routing number.";
    UsSsn "us_ssn" "pii-us-ssn" Government A "US social security number; without dashes it needs context.";
    UsItin "us_itin" "pii-us-itin" Government A "US individual taxpayer number.";
    UsDriverLicense "us_driver_license" "pii-us-driver-license" Government B "Driving licence number.";
    Passport "passport" "pii-passport" Government B "Passport number.";
    UkNino "uk_nino" "pii-uk-nino" Government A "UK national insurance number.";
    CaSin "ca_sin" "pii-ca-sin" Government B "Canadian social insurance number.";
    AuTfn "au_tfn" "pii-au-tfn" Government B "Australian tax file number.";
    DeSteuerId "de_steuer_id" "pii-de-steuer-id" Government B "German tax number of a person.";
    FrNir "fr_nir" "pii-fr-nir" Government A "French social security number.";
    EsDni "es_dni" "pii-es-dni" Government A "Spanish identity number.";
    EsNie "es_nie" "pii-es-nie" Government A "Spanish identity number of a foreigner.";
    ItCodiceFiscale "it_codice_fiscale" "pii-it-codice-fiscale" Government A "Italian tax code of a person.";
    NlBsn "nl_bsn" "pii-nl-bsn" Government B "Dutch citizen service number.";
    BeNn "be_nn" "pii-be-nn" Government B "Belgian national number.";
    ChAhv "ch_ahv" "pii-ch-ahv" Government A "Swiss social insurance number.";
    PlPesel "pl_pesel" "pii-pl-pesel" Government B "Polish PESEL.";
    SePersonnummer "se_personnummer" "pii-se-personnummer" Government B "Swedish personal number.";
    FiHetu "fi_hetu" "pii-fi-hetu" Government A "Finnish personal identity code.";
    InAadhaar "in_aadhaar" "pii-in-aadhaar" Government B "Indian Aadhaar number.";
    InPan "in_pan" "pii-in-pan" Government B "Indian tax account number.";
    BrCpf "br_cpf" "pii-br-cpf" Government B "Brazilian CPF.";
    CnRic "cn_ric" "pii-cn-ric" Government A "Chinese resident identity number.";
    KrRrn "kr_rrn" "pii-kr-rrn" Government A "Korean resident registration number.";
    SgNric "sg_nric" "pii-sg-nric" Government A "Singaporean NRIC or FIN.";
    MxCurp "mx_curp" "pii-mx-curp" Government A "Mexican CURP.";
    ZaId "za_id" "pii-za-id" Government B "South African identity number.";
    UkNhs "uk_nhs" "pii-uk-nhs" Health B "NHS number.";
    UsMbi "us_mbi" "pii-us-mbi" Health B "Medicare beneficiary identifier.";
    IpAddress "ip_address" "network-ip-address" Network A "Public IPv4 or IPv6 address.";
    MacAddress "mac_address" "network-mac-address" Network A "Hardware address.";
    CryptoWallet "crypto_wallet" "crypto-wallet" Crypto A "Bitcoin or Ethereum address.";
    AnthropicKey "anthropic_key" "secret-anthropic-key" Secret A "Anthropic API key.";
    AwsAccessKey "aws_access_key" "secret-aws-access-key" Secret A "AWS access key id.";
    GithubToken "github_token" "secret-github-token" Secret A "GitHub token.";
    GitlabToken "gitlab_token" "secret-gitlab-token" Secret A "GitLab token.";
    GoogleApiKey "google_api_key" "secret-google-api-key" Secret A "Google API key.";
    HuggingfaceToken "huggingface_token" "secret-huggingface-token" Secret A "Hugging Face token.";
    Jwt "jwt" "secret-jwt" Secret A "Signed JSON web token.";
    NpmToken "npm_token" "secret-npm-token" Secret A "npm token.";
    OpenaiKey "openai_key" "secret-openai-key" Secret A "OpenAI API key.";
    PrivateKey "private_key" "secret-private-key" Secret A "PEM private key.";
    PypiToken "pypi_token" "secret-pypi-token" Secret A "PyPI token.";
    SendgridKey "sendgrid_key" "secret-sendgrid-key" Secret A "SendGrid key.";
    SlackToken "slack_token" "secret-slack-token" Secret A "Slack token or webhook.";
    StripeKey "stripe_key" "secret-stripe-key" Secret A "Stripe live key.";
    UrlCredentials "url_credentials" "secret-url-credentials" Secret A "User and password inside a URL.";
    ServiceToken "service_token" "secret-service-token" Secret A "Token of another service with a prefix of its own.";
    GenericSecret "generic_secret" "secret-generic-secret" Secret B "Random-looking value beside a word such as password.";
}

impl Kind {
    /// The kind called `name`, as in [`Kind::name`].
    #[must_use]
    pub fn from_name(name: &str) -> Option<Kind> {
        Kind::ALL.iter().copied().find(|kind| kind.name() == name)
    }

    pub(crate) const fn bit(self) -> u64 {
        1 << self as u8
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A set of kinds, one bit each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct KindSet(pub(crate) u64);

impl KindSet {
    /// No kind.
    pub const EMPTY: KindSet = KindSet(0);

    /// The kinds of `groups`.
    #[must_use]
    pub fn of_groups(groups: &[Group]) -> KindSet {
        Kind::ALL.iter().copied().filter(|kind| groups.contains(&kind.group())).collect()
    }

    /// The kinds tagged `pii`: contact, financial, government, health.
    #[must_use]
    pub fn personal() -> KindSet {
        KindSet::of_groups(&[Group::Contact, Group::Financial, Group::Government, Group::Health])
    }

    /// The kinds tagged `secret`.
    #[must_use]
    pub fn secrets() -> KindSet {
        KindSet::of_groups(&[Group::Secret])
    }

    /// Whether `kind` is in the set.
    #[must_use]
    pub const fn contains(self, kind: Kind) -> bool {
        self.0 & kind.bit() != 0
    }

    /// Whether no kind is in the set.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// The kinds, in the order of [`Kind::ALL`].
    pub fn iter(self) -> impl Iterator<Item = Kind> {
        Kind::ALL.iter().copied().filter(move |kind| self.contains(*kind))
    }

    /// Both sets together.
    #[must_use]
    pub const fn union(self, other: KindSet) -> KindSet {
        KindSet(self.0 | other.0)
    }

    pub(crate) const fn intersects(self, other: KindSet) -> bool {
        self.0 & other.0 != 0
    }
}

impl FromIterator<Kind> for KindSet {
    fn from_iter<I: IntoIterator<Item = Kind>>(kinds: I) -> KindSet {
        KindSet(kinds.into_iter().fold(0, |bits, kind| bits | kind.bit()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_has_its_own_bit_name_and_tag() {
        assert!(Kind::ALL.len() <= 64);
        for (index, kind) in Kind::ALL.iter().enumerate() {
            assert_eq!(*kind as usize, index);
            assert_eq!(Kind::from_name(kind.name()), Some(*kind));
            let same = Kind::ALL.iter().filter(|other| other.tag() == kind.tag()).count();
            assert_eq!(same, 1, "{kind}");
        }
    }
}
