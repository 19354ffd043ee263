//! How devices are called: by ggml's name, or by a kind for all numbers of it.
//! Owns the comparison of names.

use ggml::Device;

/// True for a device of this name, or of any number if the name has none.
pub(super) fn is_called(device: Device, name: &str) -> bool {
    let own = device.name();
    own.eq_ignore_ascii_case(name) || kind(&own).eq_ignore_ascii_case(word(name))
}

/// A device's name without its number.
pub(super) fn kind(name: &str) -> &str {
    name.trim_end_matches(|c: char| c.is_ascii_digit())
}

/// What ggml calls a backend that users know by another word.
fn word(name: &str) -> &str {
    if name.eq_ignore_ascii_case("metal") { "MTL" } else { name }
}

/// `CUDA0, CUDA1`.
pub(super) fn listed(devices: &[Device]) -> String {
    devices.iter().map(|d| d.name()).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kind_is_a_name_without_its_number() {
        assert_eq!((kind("CUDA12"), word("Metal"), word("cuda")), ("CUDA", "MTL", "cuda"));
    }
}
