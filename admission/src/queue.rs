//! Requests that wait for room: bands of priority, and within a band each caller gets an equal share of tokens.
//!
//! Start-time fair queueing (Goyal, Vin, Cheng 1996): a caller's line has a mark in the band's virtual time, which goes forward
//! by the tokens that were served from it; the line with the lowest mark is next. Two callers with requests waiting
//! never differ by more than the longest request of each. It gives what deficit round robin gives without a quantum to choose and without
//! rounds: the next request can be told at any time, and one out of turn is charged as any other. A line that runs empty keeps its mark until the
//! band has caught up with it, so that who sends one long request after the other does not begin anew each time.

use std::cmp::Reverse;
use std::collections::{BTreeMap, VecDeque};

/// A place in the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(u64);

/// The queue. `K` tells callers apart; `T` is what waits.
#[derive(Debug)]
pub struct FairQueue<K, T> {
    /// The highest priority first. No band is kept that has nobody waiting.
    bands: BTreeMap<Reverse<i32>, Band<K, T>>,
    waiting: usize,
    next: u64,
}

#[derive(Debug)]
struct Band<K, T> {
    lines: BTreeMap<K, Line<T>>,
    /// The mark of the request served last.
    now: u64,
    waiting: usize,
}

#[derive(Debug)]
struct Line<T> {
    mark: u64,
    waiting: VecDeque<Waiting<T>>,
}

#[derive(Debug)]
struct Waiting<T> {
    ticket: Ticket,
    tokens: u64,
    item: T,
}

impl<K, T> Default for FairQueue<K, T> {
    fn default() -> Self {
        Self { bands: BTreeMap::new(), waiting: 0, next: 0 }
    }
}

impl<K: Ord + Clone, T> FairQueue<K, T> {
    /// Requests that wait.
    #[must_use]
    pub fn len(&self) -> usize {
        self.waiting
    }

    /// Whether nobody waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.waiting == 0
    }

    /// Joins the end of the caller's line. `tokens` is what serving it costs the caller's share; 0 is taken for 1.
    pub fn push(&mut self, priority: i32, caller: K, tokens: u64, item: T) -> Ticket {
        let ticket = Ticket(self.next);
        self.next += 1;
        let band =
            self.bands.entry(Reverse(priority)).or_insert_with(|| Band { lines: BTreeMap::new(), now: 0, waiting: 0 });
        let now = band.now;
        let line = band.lines.entry(caller).or_insert_with(|| Line { mark: now, waiting: VecDeque::new() });
        if line.waiting.is_empty() {
            line.mark = line.mark.max(now);
        }
        line.waiting.push_back(Waiting { ticket, tokens: tokens.max(1), item });
        band.waiting += 1;
        self.waiting += 1;
        ticket
    }

    /// The heads of the lines in the order of their turn, at most `most` of them.
    #[must_use]
    pub fn next_ones(&self, most: usize) -> Vec<&T> {
        let mut heads = Vec::with_capacity(most);
        for band in self.bands.values() {
            let mut lines: Vec<_> = band
                .lines
                .iter()
                .filter_map(|(key, line)| Some((line.mark, key, &line.waiting.front()?.item)))
                .collect();
            lines.sort_by(|a, b| (a.0, a.1).cmp(&(b.0, b.1)));
            heads.extend(lines.into_iter().map(|(_, _, item)| item).take(most - heads.len()));
            if heads.len() == most {
                break;
            }
        }
        heads
    }

    /// Takes one out that is served now: its caller's share is charged. `None` when it is not there any more.
    pub fn serve(&mut self, ticket: Ticket) -> Option<T> {
        self.take(ticket, |line, now, tokens| {
            *now = (*now).max(line.mark);
            line.mark = line.mark.saturating_add(tokens);
        })
    }

    /// Takes one out that has given up. `None` when it is not there any more.
    pub fn remove(&mut self, ticket: Ticket) -> Option<T> {
        self.take(ticket, |_, _, _| {})
    }

    fn take(&mut self, ticket: Ticket, charge: impl FnOnce(&mut Line<T>, &mut u64, u64)) -> Option<T> {
        let place = self.bands.iter().find_map(|(priority, band)| {
            let found = band.lines.iter().find_map(|(key, line)| {
                // Tickets rise along a line.
                let at = line.waiting.binary_search_by_key(&ticket, |waiting| waiting.ticket).ok()?;
                Some((key.clone(), at))
            });
            found.map(|(key, at)| (*priority, key, at))
        });
        let (priority, key, at) = place?;
        let band = self.bands.get_mut(&priority)?;
        let line = band.lines.get_mut(&key)?;
        let taken = line.waiting.remove(at)?;
        charge(line, &mut band.now, taken.tokens);
        band.waiting -= 1;
        self.waiting -= 1;
        if band.waiting == 0 {
            self.bands.remove(&priority);
        } else {
            let now = band.now;
            band.lines.retain(|_, line| !line.waiting.is_empty() || line.mark > now);
        }
        Some(taken.item)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn serve_next(queue: &mut FairQueue<&'static str, (Ticket, &'static str)>) -> &'static str {
        let (ticket, caller) = **queue.next_ones(1).first().unwrap();
        assert!(queue.serve(ticket).is_some());
        caller
    }

    /// Puts requests of `tokens` in line for each caller, each under its own ticket.
    fn push(queue: &mut FairQueue<&'static str, (Ticket, &'static str)>, caller: &'static str, tokens: u64) -> Ticket {
        let ticket = Ticket(queue.next);
        assert_eq!(queue.push(0, caller, tokens, (ticket, caller)), ticket);
        ticket
    }

    #[test]
    fn callers_take_turns_by_tokens_and_not_by_requests() {
        let mut queue = FairQueue::default();
        for _ in 0..4 {
            push(&mut queue, "long", 300);
        }
        for _ in 0..12 {
            push(&mut queue, "short", 100);
        }
        let served: Vec<_> = (0..8).map(|_| serve_next(&mut queue)).collect();
        assert_eq!(served, ["long", "short", "short", "short", "long", "short", "short", "short"]);
    }

    #[test]
    fn who_sends_one_after_the_other_gets_no_more_than_who_has_them_all_in_line() {
        let mut queue = FairQueue::default();
        for _ in 0..8 {
            push(&mut queue, "patient", 100);
        }
        push(&mut queue, "again", 300);
        let mut served = Vec::new();
        for _ in 0..8 {
            let caller = serve_next(&mut queue);
            if caller == "again" {
                push(&mut queue, "again", 300);
            }
            served.push(caller);
        }
        assert_eq!(served.iter().filter(|caller| **caller == "again").count(), 2, "{served:?}");
    }

    #[test]
    fn a_higher_priority_goes_first_and_a_removed_one_is_never_served() {
        let mut queue = FairQueue::default();
        let low = queue.push(-1, "a", 1, "low");
        let _ = queue.push(0, "a", 1, "middle");
        let high = queue.push(5, "b", 1_000, "high");
        let gone = queue.push(5, "c", 1, "gone");
        assert_eq!(queue.next_ones(9), [&"high", &"gone", &"middle", &"low"]);
        assert_eq!(queue.remove(gone), Some("gone"));
        assert_eq!(queue.remove(gone), None);
        assert_eq!(queue.next_ones(2), [&"high", &"middle"]);
        assert_eq!((queue.serve(high), queue.serve(low)), (Some("high"), Some("low")));
        assert_eq!((queue.next_ones(9), queue.len()), (vec![&"middle"], 1));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn between_callers_that_wait_the_tokens_served_differ_by_no_more_than_a_request_of_each(
            requests in prop::collection::vec((0_usize..4, 1_u64..500), 1..300),
        ) {
            const CALLERS: [&str; 4] = ["a", "b", "c", "d"];
            let mut queue = FairQueue::default();
            let mut left = [0_usize; 4];
            let mut longest = [0_u64; 4];
            for &(caller, tokens) in &requests {
                let ticket = Ticket(queue.next);
                queue.push(0, CALLERS[caller], tokens, (ticket, caller, tokens));
                left[caller] += 1;
                longest[caller] = longest[caller].max(tokens);
            }
            let mut served = [0_u64; 4];
            while let Some(&&(ticket, caller, tokens)) = queue.next_ones(1).first() {
                queue.serve(ticket);
                served[caller] += tokens;
                left[caller] -= 1;
                for one in 0..4 {
                    for other in 0..4 {
                        if left[one] > 0 && left[other] > 0 {
                            prop_assert!(served[one].abs_diff(served[other]) <= longest[one] + longest[other]);
                        }
                    }
                }
            }
            prop_assert!(queue.is_empty() && left == [0; 4]);
        }
    }
}
