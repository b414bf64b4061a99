//! Who calls: found from the credential, never from the body.
//!
//! A verified client certificate that names a tenant goes before any key: OpenAI clients always send some key, if only a
//! made-up one. A certificate that names nobody leaves the word to the key, and a key that is none but is written like a signed
//! token is read as one. A token is verified once and then known by its hash until it ends, or the keys or the tenants
//! change.

use std::rc::Rc;

use admission::jwt::{Refusal, Token, looks_like_token};
use config::Snapshot;
use config::limits::TOKEN_LEEWAY_S;
use config::snapshot::{Jwt, KeySource};
use sha2::{Digest, Sha256};

use crate::conn::Client;
use crate::error::Refused;
use crate::http1::Name;
use crate::io;
use crate::keyring::{ANSWERED_WITHIN_US, Asking, Keyring};
use crate::mailbox::FromShard;
use crate::plan::LocalPlan;
use crate::shard::{Shard, unix_ms};

/// How often a request that waits for keys looks whether they have come.
const LOOK: std::time::Duration = std::time::Duration::from_millis(10);

/// Who calls.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Caller<'p> {
    /// Its name; `anonymous` where no tenant is configured.
    pub(crate) name: &'p str,
    /// Its place among the tenants of the plan.
    pub(crate) tenant: Option<usize>,
}

/// Who calls, by the credential.
pub(crate) async fn caller_of<'p>(
    shard: &Shard,
    plan: &'p Rc<LocalPlan>,
    client: &Client,
    bytes: &[u8],
) -> Result<Caller<'p>, Refused> {
    let snapshot: &'p Snapshot = &plan.snapshot;
    if snapshot.tenants.is_empty() {
        return Ok(Caller { name: "anonymous", tenant: None });
    }
    let names = client.conn.client_names();
    if let Some(index) = names.iter().find_map(|name| snapshot.tenant_of_certificate(name)) {
        return named(snapshot, index);
    }
    let credential = credential(client, bytes).ok_or(Refused::Unauthorized)?;
    let sha256: [u8; 32] = Sha256::digest(credential).into();
    if let Some(index) = snapshot.tenant_of_key(&sha256) {
        return named(snapshot, index);
    }
    if !snapshot.believes_tokens() || !looks_like_token(credential) {
        return Err(Refused::Unauthorized);
    }
    let now_s = unix_ms() / 1_000;
    let known = shard.tokens.borrow_mut().find(&sha256, now_s);
    match known {
        Some(index) => named(snapshot, index),
        // In a box: few requests need it, and every connection would hold the room for it.
        None => Box::pin(verified(shard, plan, credential, sha256)).await,
    }
}

fn named(snapshot: &Snapshot, index: usize) -> Result<Caller<'_>, Refused> {
    let tenant = snapshot.tenants.get(index).ok_or(Refused::Unauthorized)?;
    Ok(Caller { name: &tenant.id.name, tenant: Some(index) })
}

/// The key or token that was sent, under whichever of its names.
fn credential<'a>(client: &'a Client, bytes: &'a [u8]) -> Option<&'a [u8]> {
    let headers = &client.head.headers;
    let bearer = headers.first(bytes, Name::Authorization).and_then(|value| {
        let (scheme, key) = value.split_at_checked(7)?;
        scheme.eq_ignore_ascii_case(b"bearer ").then(|| key.trim_ascii())
    });
    bearer.or_else(|| headers.first(bytes, Name::ApiKey)).or_else(|| headers.first(bytes, Name::XApiKey))
}

/// A token that is seen for the first time. Where it names a key that is not known, it waits a moment for newer keys.
async fn verified<'p>(
    shard: &Shard,
    plan: &'p Rc<LocalPlan>,
    text: &[u8],
    sha256: [u8; 32],
) -> Result<Caller<'p>, Refused> {
    let snapshot = &plan.snapshot;
    let token = Token::parse(text).map_err(Refused::Token)?;
    let now_s = unix_ms() / 1_000;
    let mut found = judge(snapshot, &shard.keys(), &token, now_s);
    if let Err(Missing::Keys(source) | Missing::Key(source)) = found
        && newer_keys(shard, source).await
    {
        found = judge(snapshot, &shard.keys(), &token, now_s);
    }
    let index = found.map_err(|missing| match missing {
        Missing::Refused(refusal) => Refused::Token(refusal),
        Missing::Key(_) => Refused::Token(Refusal::UnknownKey),
        Missing::Keys(_) => Refused::KeysUnknown,
    })?;
    // A plan that came meanwhile may have other tenants under other numbers.
    if shard.plan().is_some_and(|now| Rc::ptr_eq(&now, plan)) {
        let until_s = token.expires_unix_s().saturating_add(TOKEN_LEEWAY_S);
        shard.tokens.borrow_mut().insert(sha256, index, until_s);
    }
    named(snapshot, index)
}

/// What is missing for a token to be believed.
#[derive(Debug, Clone, Copy)]
enum Missing<'a> {
    /// Nothing can help.
    Refused(Refusal),
    /// The key that it names.
    Key(&'a KeySource),
    /// All keys of its issuer.
    Keys(&'a KeySource),
}

/// The tenant that a token names.
fn judge<'s>(snapshot: &'s Snapshot, ring: &Keyring, token: &Token<'_>, now_s: u64) -> Result<usize, Missing<'s>> {
    let rules = || {
        let indices = snapshot.tenants_of_issuer(token.issuer()).iter();
        indices.filter_map(|&index| Some((index, snapshot.tenants.get(index)?.jwt.as_ref()?)))
    };
    // The signature once for each source of keys, before anything else that the token says is looked at.
    let mut trusted: Vec<&KeySource> = Vec::new();
    let mut missing = Missing::Refused(Refusal::Issuer);
    let mut looked_at: Vec<&KeySource> = Vec::new();
    for (_, rule) in rules() {
        if looked_at.contains(&&rule.keys) {
            continue;
        }
        looked_at.push(&rule.keys);
        match ring.sources.get(&rule.keys).and_then(|issuer| issuer.keys.as_ref()) {
            None => missing = Missing::Keys(&rule.keys),
            Some(keys) => match keys.verify(token) {
                Ok(()) => trusted.push(&rule.keys),
                Err(Refusal::UnknownKey) => missing = Missing::Key(&rule.keys),
                Err(refusal) => missing = Missing::Refused(refusal),
            },
        }
    }
    if trusted.is_empty() {
        return Err(missing);
    }
    token.in_time(now_s, TOKEN_LEEWAY_S).map_err(Missing::Refused)?;
    let mut why = Refusal::Audience;
    for (index, rule) in rules().filter(|(_, rule)| trusted.contains(&&rule.keys)) {
        match names_tenant(token, rule) {
            Ok(()) => return Ok(index),
            Err(Refusal::Nobody) => why = Refusal::Nobody,
            Err(_) => {}
        }
    }
    Err(Missing::Refused(why))
}

fn names_tenant(token: &Token<'_>, rule: &Jwt) -> Result<(), Refusal> {
    if !rule.audience.as_deref().is_none_or(|audience| token.is_for(audience)) {
        return Err(Refusal::Audience);
    }
    if token.says(&rule.claim, &rule.equals) { Ok(()) } else { Err(Refusal::Nobody) }
}

/// Asks for newer keys and waits for them. Whether any came.
async fn newer_keys(shard: &Shard, source: &KeySource) -> bool {
    let before = shard.keys();
    let begun_us = io::now_us();
    // A plan may be a moment ahead of its keys: then there is nobody to ask yet, and they are on their way.
    let asking = before.sources.get(source).map_or(Asking::Already, |issuer| issuer.last_asked.ask(begun_us));
    match asking {
        Asking::Now => shard.tell_control(FromShard::KeysWanted(source.clone())),
        Asking::Already => {}
        Asking::TooSoon => return false,
    }
    while io::now_us().saturating_sub(begun_us) < ANSWERED_WITHIN_US {
        io::sleep(LOOK).await;
        if !std::sync::Arc::ptr_eq(&before, &shard.keys()) {
            return true;
        }
    }
    false
}
