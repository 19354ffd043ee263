//! Numbers in sentences. Owns the plurals of what the programs count.

/// `1 token`, `2 tokens`, `2 replies`.
pub fn counted(n: usize, one: &str) -> String {
    match (n, one.strip_suffix("reply")) {
        (1, _) => format!("1 {one}"),
        (n, Some(before)) => format!("{n} {before}replies"),
        (n, None) => format!("{n} {one}s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_of_a_thing_has_no_plural() {
        assert_eq!([0, 1, 2].map(|n| counted(n, "token")), ["0 tokens", "1 token", "2 tokens"]);
        assert_eq!([1, 2].map(|n| counted(n, "stopped reply")), ["1 stopped reply", "2 stopped replies"]);
    }
}
