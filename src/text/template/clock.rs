//! `strftime_now` of chat templates: the current day in UTC, in Python's format letters.

use jiff::Timestamp;
use jiff::fmt::strtime;
use jiff::tz::TimeZone;

/// `seconds` after 1970 in UTC, in the letters that templates use.
///
/// # Errors
/// A letter that is not supported, and what no calendar has.
pub(super) fn strftime(format: &str, seconds: u64) -> Result<String, String> {
    let text = || {
        let at = Timestamp::from_second(i64::try_from(seconds).unwrap_or(i64::MAX))?;
        // Without a time zone, so that its letters are errors.
        strtime::format(format, TimeZone::UTC.to_datetime(at))
    };
    text().map_err(|error: jiff::Error| format!("strftime_now: {error}"))
}

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
