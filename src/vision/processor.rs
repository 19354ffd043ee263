//! The published preprocessing of a family: which size a picture gets, how its bytes become numbers, and its patches.

use crate::error::VisionError;
use crate::patches::Patches;
use crate::picture::Picture;
use crate::resize::Filter;

/// How a family turns a picture into patches.
#[derive(Clone, Debug, PartialEq)]
pub struct Processor {
    /// Pixels along a side of a patch.
    pub patch: usize,
    /// Patches along a side of a block that becomes one token.
    pub merge: usize,
    /// Subtracted from each channel, whose values are 0 to 1.
    pub mean: [f32; 3],
    /// What the difference is divided by.
    pub std: [f32; 3],
    /// How the size is chosen.
    pub budget: Budget,
    /// How a picture is resized.
    pub filter: Filter,
}

/// What bounds the size of a picture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Budget {
    /// The size stays where its area lies between these (Qwen).
    Pixels {
        /// Least area after the resize.
        min: usize,
        /// Largest area after the resize; long pictures may pass it.
        max: usize,
    },
    /// Every picture is scaled to at most this many tokens, small ones up (Gemma 4).
    Tokens {
        /// Most tokens.
        max: usize,
    },
    /// Every picture becomes a square (Gemma 3).
    Square {
        /// Pixels along a side.
        side: usize,
    },
}

/// Limits that a user set for pictures; what is absent is as published.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ImageLimits {
    /// Least area after the resize, in pixels.
    pub min_pixels: Option<usize>,
    /// Largest area after the resize, in pixels.
    pub max_pixels: Option<usize>,
    /// Least tokens of a picture.
    pub min_tokens: Option<usize>,
    /// Most tokens of a picture.
    pub max_tokens: Option<usize>,
}

/// Longest side over the shortest that Qwen's processor takes.
const MAX_RATIO: usize = 200;
/// Most tokens of a frame, most of all frames together where two are one, and the least of a frame (Qwen). The published
/// processor allows smaller frames; a picture of fewer tokens has no place in a prompt.
const MAX_FRAME_TOKENS: usize = 768;
const MAX_VIDEO_TOKENS: usize = 24_576;
const MIN_FRAME_TOKENS: usize = 4;
/// Tokens of a frame (Gemma 4).
const FRAME_TOKENS: usize = 70;
/// Most tokens that a limit may allow: four times what is published for any model.
const MAX_TOKENS: usize = 65_536;

impl Processor {
    /// This processor with a user's limits.
    ///
    /// # Errors
    /// `Limits` where one has no meaning for the family, is out of range, or contradicts another.
    pub fn limited(mut self, limits: &ImageLimits) -> Result<Processor, VisionError> {
        let no = |why: String| Err(VisionError::Limits(why));
        if let Some(n) = limits.max_tokens.into_iter().chain(limits.min_tokens).find(|&n| n == 0 || n > MAX_TOKENS) {
            return no(format!("an image may have 1 to {MAX_TOKENS} tokens, {n} were asked for"));
        }
        let token = (self.patch * self.merge).pow(2);
        match &mut self.budget {
            Budget::Pixels { min, max } => {
                *max = limits.max_pixels.or(limits.max_tokens.map(|n| n * token)).unwrap_or(*max);
                let least = limits.min_pixels.or(limits.min_tokens.map(|n| n * token));
                *min = least.unwrap_or((*min).min(*max));
                if *max < token || *max > MAX_TOKENS * token {
                    let most = MAX_TOKENS * token;
                    return no(format!("the most pixels of an image are {token} to {most}, {max} were asked for"));
                }
                if *min > *max {
                    return no(format!("the least pixels of an image ({min}) are above the most ({max})"));
                }
            }
            Budget::Tokens { .. } if limits.min_pixels.or(limits.max_pixels).or(limits.min_tokens).is_some() => {
                return no("this model scales every image to the most tokens: set these alone".to_owned());
            }
            Budget::Tokens { max } => *max = limits.max_tokens.unwrap_or(*max),
            Budget::Square { side } if *limits != ImageLimits::default() => {
                return no(format!("this model takes images of {side} x {side} pixels: leave the limits out"));
            }
            Budget::Square { .. } => {}
        }
        Ok(self)
    }

    /// The width and height that a picture of `width` x `height` gets.
    ///
    /// # Errors
    /// `Ratio` and `NoSize` as the published processors refuse.
    pub fn size(&self, width: usize, height: usize) -> Result<(usize, usize), VisionError> {
        match self.budget {
            Budget::Pixels { min, max } => self.size_by_pixels(width, height, min, max),
            Budget::Tokens { max } => self.size_by_tokens(width, height, max),
            Budget::Square { side } => Ok((side, side)),
        }
    }

    /// The width and height that each of `n_frames` frames of a video gets: fewer pixels than a picture, and the fewer the more
    /// frames there are. Limits on the most that a user set hold for a frame too.
    ///
    /// # Errors
    /// As [`Processor::size`]; `Limits` for a family that sees no videos.
    pub fn frame_size(&self, n_frames: usize, width: usize, height: usize) -> Result<(usize, usize), VisionError> {
        match self.budget {
            Budget::Pixels { max, .. } => {
                let token = (self.patch * self.merge).pow(2);
                let of_all = MAX_VIDEO_TOKENS / n_frames.next_multiple_of(2).max(2);
                let max = max.min(token * of_all.clamp(MIN_FRAME_TOKENS, MAX_FRAME_TOKENS));
                self.size_by_pixels(width, height, MIN_FRAME_TOKENS * token, max.max(MIN_FRAME_TOKENS * token))
            }
            Budget::Tokens { max } => self.size_by_tokens(width, height, max.min(FRAME_TOKENS)),
            Budget::Square { .. } => {
                Err(VisionError::Limits("this model sees no videos: send some frames as images".to_owned()))
            }
        }
    }

    /// Each side to the nearest multiple of a token, half to even; then scaled into the area's limits.
    fn size_by_pixels(
        &self,
        width: usize,
        height: usize,
        min: usize,
        max: usize,
    ) -> Result<(usize, usize), VisionError> {
        if width.max(height) as f64 / width.min(height) as f64 > MAX_RATIO as f64 {
            return Err(VisionError::Ratio { width, height, max: MAX_RATIO });
        }
        let side = self.patch * self.merge;
        let f = side as f64;
        let (w, h) = (width as f64, height as f64);
        let near = |v: f64| (v / f).round_ties_even() as usize * side;
        let area = near(w) * near(h);
        // With a least area of 0 a side of 0 would stay.
        Ok(if area > max {
            let by = (w * h / max as f64).sqrt();
            let down = |v: f64| ((v / by / f).floor() as usize * side).max(side);
            (down(w), down(h))
        } else if area < min.max(1) {
            let by = (min as f64 / (w * h)).sqrt();
            let up = |v: f64| ((v * by / f).ceil() as usize * side).max(side);
            (up(w), up(h))
        } else {
            (near(w), near(h))
        })
    }

    /// Scaled to the area of `max` tokens, each side down to whole tokens.
    fn size_by_tokens(&self, width: usize, height: usize, max: usize) -> Result<(usize, usize), VisionError> {
        let side = self.patch * self.merge;
        let by = ((max * side * side) as f64 / (width as f64 * height as f64)).sqrt();
        let down = |v: usize| (by * v as f64 / side as f64).floor() as usize * side;
        match (down(width), down(height)) {
            (0, 0) => Err(VisionError::NoSize { width, height, max_tokens: max }),
            (0, _) => Ok((side, (height / width * side).min(max * side))),
            (_, 0) => Ok(((width / height * side).min(max * side), side)),
            size => Ok(size),
        }
    }

    /// The patches of a picture, resized to its size.
    ///
    /// # Errors
    /// As [`Processor::size`].
    pub fn patches(&self, picture: &Picture) -> Result<Patches, VisionError> {
        let (width, height) = self.size(picture.width(), picture.height())?;
        Ok(self.cut(&picture.resized(self.filter, width, height)))
    }

    /// The patches of one frame of a video, or of two that are seen as one, resized to a size of [`Processor::frame_size`].
    pub fn frame_patches(&self, first: &Picture, second: Option<&Picture>, size: (usize, usize)) -> Patches {
        let cut = |frame: &Picture| self.cut(&frame.resized(self.filter, size.0, size.1));
        let later = second.map_or_else(Vec::new, |second| cut(second).pixels);
        Patches { later, ..cut(first) }
    }

    /// The patches of a picture that has its size.
    ///
    /// # Panics
    /// Where a side is no multiple of a token's.
    pub fn cut(&self, picture: &Picture) -> Patches {
        let side = self.patch * self.merge;
        let (width, height) = (picture.width(), picture.height());
        assert!(width % side == 0 && height % side == 0, "a resized picture has whole tokens");
        let grid = [1, height / self.patch, width / self.patch];
        let n_tokens = (width / side) * (height / side);
        let pixels = Vec::with_capacity(width * height * 3);
        let mut patches = Patches { pixels, later: Vec::new(), grid, merge: self.merge, n_tokens };
        // Every value that a byte can have, for each channel.
        let value = |c: usize, v: usize| (v as f32 / 255.0 - self.mean[c]) / self.std[c];
        let values: [Vec<f32>; 3] = [0, 1, 2].map(|c| (0..256).map(|v| value(c, v)).collect());
        for (row, column) in patches.places() {
            for (c, values) in values.iter().enumerate() {
                for y in row * self.patch..(row + 1) * self.patch {
                    let line = &picture.rgb()[3 * (y * width + column * self.patch)..][..3 * self.patch];
                    patches.pixels.extend(line.chunks_exact(3).map(|pixel| values[usize::from(pixel[c])]));
                }
            }
        }
        patches
    }
}
