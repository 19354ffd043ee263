//! The words that options take: on, off, auto and their like. What they lead to is decided elsewhere.

use clap::ValueEnum;

/// `on` or `off`.
#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
#[allow(missing_docs)]
pub enum OnOff {
    On,
    Off,
}

/// `--cache-scope`.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, ValueEnum)]
#[allow(missing_docs)]
pub enum CacheScope {
    #[default]
    Key,
    All,
}

/// `--think`.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, ValueEnum)]
#[allow(missing_docs)]
pub enum Think {
    On,
    Off,
    #[default]
    Auto,
}

impl Think {
    /// What the template is told: `None` leaves it its own default.
    pub fn enabled(self) -> Option<bool> {
        match self {
            Self::On => Some(true),
            Self::Off => Some(false),
            Self::Auto => None,
        }
    }

    /// As typed.
    pub fn name(self) -> &'static str {
        match self {
            Self::On => "on",
            Self::Off => "off",
            Self::Auto => "auto",
        }
    }
}

/// `--flash-attn`.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, ValueEnum)]
#[allow(missing_docs)]
pub enum FlashAttn {
    On,
    Off,
    #[default]
    Auto,
}

/// `--markdown`.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, ValueEnum)]
#[allow(missing_docs)]
pub enum AutoOnOff {
    #[default]
    Auto,
    On,
    Off,
}

/// `--color`.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, ValueEnum)]
#[allow(missing_docs)]
pub enum When {
    #[default]
    Auto,
    Always,
    Never,
}

/// `--cache-type-k`, `--cache-type-v`.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, ValueEnum)]
#[value(rename_all = "snake_case")]
#[allow(missing_docs)]
pub enum CacheType {
    #[default]
    F16,
    F32,
    #[value(name = "q8_0")]
    Q8_0,
    #[value(name = "q4_0")]
    Q4_0,
}
