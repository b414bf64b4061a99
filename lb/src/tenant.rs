//! Who calls: found from the credential, never from the body.
//!
//! A verified client certificate that names a tenant goes before any key: OpenAI clients always send some key, if only a
//! made-up one. A certificate that names nobody leaves the word to the key.

use config::Snapshot;
use sha2::{Digest, Sha256};

use crate::conn::Client;
use crate::error::Refused;
use crate::http1::Name;

/// Who calls, by the credential: `anonymous` where no tenant is configured.
pub(crate) fn tenant_of<'a>(snapshot: &'a Snapshot, client: &Client, bytes: &[u8]) -> Result<&'a str, Refused> {
    if snapshot.tenants.is_empty() {
        return Ok("anonymous");
    }
    let names = client.conn.client_names();
    if let Some(tenant) = names.iter().find_map(|name| snapshot.tenant_of_certificate(name)) {
        return Ok(&tenant.id.name);
    }
    let headers = &client.head.headers;
    let bearer = headers.first(bytes, Name::Authorization).and_then(|value| {
        let (scheme, key) = value.split_at_checked(7)?;
        scheme.eq_ignore_ascii_case(b"bearer ").then(|| key.trim_ascii())
    });
    let key = bearer.or_else(|| headers.first(bytes, Name::ApiKey)).or_else(|| headers.first(bytes, Name::XApiKey));
    let digest: [u8; 32] = Sha256::digest(key.ok_or(Refused::Unauthorized)?).into();
    snapshot.tenant_of_key(&digest).map(|tenant| tenant.id.name.as_str()).ok_or(Refused::Unauthorized)
}
