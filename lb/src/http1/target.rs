//! Request targets and their paths.

use std::borrow::Cow;

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

/// What of a target a hosted provider is asked for: of a query the version of the interface alone (Azure). Anything else in
/// there may be a credential or tell who asks.
pub(crate) fn provider_target(target: &[u8]) -> Cow<'_, [u8]> {
    let Some(end) = memchr::memchr2(b'?', b'#', target) else { return Cow::Borrowed(target) };
    let (path, rest) = target.split_at(end);
    let query = rest.strip_prefix(b"?").unwrap_or_default().split(|&byte| byte == b'#').next().unwrap_or_default();
    let version = query.split(|&byte| byte == b'&').find(|pair| pair.starts_with(b"api-version="));
    version.map_or(Cow::Borrowed(path), |pair| Cow::Owned([path, b"?", pair].concat()))
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
    fn of_a_query_a_provider_gets_the_version_of_the_interface_alone() {
        for (target, sent) in [
            (&b"/v1/a"[..], &b"/v1/a"[..]),
            (b"/v1/a?key=secret", b"/v1/a"),
            (b"/v1/a?key=secret&api-version=2024-10-21&user=me#x", b"/v1/a?api-version=2024-10-21"),
            (b"/v1/a?xapi-version=1&api-version", b"/v1/a"),
            (b"/v1/a#x?api-version=1", b"/v1/a"),
            (b"/v1/a?", b"/v1/a"),
        ] {
            assert_eq!(&*provider_target(target), sent, "{}", String::from_utf8_lossy(target));
        }
    }

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
