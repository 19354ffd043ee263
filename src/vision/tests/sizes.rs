//! The sizes that pictures get, as the published processors choose them, and the order of patches.

use vision::{Budget, Filter, ImageLimits, Picture, Processor, VisionError};

fn qwen(min: usize, max: usize) -> Processor {
    Processor {
        patch: 16,
        merge: 2,
        mean: [0.5; 3],
        std: [0.5; 3],
        budget: Budget::Pixels { min, max },
        filter: Filter::Bicubic,
    }
}

fn gemma(max: usize) -> Processor {
    Processor {
        patch: 16,
        merge: 3,
        mean: [0.0; 3],
        std: [1.0; 3],
        budget: Budget::Tokens { max },
        filter: Filter::Bicubic,
    }
}

#[test]
fn qwen_rounds_half_to_even_and_lets_a_side_vanish_before_the_limits() {
    let small = qwen(8192, 65_536);
    for (from, to) in [((80, 144), (64, 128)), ((15, 1900), (32, 1024)), ((4000, 30), (2944, 32)), ((1, 1), (96, 96))] {
        assert_eq!(small.size(from.0, from.1), Ok(to), "{from:?}");
    }
    assert_eq!(qwen(65_536, 16_777_216).size(1024, 1024), Ok((1024, 1024)));
    assert!(matches!(small.size(201, 1), Err(VisionError::Ratio { max: 200, .. })));
    assert_eq!(qwen(0, 65_536).size(1, 1), Ok((32, 32)));
}

#[test]
fn gemma_scales_every_picture_to_its_tokens() {
    assert_eq!(gemma(70).size(1, 1), Ok((384, 384)));
    assert_eq!(gemma(280).size(1, 8000), Ok((48, 13_440)));
    assert_eq!(gemma(280).size(8000, 30), Ok((13_104, 48)));
    // The short side would vanish: the long one is counted in whole ratios, up to the budget.
    assert_eq!(gemma(280).size(2000, 7), Ok((280 * 48, 48)));
    assert_eq!(gemma(1).size(1, 1), Ok((48, 48)));
    for (w, h) in [(640, 480), (3, 7), (1000, 999), (4096, 4096)] {
        let (width, height) = gemma(280).size(w, h).unwrap();
        assert!(
            width * height <= 280 * 48 * 48 && width % 48 == 0 && height % 48 == 0,
            "{w} x {h}: {width} x {height}"
        );
    }
}

#[test]
fn a_square_is_what_every_picture_becomes_and_takes_no_limits() {
    let square = Processor { budget: Budget::Square { side: 64 }, filter: Filter::Bilinear, ..gemma(1) };
    for (w, h) in [(1, 1), (64, 64), (8000, 30)] {
        assert_eq!(square.size(w, h), Ok((64, 64)));
    }
    assert!(square.clone().limited(&ImageLimits::default()).is_ok());
    let tokens = ImageLimits { max_tokens: Some(70), ..Default::default() };
    assert!(matches!(square.limited(&tokens), Err(VisionError::Limits(why)) if why.contains("64 x 64")));
}

#[test]
fn limits_that_mean_nothing_are_refused() {
    let pixels = ImageLimits { max_pixels: Some(4096), ..Default::default() };
    assert_eq!(qwen(65_536, 1 << 24).limited(&pixels).unwrap().budget, Budget::Pixels { min: 4096, max: 4096 });
    assert!(gemma(280).limited(&pixels).is_err());
    let tokens = ImageLimits { max_tokens: Some(70), ..Default::default() };
    assert_eq!(gemma(280).limited(&tokens).unwrap().budget, Budget::Tokens { max: 70 });
    assert_eq!(qwen(0, 1 << 24).limited(&tokens).unwrap().budget, Budget::Pixels { min: 0, max: 70 * 1024 });
    for limits in [
        ImageLimits { max_pixels: Some(1023), ..Default::default() },
        ImageLimits { min_pixels: Some(5000), max_pixels: Some(4096), ..Default::default() },
        ImageLimits { max_pixels: Some(usize::MAX), ..Default::default() },
        ImageLimits { max_tokens: Some(0), ..Default::default() },
    ] {
        assert!(matches!(qwen(0, 1 << 24).limited(&limits), Err(VisionError::Limits(_))), "{limits:?}");
    }
}

#[test]
fn patches_lie_in_the_blocks_that_become_tokens() {
    // Two tokens across, one down; patches of 1 pixel, blocks of 2 x 2. A pixel's red is its number.
    let tiny = Processor { patch: 1, merge: 2, ..qwen(1, 64) };
    let rgb = (0..8).flat_map(|i| [i, 100 + i, 200 + i]).collect();
    let patches = tiny.cut(&Picture::new(4, 2, rgb).unwrap());
    assert_eq!((patches.grid, patches.n_tokens, patches.token_grid()), ([1, 2, 4], 2, [1, 1, 2]));
    let red: Vec<f32> = patches.pixels.iter().step_by(3).map(|v| ((v / 2.0 + 0.5) * 255.0).round()).collect();
    assert_eq!(red, [0.0, 1.0, 4.0, 5.0, 2.0, 3.0, 6.0, 7.0]);
    let places: Vec<_> = patches.places().collect();
    assert_eq!(places[..5], [(0, 0), (0, 1), (1, 0), (1, 1), (0, 2)]);
    assert_eq!(patches.pixels.len(), 3 * patches.n_patches());
}

#[test]
fn a_patch_holds_channels_then_rows() {
    let two = Processor { patch: 2, merge: 1, ..gemma(1) };
    let rgb = (0..4).flat_map(|i| [i, 10 + i, 20 + i]).collect();
    let values: Vec<f32> =
        two.cut(&Picture::new(2, 2, rgb).unwrap()).pixels.iter().map(|v| (v * 255.0).round()).collect();
    assert_eq!(values, [0., 1., 2., 3., 10., 11., 12., 13., 20., 21., 22., 23.]);
}

#[test]
fn frames_share_the_pixels_of_a_video() {
    let published = qwen(65_536, 16_777_216);
    // Numbers of transformers 5.23's `Qwen3VLVideoProcessor` with `cap_pixels_per_frame` and the published limits.
    for (n, from, to) in [
        (2, (640, 480), (640, 480)),
        (8, (1920, 1080), (1152, 640)),
        (64, (1920, 1080), (832, 448)),
        (768, (1920, 1080), (224, 128)),
        (7, (333, 77), (320, 64)),
    ] {
        assert_eq!(published.frame_size(n, from.0, from.1), Ok(to), "{n} of {from:?}");
    }
    // Four tokens at least, and never more than a user allows a picture.
    assert_eq!(published.frame_size(2, 16, 16), Ok((64, 64)));
    assert_eq!(qwen(1024, 8192).frame_size(2, 640, 480), Ok((96, 64)));
    assert_eq!(gemma(280).frame_size(4, 640, 480), Ok((432, 336)));
    assert_eq!(gemma(20).frame_size(4, 640, 480), Ok((240, 144)));
    let square = Processor { budget: Budget::Square { side: 64 }, ..gemma(1) };
    assert!(matches!(square.frame_size(2, 64, 64), Err(VisionError::Limits(_))));
}
