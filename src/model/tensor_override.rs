//! Tensors that go where a user says, by patterns of their names: `--override-tensor`.
//! Owns the patterns and which one decides. Knows names and bytes; knows nothing of layers.

use std::str::FromStr;

use ggml::{Device, DeviceKind, Dtype, WeightUse};
use regex_automata::meta::Regex;

use crate::error::LoadError;

/// A regular expression over tensor names, without look-around. It matches where a part of the name does.
#[derive(Clone, Debug)]
pub struct TensorPattern {
    text: String,
    regex: Regex,
}

impl FromStr for TensorPattern {
    type Err = String;

    fn from_str(s: &str) -> Result<Self, String> {
        if s.is_empty() {
            return Err("an empty pattern: give a regular expression over tensor names".to_owned());
        }
        let regex = Regex::new(s).map_err(|error| {
            // The last line says what is wrong, those before it draw where.
            let told = error.syntax_error().map_or_else(|| error.to_string(), ToString::to_string);
            let what = told.lines().last().unwrap_or("it cannot be read").trim_start_matches("error: ").to_owned();
            format!("`{s}` is not a regular expression: {what}")
        })?;
        Ok(Self { text: s.to_owned(), regex })
    }
}

impl TensorPattern {
    /// As it was given.
    pub fn text(&self) -> &str {
        &self.text
    }

    fn matches(&self, name: &str) -> bool {
        self.regex.is_match(of_matrix(name))
    }
}

/// Where tensors of some names go, whatever holds the rest of their layers.
#[derive(Clone, Debug)]
pub struct TensorOverride {
    /// Which.
    pub pattern: TensorPattern,
    /// Where.
    pub device: Device,
}

/// The device that these say of a tensor: that of the first pattern that matches its name.
pub(crate) fn device_by_name(overrides: &[TensorOverride], name: &str) -> Option<Device> {
    overrides.iter().find(|o| o.pattern.matches(name)).map(|o| o.device)
}

/// Sees to it that the devices can compute with what they are given by name.
///
/// # Errors
/// A tensor of a type that its device has no kernel for.
pub(crate) fn check_overrides<'a>(
    overrides: &[TensorOverride],
    tensors: impl Iterator<Item = (&'a str, Dtype, [i64; 4])>,
) -> Result<(), LoadError> {
    // Floats are everywhere: norms, biases and small matrices that are used in ways of their own.
    for (name, dtype, ne) in tensors.filter(|(_, dtype, _)| dtype.is_quantized()) {
        let device = device_by_name(overrides, name).filter(|device| device.kind() != DeviceKind::Cpu);
        let by = match name {
            _ if name.contains("token_embd.") => WeightUse::Rows,
            _ if name.contains("_exps.") => WeightUse::Experts,
            _ => WeightUse::Product,
        };
        if let Some(device) = device.filter(|device| !device.computes_with(dtype, ne, by)) {
            let (name, device, dtype) = (name.to_owned(), device.name(), dtype.name());
            return Err(LoadError::OverrideType { name, device, dtype, ne });
        }
    }
    Ok(())
}

/// A matrix of an adapter (`blk.0.attn_q.weight.a0`) goes where the matrix goes that it changes.
fn of_matrix(name: &str) -> &str {
    match name.rsplit_once('.') {
        Some((of, part)) if part.starts_with(['a', 'b']) && part[1..].parse::<usize>().is_ok() => of,
        _ => name,
    }
}

/// Bytes of tensors that were given a device by name.
#[derive(Default)]
pub(crate) struct ByName(Vec<(Device, usize)>);

impl ByName {
    /// Of these tensors, by name and bytes.
    ///
    /// # Errors
    /// A pattern that matches none of them.
    pub(crate) fn of<'a>(
        overrides: &[TensorOverride],
        tensors: impl Iterator<Item = (&'a str, usize)> + Clone,
    ) -> Result<Self, LoadError> {
        let mut all = Self::default();
        for (i, o) in overrides.iter().enumerate() {
            let pattern = &o.pattern;
            let matching = tensors.clone().filter(|(name, _)| pattern.matches(name));
            let n_matching = matching.clone().count();
            if n_matching == 0 {
                return Err(LoadError::NoSuchTensor { pattern: pattern.text.clone(), device: o.device.name() });
            }
            let decided = matching.filter(|(name, _)| device_by_name(&overrides[..i], name).is_none());
            let (n, bytes) = decided.fold((0, 0), |(n, all), (_, bytes)| (n + 1, all + bytes));
            let (pattern, device) = (pattern.text(), o.device.name());
            if n == 0 {
                tracing::warn!(pattern, device, n_matching, "no effect: earlier patterns match all of these tensors");
            } else {
                tracing::info!(pattern, device, n, mib = bytes >> 20, "tensors placed by name");
            }
            match all.0.iter_mut().find(|(device, _)| *device == o.device) {
                Some((_, sum)) => *sum += bytes,
                None => all.0.push((o.device, bytes)),
            }
        }
        Ok(all)
    }

    /// True when no device but a CPU got one.
    pub(crate) fn is_on_cpu(&self) -> bool {
        self.0.iter().all(|(device, _)| device.kind() == DeviceKind::Cpu)
    }

    /// Bytes on a device.
    pub(crate) fn on(&self, device: Device) -> usize {
        self.0.iter().find(|(d, _)| *d == device).map_or(0, |(_, bytes)| *bytes)
    }

    /// Sees to it that they have room on each device that is no CPU, where `free` bytes are left.
    ///
    /// # Errors
    /// One that has less.
    pub(crate) fn check_room(&self, free: impl Fn(Device) -> usize) -> Result<(), LoadError> {
        let on_gpus = self.0.iter().filter(|(device, _)| device.kind() != DeviceKind::Cpu);
        let full = on_gpus.map(|&(device, needs)| (device, needs, free(device))).find(|(_, needs, free)| needs > free);
        full.map_or(Ok(()), |(device, needs, free)| {
            Err(LoadError::OverrideRoom { device: device.name(), needs: needs >> 20, free: free >> 20 })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn overrides(patterns: &[&str]) -> Vec<TensorOverride> {
        let device = Device::cpu().unwrap();
        patterns.iter().map(|p| TensorOverride { pattern: p.parse().unwrap(), device }).collect()
    }

    const TENSORS: [(&str, usize); 4] =
        [("blk.1.ffn_up_exps.weight", 100), ("blk.11.ffn_up_exps.weight", 10), ("blk.1.attn_q.weight", 1), ("x", 5)];

    #[test]
    fn a_pattern_matches_a_part_of_a_name_and_the_first_that_matches_decides() {
        let cpu = Device::cpu().unwrap();
        let bytes = |patterns: &[&str]| ByName::of(&overrides(patterns), TENSORS.into_iter()).map(|all| all.on(cpu));
        assert_eq!(bytes(&["exps"]).unwrap(), 110);
        assert_eq!(bytes(&[r"blk\.1\."]).unwrap(), 101);
        assert_eq!(bytes(&[r"blk\.(1[0-9])\.ffn_.*_exps", "exps", "^x$"]).unwrap(), 115, "each tensor counts once");
        assert_eq!(bytes(&["exps", r"\.11\."]).unwrap(), 110, "the second decides of none");
    }

    #[test]
    fn a_pattern_without_a_tensor_is_an_error_that_names_it() {
        let error = ByName::of(&overrides(&["exps", "expz"]), TENSORS.into_iter()).err().unwrap().to_string();
        assert!(error.contains("`expz=CPU`"), "{error}");
    }

    #[test]
    fn adapters_go_with_their_matrices() {
        let all = overrides(&[r"attn_q\.weight$"]);
        for (name, goes) in
            [("blk.0.attn_q.weight", true), ("blk.0.attn_q.weight.b12", true), ("attn_q.weights", false)]
        {
            assert_eq!(device_by_name(&all, name).is_some(), goes, "{name}");
        }
    }

    #[test]
    fn what_is_no_regular_expression_is_told_in_a_line() {
        for (text, told) in [("blk.(1", "unclosed group"), ("(?!x)", "look-around"), ("", "empty")] {
            let error = text.parse::<TensorPattern>().unwrap_err();
            assert!(error.contains(told) && !error.contains('\n'), "{error}");
        }
    }

    #[test]
    fn more_than_is_free_on_a_device_is_an_error() {
        let all = ByName::of(&overrides(&["exps"]), TENSORS.into_iter()).unwrap();
        assert!(all.is_on_cpu() && all.check_room(|_| 0).is_ok(), "the host's memory is the system's to give");
    }
}
