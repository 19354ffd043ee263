//! The resize against a slow one in f64, and against bytes made once by a numpy script of the same algorithm.

use vision::{Filter, Picture};

/// 5 x 4 pixels; byte `i` is `i * 37 % 256`.
fn small() -> Picture {
    Picture::new(5, 4, (0..60).map(|i| (i * 37 % 256) as u8).collect()).unwrap()
}

#[rustfmt::skip]
const AT_3_X_3: [u8; 27] = [
    55, 92, 136, 139, 67, 115, 158, 149, 73, 112, 153, 128, 84, 133, 138, 131, 87, 138, 168, 119, 127, 150, 139, 110, 103, 155, 108,
];
#[rustfmt::skip]
const AT_2_X_9: [u8; 54] = [
    98, 66, 112, 156, 133, 73, 93, 76, 122, 152, 123, 81, 81, 99, 147, 146, 98, 101, 78, 125, 158, 133, 83, 122, 99, 151, 128, 108,
    99, 145, 125, 165, 97, 89, 124, 156, 148, 143, 106, 103, 143, 134, 167, 110, 127, 127, 158, 101, 175, 96, 135, 136, 165, 87,
];

#[test]
fn the_bytes_are_those_of_the_reference() {
    assert_eq!(small().resized(Filter::Bicubic, 3, 3).rgb(), AT_3_X_3);
    assert_eq!(small().resized(Filter::Bicubic, 2, 9).rgb(), AT_2_X_9);
    assert_eq!(small().resized(Filter::Bicubic, 5, 4), small());
}

/// Keys's kernel, written out.
fn cubic(t: f64) -> f64 {
    let t = t.abs();
    if t < 1.0 {
        1.5 * t.powi(3) - 2.5 * t.powi(2) + 1.0
    } else if t < 2.0 {
        -0.5 * t.powi(3) + 2.5 * t.powi(2) - 4.0 * t + 2.0
    } else {
        0.0
    }
}

/// One value of a line that `n_in` values become `n_out` of, over every value that the kernel reaches.
fn filtered(line: &[f64], n_out: usize, x: usize, filter: Filter) -> f64 {
    let kernel = |t: f64| if filter == Filter::Bicubic { cubic(t) } else { (1.0 - t.abs()).max(0.0) };
    let scale = line.len() as f64 / n_out as f64;
    let (stretch, centre) = (scale.max(1.0), (x as f64 + 0.5) * scale);
    let weights: Vec<f64> = (0..line.len()).map(|i| kernel((i as f64 + 0.5 - centre) / stretch)).collect();
    line.iter().zip(&weights).map(|(v, w)| v * w).sum::<f64>() / weights.iter().sum::<f64>()
}

fn slow(picture: &Picture, width: usize, height: usize, filter: Filter) -> Vec<f64> {
    let (w, h) = (picture.width(), picture.height());
    let at = |x: usize, y: usize, c: usize| f64::from(picture.rgb()[3 * (y * w + x) + c]);
    let mut out = vec![0.0; width * height * 3];
    for c in 0..3 {
        let across = |x: usize, y: usize| {
            let line: Vec<f64> = (0..w).map(|x| at(x, y, c)).collect();
            filtered(&line, width, x, filter).round().clamp(0.0, 255.0)
        };
        for x in 0..width {
            let line: Vec<f64> = (0..h).map(|y| across(x, y)).collect();
            for y in 0..height {
                out[3 * (y * width + x) + c] = filtered(&line, height, y, filter).round().clamp(0.0, 255.0);
            }
        }
    }
    out
}

#[test]
fn every_size_is_within_a_level_of_the_plain_filter() {
    let noise = |n: usize| (0..n).map(|i| ((i * i + 7 * i) % 251 * 97 % 256) as u8).collect();
    for (w, h, width, height) in
        [(1, 1, 8, 8), (2, 1, 1, 9), (17, 3, 5, 3), (64, 2, 3, 40), (9, 31, 32, 2), (33, 21, 32, 32), (3, 3, 19, 23)]
    {
        let picture = Picture::new(w, h, noise(w * h * 3)).unwrap();
        for filter in [Filter::Bicubic, Filter::Bilinear] {
            let found = picture.resized(filter, width, height);
            let expected = slow(&picture, width, height, filter);
            let off = found.rgb().iter().zip(expected).map(|(&a, b)| (f64::from(a) - b).abs());
            let worst = off.fold(0.0, f64::max);
            // A weight of 22 bits may tip a value that lies between two levels, in either pass.
            assert!(worst <= 1.0, "{w} x {h} -> {width} x {height} {filter:?}: {worst} levels");
        }
    }
}

#[test]
fn threads_do_not_change_a_byte() {
    // Large enough for several threads down and across; a part of it is small enough for one.
    let bytes: Vec<u8> = (0..1200 * 900 * 3).map(|i| (i * 31 % 253) as u8).collect();
    let whole = Picture::new(1200, 900, bytes.clone()).unwrap().resized(Filter::Bicubic, 600, 900);
    let top = Picture::new(1200, 8, bytes[..1200 * 8 * 3].to_vec()).unwrap().resized(Filter::Bicubic, 600, 8);
    assert_eq!(&whole.rgb()[..600 * 8 * 3], top.rgb());
    let again = Picture::new(1200, 900, bytes).unwrap().resized(Filter::Bicubic, 600, 450);
    assert_eq!(again, whole.resized(Filter::Bicubic, 600, 450));
}

#[test]
fn long_and_large_pictures_take_bounded_memory() {
    let long = Picture::new(8000, 30, vec![200; 8000 * 30 * 3]).unwrap().resized(Filter::Bicubic, 13_440, 48);
    assert!(long.rgb().iter().all(|&v| v == 200));
    let large = Picture::new(4096, 4096, vec![9; 4096 * 4096 * 3]).unwrap().resized(Filter::Bicubic, 64, 32);
    assert!(large.rgb().iter().all(|&v| v == 9));
}
