//! How instruction sets go through a group of weight rows and up to eight columns: the calls of their inner functions, for
//! constant numbers of columns. Computes nothing.

/// `kernel::<N, ..>(args)` for `N = y.n`.
macro_rules! by_columns {
    ($kernel:ident, ($($arg:expr),*), $y:expr $(, $more:tt)*) => {
        match $y.n {
            1 => $kernel::<1 $(, $more)*>($($arg),*),
            2 => $kernel::<2 $(, $more)*>($($arg),*),
            3 => $kernel::<3 $(, $more)*>($($arg),*),
            4 => $kernel::<4 $(, $more)*>($($arg),*),
            5 => $kernel::<5 $(, $more)*>($($arg),*),
            6 => $kernel::<6 $(, $more)*>($($arg),*),
            7 => $kernel::<7 $(, $more)*>($($arg),*),
            _ => $kernel::<8 $(, $more)*>($($arg),*),
        }
    };
}

/// `kernel::<N, ..>(group, y, r, j, &mut dots)` for `$step` weight rows from each `r` on and `N` columns, up to four, from
/// each `j` on: where registers hold no more. Further columns find the weights in the cache. Gives `dots`.
macro_rules! by_four_columns {
    ($step:expr, $kernel:ident, $group:expr, $y:expr $(, $more:tt)*) => {{
        let mut dots = $crate::tile::Dots::default();
        for r in (0..$crate::tile::GROUP).step_by($step) {
            for j in (0..$y.n).step_by(4) {
                match $y.n - j {
                    1 => $kernel::<1 $(, $more)*>($group, $y, r, j, &mut dots),
                    2 => $kernel::<2 $(, $more)*>($group, $y, r, j, &mut dots),
                    3 => $kernel::<3 $(, $more)*>($group, $y, r, j, &mut dots),
                    _ => $kernel::<4 $(, $more)*>($group, $y, r, j, &mut dots),
                }
            }
        }
        dots
    }};
}

/// What an instruction set's kernels make of this type of quantised weight: a `dots` in a module of the caller for each.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
macro_rules! by_weight_type {
    ($isa:expr, $ty:expr, $group:expr, $y:expr) => {
        match $ty {
            WeightType::Q8_0 => q8_0_q4_0::dots::<false>($group, $y),
            WeightType::Q4_0 => q8_0_q4_0::dots::<true>($group, $y),
            WeightType::Q4K => q4k_q5k::dots::<false>($group, $y),
            WeightType::Q5K => q4k_q5k::dots::<true>($group, $y),
            WeightType::Q6K => q6k::dots($group, $y),
            WeightType::F32 => $crate::floats::dots::<{ $crate::weight_type::float::F32 }>($isa, $group, $y),
            WeightType::F16 => $crate::floats::dots::<{ $crate::weight_type::float::F16 }>($isa, $group, $y),
            WeightType::BF16 => $crate::floats::dots::<{ $crate::weight_type::float::BF16 }>($isa, $group, $y),
        }
    };
}

pub(crate) use by_columns;
pub(crate) use by_four_columns;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
pub(crate) use by_weight_type;
