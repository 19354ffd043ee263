//! Small statistics: medians, spread, intervals of shares. Pure arithmetic.

use serde_json::{Value, json};

/// Median of some values; 0 when there are none.
pub(super) fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    match sorted.len() {
        0 => 0.0,
        n if n % 2 == 1 => sorted[n / 2],
        n => (sorted[n / 2 - 1] + sorted[n / 2]) / 2.0,
    }
}

/// Lowest and highest; both 0 when there are none.
pub(super) fn range(values: &[f64]) -> (f64, f64) {
    let low = values.iter().copied().fold(f64::INFINITY, f64::min);
    let high = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    if values.is_empty() { (0.0, 0.0) } else { (low, high) }
}

/// What one median is of the other: it agrees with the figures beside it, as a median of ratios need not.
pub(super) fn ratio_of_medians(values: &[f64], others: &[f64]) -> f64 {
    median(values) / median(others).max(1e-9)
}

/// Median, lowest and highest, as `12.3 (11.9 to 12.8)`.
pub(super) fn with_range(values: &[f64]) -> String {
    let (low, high) = range(values);
    format!("{:.2} ({low:.2} to {high:.2})", median(values))
}

/// The samples and what is said of them.
pub(super) fn json(values: &[f64]) -> Value {
    let (low, high) = range(values);
    json!({ "median": median(values), "min": low, "max": high, "samples": values })
}

/// Wilson's interval of a share at 95 %: sensible also at 0 and 1 and for few cases.
pub(super) fn wilson(right: usize, n: usize) -> (f64, f64) {
    if n == 0 {
        return (0.0, 1.0);
    }
    let (z, n) = (1.96f64, n as f64);
    let p = right as f64 / n;
    let middle = p + z * z / (2.0 * n);
    let half = z * (p * (1.0 - p) / n + z * z / (4.0 * n * n)).sqrt();
    let scale = 1.0 + z * z / n;
    ((middle - half) / scale, (middle + half) / scale)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_interval_of_a_share_is_wilsons() {
        // 8 of 10: Wilson 1927 gives 0.490 to 0.943.
        let (low, high) = wilson(8, 10);
        assert!((low - 0.490).abs() < 1e-3 && (high - 0.943).abs() < 1e-3, "{low} {high}");
        assert_eq!(wilson(0, 0), (0.0, 1.0));
        assert!(wilson(5, 5).1 <= 1.0 + 1e-12 && wilson(5, 5).0 > 0.5);
    }

    #[test]
    fn a_median_of_two_is_between_them() {
        assert_eq!(median(&[3.0, 1.0]), 2.0);
        assert_eq!(median(&[3.0, 1.0, 7.0]), 3.0);
        // The median of the ratios of rounds would be 1.
        assert_eq!(ratio_of_medians(&[2.0, 2.0, 6.0], &[1.0, 2.0, 6.0]), 1.0);
        assert_eq!(ratio_of_medians(&[4.0, 1.0, 5.0], &[2.0, 1.0, 6.0]), 2.0);
        assert_eq!((median(&[]), range(&[])), (0.0, (0.0, 0.0)));
    }
}
