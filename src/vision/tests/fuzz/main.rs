//! What the fuzz target of `src/vision/fuzz` holds to be true, on its seeds, on inputs that once found a fault, and on
//! pictures whose bytes are changed here.

use std::io::Cursor;

use image::{DynamicImage, ImageBuffer, ImageFormat, Rgba};

mod picture;
#[path = "../../../test-support/replay.rs"]
mod replay;

#[test]
fn files_are_refused_or_become_pictures_within_limits() {
    replay::replay("picture", picture::check);
}

/// The numbers of a linear congruence, so that every run changes the same bytes.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % n
    }
}

#[test]
fn a_thousand_changed_files_cause_no_panic() {
    let image: DynamicImage =
        ImageBuffer::from_fn(24, 17, |x, y| Rgba([(x * 9) as u8, (y * 13) as u8, (x * y) as u8, (x + 230) as u8]))
            .into();
    let mut numbers = Numbers(22);
    for format in [ImageFormat::Png, ImageFormat::Gif, ImageFormat::WebP, ImageFormat::Jpeg] {
        let mut bytes = Cursor::new(Vec::new());
        let plain = if format == ImageFormat::Jpeg { image.to_rgb8().into() } else { image.clone() };
        plain.write_to(&mut bytes, format).unwrap();
        let bytes = bytes.into_inner();
        for _ in 0..250 {
            let mut changed = bytes.clone();
            for _ in 0..=numbers.below(4) {
                let at = numbers.below(changed.len());
                match numbers.below(5) {
                    0 => changed[at] ^= 1 << numbers.below(8),
                    1 => changed[at] = [0, 0xff, 0x7f, 0x80][numbers.below(4)],
                    2 => changed.truncate(at.max(8)),
                    3 => drop(changed.drain(at..(at + 4).min(changed.len()))),
                    _ => changed.insert(at, numbers.below(256) as u8),
                }
                if changed.is_empty() {
                    break;
                }
            }
            picture::check(&changed);
        }
    }
}
