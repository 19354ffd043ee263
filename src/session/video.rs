//! Videos in a prompt: frames at equal distances in time, the text of a time before each, and which of them are seen as one.
//! Owns how families of models show a video, and where texts move in a prompt. Knows no tokens and no files.

use text::template::Prompt;

use crate::conversation::Video;

/// How a family of models shows a video.
#[derive(Debug)]
pub(crate) struct VideoForm {
    /// Stands for a video where a template shows one, and for each row of a frame.
    pub(crate) word: &'static str,
    /// Of the text before a frame at so many seconds.
    pub(crate) time: fn(f64) -> String,
    /// Between a frame and the next time.
    pub(crate) between: &'static str,
    /// Two frames that follow each other are seen as one, whose time is the mean.
    pub(crate) pairs: bool,
}

/// Qwen's: `<1.5 seconds>` before each two frames.
pub(crate) const QWEN: VideoForm =
    VideoForm { word: "<|video_pad|>", time: |seconds| format!("<{seconds:.1} seconds>"), between: "", pairs: true };

/// Gemma 4's: `00:01` before each frame.
pub(crate) const GEMMA4: VideoForm = VideoForm {
    word: "<|video|>",
    time: |seconds| format!("{:02}:{:02} ", (seconds / 60.0) as u64, (seconds % 60.0) as u64),
    between: " ",
    pairs: false,
};

impl VideoForm {
    /// Frames of a video that are seen as one.
    pub(crate) fn n_together(&self) -> usize {
        if self.pairs { 2 } else { 1 }
    }

    /// A video as a text with a place, `frame`, for each of the frames that are seen as one.
    pub(crate) fn text(&self, video: &Video, frame: &str) -> String {
        let (n, together) = (video.frames.len(), self.n_together());
        let times = (0..n).step_by(together).map(|i| {
            // The last frame stands for one that is missing.
            let last = (i + together - 1).min(n - 1);
            (i as f64 / video.fps + last as f64 / video.fps) / 2.0
        });
        let each: Vec<String> = times.map(|seconds| (self.time)(seconds) + frame).collect();
        each.join(self.between)
    }
}

/// What is wrong with a video, whatever its frames show.
///
/// # Errors
/// Too few or too many frames; a rate that is none.
pub(crate) fn check(video: &Video) -> Result<(), String> {
    let n = video.frames.len();
    if n == 0 {
        return Err("it has 0 frames, at least one expected".to_owned());
    }
    if n > MAX_FRAMES {
        return Err(format!("it has {n} frames, at most {MAX_FRAMES} expected: leave some out"));
    }
    if !(video.fps.is_finite() && video.fps > 0.0) {
        return Err(format!("{} frames a second, a number above 0 expected", video.fps));
    }
    Ok(())
}

/// Puts the next of `texts` in place of each of the words that `begin`, `word` and `end` make, or of `word` alone; places in the
/// prompt move along. False, and nothing changes, where there are other numbers of both.
pub(crate) fn replace(prompt: &mut Prompt, [begin, word, end]: [&str; 3], texts: &[String]) -> bool {
    let old = std::mem::take(&mut prompt.text);
    let found = old.match_indices(word).map(|(at, _)| {
        let start = at - if old[..at].ends_with(begin) { begin.len() } else { 0 };
        let after = at + word.len();
        start..after + if old[after..].starts_with(end) { end.len() } else { 0 }
    });
    let found: Vec<_> = found.collect();
    if found.len() != texts.len() {
        prompt.text = old;
        return false;
    }
    let mut done = 0;
    for (range, text) in found.iter().zip(texts) {
        prompt.text += &old[done..range.start];
        prompt.text += text;
        done = range.end;
    }
    prompt.text += &old[done..];
    let moved = |at: usize| {
        let before = found.iter().zip(texts).take_while(|(range, _)| range.end <= at);
        let (gone, come) = before.fold((0, 0), |(gone, come), (range, text)| (gone + range.len(), come + text.len()));
        // A place within what went is where that began.
        let at = found.iter().find(|range| range.start < at && at < range.end).map_or(at, |range| range.start);
        at - gone + come
    };
    prompt.boundaries.iter_mut().for_each(|at| *at = moved(*at));
    prompt.repeated = moved(prompt.repeated);
    prompt.reply_at = prompt.reply_at.map(moved);
    true
}

/// Frames of one video, as published.
const MAX_FRAMES: usize = 768;

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    fn video(n: usize, fps: f64) -> Video {
        Video { frames: vec![Arc::from([1]); n], fps, ..Video::default() }
    }

    #[test]
    fn times_are_those_of_the_published_processors() {
        assert_eq!(QWEN.text(&video(4, 2.0), "#"), "<0.2 seconds>#<1.2 seconds>#");
        assert_eq!(QWEN.text(&video(3, 1.0), "#"), "<0.5 seconds>#<2.0 seconds>#");
        assert_eq!(QWEN.text(&video(1, 24.0), "#"), "<0.0 seconds>#");
        assert_eq!(GEMMA4.text(&video(3, 0.02), "#"), "00:00 # 00:50 # 01:40 #");
    }

    #[test]
    fn what_is_no_video_is_told() {
        assert!(check(&video(1, 0.5)).is_ok());
        for (video, words) in [(video(0, 1.0), "0 frames"), (video(769, 1.0), "769 frames"), (video(2, 0.0), "above 0")]
        {
            assert!(check(&video).unwrap_err().contains(words));
        }
        assert!(check(&video(2, f64::NAN)).is_err());
    }

    #[test]
    fn places_of_a_prompt_move_with_its_texts() {
        let text = "a<b>V<e>bVc".to_owned();
        let whole = text.len();
        let prompt = Prompt { text, boundaries: vec![1, 8, 9], n_lasting: 3, repeated: whole, reply_at: Some(9) };
        let mut shown = prompt.clone();
        assert!(!replace(&mut shown, ["<b>", "V", "<e>"], &["x".into()]));
        assert_eq!(shown.text, prompt.text);
        assert!(replace(&mut shown, ["<b>", "V", "<e>"], &["12345".into(), "".into()]));
        assert_eq!((shown.text.as_str(), &shown.boundaries[..]), ("a12345bc", &[1, 6, 7][..]));
        assert_eq!((shown.repeated, shown.reply_at), (8, Some(7)));
    }
}
