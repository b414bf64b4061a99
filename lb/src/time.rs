//! Points in time as people and logs write them.

/// Milliseconds since 1970 as RFC 3339 in UTC: `2026-11-30T08:26:33.123Z`. Years beyond 9999 are not told apart.
pub(crate) fn rfc3339(unix_ms: u64) -> [u8; 24] {
    let (days, ms_of_day) = (unix_ms / 86_400_000, unix_ms % 86_400_000);
    let (year, month, day) = civil(days);
    let (hour, minute) = (ms_of_day / 3_600_000, ms_of_day / 60_000 % 60);
    let (second, ms) = (ms_of_day / 1000 % 60, ms_of_day % 1000);
    let mut text = *b"0000-00-00T00:00:00.000Z";
    let fields =
        [(0, 4, year), (5, 2, month), (8, 2, day), (11, 2, hour), (14, 2, minute), (17, 2, second), (20, 3, ms)];
    for (start, digits, mut value) in fields {
        for at in (start..start + digits).rev() {
            text[at] = b'0' + (value % 10) as u8;
            value /= 10;
        }
    }
    text
}

/// Year, month and day of a number of days since 1970-01-01, by Howard Hinnant's `civil_from_days`
/// (<https://howardhinnant.github.io/date_algorithms.html>), for days after the epoch.
fn civil(days: u64) -> (u64, u64, u64) {
    let z = days + 719_468;
    let era = z / 146_097;
    let day_of_era = z % 146_097;
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    (year_of_era + era * 400 + u64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_rfc_3339_in_utc_and_right_around_leap_days() {
        let shown = |ms| String::from_utf8(rfc3339(ms).to_vec()).unwrap();
        assert_eq!(shown(0), "1970-01-01T00:00:00.000Z");
        assert_eq!(shown(951_782_400_123), "2000-02-29T00:00:00.123Z");
        assert_eq!(shown(1_709_251_199_999), "2024-02-29T23:59:59.999Z");
        assert_eq!(shown(1_796_034_919_999), "2026-11-30T10:35:19.999Z");
    }
}
