//! What one caller has used of its limits, counted exactly over all threads.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use crate::bucket::{Bucket, Level, Rate};

/// What a caller may use; `None` is no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// Requests a minute.
    pub requests: Option<Rate>,
    /// Prompt and answer tokens a minute.
    pub tokens: Option<Rate>,
    /// Requests in flight at once.
    pub in_flight_max: Option<u32>,
}

/// Which limit a request would go over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exceeded {
    /// Requests a minute.
    Requests {
        /// The limit.
        limit: u64,
        /// Time until one more is possible.
        wait_ns: u64,
    },
    /// Tokens a minute.
    Tokens {
        /// The limit.
        limit: u64,
        /// What the request would have reserved.
        wanted: u64,
        /// Time until that much is there.
        wait_ns: u64,
    },
    /// Requests in flight at once.
    InFlight {
        /// The limit.
        limit: u32,
    },
}

/// What is left of each limit at a moment; `None` where there is no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Standing {
    /// Of requests a minute.
    pub requests: Option<Level>,
    /// Of tokens a minute.
    pub tokens: Option<Level>,
}

/// What one caller has used. A line of memory of its own: two busy callers must not share one.
#[derive(Debug, Default)]
#[repr(align(64))]
pub struct Account {
    requests: Bucket,
    tokens: Bucket,
    in_flight: AtomicU32,
}

impl Account {
    /// Lets a request in, or says which limit is in its way; then nothing was counted.
    ///
    /// # Errors
    /// The limit that it would go over.
    pub fn admit(&self, limits: Limits, now_ns: u64) -> Result<Admitted<'_>, Exceeded> {
        let room = |n: u32| limits.in_flight_max.is_none_or(|max| n < max).then(|| n.saturating_add(1));
        if self.in_flight.fetch_update(Relaxed, Relaxed, room).is_err() {
            return Err(Exceeded::InFlight { limit: limits.in_flight_max.unwrap_or_default() });
        }
        // From here on its drop takes it back out of flight.
        let admitted = Admitted { account: self, limits, reserved: 0 };
        if let Some(rate) = limits.requests {
            let taken = self.requests.take(rate, 1, now_ns);
            taken.map_err(|wait_ns| Exceeded::Requests { limit: rate.units(), wait_ns })?;
        }
        Ok(admitted)
    }

    /// Requests in flight.
    #[must_use]
    pub fn in_flight(&self) -> u32 {
        self.in_flight.load(Relaxed)
    }

    /// What is left of `limits`.
    #[must_use]
    pub fn standing(&self, limits: Limits, now_ns: u64) -> Standing {
        Standing {
            requests: limits.requests.map(|rate| self.requests.level(rate, now_ns)),
            tokens: limits.tokens.map(|rate| self.tokens.level(rate, now_ns)),
        }
    }
}

/// A request that was let in: in flight until it is dropped. Tokens that were reserved and never settled stay used.
#[derive(Debug)]
pub struct Admitted<'a> {
    account: &'a Account,
    limits: Limits,
    reserved: u64,
}

impl Admitted<'_> {
    /// Reserves tokens: what the request is expected to use, at most the whole limit.
    ///
    /// # Errors
    /// When so many are not there; then nothing was taken.
    pub fn reserve(&mut self, tokens: u64, now_ns: u64) -> Result<(), Exceeded> {
        let Some(rate) = self.limits.tokens else { return Ok(()) };
        let wanted = tokens.min(rate.units());
        let taken = self.account.tokens.take(rate, wanted, now_ns);
        taken.map_err(|wait_ns| Exceeded::Tokens { limit: rate.units(), wanted, wait_ns })?;
        self.reserved = self.reserved.saturating_add(wanted);
        Ok(())
    }

    /// What was used in the end, in place of what was reserved. Nothing is reserved any more.
    pub fn settle(&mut self, tokens_used: u64, now_ns: u64) {
        let Some(rate) = self.limits.tokens else { return };
        let reserved = std::mem::take(&mut self.reserved);
        match tokens_used.checked_sub(reserved) {
            Some(0) => {}
            Some(more) => self.account.tokens.charge(rate, more, now_ns),
            None => self.account.tokens.give_back(rate, reserved - tokens_used),
        }
    }

    /// The request was turned away after all: it does not count.
    pub fn withdraw(mut self, now_ns: u64) {
        self.settle(0, now_ns);
        if let Some(rate) = self.limits.requests {
            self.account.requests.give_back(rate, 1);
        }
    }

    /// What is left of its caller's limits.
    #[must_use]
    pub fn standing(&self, now_ns: u64) -> Standing {
        self.account.standing(self.limits, now_ns)
    }
}

impl Drop for Admitted<'_> {
    fn drop(&mut self) {
        // Every drop stands behind an admission, so this never goes below zero.
        self.account.in_flight.fetch_sub(1, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits(requests: u64, tokens: u64, in_flight: u32) -> Limits {
        Limits {
            requests: Some(Rate::per_minute(requests)),
            tokens: Some(Rate::per_minute(tokens)),
            in_flight_max: Some(in_flight),
        }
    }

    #[test]
    fn a_refused_request_leaves_no_trace() {
        let account = Account::default();
        let limits = limits(2, 100, 1);
        let first = account.admit(limits, 0).unwrap();
        assert_eq!(account.admit(limits, 0).unwrap_err(), Exceeded::InFlight { limit: 1 });
        assert_eq!(account.standing(limits, 0).requests.unwrap().remaining, 1);
        drop(first);
        let mut second = account.admit(limits, 0).unwrap();
        assert_eq!(second.reserve(60, 0), Ok(()));
        assert!(matches!(second.reserve(41, 0), Err(Exceeded::Tokens { limit: 100, wanted: 41, .. })));
        second.withdraw(0);
        assert_eq!(account.in_flight(), 0);
        let standing = account.standing(limits, 0);
        assert_eq!((standing.requests.unwrap().remaining, standing.tokens.unwrap().remaining), (1, 100));
        assert!(account.admit(limits, 0).is_ok());
        assert!(matches!(account.admit(limits, 0), Err(Exceeded::Requests { limit: 2, .. })));
        assert_eq!(account.in_flight(), 0);
    }

    #[test]
    fn what_was_used_takes_the_place_of_what_was_reserved() {
        let account = Account::default();
        let limits = limits(100, 1_000, 10);
        for (reserved, used, left) in [(400, 100, 900), (400, 700, 200), (50, 50, 150), (150, 400, 0)] {
            let mut admitted = account.admit(limits, 0).unwrap();
            admitted.reserve(reserved, 0).unwrap();
            admitted.settle(used, 0);
            assert_eq!(admitted.standing(0).tokens.unwrap().remaining, left);
        }
    }

    #[test]
    fn a_request_longer_than_the_whole_limit_passes_when_nothing_else_was_used() {
        let account = Account::default();
        let limits = limits(10, 100, 10);
        let mut long = account.admit(limits, 0).unwrap();
        assert_eq!(long.reserve(1_000_000, 0), Ok(()));
        let mut short = account.admit(limits, 0).unwrap();
        assert!(short.reserve(1, 0).is_err());
    }
}
