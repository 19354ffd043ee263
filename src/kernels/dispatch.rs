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

/// `$body` with each `$i` below `$n`, which is at most eight, one behind the other: where the compiler keeps a loop over
/// columns or registers, they are in memory.
macro_rules! each {
    ($i:ident of $n:expr, $body:block) => {
        $crate::dispatch::each!($i of $n, $body, 0, 1, 2, 3, 4, 5, 6, 7)
    };
    ($i:ident of $n:expr, $body:block, $($number:literal),*) => {
        $(if $n > $number {
            let $i = $number;
            $body
        })*
    };
}

pub(crate) use by_columns;
pub(crate) use by_four_columns;
pub(crate) use each;
