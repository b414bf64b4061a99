//! Which rule a request falls under, found without looking at every rule's every word.
//!
//! Two things are worked out when rules are compiled: for each name that the pool serves, the entries whose models it is
//! among (most rules are for other models); and for each entry's tags, bits in the list of tags that the program looks at, so
//! that a prompt's tags are compared once and not rule by rule.

use ahash::AHashMap;

use crate::condition::{Match, TagCondition};
use crate::request::Request;
use crate::rule::{Mode, Rule};

/// Tags that bits can tell apart; a program that looks at more compares words.
const BITS: usize = 128;

/// Places kept by name in all, 16 MB: beyond it names are compared entry by entry, which is as right and not as quick.
const PLACES_MAX: usize = 4 << 20;

/// The entries of a program's rules, in the order they are tried. A rule without entries is one that asks nothing.
#[derive(Clone, Debug)]
pub(crate) struct Matcher {
    entries: Vec<Entry>,
    /// Places in `entries` by the names that the pool serves; of a name that is not there, all are looked at.
    by_name: AHashMap<Box<str>, Box<[u32]>>,
    /// Bits of the personal tags, which a prompt that could not be read all has.
    personal: u128,
}

#[derive(Clone, Debug)]
struct Entry {
    rule: u16,
    mode: Mode,
    /// What is asked besides the tags, and those too where bits cannot say it.
    asked: Match,
    /// At least one of these, unless it is 0; every one; not one.
    any: u128,
    all: u128,
    none: u128,
}

/// The tags of one prompt as bits.
struct Tags<'r> {
    request: &'r Request<'r>,
    known: &'r [String],
    personal: u128,
    bits: Option<u128>,
}

impl Matcher {
    /// The matcher of `rules` for a pool that serves `names`. `tags` are those the rules look at, sorted.
    pub(crate) fn new<'n>(rules: &[Rule], names: impl Iterator<Item = &'n str>, tags: &[String]) -> Self {
        let mut entries = Vec::new();
        for (rule, of) in (0_u16..).zip(rules) {
            let asks_nothing = [Match::default()];
            let matches = if of.matches.is_empty() { &asks_nothing[..] } else { &of.matches };
            entries.extend(matches.iter().map(|entry| Entry::new(rule, of.mode, entry, tags)));
        }
        let served = |name: &str| -> Box<[u32]> {
            (0_u32..).zip(&entries).filter(|(_, e)| e.asked.is_for_model(name)).map(|(place, _)| place).collect()
        };
        let mut by_name: AHashMap<Box<str>, Box<[u32]>> = AHashMap::new();
        let mut kept = 0;
        for name in names {
            let places = served(name);
            kept += places.len();
            if kept > PLACES_MAX {
                by_name.clear();
                break;
            }
            by_name.insert(name.into(), places);
        }
        let personal = bits_of(tags.iter().filter(|tag| Request::is_personal(tag)), tags).unwrap_or_default();
        Self { entries, by_name, personal }
    }

    /// The first rule of a mode, before the rule `end`, that holds for `request`.
    pub(crate) fn first(&self, request: &Request<'_>, tags: &[String], mode: Mode, end: usize) -> Option<u16> {
        let mut prompt = Tags { request, known: tags, personal: self.personal, bits: None };
        let wanted = |entry: &&Entry| entry.mode == mode && usize::from(entry.rule) < end;
        let found = match self.by_name.get(request.model) {
            Some(places) => places
                .iter()
                .filter_map(|place| self.entries.get(*place as usize))
                .filter(wanted)
                .find(|entry| entry.holds(request, &mut prompt)),
            None => self
                .entries
                .iter()
                .filter(wanted)
                .find(|entry| entry.asked.is_for_model(request.model) && entry.holds(request, &mut prompt)),
        };
        found.map(|entry| entry.rule)
    }
}

impl Entry {
    fn new(rule: u16, mode: Mode, entry: &Match, tags: &[String]) -> Self {
        let mut asked = entry.clone();
        let sets = [&entry.tags.any, &entry.tags.all, &entry.tags.none].map(|set| bits_of(set.iter(), tags));
        let (any, all, none) = match sets {
            [Some(any), Some(all), Some(none)] => {
                asked.tags = TagCondition::default();
                (any, all, none)
            }
            _ => (0, 0, 0),
        };
        Self { rule, mode, asked, any, all, none }
    }

    /// Whether all but the model holds.
    fn holds(&self, request: &Request<'_>, tags: &mut Tags<'_>) -> bool {
        if self.any | self.all | self.none != 0 {
            let bits = tags.bits();
            if (self.any != 0 && self.any & bits == 0) || self.all & bits != self.all || self.none & bits != 0 {
                return false;
            }
        }
        self.asked.holds_but_model(request)
    }
}

impl Tags<'_> {
    fn bits(&mut self) -> u128 {
        *self.bits.get_or_insert_with(|| {
            let of = |tag: &&str| self.known.binary_search_by(|known| known.as_str().cmp(tag)).ok();
            let own = self.request.tags.iter().filter_map(of).fold(0, |bits, place| bits | bit(place));
            own | if self.request.is_unscanned() { self.personal } else { 0 }
        })
    }
}

/// Bits of tags in the sorted list `known`; `None` when there are too many to tell apart.
fn bits_of<'t>(tags: impl Iterator<Item = &'t String>, known: &[String]) -> Option<u128> {
    let fits = known.len() <= BITS;
    fits.then(|| tags.filter_map(|tag| known.binary_search(tag).ok()).fold(0, |bits, place| bits | bit(place)))
}

fn bit(place: usize) -> u128 {
    u32::try_from(place).ok().and_then(|place| 1_u128.checked_shl(place)).unwrap_or_default()
}
