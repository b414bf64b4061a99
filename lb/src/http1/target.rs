//! Request targets and their paths.

use policy::Api;

/// The path of a request target in any form (RFC 9112, 3.2).
pub(crate) fn origin_form(target: &[u8]) -> &[u8] {
    let rest = target.strip_prefix(b"http://").or_else(|| target.strip_prefix(b"https://"));
    match rest {
        // A host may be followed by a query at once; what looks like a path in there is none.
        Some(rest) => match memchr::memchr3(b'/', b'?', b'#', rest) {
            Some(at) if rest[at] == b'/' => &rest[at..],
            Some(_) | None => b"/",
        },
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_path_of_an_absolute_target_is_never_found_in_its_query() {
        for (target, path) in [
            (&b"http://h/v1/models?x=/y"[..], &b"/v1/models"[..]),
            (b"https://h:1/v1/models/", b"/v1/models"),
            (b"http://h?x=/v1/models", b"/"),
            (b"http://h#/v1/models", b"/"),
            (b"http://h", b"/"),
            (b"/v1/models?x", b"/v1/models"),
        ] {
            assert_eq!(path_of(origin_form(target)), path, "{}", String::from_utf8_lossy(target));
        }
    }
}
