//! Times as an API server writes them.

use std::time::{SystemTime, UNIX_EPOCH};

/// Now, by RFC 3339 in whole seconds.
pub(crate) fn now() -> String {
    rfc3339(seconds())
}

fn seconds() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| i64::try_from(since.as_secs()).unwrap_or(i64::MAX))
}

/// Days since 1970-01-01 of a date in the Gregorian calendar (after H. Hinnant, "chrono-compatible low-level date algorithms").
fn days(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let era = year.div_euclid(400);
    let of_era = year.rem_euclid(400);
    let of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719_468
}

fn rfc3339(seconds: i64) -> String {
    let (mut day, of_day) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
    let mut year = 1970;
    // A few hundred turns at most for any time this program lives in.
    while day >= days(year + 1, 1, 1) - days(year, 1, 1) {
        day -= days(year + 1, 1, 1) - days(year, 1, 1);
        year += 1;
    }
    let month = (1..=12).rev().find(|month| days(year, *month, 1) - days(year, 1, 1) <= day).unwrap_or(1);
    let of_month = day - (days(year, month, 1) - days(year, 1, 1)) + 1;
    format!("{year:04}-{month:02}-{of_month:02}T{:02}:{:02}:{:02}Z", of_day / 3600, of_day / 60 % 60, of_day % 60)
}

/// How long ago a time was, as tables show it (`kubectl`'s `duration.HumanDuration`, shortened).
pub(crate) fn age(text: &str) -> String {
    let number = |range: std::ops::Range<usize>| text.get(range).and_then(|digits| digits.parse::<i64>().ok());
    let parts = [0..4, 5..7, 8..10, 11..13, 14..16, 17..19].map(number);
    let [Some(year), Some(month), Some(day), Some(hour), Some(minute), Some(second)] = parts else {
        return "<unknown>".to_owned();
    };
    let age = (seconds() - (days(year, month, day) * 86_400 + hour * 3600 + minute * 60 + second)).max(0);
    match age {
        0..120 => format!("{age}s"),
        120..7_200 => format!("{}m", age / 60),
        7_200..172_800 => format!("{}h", age / 3600),
        _ => format!("{}d", age / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_those_of_the_calendar() {
        assert_eq!(rfc3339(0), "1970-01-01T00:00:00Z");
        assert_eq!(rfc3339(951_826_800), "2000-02-29T12:20:00Z");
        assert_eq!(rfc3339(1_798_761_599), "2026-12-31T23:59:59Z");
    }

    #[test]
    fn ages_are_short() {
        assert_eq!(age(&rfc3339(seconds() - 3)).len(), 2);
        assert_eq!(age(&rfc3339(seconds() - 600)), "10m");
        assert_eq!(age(&rfc3339(seconds() - 200_000)), "2d");
        assert_eq!(age("nothing"), "<unknown>");
    }
}
