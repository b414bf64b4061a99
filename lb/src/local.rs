//! What is answered here: `GET /v1/models`, and the small decisions around a request that need no upstream.

use std::cell::Cell;
use std::hash::{BuildHasher, Hasher, RandomState};

use config::snapshot::{Pool, PoolScope, Snapshot};

use crate::conn::Client;
use crate::error::Refused;
use crate::http1::Method;
use crate::openai::scan::push_json_string;

/// Longest request id of a client that is kept.
const REQUEST_ID_BYTES_MAX: usize = 128;

/// An answer of ours.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) body: Vec<u8>,
}

/// The answer to a path that is answered here; `None` for all others.
pub(crate) fn answer(snapshot: &Snapshot, client: &Client, path: &[u8]) -> Result<Option<Answer>, Refused> {
    let Some(rest) = path.strip_prefix(b"/v1/models") else { return Ok(None) };
    let one = match rest {
        b"" => None,
        [b'/', name @ ..] => Some(percent_decoded(name)),
        _ => return Ok(None),
    };
    match client.head.method {
        Method::Get | Method::Head => {}
        Method::Post | Method::Options | Method::Other => return Err(Refused::Method("GET, HEAD")),
    }
    let mut body = Vec::new();
    match one {
        None => {
            body.extend_from_slice(b"{\"object\":\"list\",\"data\":[");
            for (i, name) in snapshot.model_names(&client.scope).enumerate() {
                if i > 0 {
                    body.push(b',');
                }
                push_model(&mut body, name);
            }
            body.extend_from_slice(b"]}");
        }
        Some(name) => {
            if snapshot.pool_for(&name, &client.scope).is_none() {
                return Err(Refused::ModelNotFound(name.chars().take(200).collect()));
            }
            push_model(&mut body, &name);
        }
    }
    Ok(Some(Answer { status: 200, body }))
}

fn push_model(to: &mut Vec<u8>, name: &str) {
    to.extend_from_slice(b"{\"id\":");
    push_json_string(to, name);
    to.extend_from_slice(b",\"object\":\"model\",\"created\":0,\"owned_by\":\"kinference\"}");
}

/// Model names have slashes; clients may escape them.
pub(crate) fn percent_decoded(raw: &[u8]) -> String {
    let mut bytes = Vec::with_capacity(raw.len());
    let mut at = 0;
    while at < raw.len() {
        let hex = |i: usize| raw.get(i).and_then(|&b| (b as char).to_digit(16));
        match (raw[at], hex(at + 1), hex(at + 2)) {
            (b'%', Some(high), Some(low)) => {
                bytes.push((high << 4 | low) as u8);
                at += 3;
            }
            (byte, _, _) => {
                bytes.push(byte);
                at += 1;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// The pool of requests that name no model.
pub(crate) fn first_pool<'a>(snapshot: &'a Snapshot, scope: &PoolScope) -> Option<(usize, &'a Pool)> {
    snapshot.pools.iter().enumerate().find(|(_, pool)| scope.contains(&pool.id))
}

/// The client's request id, when it can stand in a header and a log line.
pub(crate) fn sane_request_id(id: &[u8]) -> Option<String> {
    let sane = (1..=REQUEST_ID_BYTES_MAX).contains(&id.len()) && id.iter().all(u8::is_ascii_graphic);
    sane.then(|| String::from_utf8_lossy(id).into_owned())
}

/// A request id of ours: 128 bits, unique for all practical purposes, as 32 hex digits.
pub(crate) fn new_request_id() -> String {
    thread_local! {
        static KEYS: (RandomState, RandomState) = (RandomState::new(), RandomState::new());
        static COUNT: Cell<u64> = const { Cell::new(0) };
    }
    let count = COUNT.with(|count| {
        count.set(count.get() + 1);
        count.get()
    });
    KEYS.with(|(high, low)| {
        let half = |keys: &RandomState| {
            let mut hasher = keys.build_hasher();
            hasher.write_u64(count);
            hasher.finish()
        };
        hex(u128::from(half(high)) << 64 | u128::from(half(low)))
    })
}

/// 32 hex digits.
fn hex(number: u128) -> String {
    let mut digits = [0; 32];
    for (pair, byte) in digits.chunks_exact_mut(2).zip(number.to_be_bytes()) {
        pair[0] = b"0123456789abcdef"[usize::from(byte >> 4)];
        pair[1] = b"0123456789abcdef"[usize::from(byte & 15)];
    }
    String::from_utf8_lossy(&digits).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn insane_request_ids_are_not_kept() {
        assert_eq!(sane_request_id(b"my-id-123").as_deref(), Some("my-id-123"));
        for bad in [&b""[..], b"a b", b"a\tb", "ä".as_bytes(), &[b'x'; 129]] {
            assert_eq!(sane_request_id(bad), None);
        }
        let (one, other) = (new_request_id(), new_request_id());
        assert_ne!(one, other);
        assert_eq!(sane_request_id(one.as_bytes()), Some(one));
        assert_eq!(hex(0x0123_4567_89ab_cdef << 64 | 0xff), "0123456789abcdef00000000000000ff");
    }

    #[test]
    fn escaped_slashes_are_slashes() {
        assert_eq!(percent_decoded(b"org%2Fmodel-1%"), "org/model-1%");
    }
}
