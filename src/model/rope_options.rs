//! What a user says of the rotation of positions; what is left open is the model file's to say.

use std::str::FromStr;

/// How positions beyond the original training are brought into its range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RopeScaling {
    /// Not at all, whatever factor there is.
    None,
    /// All frequencies are divided by the factor (Chen et al. 2023).
    Linear,
    /// Low frequencies are divided by the factor, high ones are kept (YaRN, Peng et al. 2023).
    Yarn,
}

impl RopeScaling {
    /// The names that users write.
    pub const NAMES: [&'static str; 3] = ["none", "linear", "yarn"];
}

impl FromStr for RopeScaling {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        match name {
            "none" => Ok(Self::None),
            "linear" => Ok(Self::Linear),
            "yarn" => Ok(Self::Yarn),
            other => Err(format!("`{other}` found, none, linear or yarn expected")),
        }
    }
}

/// The rotation of positions where it shall differ from the model file's. The default changes nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct RopeOptions {
    /// The kind of scaling.
    pub scaling: Option<RopeScaling>,
    /// Base of the frequencies.
    pub freq_base: Option<f32>,
    /// Factor on positions: the inverse of a model file's scaling factor.
    pub freq_scale: Option<f32>,
    /// Context of the original training, for YaRN.
    pub yarn_orig_ctx: Option<u32>,
    /// Share of extrapolation; 0 switches YaRN's mixture of frequencies off.
    pub yarn_ext_factor: Option<f32>,
    /// Factor on the rotated values; without effect where the share of extrapolation is not 0, which implies one.
    pub yarn_attn_factor: Option<f32>,
    /// YaRN's fast border, in rotations.
    pub yarn_beta_fast: Option<f32>,
    /// YaRN's slow border, in rotations.
    pub yarn_beta_slow: Option<f32>,
}

impl RopeOptions {
    /// Bytes that differ between options that differ, and none for those that change nothing.
    pub(crate) fn identity(&self) -> Vec<u8> {
        if *self == Self::default() {
            return Vec::new();
        }
        let floats = [
            self.freq_base,
            self.freq_scale,
            self.yarn_ext_factor,
            self.yarn_attn_factor,
            self.yarn_beta_fast,
            self.yarn_beta_slow,
        ];
        format!("rope {:?} {:?} {floats:?}", self.scaling, self.yarn_orig_ctx).into_bytes()
    }
}
