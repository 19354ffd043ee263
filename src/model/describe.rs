//! What a file says of itself, for people.

use std::collections::HashMap;
use std::fmt;

use gguf::Header;

/// Name, sizes and types of a model file.
#[derive(Clone, Debug, PartialEq)]
pub struct Description {
    /// `general.name`, or the architecture when it is absent.
    pub name: String,
    /// `general.architecture`.
    pub architecture: String,
    /// The type that holds most of the bytes, such as `q8_0`.
    pub quantization: String,
    /// Elements of all tensors.
    pub n_params: u64,
    /// Bytes of all tensors.
    pub n_bytes: u64,
    /// True when a NextN head is there and complete.
    pub nextn: bool,
}

impl Description {
    pub(crate) fn of(headers: &[Header<'_>], architecture: &str, nextn: bool) -> Self {
        let mut bytes_by_type: HashMap<&str, u64> = HashMap::new();
        let (mut n_params, mut n_bytes) = (0u64, 0u64);
        for t in headers.iter().flat_map(Header::tensors) {
            // Products and sums were checked against the file's size when it was parsed.
            n_params += t.ne.iter().product::<u64>();
            n_bytes += t.n_bytes;
            *bytes_by_type.entry(t.dtype.name()).or_default() += t.n_bytes;
        }
        let most = bytes_by_type.into_iter().max_by_key(|&(name, bytes)| (bytes, name));
        let name = headers[0].metadata().str("general.name").ok().flatten().filter(|name| !name.is_empty());
        Self {
            name: name.unwrap_or(architecture).to_owned(),
            architecture: architecture.to_owned(),
            quantization: most.map_or("none", |(name, _)| name).to_owned(),
            n_params,
            n_bytes,
            nextn,
        }
    }
}

impl fmt::Display for Description {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let params = match self.n_params {
            n if n >= 1_000_000_000 => format!("{:.2} B", n as f64 / 1e9),
            n => format!("{:.1} M", n as f64 / 1e6),
        };
        let head = if self.nextn { "NextN head" } else { "no NextN head" };
        write!(f, "{} ({}, {params} parameters, {}, {head})", self.name, self.architecture, self.quantization)
    }
}
