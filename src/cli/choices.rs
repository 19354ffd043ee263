//! The words that options take: on, off, auto and their like. What they lead to is decided elsewhere.

use clap::ValueEnum;

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
