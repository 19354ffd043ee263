//! `strftime_now` of chat templates: the current day where this machine is, in Python's format letters.

use std::time::SystemTime;

use jiff::Timestamp;
use jiff::fmt::strtime;
use jiff::tz::TimeZone;

/// Now, by the clock on the wall of this machine (`TZ`, else the system's time zone), in the letters that templates use.
///
/// # Errors
/// A letter that is not supported.
pub(super) fn now(format: &str) -> Result<String, String> {
    let seconds = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |d| d.as_secs());
    strftime(format, seconds, &TimeZone::system())
}

/// Today in letters that are known to be supported.
pub fn today(format: &str) -> Option<String> {
    now(format).ok()
}

/// `seconds` after 1970 in a time zone.
fn strftime(format: &str, seconds: u64, zone: &TimeZone) -> Result<String, String> {
    let text = || {
        let at = Timestamp::from_second(i64::try_from(seconds).unwrap_or(i64::MAX))?;
        // Without its time zone, so that the letters of that are errors.
        strtime::format(format, zone.to_datetime(at))
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
            assert_eq!(strftime(all, seconds, &TimeZone::UTC).unwrap(), text);
        }
        assert_eq!(strftime("%-d %B %y%%", 0, &TimeZone::UTC).unwrap(), "1 January 70%");
        let east = TimeZone::fixed(jiff::tz::offset(10));
        assert_eq!(strftime("%d %b %Y", 1_735_603_199, &east).unwrap(), "31 Dec 2024", "by the wall, not by Greenwich");
        assert!(now("%Q").is_err());
        assert!(now("%").is_err());
    }
}
