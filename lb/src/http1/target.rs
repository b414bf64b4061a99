//! Request targets and their paths.

use policy::Api;

/// The path of a request target in any form (RFC 9112, 3.2).
pub(crate) fn origin_form(target: &[u8]) -> &[u8] {
    let rest = target.strip_prefix(b"http://").or_else(|| target.strip_prefix(b"https://"));
    match rest {
        Some(rest) => memchr::memchr(b'/', rest).map_or(b"/", |at| &rest[at..]),
        None => target,
    }
}

/// What the upstream is asked for where it is not what came: known paths without trailing slashes, which an engine would
/// answer with a redirect to an address of its own.
pub(crate) fn upstream_target(api: Api, target: &[u8], path: &[u8]) -> Option<Vec<u8>> {
    if api == Api::Other || target.len() == path.len() {
        return None;
    }
    let query = memchr::memchr(b'?', target).map_or(&b""[..], |at| &target[at..]);
    Some([path, query].concat())
}

/// Without query, without trailing slashes.
pub(crate) fn path_of(target: &[u8]) -> &[u8] {
    let end = memchr::memchr2(b'?', b'#', target).unwrap_or(target.len());
    let mut path = &target[..end];
    while let [start @ .., b'/'] = path
        && !start.is_empty()
    {
        path = start;
    }
    path
}
