//! Types of one to four bits in blocks of 256 values: how their blocks become bytes and scales. Written once, for the registers of
//! every instruction set ([`Register`]); a file for each kind of layout. Products are in the folders of instruction sets.
//!
//! Every such block is a factor, sixteen times 16 values, and for each 16 a scale that is a whole number. What a value stands for is
//! factor times scale times a whole number of few bits, less, in `Q2K`, a minimum. So a product is exact within a block, as those of
//! the other K types are. Whole numbers come without a sign, by [`Layout::BIAS`] more: instructions of x86-64 want that.

// Other processors have the plain reference alone.
#![cfg_attr(not(any(target_arch = "x86_64", target_arch = "aarch64")), allow(dead_code, unused_imports, unused_macros))]

mod grids;
mod iq1;
mod iq2;
mod iq3;
mod iq4xs;
mod k;
mod layout;
pub(crate) mod scalar;

pub(crate) use iq1::{Iq1M, Iq1S};
pub(crate) use iq2::{Iq2S, Iq2Xs, Iq2Xxs};
pub(crate) use iq3::{Iq3S, Iq3Xxs};
pub(crate) use iq4xs::Iq4Xs;
pub(crate) use k::{Q2K, Q3K};
pub(crate) use layout::{Layout, Register};

/// `kernel::<L>(group, y)` for the layout `L` of a type of few bits.
macro_rules! by_layout {
    ($ty:expr, $kernel:ident, $group:expr, $y:expr) => {
        match $ty {
            $crate::weight_type::WeightType::Q2K => $kernel::<$crate::low_bits::Q2K>($group, $y),
            $crate::weight_type::WeightType::Q3K => $kernel::<$crate::low_bits::Q3K>($group, $y),
            $crate::weight_type::WeightType::IQ4XS => $kernel::<$crate::low_bits::Iq4Xs>($group, $y),
            $crate::weight_type::WeightType::IQ3XXS => $kernel::<$crate::low_bits::Iq3Xxs>($group, $y),
            $crate::weight_type::WeightType::IQ3S => $kernel::<$crate::low_bits::Iq3S>($group, $y),
            $crate::weight_type::WeightType::IQ2XXS => $kernel::<$crate::low_bits::Iq2Xxs>($group, $y),
            $crate::weight_type::WeightType::IQ2XS => $kernel::<$crate::low_bits::Iq2Xs>($group, $y),
            $crate::weight_type::WeightType::IQ2S => $kernel::<$crate::low_bits::Iq2S>($group, $y),
            $crate::weight_type::WeightType::IQ1S => $kernel::<$crate::low_bits::Iq1S>($group, $y),
            _ => $kernel::<$crate::low_bits::Iq1M>($group, $y),
        }
    };
}

pub(crate) use by_layout;
