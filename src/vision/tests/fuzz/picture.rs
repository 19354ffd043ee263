//! What holds of every file: it is refused in words, or becomes a picture within the limits, and so do its patches.

use vision::{Budget, DecodeLimits, Filter, Picture, Processor};

const LIMITS: DecodeLimits = DecodeLimits { max_side: 4096, max_pixels: 1 << 20, max_bytes: 16 << 20 };

/// Reads a file.
pub fn check(bytes: &[u8]) {
    let picture = match Picture::decode(bytes, &LIMITS) {
        Ok(picture) => picture,
        Err(error) => return assert!(!error.to_string().is_empty()),
    };
    let (w, h) = (picture.width(), picture.height());
    assert!(w.max(h) <= 4096 && w * h <= 1 << 20 && picture.rgb().len() == w * h * 3);
    let processor =
        |merge, budget| Processor { patch: 16, merge, mean: [0.5; 3], std: [0.5; 3], budget, filter: Filter::Bicubic };
    for (processor, most) in
        [(processor(2, Budget::Pixels { min: 8192, max: 65_536 }), 256), (processor(3, Budget::Tokens { max: 70 }), 70)]
    {
        match processor.patches(&picture) {
            Ok(patches) => {
                assert_eq!(patches.pixels.len(), patches.n_patches() * 768);
                assert!(patches.n_tokens <= most && patches.pixels.iter().all(|v| v.abs() <= 1.0), "{patches:?}");
            }
            Err(error) => assert!(!error.to_string().is_empty()),
        }
    }
}
