//! The sockets that a process holds, as the kernel tells: one that nobody closed shows here.

use std::collections::HashMap;
use std::fs;

/// Ports of a TCP socket: its own and its peer's.
type Ports = (u16, u16);

/// Ports of connections of the process, and how many sockets it has besides TCP ones: a TCP socket whose connection has
/// ended both ways and that is still held is among the latter.
pub(crate) fn of(process: u32) -> (Vec<Ports>, usize) {
    const LISTENS: &str = "0A";
    let table = fs::read_to_string(format!("/proc/{process}/net/tcp")).unwrap_or_default();
    let port = |address: &str| address.split_once(':').and_then(|(_, port)| u16::from_str_radix(port, 16).ok());
    let rows = table.lines().skip(1).filter_map(|row| {
        let words: Vec<&str> = row.split_whitespace().collect();
        Some((*words.get(9)?, (port(words.get(1)?)?, port(words.get(2)?)?, *words.get(3)?)))
    });
    let rows: HashMap<&str, (u16, u16, &str)> = rows.collect();
    let (mut connections, mut others) = (Vec::new(), 0);
    for entry in fs::read_dir(format!("/proc/{process}/fd")).into_iter().flatten().flatten() {
        let target = fs::read_link(entry.path()).unwrap_or_default();
        let Some(inode) = target.to_str().and_then(|name| name.strip_prefix("socket:[")?.strip_suffix(']')) else {
            continue;
        };
        match rows.get(inode) {
            None => others += 1,
            Some((_, _, LISTENS)) => {}
            Some((own, peer, _)) => connections.push((*own, *peer)),
        }
    }
    (connections, others)
}
