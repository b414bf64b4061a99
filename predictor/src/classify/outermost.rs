//! Which of the finds of a slice count, where several share a place.

use super::kind::{Group, Kind};
use super::lane::Found;

/// Drops finds that another explains: the pieces of a card number are not a second identifier. A telephone number and a random value, whose
/// shapes prove least, give way to everything that covers them and hide only their own kind.
pub(super) fn keep_outermost(found: &mut Vec<Found>, order: &mut Vec<u64>) {
    order.clear();
    order.extend(found.iter().map(|find| Found::order(*find)));
    order.sort_unstable();
    found.clear();
    found.extend(order.iter().filter_map(|order| Found::ordered(*order)));
    let (mut firm, mut soft): (Option<Found>, Option<Found>) = (None, None);
    found.retain(|find| {
        let credential = |kind: Kind| kind.group() == Group::Secret;
        let covers = |outer: &Option<Found>| {
            outer.is_some_and(|outer| {
                let named = credential(find.kind) && (!credential(outer.kind) || outer.kind == Kind::UrlCredentials);
                find.end <= outer.end && (!named || weak(find.kind) && credential(outer.kind))
            })
        };
        let equals =
            |outer: &Option<Found>| outer.is_some_and(|outer| (find.start, find.end) == (outer.start, outer.end));
        let hidden = if weak(find.kind) {
            covers(&firm) || covers(&soft.filter(|outer| outer.kind == find.kind))
        } else {
            covers(&firm) && !equals(&firm)
        };
        let outer = if weak(find.kind) { &mut soft } else { &mut firm };
        if outer.is_none_or(|outer| find.end > outer.end) {
            *outer = Some(*find);
        }
        !hidden
    });
}

impl Found {
    /// The find as one number, by where it begins, the longest first, the weak last: in one number, as there may be many. A slice is far
    /// shorter than 2^24.
    fn order(self) -> u64 {
        let place = u64::from(self.start) << 40 | u64::from(0xff_ffff - self.end) << 16;
        place | u64::from(weak(self.kind)) << 8 | self.kind as u64
    }

    /// The find with this order.
    fn ordered(order: u64) -> Option<Found> {
        let kind = *Kind::ALL.get(usize::from(order as u8))?;
        Some(Found { kind, start: (order >> 40) as u32, end: 0xff_ffff - (order >> 16 & 0xff_ffff) as u32 })
    }
}

/// Whether the shape of a kind proves little.
fn weak(kind: Kind) -> bool {
    kind == Kind::Phone || kind == Kind::GenericSecret
}
