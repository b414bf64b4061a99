//! `http://` and `https://` URLs as destinations are written: a host, perhaps a port and a path.

use crate::snapshot::{BaseUrl, Tls};

/// Parses a destination's URL.
///
/// # Errors
/// What is wrong with it, for the person who wrote it.
pub fn parse_base_url(text: &str) -> Result<BaseUrl, String> {
    let (tls, rest, default_port) = if let Some(rest) = text.strip_prefix("https://") {
        (Tls::Yes, rest, 443)
    } else if let Some(rest) = text.strip_prefix("http://") {
        (Tls::No, rest, 80)
    } else {
        return Err("the URL must begin with `https://` or `http://`".to_owned());
    };
    if let Some(c) = rest.chars().find(|c| c.is_whitespace() || c.is_control() || matches!(c, '?' | '#' | '\\')) {
        return Err(format!("the URL must not contain {c:?}"));
    }
    let (authority, path) = rest.find('/').map_or((rest, ""), |slash| rest.split_at(slash));
    if authority.contains('@') {
        return Err("the URL must not hold a user or password; use `auth`".to_owned());
    }
    let (host, port) = split_port(authority)?;
    Ok(BaseUrl {
        tls,
        host: host.to_owned(),
        port: port.unwrap_or(default_port),
        path_prefix: path.trim_end_matches('/').to_owned(),
    })
}

/// Splits `host`, `host:port`, `[v6]` or `[v6]:port`.
fn split_port(authority: &str) -> Result<(&str, Option<u16>), String> {
    let (host, port) = if let Some(rest) = authority.strip_prefix('[') {
        let (host, after) = rest.split_once(']').ok_or("the address has no closing `]`")?;
        if host.parse::<std::net::Ipv6Addr>().is_err() {
            return Err(format!("`{host}` is not an IPv6 address"));
        }
        match after.strip_prefix(':') {
            Some(port) => (host, Some(port)),
            None if after.is_empty() => (host, None),
            None => return Err(format!("`{after}` after the address makes no sense")),
        }
    } else {
        match authority.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (authority, None),
        }
    };
    check_host(host)?;
    let port = match port {
        None => None,
        Some(text) => match text.parse() {
            Ok(0) | Err(_) => return Err(format!("`{text}` is not a port (1 to 65535)")),
            Ok(port) => Some(port),
        },
    };
    Ok((host, port))
}

/// Checks an IP address (without brackets) or a DNS name.
///
/// # Errors
/// What is wrong with it, for the person who wrote it.
pub fn check_host(host: &str) -> Result<(), String> {
    if host.parse::<std::net::IpAddr>().is_ok() {
        return Ok(());
    }
    let name = host.strip_suffix('.').unwrap_or(host);
    let label = |l: &str| {
        (1..=63).contains(&l.len())
            && l.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_')
            && !l.starts_with('-')
            && !l.ends_with('-')
    };
    if name.is_empty() || name.len() > 253 || !name.split('.').all(label) {
        return Err(format!("`{host}` is neither an IP address nor a DNS name"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_split_into_their_parts() {
        let url = parse_base_url("https://example.com/serving-endpoints/").expect("parses");
        assert_eq!(
            (url.tls, url.host.as_str(), url.port, url.path_prefix.as_str()),
            (Tls::Yes, "example.com", 443, "/serving-endpoints")
        );
        let url = parse_base_url("http://[::1]:8000").expect("parses");
        assert_eq!((url.tls, url.host.as_str(), url.port, url.path_prefix.as_str()), (Tls::No, "::1", 8000, ""));
    }

    #[test]
    fn what_is_no_destination_is_refused() {
        for text in [
            "",
            "example.com",
            "ftp://x",
            "http://",
            "http://u:p@x",
            "http://x:0",
            "http://x:99999",
            "http://a b",
            "http://x/?q",
            "http://[::1",
            "http://-x",
            "http://[x]:1",
        ] {
            assert!(parse_base_url(text).is_err(), "{text}");
        }
    }
}
