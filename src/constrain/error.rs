//! Why something cannot constrain an answer. Every message is meant for whoever wrote the request.

/// What is wrong with a [`crate::Spec`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// More text than is read.
    #[error("the {what} has {found} bytes, at most {max} are taken")]
    TooLong {
        /// Which part of the request.
        what: &'static str,
        /// Its size.
        found: usize,
        /// The limit.
        max: usize,
    },
    /// Nested deeper than is read.
    #[error("the {what} is nested deeper than {max} levels")]
    TooDeep {
        /// Which part of the request.
        what: &'static str,
        /// The limit.
        max: usize,
    },
    /// More parts than are read.
    #[error("the {what} has {found} {parts}, at most {max} are taken")]
    TooMany {
        /// Which part of the request.
        what: &'static str,
        /// Parts of which kind.
        parts: &'static str,
        /// How many there are.
        found: usize,
        /// The limit.
        max: usize,
    },
    /// It is not what it should be, or means something that is not supported.
    #[error("the {what} cannot be used: {why}")]
    Unusable {
        /// Which part of the request.
        what: &'static str,
        /// What is wrong with it.
        why: String,
    },
    /// Nothing that could be said would follow it.
    #[error("the {what} allows no answer at all")]
    Nothing {
        /// Which part of the request.
        what: &'static str,
    },
    /// Building it takes too long.
    #[error("the {what} took longer than {seconds} s to build: make it simpler")]
    TooSlow {
        /// Which part of the request.
        what: &'static str,
        /// The limit.
        seconds: u64,
    },
    /// Others are being built, or take too long and cannot be stopped.
    #[error("too many grammars are being built or wait for it: try again later")]
    Busy,
    /// The vocabulary cannot be used for grammars, or the system has no thread to build them.
    #[error("grammars cannot be built here: {0}")]
    Broken(String),
}

impl Error {
    /// True when it lies with what was asked for: nothing but another form would help.
    pub fn is_of_the_form(&self) -> bool {
        !matches!(self, Self::TooSlow { .. } | Self::Busy | Self::Broken(_))
    }
}
