//! Numbers for people: bytes, counts, bars of shares.

/// `1.25 GiB`, `340 MiB`, `12 KiB`, `7 bytes`.
pub fn bytes(n: u64) -> String {
    let units = [(1u64 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
    match units.into_iter().find(|(unit, _)| n >= *unit) {
        None => format!("{n} bytes"),
        Some((unit, name)) => {
            let x = n as f64 / unit as f64;
            let digits = if x < 10.0 { 2 } else { usize::from(x < 100.0) };
            format!("{x:.digits$} {name}")
        }
    }
}

/// `35.5 B`, `984 M`, `12.3 K`, `77`.
pub fn count(n: u64) -> String {
    let units = [(1_000_000_000_000u64, "T"), (1_000_000_000, "B"), (1_000_000, "M"), (1_000, "K")];
    match units.into_iter().find(|(unit, _)| n >= *unit) {
        None => n.to_string(),
        Some((unit, name)) => {
            let x = n as f64 / unit as f64;
            let digits = if x < 10.0 { 2 } else { usize::from(x < 100.0) };
            format!("{x:.digits$} {name}")
        }
    }
}

/// A bar of `part / whole` of `width` characters; something is seen of every part that is not nothing.
pub fn bar(part: u64, whole: u64, width: usize) -> String {
    let n = (part as f64 / whole.max(1) as f64 * width as f64).round() as usize;
    "#".repeat(n.clamp(usize::from(part > 0), width))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_three_digits() {
        assert_eq!([7, 1536, 340 << 20, (5 << 30) / 4].map(bytes), ["7 bytes", "1.50 KiB", "340 MiB", "1.25 GiB"]);
        assert_eq!([77, 12_300, 984_448, 35_510_000_000].map(count), ["77", "12.3 K", "984 K", "35.5 B"]);
    }

    #[test]
    fn bars_keep_their_width_and_show_the_smallest_part() {
        assert_eq!(bar(0, 100, 10), "");
        assert_eq!(bar(1, 1000, 10), "#");
        assert_eq!(bar(1000, 1000, 10).len(), 10);
        assert_eq!(bar(7, 0, 10).len(), 10);
    }
}
