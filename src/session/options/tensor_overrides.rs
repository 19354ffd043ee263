//! `--override-tensor`: patterns of tensor names and the devices that they go to, as words.
//! Owns how a list is read and how a device is called in it. Which tensors match is `model`'s to say.

use std::str::FromStr;

use ggml::{Device, DeviceKind};
use model::{TensorOverride, TensorPattern};

use super::device_names::{is_called, listed};

/// One value of the option: `REGEX=DEVICE,REGEX=DEVICE`. A comma that no `=` follows, up to the next comma, is part of a pattern.
#[derive(Clone, Debug)]
pub struct TensorOverrides(Vec<(TensorPattern, String)>);

impl FromStr for TensorOverrides {
    type Err = String;

    fn from_str(s: &str) -> Result<Self, String> {
        let mut all = Vec::new();
        let mut begun = String::new();
        for piece in s.split(',') {
            begun.push_str(piece);
            let Some((pattern, device)) = piece.contains('=').then(|| begun.rsplit_once('=')).flatten() else {
                begun.push(',');
                continue;
            };
            let device = device.trim();
            if device.is_empty() {
                return Err(format!("`{begun}` names no device: REGEX=DEVICE, such as exps=CPU"));
            }
            all.push((pattern.trim_start().parse()?, device.to_owned()));
            begun.clear();
        }
        match begun.strip_suffix(',') {
            Some(rest) if !rest.is_empty() || all.is_empty() => {
                Err(format!("`{rest}` names no device: REGEX=DEVICE, such as exps=CPU"))
            }
            _ => Ok(Self(all)),
        }
    }
}

/// What all values of the option say, in their order. `chosen`: the GPUs that `--device` names.
///
/// # Errors
/// A device that is not here, or is not among these.
pub(super) fn resolve(given: &[TensorOverrides], chosen: &[Device]) -> Result<Vec<TensorOverride>, String> {
    let resolve = |(pattern, name): &(TensorPattern, String)| {
        let device =
            device(name, chosen).map_err(|what| format!("--override-tensor `{}={name}`: {what}", pattern.text()))?;
        Ok(TensorOverride { pattern: pattern.clone(), device })
    };
    given.iter().flat_map(|list| &list.0).map(resolve).collect()
}

/// The device of this name: the CPU, whose memory llama.cpp's users also know as `CUDA_Host`, or one of `chosen`.
fn device(name: &str, chosen: &[Device]) -> Result<Device, String> {
    let all = Device::all();
    let on_host = name.eq_ignore_ascii_case("cpu") || name.to_ascii_lowercase().ends_with("_host");
    if on_host && let Some(cpu) = all.iter().find(|d| d.kind() == DeviceKind::Cpu) {
        return Ok(*cpu);
    }
    let called = |devices: &[Device]| devices.iter().filter(|d| is_called(**d, name)).copied().collect::<Vec<_>>();
    match (called(chosen).as_slice(), called(&all).as_slice()) {
        ([one], _) => Ok(*one),
        ([_, _, ..], _) => Err(format!("several devices are called so: {}; name one", listed(&called(chosen)))),
        ([], []) => {
            Err(format!("there is no device `{name}`; there are: {} (--backend-dir and --rpc add more)", listed(&all)))
        }
        ([], _) if chosen.is_empty() => Err(format!("no GPU is in use: name {name} in --device as well")),
        ([], _) => Err(format!("only {} and the CPU are in use: name {name} in --device as well", listed(chosen))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(s: &str) -> Result<Vec<(String, String)>, String> {
        let TensorOverrides(all) = s.parse()?;
        Ok(all.into_iter().map(|(pattern, device)| (pattern.text().to_owned(), device)).collect())
    }

    fn pairs(all: &[(&str, &str)]) -> Result<Vec<(String, String)>, String> {
        Ok(all.iter().map(|(p, d)| ((*p).to_owned(), (*d).to_owned())).collect())
    }

    #[test]
    fn lists_are_cut_where_a_device_ends() {
        assert_eq!(parsed("exps=CPU"), pairs(&[("exps", "CPU")]));
        assert_eq!(parsed(r"blk\.1\.=CUDA0,exps=CPU"), pairs(&[(r"blk\.1\.", "CUDA0"), ("exps", "CPU")]));
        assert_eq!(parsed(r"\.\d{1,2}\.ffn=CPU, a= cuda1,"), pairs(&[(r"\.\d{1,2}\.ffn", "CPU"), ("a", "cuda1")]));
    }

    #[test]
    fn what_names_no_device_or_no_pattern_is_told() {
        for (text, told) in [
            ("exps", "`exps` names no device"),
            ("exps=", "no device"),
            ("a=CPU,b", "`b`"),
            ("", "``"),
            ("=CPU", "empty"),
        ] {
            let error = parsed(text).unwrap_err();
            assert!(error.contains(told), "{text}: {error}");
        }
        assert!(parsed("(=CPU").unwrap_err().contains("unclosed group"));
    }

    #[test]
    fn a_device_that_is_not_here_or_not_in_use_is_told() {
        let given = |s: &str| vec![s.parse::<TensorOverrides>().unwrap()];
        let error = |s: &str| resolve(&given(s), &[]).unwrap_err();
        let told = error("exps=cuda77");
        assert!(told.contains("`exps=cuda77`") && told.contains("there are: ") && told.contains("CPU"), "{told}");
        let all = resolve(&given("exps=cpu,attn=CUDA_Host"), &[]).unwrap();
        assert!(all.len() == 2 && all.iter().all(|o| o.device.kind() == DeviceKind::Cpu));
    }
}
