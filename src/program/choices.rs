//! The words that options of several programs take. What they lead to is decided elsewhere.

use clap::ValueEnum;

/// `on` or `off`.
#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
#[allow(missing_docs)]
pub enum OnOff {
    On,
    Off,
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
