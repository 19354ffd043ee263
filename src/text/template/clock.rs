//! `strftime_now` of chat templates: the current day in UTC, in Python's format letters.
//! Knows the calendar and nothing else.

/// `seconds` after 1970 in UTC, in the letters that templates use.
///
/// # Errors
/// A letter that is not supported.
pub(super) fn strftime(format: &str, seconds: u64) -> Result<String, String> {
    let (year, month, day) = date(seconds / 86_400);
    let (hour, minute, second) = (seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
    // 1970-01-01 was a Thursday.
    let weekday = WEEKDAYS[((seconds / 86_400 + 4) % 7) as usize];
    let month_name = MONTHS[month as usize - 1];
    let mut text = String::new();
    let mut letters = format.chars().peekable();
    while let Some(c) = letters.next() {
        if c != '%' {
            text.push(c);
            continue;
        }
        let padded = letters.next_if_eq(&'-').is_none();
        let number = |n: u64| match padded {
            true => format!("{n:02}"),
            false => n.to_string(),
        };
        text += &match letters.next() {
            Some('Y') => year.to_string(),
            Some('y') => number(year % 100),
            Some('m') => number(month),
            Some('d') => number(day),
            Some('H') => number(hour),
            Some('M') => number(minute),
            Some('S') => number(second),
            Some('A') => weekday.to_owned(),
            Some('a') => weekday[..3].to_owned(),
            Some('B') => month_name.to_owned(),
            Some('b') => month_name[..3].to_owned(),
            Some('%') => "%".to_owned(),
            other => {
                let letter = other.map_or_else(String::new, String::from);
                return Err(format!("strftime_now: %{letter} is not supported"));
            }
        };
    }
    Ok(text)
}

/// Year, month and day of a day counted from 1970-01-01.
fn date(mut day: u64) -> (u64, u64, u64) {
    let leap = |y: u64| (y.is_multiple_of(4) && !y.is_multiple_of(100)) || y.is_multiple_of(400);
    // The calendar repeats every 400 years: leap over whole ones, then count.
    let mut year = 1970 + day / DAYS_IN_400_YEARS * 400;
    day %= DAYS_IN_400_YEARS;
    while day >= 365 + u64::from(leap(year)) {
        day -= 365 + u64::from(leap(year));
        year += 1;
    }
    let mut month = 1;
    for n_days in [31, 28 + u64::from(leap(year)), 31, 30, 31, 30, 31, 31, 30, 31, 30] {
        if day < n_days {
            break;
        }
        day -= n_days;
        month += 1;
    }
    (year, month, day + 1)
}

const DAYS_IN_400_YEARS: u64 = 146_097;
const WEEKDAYS: [&str; 7] = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_are_named_as_the_calendar_names_them() {
        let all = "%Y-%m-%d %H:%M:%S %a %b";
        for (seconds, text) in [
            (0, "1970-01-01 00:00:00 Thu Jan"),
            (951_827_696, "2000-02-29 12:34:56 Tue Feb"),
            (1_709_251_199, "2024-02-29 23:59:59 Thu Feb"),
            (1_735_603_200, "2024-12-31 00:00:00 Tue Dec"),
            (4_107_542_400, "2100-03-01 00:00:00 Mon Mar"),
        ] {
            assert_eq!(strftime(all, seconds).unwrap(), text);
        }
        assert_eq!(strftime("%-d %B %y%%", 0).unwrap(), "1 January 70%");
        assert!(strftime("%Q", 0).is_err());
        assert!(strftime("%", 0).is_err());
    }
}
