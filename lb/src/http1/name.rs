//! Names of header fields that mean something here, told apart once when a head is parsed.

/// A field name that some part of the gateway asks about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Name {
    AcceptEncoding,
    ApiKey,
    Authorization,
    Connection,
    ContentDigest,
    ContentEncoding,
    ContentLength,
    ContentMd5,
    ContentType,
    Cookie,
    Expect,
    Host,
    KeepAlive,
    OpenaiOrganization,
    OpenaiProject,
    ProxyAuthenticate,
    ProxyAuthorization,
    ProxyConnection,
    ReprDigest,
    Te,
    Trailer,
    TransferEncoding,
    Upgrade,
    XApiKey,
    XForwardedFor,
    XForwardedProto,
    XGoogApiKey,
    XRequestId,
    /// Any other: it travels on.
    Other,
}

impl Name {
    /// The meaning of a field name, in whatever case it was sent (RFC 9110, 5.1).
    pub(crate) fn of(name: &[u8]) -> Self {
        let candidates: &[(&[u8], Self)] = match name.len() {
            2 => &[(b"te", Self::Te)],
            4 => &[(b"host", Self::Host)],
            6 => &[(b"expect", Self::Expect), (b"cookie", Self::Cookie)],
            7 => &[(b"api-key", Self::ApiKey), (b"trailer", Self::Trailer), (b"upgrade", Self::Upgrade)],
            9 => &[(b"x-api-key", Self::XApiKey)],
            10 => &[(b"connection", Self::Connection), (b"keep-alive", Self::KeepAlive)],
            11 => &[(b"content-md5", Self::ContentMd5), (b"repr-digest", Self::ReprDigest)],
            12 => &[(b"content-type", Self::ContentType), (b"x-request-id", Self::XRequestId)],
            13 => &[(b"authorization", Self::Authorization)],
            14 => &[
                (b"content-length", Self::ContentLength),
                (b"content-digest", Self::ContentDigest),
                (b"openai-project", Self::OpenaiProject),
                (b"x-goog-api-key", Self::XGoogApiKey),
            ],
            15 => &[(b"accept-encoding", Self::AcceptEncoding), (b"x-forwarded-for", Self::XForwardedFor)],
            16 => &[(b"content-encoding", Self::ContentEncoding), (b"proxy-connection", Self::ProxyConnection)],
            17 => &[(b"transfer-encoding", Self::TransferEncoding), (b"x-forwarded-proto", Self::XForwardedProto)],
            18 => &[(b"proxy-authenticate", Self::ProxyAuthenticate)],
            19 => &[
                (b"proxy-authorization", Self::ProxyAuthorization),
                (b"openai-organization", Self::OpenaiOrganization),
            ],
            _ => &[],
        };
        // Most names differ in their first letter from the few that are as long.
        let is = |known: &[u8]| name[0] | 0x20 == known[0] && name.eq_ignore_ascii_case(known);
        candidates.iter().find(|(known, _)| is(known)).map_or(Self::Other, |&(_, name)| name)
    }

    /// Belongs to one connection only (RFC 9110, 7.6.1), or tells a length that we tell anew.
    pub(crate) const fn is_hop_by_hop(self) -> bool {
        matches!(
            self,
            Self::Connection
                | Self::ContentLength
                | Self::KeepAlive
                | Self::ProxyAuthenticate
                | Self::ProxyAuthorization
                | Self::ProxyConnection
                | Self::Te
                | Self::Trailer
                | Self::TransferEncoding
                | Self::Upgrade
        )
    }

    /// The client's credentials and identity: they are for us and never travel upstream.
    pub(crate) const fn is_credential(self) -> bool {
        matches!(
            self,
            Self::ApiKey
                | Self::Authorization
                | Self::Cookie
                | Self::OpenaiOrganization
                | Self::OpenaiProject
                | Self::XApiKey
                | Self::XGoogApiKey
        )
    }

    /// Written anew for every upstream request.
    pub(crate) const fn is_ours(self) -> bool {
        matches!(self, Self::Expect | Self::Host | Self::XForwardedFor | Self::XForwardedProto | Self::XRequestId)
    }

    /// True of the bytes of a body as it was encoded, and of no others.
    pub(crate) const fn speaks_of_encoded_body(self) -> bool {
        matches!(self, Self::ContentDigest | Self::ContentEncoding | Self::ContentMd5 | Self::ReprDigest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_known_in_any_case_and_never_by_a_part_of_them() {
        for (name, known) in [
            ("te", Name::Te),
            ("content-length", Name::ContentLength),
            ("x-forwarded-proto", Name::XForwardedProto),
            ("openai-organization", Name::OpenaiOrganization),
            ("proxy-authorization", Name::ProxyAuthorization),
        ] {
            assert_eq!(Name::of(name.as_bytes()), known);
            assert_eq!(Name::of(name.to_uppercase().as_bytes()), known);
            assert_eq!(Name::of(format!("{name}x").as_bytes()), Name::Other);
            assert_eq!(Name::of(&name.as_bytes()[1..]), Name::Other);
        }
        assert_eq!(Name::of(b""), Name::Other);
        assert_eq!(Name::of(b"x_request_id"), Name::Other);
    }
}
