//! A model whose template shows nothing that is known: its calls are not read, and its reasoning only by the tags that most share.

use super::family::{BASE, Family};

pub(super) const FAMILY: Family = BASE;
