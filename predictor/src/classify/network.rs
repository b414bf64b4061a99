//! Public IP addresses and hardware addresses.
//!
//! Addresses that say nothing about a person or a place are left out: private, loopback, link-local, shared, documentation and multicast
//! ranges (RFC 6890, RFC 5737, RFC 3849), public resolvers, and dotted versions.

use std::net::{Ipv4Addr, Ipv6Addr};

use super::kind::{Kind, KindSet};
use super::lane::Lane;

/// Longest IPv6 text form, with an embedded IPv4 address.
const IPV6_BYTES_MAX: usize = 45;

/// Digits of a group of an IPv6 address.
const IPV6_GROUP_BYTES_MAX: usize = 4;

/// Looks for IPv4, IPv6 and hardware addresses.
pub(super) fn scan(lane: &mut Lane<'_>) {
    if !lane.wants(KindSet(Kind::IpAddress.bit() | Kind::MacAddress.bit())) {
        return;
    }
    let text = lane.text;
    lane.work(text.len() * 2);
    let mut done = 0;
    for at in memchr::memchr_iter(b'.', text) {
        if at >= done && at > 0 && text[at - 1].is_ascii_digit() {
            done = ipv4(lane, at, done);
        }
    }
    done = 0;
    for at in memchr::memchr2_iter(b':', b'-', text) {
        if at >= done && may_be_address(text, at) {
            done = colons(lane, at, done);
        }
    }
}

/// Whether the sign at `at` can be the first one of a hardware address or of an IPv6 address: the next one is as far as a group is long.
fn may_be_address(text: &[u8], at: usize) -> bool {
    let next = &text[at + 1..text.len().min(at + 2 + IPV6_GROUP_BYTES_MAX)];
    let Some(first) = next.first() else { return false };
    match text[at] {
        b'-' => first.is_ascii_hexdigit() && next.get(2) == Some(&b'-'),
        _ => (first.is_ascii_hexdigit() || *first == b':') && next.contains(&b':'),
    }
}

/// The dotted token around `at`. Returns where it ends.
fn ipv4(lane: &mut Lane<'_>, at: usize, floor: usize) -> usize {
    let text = lane.text;
    let dotted = |byte: u8| byte.is_ascii_digit() || byte == b'.';
    let mut start = at;
    while start > floor && dotted(text[start - 1]) {
        start -= 1;
    }
    let mut end = at;
    while end < text.len() && dotted(text[end]) {
        end += 1;
    }
    lane.work(end - start);
    let next = end;
    while end > start && text[end - 1] == b'.' {
        end -= 1;
    }
    let glued =
        lane.before(start).is_ascii_alphabetic() || lane.byte(next).is_ascii_alphabetic() || lane.before(start) == b'_';
    let address = std::str::from_utf8(&text[start..end])
        .ok()
        .filter(|token| token.len() <= 15)
        .and_then(|token| token.parse::<Ipv4Addr>().ok());
    if let Some(address) = address
        && !glued
        && public_v4(address)
        && !after_version(&text[..start])
    {
        lane.take(Kind::IpAddress, start, end);
    }
    next
}

fn public_v4(address: Ipv4Addr) -> bool {
    let [a, b, c, _] = address.octets();
    let reserved = a == 0
        || a >= 224
        || (a == 100 && (64..=127).contains(&b))
        || (a == 192 && b == 0 && c == 0)
        || (a == 198 && matches!(b, 18 | 19));
    let resolver = matches!(address.octets(), [8, 8, 8 | 4, _] | [1, 1, 1, 1] | [1, 0, 0, 1] | [9, 9, 9, 9]);
    !reserved
        && !resolver
        && !address.is_private()
        && !address.is_loopback()
        && !address.is_link_local()
        && !address.is_documentation()
}

/// Whether the words in front call what follows a version.
fn after_version(text: &[u8]) -> bool {
    let tail = &text[text.len().saturating_sub(14)..];
    ["version", "release", "build", "firmware", "driver", " ver", "rev"]
        .iter()
        .any(|word| tail.windows(word.len()).any(|window| window.eq_ignore_ascii_case(word.as_bytes())))
}

/// The token of hexadecimal digits, colons, dots and dashes around `at`. Returns where it ends.
fn colons(lane: &mut Lane<'_>, at: usize, floor: usize) -> usize {
    let text = lane.text;
    let member = |byte: u8| byte.is_ascii_hexdigit() || matches!(byte, b':' | b'-' | b'.');
    let mut start = at;
    while start > floor && member(text[start - 1]) {
        start -= 1;
    }
    let mut end = at;
    while end < text.len() && member(text[end]) {
        end += 1;
    }
    lane.work(end - start);
    let next = end.max(at + 1);
    if lane.before(start).is_ascii_alphanumeric() || lane.byte(end).is_ascii_alphanumeric() {
        return next;
    }
    while end > start && matches!(text[end - 1], b'.' | b'-')
        || (text[start..end].ends_with(b":") && !text[start..end].ends_with(b"::"))
    {
        end -= 1;
    }
    // "MAC:aa:bb:..": a key in front may share the letters, so a leading colon or dash is not part of the address.
    while start < end && matches!(text[start], b'-' | b'.')
        || (text[start..end].starts_with(b":") && !text[start..end].starts_with(b"::"))
    {
        start += 1;
    }
    let token = &text[start..end];
    if hardware(token) {
        lane.take(Kind::MacAddress, start, end);
    } else if token.len() <= IPV6_BYTES_MAX
        && token.iter().filter(|byte| **byte == b':').count() >= 2
        && let Some(address) = std::str::from_utf8(token).ok().and_then(|token| token.parse::<Ipv6Addr>().ok())
        && public_v6(address)
    {
        lane.take(Kind::IpAddress, start, end);
    }
    next
}

/// Six pairs with one kind of separator, neither all zeros nor all ones. Six pairs of decimal digits and dashes are dates and draws.
fn hardware(token: &[u8]) -> bool {
    token.len() == 17
        && token
            .iter()
            .enumerate()
            .all(|(at, byte)| if at % 3 == 2 { *byte == token[2] } else { byte.is_ascii_hexdigit() })
        && matches!(token[2], b':' | b'-')
        && (token[2] == b':' || token.iter().any(u8::is_ascii_alphabetic))
        && !token.eq_ignore_ascii_case(b"ff:ff:ff:ff:ff:ff")
        && token != b"00:00:00:00:00:00"
}

fn public_v6(address: Ipv6Addr) -> bool {
    let [first, second, ..] = address.segments();
    let documentation = (first == 0x2001 && second == 0x0db8) || first == 0x3fff;
    let resolver = (first == 0x2001 && second == 0x4860) || (first == 0x2606 && second == 0x4700);
    first & 0xe000 == 0x2000 && !documentation && !resolver
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_that_name_no_one_are_not_public() {
        for text in [
            "10.0.0.1",
            "192.168.1.1",
            "127.0.0.1",
            "192.0.2.7",
            "198.51.100.2",
            "203.0.113.9",
            "8.8.8.8",
            "0.0.0.0",
            "224.0.0.1",
            "100.64.0.1",
        ] {
            assert!(!public_v4(text.parse().expect("an address")), "{text}");
        }
        assert!(public_v4(Ipv4Addr::new(49, 161, 43, 120)));
        assert!(!public_v6("2001:db8::1".parse().expect("an address")));
        assert!(!public_v6("::1".parse().expect("an address")));
        assert!(public_v6("2a01:7514:f3:642::b538".parse().expect("an address")));
    }

    #[test]
    fn hardware_addresses_have_one_separator() {
        assert!(hardware(b"07:ae:09:00:b8:04") && hardware(b"df-c8-a6-39-2f-9b"));
        assert!(!hardware(b"07:ae-09:00:b8:04") && !hardware(b"ff:ff:ff:ff:ff:ff"));
    }
}
