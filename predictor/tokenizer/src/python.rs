//! The few pieces of Python that templates see: `str.strip`, the text of a float, `datetime.strftime`.

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
const DAYS: [&str; 7] = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"];

/// What `str.strip` takes away: Unicode's white space, and four more separators of ASCII.
pub(crate) fn is_space(c: char) -> bool {
    c.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&c)
}

/// A float as `repr` has it: the shortest digits that read back, with an exponent below 1e-4 and from 1e16 on.
pub(crate) fn float(value: f64) -> String {
    if value.is_nan() {
        return String::from("nan");
    }
    if value.is_infinite() {
        return String::from(if value > 0.0 { "inf" } else { "-inf" });
    }
    let scientific = format!("{value:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if (-4..16).contains(&exponent) || value == 0.0 {
        let plain = value.to_string();
        return if plain.contains('.') { plain } else { plain + ".0" };
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{digits}e{sign}{:02}", exponent.abs())
}

/// A point in time as a calendar has it, in UTC.
struct Moment {
    year: i64,
    /// 1 to 12.
    month: usize,
    /// 1 to 31.
    day: i64,
    /// 1 to 366.
    day_of_year: i64,
    /// 0 is Monday.
    weekday: usize,
    hour: i64,
    minute: i64,
    second: i64,
}

impl Moment {
    fn of(unix_s: i64) -> Self {
        let (days, second) = (unix_s.div_euclid(86_400), unix_s.rem_euclid(86_400));
        // Days since 1 March of the year 0, in eras of 400 years (Hinnant, "chrono-compatible low-level date algorithms").
        let shifted = days + 719_468;
        let (era, of_era) = (shifted.div_euclid(146_097), shifted.rem_euclid(146_097));
        let year_of_era = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
        let from_march = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
        let month_from_march = (5 * from_march + 2) / 153;
        let day = from_march - (153 * month_from_march + 2) / 5 + 1;
        let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
        let year = year_of_era + era * 400 + i64::from(month <= 2);
        let leap = (year % 4 == 0 && year % 100 != 0) || year % 400 == 0;
        let before = [0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334][(month - 1) as usize];
        Self {
            year,
            month: month as usize,
            day,
            day_of_year: before + day + i64::from(leap && month > 2),
            weekday: (days + 3).rem_euclid(7) as usize,
            hour: second / 3_600,
            minute: second / 60 % 60,
            second: second % 60,
        }
    }
}

/// `strftime` in the C locale and UTC; `None` for a directive that templates have not been seen to use.
pub(crate) fn strftime(unix_s: i64, format: &str) -> Option<String> {
    let at = Moment::of(unix_s);
    let mut out = String::new();
    let mut chars = format.chars();
    while let Some(c) = chars.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        let mut directive = chars.next()?;
        let padded = directive != '-';
        if !padded {
            directive = chars.next()?;
        }
        let number = |value: i64, width: usize| match padded {
            true => format!("{value:0width$}"),
            false => value.to_string(),
        };
        out.push_str(&match directive {
            'Y' => at.year.to_string(),
            'y' => number(at.year.rem_euclid(100), 2),
            'm' => number(at.month as i64, 2),
            'd' => number(at.day, 2),
            'e' => format!("{:2}", at.day),
            'j' => number(at.day_of_year, 3),
            'B' => MONTHS[at.month - 1].to_owned(),
            'b' | 'h' => MONTHS[at.month - 1][..3].to_owned(),
            'A' => DAYS[at.weekday].to_owned(),
            'a' => DAYS[at.weekday][..3].to_owned(),
            'H' => number(at.hour, 2),
            'I' => number((at.hour + 11) % 12 + 1, 2),
            'p' => String::from(if at.hour < 12 { "AM" } else { "PM" }),
            'M' => number(at.minute, 2),
            'S' => number(at.second, 2),
            'F' => format!("{}-{:02}-{:02}", at.year, at.month, at.day),
            'T' => format!("{:02}:{:02}:{:02}", at.hour, at.minute, at.second),
            '%' => String::from("%"),
            _ => return None,
        });
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_are_as_python_prints_them() {
        let floats =
            [0.0, -0.0, 1.0, 0.1, 0.0001, 0.00001, 1.5e-7, 123_456_789.125, 1e15, 1e16, -2.5e20, 5e-324, f64::MAX];
        let expected = "0.0 -0.0 1.0 0.1 0.0001 1e-05 1.5e-07 123456789.125 1000000000000000.0 1e+16 -2.5e+20 5e-324 \
                        1.7976931348623157e+308";
        assert_eq!(floats.map(float).join(" "), expected);
    }

    #[test]
    fn dates_are_as_a_calendar_has_them() {
        let date = |unix_s| strftime(unix_s, "%A, %d %B %Y (%a %-d %b %y) %H:%M:%S day %j %I%p %F").unwrap();
        assert_eq!(date(0), "Thursday, 01 January 1970 (Thu 1 Jan 70) 00:00:00 day 001 12AM 1970-01-01");
        assert_eq!(date(1_709_211_599), "Thursday, 29 February 2024 (Thu 29 Feb 24) 12:59:59 day 060 12PM 2024-02-29");
        assert_eq!(date(1_735_689_599), "Tuesday, 31 December 2024 (Tue 31 Dec 24) 23:59:59 day 366 11PM 2024-12-31");
        assert_eq!(strftime(0, "%Q"), None);
        assert_eq!(strftime(0, "100%"), None);
    }
}
