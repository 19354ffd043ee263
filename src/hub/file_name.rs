//! What the name of a file in a repository says: a model or a part of one, its quantisation, its place among shards.

/// What a GGUF file of a repository is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// A model.
    Model,
    /// The MTP layer of a model in a file of its own.
    Head,
    /// What turns images into embeddings.
    Projector,
    /// Another draft model, an importance matrix.
    Other,
}

impl Role {
    pub(crate) fn words(self) -> &'static str {
        match self {
            Self::Model => "a model",
            Self::Head => "a model's MTP layer",
            Self::Projector => "a model's projector",
            Self::Other => "made for use beside a model",
        }
    }
}

/// A GGUF file's name, read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FileName<'a> {
    /// The folder, without `/` at its end; empty at the root.
    pub(crate) folder: &'a str,
    /// The name without shard and ending.
    pub(crate) stem: &'a str,
    /// Its number, from 1, and how many there are.
    pub(crate) shard: Option<(u32, u32)>,
}

impl<'a> FileName<'a> {
    /// `None` for what is no GGUF file.
    pub(crate) fn read(path: &'a str) -> Option<Self> {
        let (folder, name) = path.rsplit_once('/').unwrap_or(("", path));
        let stem = name.strip_suffix(".gguf").filter(|stem| !stem.is_empty())?;
        let shard = shard(stem);
        let stem = if shard.is_some() { &stem[..stem.len() - SHARD.len()] } else { stem };
        Some(Self { folder, stem, shard })
    }

    /// What it is. Repositories name MTP layers `mtp-*.gguf`; a model with its layer inside may have `MTP` in its name.
    pub(crate) fn role(&self) -> Role {
        let lower = self.stem.to_ascii_lowercase();
        if lower.contains("mmproj") {
            Role::Projector
        } else if lower.contains("imatrix") || ["eagle3-", "dflash-", "dspark-"].iter().any(|s| lower.contains(s)) {
            Role::Other
        } else if lower.starts_with("mtp-") || self.stem.contains("mtp-") {
            Role::Head
        } else {
            Role::Model
        }
    }

    /// For `NAME-mtp`, `NAME`: a file of this name beside a larger one without the ending is its layer.
    pub(crate) fn twin(&self) -> Option<&'a str> {
        ["-mtp", "_mtp", ".mtp", "-MTP"].iter().find_map(|end| self.stem.strip_suffix(end))
    }

    /// The quantisation as it stands in the name: `Q4_K_M`, `UD-Q4_K_XL`, `BF16`; else the last part of the name; of a name
    /// without parts none.
    pub(crate) fn quant(&self) -> Option<&'a str> {
        let mut end = self.stem.len();
        let mut parts = self.stem.rsplit(['-', '.']).map(move |part| {
            let start = end - part.len();
            end = start.saturating_sub(1);
            (start, part)
        });
        let last = parts.clone().next().filter(|(start, part)| *start > 0 && is_tag(part));
        let (start, part) = parts.find(|(_, part)| is_quant(part)).or(last)?;
        let prefix = ["UD-", "ud-", "i1-"].iter().find(|prefix| self.stem[..start].ends_with(**prefix));
        Some(&self.stem[start - prefix.map_or(0, |prefix| prefix.len())..start + part.len()])
    }

    /// The bits of its quantisation, as the name has them: 4 of `Q4_K_M`, 16 of `BF16`; 0 where it says nothing.
    pub(crate) fn bits(&self) -> u32 {
        self.quant().map_or(0, bits)
    }
}

/// The first number of a quantisation.
pub(crate) fn bits(quant: &str) -> u32 {
    let digits = quant.trim_start_matches(|c: char| !c.is_ascii_digit());
    let end = digits.find(|c: char| !c.is_ascii_digit()).unwrap_or(digits.len());
    digits[..end.min(4)].parse().unwrap_or(0)
}

/// `Q4_K_M`, `IQ3_XXS`, `TQ1_0`, `F16`, `BF16`, `MXFP4`, `NVFP4`.
fn is_quant(part: &str) -> bool {
    let upper = part.to_ascii_uppercase();
    let rest = ["IQ", "TQ", "Q", "BF", "F", "MXFP", "NVFP", "FP"].iter().find_map(|start| upper.strip_prefix(start));
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '_';
    rest.is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()) && rest.chars().all(plain))
}

fn is_tag(part: &str) -> bool {
    !part.is_empty() && part.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}

/// The shard at the end of a stem.
fn shard(stem: &str) -> Option<(u32, u32)> {
    let at = stem.len().checked_sub(SHARD.len()).filter(|&at| at > 0)?;
    let end = stem.get(at..)?;
    let number = |text: &str| text.bytes().all(|b| b.is_ascii_digit()).then(|| text.parse::<u32>().ok()).flatten();
    let (i, n) = end.strip_prefix('-')?.split_once("-of-").filter(|(i, n)| i.len() == 5 && n.len() == 5)?;
    let (i, n) = (number(i)?, number(n)?);
    (i >= 1 && i <= n).then_some((i, n))
}

/// How shards end.
const SHARD: &str = "-00001-of-00002";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_tell_quantisation_and_shard() {
        for (path, quant, shard) in [
            ("m-Q4_K_M.gguf", Some("Q4_K_M"), None),
            ("m.Q8_0.gguf", Some("Q8_0"), None),
            ("m.i1-IQ3_XXS.gguf", Some("i1-IQ3_XXS"), None),
            ("UD-Q4_K_XL/m-UD-Q4_K_XL-00002-of-00003.gguf", Some("UD-Q4_K_XL"), Some((2, 3))),
            ("Qwen3.5-2B-BF16.gguf", Some("BF16"), None),
            ("gpt-oss-20b-mxfp4.gguf", Some("mxfp4"), None),
            ("m-Q4_K_M-MTP.gguf", Some("Q4_K_M"), None),
            ("Q4_0.gguf", Some("Q4_0"), None),
            ("model.gguf", None, None),
            ("m-fp16.gguf", Some("fp16"), None),
            ("m-00003-of-00002.gguf", Some("00002"), None),
        ] {
            let name = FileName::read(path).unwrap();
            assert_eq!((name.quant(), name.shard), (quant, shard), "{path}");
        }
        assert!(FileName::read("README.md").is_none() && FileName::read(".gguf").is_none());
        assert_eq!(["Q4_K_M", "UD-IQ2_M", "BF16", "x", "Q99999999999"].map(bits), [4, 2, 16, 0, 9999]);
    }

    #[test]
    fn parts_of_models_are_known_by_their_names() {
        for (path, role) in [
            ("mtp-m-Q8_0.gguf", Role::Head),
            ("MTP-m.gguf", Role::Head),
            ("sub/m-mtp-q8_0.gguf", Role::Head),
            ("mmproj-BF16.gguf", Role::Projector),
            ("m-mmproj-f16.gguf", Role::Projector),
            ("eagle3-m.gguf", Role::Other),
            ("m-imatrix.gguf", Role::Other),
            ("Qwen3.6-27B-MTP-Q4_K_M.gguf", Role::Model),
            ("mtp-folder/m-Q4_K_M.gguf", Role::Model),
        ] {
            assert_eq!(FileName::read(path).unwrap().role(), role, "{path}");
        }
    }
}
