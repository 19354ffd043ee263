//! How paths go through a group of weight rows and up to eight rows: the calls of their inner functions, for constant numbers
//! of rows. Computes nothing.

/// `rows::<N, ..>(group, y)` for `N = y.n`.
#[cfg(target_arch = "x86_64")]
macro_rules! by_rows {
    ($rows:ident, $group:expr, $y:expr $(, $more:expr)*) => {
        match $y.n {
            1 => $rows::<1 $(, $more)*>($group, $y),
            2 => $rows::<2 $(, $more)*>($group, $y),
            3 => $rows::<3 $(, $more)*>($group, $y),
            4 => $rows::<4 $(, $more)*>($group, $y),
            5 => $rows::<5 $(, $more)*>($group, $y),
            6 => $rows::<6 $(, $more)*>($group, $y),
            7 => $rows::<7 $(, $more)*>($group, $y),
            _ => $rows::<8 $(, $more)*>($group, $y),
        }
    };
}

/// `rows::<N, ..>(group, y, r, j, &mut dots)` for `$step` weight rows from each `r` on and `N` rows, up to four, from each `j`
/// on: for paths whose registers hold no more. Further rows find the weights in the cache. Gives `dots`.
macro_rules! in_fours {
    ($step:expr, $rows:ident, $group:expr, $y:expr $(, $more:expr)*) => {{
        let mut dots = $crate::kernels::Dots::default();
        for r in (0..$crate::kernels::GROUP).step_by($step) {
            for j in (0..$y.n).step_by(4) {
                match $y.n - j {
                    1 => $rows::<1 $(, $more)*>($group, $y, r, j, &mut dots),
                    2 => $rows::<2 $(, $more)*>($group, $y, r, j, &mut dots),
                    3 => $rows::<3 $(, $more)*>($group, $y, r, j, &mut dots),
                    _ => $rows::<4 $(, $more)*>($group, $y, r, j, &mut dots),
                }
            }
        }
        dots
    }};
}

/// What a path's kernels make of this kind of weight: a `dots` in a module of the caller for each.
macro_rules! by_kind {
    ($kind:expr, $group:expr, $y:expr) => {
        match $kind {
            Kind::Q8_0 => q8_0_q4_0::dots::<false>($group, $y),
            Kind::Q4_0 => q8_0_q4_0::dots::<true>($group, $y),
            Kind::Q4K => q4k_q5k::dots::<false>($group, $y),
            Kind::Q5K => q4k_q5k::dots::<true>($group, $y),
            Kind::Q6K => q6k::dots($group, $y),
            Kind::F32 => floats::dots::<{ $crate::kernels::weight_type::float::F32 }>($group, $y),
            Kind::F16 => floats::dots::<{ $crate::kernels::weight_type::float::F16 }>($group, $y),
            Kind::BF16 => floats::dots::<{ $crate::kernels::weight_type::float::BF16 }>($group, $y),
        }
    };
}

pub(super) use by_kind;
#[cfg(target_arch = "x86_64")]
pub(super) use by_rows;
pub(super) use in_fours;
