//! A model that sees: encoded pictures become rows, which are kept by content within a budget.
//! Owns the projector and what it gave. Knows the tokens that stand for a picture in a prompt; knows no templates.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use model::{Embedded, Model, PictureError, Pictures, Placed, Projector, RunError};
use text::template::Prompt;
use text::{TokenId, Vocab};
use vision::{ContentHash, DecodeLimits, ImageLimits, Picture, Processor, VisionError};

use crate::conversation::Video;
use crate::video::{self, GEMMA4, QWEN, VideoForm};
use crate::waiting::Wanted;

/// A projector beside its model. Threads may share it.
pub struct Sight {
    projector: Projector,
    processor: Processor,
    decoding: DecodeLimits,
    marks: Marks,
    kept: Mutex<Kept>,
}

/// How a family of models shows pictures.
#[derive(Debug)]
struct Family {
    /// What vocabularies call the tokens before a picture, where a template shows one, and after it.
    words: [&'static str; 3],
    /// What a published vocabulary has for each row; files of the text model may lack it.
    row: &'static str,
    /// Texts that the published processor puts before and after what a template shows.
    around: &'static str,
    video: Option<VideoForm>,
}

/// Qwen's, Gemma 4's, Gemma 3's.
static FAMILIES: [Family; 3] = [
    Family {
        words: ["<|vision_start|>", "<|image_pad|>", "<|vision_end|>"],
        row: "<|image_pad|>",
        around: "",
        video: Some(QWEN),
    },
    Family { words: ["<|image>", "<|image|>", "<image|>"], row: "<|image|>", around: "", video: Some(GEMMA4) },
    Family {
        words: ["<start_of_image>", "<start_of_image>", "<end_of_image>"],
        row: "<image_soft_token>",
        around: "\n\n",
        video: None,
    },
];

/// The tokens around a picture in a prompt.
#[derive(Clone, Copy, Debug)]
struct Marks {
    /// Stands for a picture where a template shows one.
    place: TokenId,
    /// Stands for each row of a picture.
    row: TokenId,
    /// The same of a video's frames.
    frame: Option<TokenId>,
    begin: TokenId,
    end: TokenId,
    family: &'static Family,
}

/// A picture, or frames of a video that are seen as one, before it is looked at.
#[derive(Clone, Debug)]
pub struct Shown {
    first: Arc<[u8]>,
    /// The frame after it.
    second: Option<Arc<[u8]>>,
    /// Of a frame, which is another than a picture's.
    size: Option<(usize, usize)>,
    n_rows: usize,
    /// Among what was sent, for words about it.
    name: String,
}

impl Shown {
    /// Tokens that it takes in a prompt, without those around it.
    pub fn n_rows(&self) -> usize {
        self.n_rows
    }

    /// Its place among what was sent.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }
}

/// Pixels of pictures that one request may still have decoded.
pub(crate) struct PixelBudget(u64);

impl Default for PixelBudget {
    fn default() -> Self {
        Self(MAX_PIXELS)
    }
}

/// As sent, of all pictures of a request.
const MAX_PIXELS: u64 = 512 << 20;

/// A picture as rows.
#[derive(Clone, Debug)]
pub struct SeenPicture {
    /// Its rows.
    pub embedded: Arc<Embedded>,
    /// Of its bytes and of the projector.
    pub hash: [u8; 32],
}

/// Why a picture is not seen.
#[derive(Debug, thiserror::Error)]
pub enum SightError {
    /// Its file, or its size.
    #[error(transparent)]
    Vision(#[from] VisionError),
    /// The projector does not fit the model.
    #[error(transparent)]
    Projector(#[from] model::LoadError),
    /// The projector has not computed it.
    #[error(transparent)]
    Run(#[from] RunError),
    /// It cannot stand in the prompt.
    #[error(transparent)]
    Place(#[from] PictureError),
    /// The model's graph takes no pictures.
    #[error(
        "a model of the architecture {architecture} takes no images here, or its file has other rope sections than images need"
    )]
    Blind {
        /// The model's.
        architecture: String,
    },
    /// The model's vocabulary has no tokens for pictures.
    #[error("the model's vocabulary has no tokens for pictures ({} expected)", FAMILIES.each_ref().map(|f| f.words[1]).join(" or "))]
    NoMarks,
    /// A video that is none, or that the model does not see.
    #[error("{0}")]
    Video(String),
    /// More than a request may have.
    #[error(
        "the images of a request, frames of videos among them, have more than {} Mi pixels together: send fewer or smaller ones",
        MAX_PIXELS >> 20
    )]
    Pixels,
    /// A text would be taken for a picture.
    #[error("a text holds {word}, which stands for an image: leave it out beside images")]
    Word {
        /// The token's text.
        word: &'static str,
    },
    /// The prompt has other places for pictures than there are pictures.
    #[error(
        "the prompt has {n_places} places ({marker}) for {n_pictures} images or frames that were sent: the text must not hold \
         this token, and the chat template must show every image"
    )]
    Places {
        /// Places in the prompt.
        n_places: usize,
        /// Pictures.
        n_pictures: usize,
        /// The token's text.
        marker: &'static str,
    },
}

impl Sight {
    /// What `projector` makes of pictures for `model`, with a user's limits; so many bytes of rows are kept.
    ///
    /// # Errors
    /// [`SightError::Projector`], [`SightError::NoMarker`], or limits that the projector cannot have.
    pub fn new(
        projector: Projector,
        model: &Model,
        limits: &ImageLimits,
        max_bytes: usize,
    ) -> Result<Self, SightError> {
        projector.fits(model)?;
        if model.picture_kind().is_none() {
            return Err(SightError::Blind { architecture: model.describe().architecture.clone() });
        }
        let processor = projector.processor(limits)?;
        let marks = Marks::of(model.vocab()).ok_or(SightError::NoMarks)?;
        let kept = Mutex::new(Kept { max_bytes, ..Kept::default() });
        Ok(Self { projector, processor, decoding: DecodeLimits::default(), marks, kept })
    }

    /// Decodes a picture and computes its rows, unless they are there. Takes long: not for a thread that serves others. A picture
    /// that is no longer wanted is left: on a CPU within a layer, on another device when it is done.
    ///
    /// # Errors
    /// [`SightError::Vision`]: bytes that are no picture. [`SightError::Run`], with [`ggml::Error::Stopped`] when it was left.
    pub fn see(&self, shown: &Shown, wanted: Wanted<'_>) -> Result<SeenPicture, SightError> {
        let hash = self.hash(shown);
        if let Some(embedded) = self.kept().find(&hash) {
            return Ok(SeenPicture { embedded, hash });
        }
        let decode = |encoded: &Arc<[u8]>| Picture::decode(encoded, &self.decoding);
        let first = decode(&shown.first)?;
        let patches = match shown.size {
            None => self.processor.patches(&first)?,
            Some(size) => {
                let second = shown.second.as_ref().map(decode).transpose()?;
                self.processor.frame_patches(&first, second.as_ref(), size)
            }
        };
        let embedded = Arc::new(self.projector.embed_while(&patches, &|| wanted.is_wanted())?);
        self.kept().put(hash, &embedded);
        Ok(SeenPicture { embedded, hash })
    }

    /// Of everything that the rows depend on.
    fn hash(&self, shown: &Shown) -> [u8; 32] {
        let mut of: Vec<u8> = ContentHash::of(&shown.first).0.to_vec();
        // A picture of the same content has other rows than a frame, and a frame's depend on how many there are.
        if let Some((width, height)) = shown.size {
            of.extend([width, height].map(|side| side as u64).iter().flat_map(|side| side.to_le_bytes()));
        }
        of.extend(shown.second.iter().flat_map(|second| ContentHash::of(second).0));
        // Rows of two projectors must not be taken for each other: slots outlive both.
        of.extend(self.projector.fingerprint());
        ContentHash::of(&of).0
    }

    /// A picture, of which the beginning is read.
    ///
    /// # Errors
    /// [`SightError::Vision`].
    pub fn image(&self, encoded: Arc<[u8]>) -> Result<Shown, SightError> {
        self.image_of(encoded, String::new(), &mut PixelBudget::default())
    }

    /// Pictures in the order in which they were sent.
    ///
    /// # Errors
    /// With the name of the picture: [`SightError::Vision`], [`SightError::Pixels`].
    pub(crate) fn images(
        &self,
        encoded: &[Arc<[u8]>],
        budget: &mut PixelBudget,
    ) -> Result<Vec<Shown>, (String, SightError)> {
        let name = |i: usize| format!("image {} of {}", i + 1, encoded.len());
        let each = encoded.iter().enumerate();
        each.map(|(i, one)| self.image_of(Arc::clone(one), name(i), budget).map_err(|error| (name(i), error))).collect()
    }

    fn image_of(&self, encoded: Arc<[u8]>, name: String, budget: &mut PixelBudget) -> Result<Shown, SightError> {
        let (width, height) = self.measured(&encoded, budget)?;
        let n_rows = self.n_rows(self.processor.size(width, height)?);
        Ok(Shown { first: encoded, second: None, size: None, n_rows, name })
    }

    /// The frames of videos, of which the beginnings are read, as they are seen.
    ///
    /// # Errors
    /// With the name of the video or the frame: [`SightError::Video`], [`SightError::Vision`], [`SightError::Pixels`].
    pub(crate) fn frames(
        &self,
        videos: &[Video],
        budget: &mut PixelBudget,
    ) -> Result<Vec<Shown>, (String, SightError)> {
        let mut shown = Vec::new();
        for (i, video) in videos.iter().enumerate() {
            let name = format!("video {} of {}", i + 1, videos.len());
            let named = |error| (name.clone(), error);
            video::check(video).map_err(|what| named(SightError::Video(what)))?;
            let form = self.video_form().map_err(named)?;
            let name_of = |k: usize| {
                let called = video.names.get(k).map_or_else(String::new, |called| format!(" ({called})"));
                format!("{name}, frame {} of {}{called}", k + 1, video.frames.len())
            };
            let mut sizes = Vec::with_capacity(video.frames.len());
            for (k, frame) in video.frames.iter().enumerate() {
                let size = self.measured(frame, budget).map_err(|error| (name_of(k), error))?;
                if sizes.first().is_some_and(|first| *first != size) {
                    let [first, other] = [sizes[0], size].map(|(width, height)| format!("{width} x {height}"));
                    let what = format!("it has {other} pixels, the first has {first}: all frames must have one size");
                    return Err((name_of(k), SightError::Video(what)));
                }
                sizes.push(size);
            }
            let (width, height) = sizes[0];
            let size = self.processor.frame_size(sizes.len(), width, height).map_err(|error| named(error.into()))?;
            shown.extend(video.frames.chunks(form.n_together()).enumerate().map(|(k, frames)| Shown {
                first: Arc::clone(&frames[0]),
                // A frame that is repeated is a pair as a picture is one.
                second: frames.get(1).filter(|second| **second != frames[0]).cloned(),
                size: Some(size),
                n_rows: self.n_rows(size),
                name: name_of(k * form.n_together()),
            }));
        }
        Ok(shown)
    }

    fn video_form(&self) -> Result<&'static VideoForm, SightError> {
        let form = self.marks.frame.and(self.marks.family.video.as_ref());
        let form = form.filter(|form| !form.pairs || self.projector.takes_pairs());
        form.ok_or_else(|| SightError::Video("this model sees no videos: send some frames as images".to_owned()))
    }

    /// Width and height, within what a request may have decoded.
    fn measured(&self, encoded: &[u8], budget: &mut PixelBudget) -> Result<(usize, usize), SightError> {
        let (width, height) = Picture::measure(encoded, &self.decoding)?;
        budget.0 = budget.0.checked_sub(width as u64 * height as u64).ok_or(SightError::Pixels)?;
        Ok((width, height))
    }

    fn n_rows(&self, (width, height): (usize, usize)) -> usize {
        let block = self.processor.patch * self.processor.merge;
        (width / block) * (height / block)
    }

    /// The kind of projector.
    pub fn kind(&self) -> &'static str {
        self.projector.kind()
    }

    /// The token that stands for each row of a picture.
    pub fn marker(&self) -> TokenId {
        self.marks.row
    }

    /// Texts of the tokens that stand for a picture or a video where a template shows one.
    pub(crate) fn place_words(&self) -> impl Iterator<Item = &'static str> {
        let family = self.marks.family;
        std::iter::once(family.words[1]).chain(family.video.as_ref().map(|video| video.word))
    }

    /// A picture as a text that has a place for it.
    pub fn shown(&self) -> String {
        let [begin, place, end] = self.marks.family.words;
        if begin == place { place.to_owned() } else { [begin, place, end].concat() }
    }

    /// A video as a text that has a place for it.
    pub(crate) fn shown_video(&self) -> String {
        let family = self.marks.family;
        let [begin, _, end] = family.words;
        family.video.as_ref().map_or_else(String::new, |video| [begin, video.word, end].concat())
    }

    /// Writes out what stands in a prompt around pictures, and the frames of videos with their times.
    ///
    /// # Errors
    /// [`SightError::Places`]: the template shows other numbers of them.
    pub(crate) fn write_out(&self, prompt: &mut Prompt, n_pictures: usize, videos: &[Video]) -> Result<(), SightError> {
        let family = self.marks.family;
        let ([begin, place, end], around) = (family.words, family.around);
        let other =
            |marker: &'static str, n_places, n_pictures| Err(SightError::Places { n_places, n_pictures, marker });
        if n_pictures > 0 && !around.is_empty() {
            let texts = vec![format!("{around}{place}{around}"); n_pictures];
            let n_places = prompt.text.matches(place).count();
            if !video::replace(prompt, ["", place, end], &texts) {
                return other(place, n_places, n_pictures);
            }
        }
        if let (Some(form), false) = (&family.video, videos.is_empty()) {
            let frame = [begin, form.word, end].concat();
            let texts: Vec<String> = videos.iter().map(|video| form.text(video, &frame)).collect();
            let n_places = prompt.text.matches(form.word).count();
            if !video::replace(prompt, [begin, form.word, end], &texts) {
                return other(form.word, n_places, videos.len());
            }
        }
        Ok(())
    }

    /// Places in a prompt: for pictures, and for frames of videos.
    pub(crate) fn n_places(&self, prompt: &[TokenId]) -> [usize; 2] {
        let mut n = [0; 2];
        prompt.iter().filter_map(|&id| self.marks.kind(id)).for_each(|kind| n[kind] += 1);
        n
    }

    /// A prompt in which each place for a picture or a frame has become its rows, between the tokens that begin and end a picture,
    /// where each one's rows begin there, and what they show in that order. `boundaries` are offsets in the prompt, which move
    /// along.
    ///
    /// # Errors
    /// [`SightError::Places`]: other places than pictures and frames.
    #[allow(clippy::type_complexity)]
    pub(crate) fn expanded(
        &self,
        prompt: &[TokenId],
        [pictures, frames]: [Vec<Shown>; 2],
        boundaries: &mut [usize],
    ) -> Result<(Vec<TokenId>, Vec<usize>, Vec<Shown>), SightError> {
        let n_rows = [&pictures, &frames].map(|shown| shown.iter().map(Shown::n_rows).collect::<Vec<_>>());
        let (tokens, places) = self.marks.expanded(prompt, [&n_rows[0], &n_rows[1]], boundaries)?;
        let (mut pictures, mut frames) = (pictures.into_iter(), frames.into_iter());
        let shown = places.iter().filter_map(|&(_, kind)| if kind == 0 { pictures.next() } else { frames.next() });
        let shown = shown.collect();
        Ok((tokens, places.into_iter().map(|(first, _)| first).collect(), shown))
    }

    /// The pictures of a prompt of `model`, which has `n_tokens` tokens; their rows begin at `firsts`.
    ///
    /// # Errors
    /// [`SightError::Place`].
    pub fn placed(
        &self,
        model: &Model,
        n_tokens: usize,
        firsts: &[usize],
        seen: Vec<SeenPicture>,
    ) -> Result<Pictures, SightError> {
        let placed = seen.into_iter().zip(firsts);
        let placed = placed.map(|(SeenPicture { embedded, hash }, &first)| Placed { first, embedded, hash }).collect();
        Ok(Pictures::new(model.picture_kind(), model.hparams().n_embd, n_tokens, placed)?)
    }

    fn kept(&self) -> std::sync::MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Marks {
    fn of(vocab: &Vocab) -> Option<Self> {
        FAMILIES.iter().find_map(|family| {
            let [begin, place, end] = family.words.map(|word| vocab.id(word));
            let (begin, place) = (begin?, place?);
            let row = vocab.id(family.row).unwrap_or(place);
            let frame = family.video.as_ref().and_then(|video| vocab.id(video.word));
            Some(Self { place, row, frame, begin, end: end?, family })
        })
    }

    /// What stands at a token: 0 for a picture, 1 for a frame.
    fn kind(&self, id: TokenId) -> Option<usize> {
        if id == self.place { Some(0) } else { (Some(id) == self.frame).then_some(1) }
    }

    /// As [`Sight::expanded`], with numbers of rows; where rows begin, and of which kind they are.
    #[allow(clippy::type_complexity)]
    fn expanded(
        &self,
        prompt: &[TokenId],
        n_rows: [&[usize]; 2],
        boundaries: &mut [usize],
    ) -> Result<(Vec<TokenId>, Vec<(usize, usize)>), SightError> {
        let Self { row, begin, end, .. } = *self;
        let places = prompt.iter().enumerate().filter_map(|(i, &id)| Some((i, self.kind(id)?)));
        let places: Vec<(usize, usize)> = places.collect();
        let words = [Some(self.family.words[1]), self.family.video.as_ref().map(|video| video.word)];
        for (kind, n_rows) in n_rows.iter().enumerate() {
            let n_places = places.iter().filter(|place| place.1 == kind).count();
            if n_places != n_rows.len() {
                let marker = words[kind].unwrap_or_default();
                return Err(SightError::Places { n_places, n_pictures: n_rows.len(), marker });
            }
        }
        let old = boundaries.to_vec();
        let (mut tokens, mut firsts, mut done) = (Vec::with_capacity(prompt.len()), Vec::new(), 0);
        let mut next = n_rows.map(|n_rows| n_rows.iter().copied());
        for (place, kind) in places {
            let Some(n) = next[kind].next() else { continue };
            tokens.extend_from_slice(&prompt[done..place]);
            if tokens.last() != Some(&begin) {
                tokens.push(begin);
            }
            firsts.push((tokens.len(), kind));
            tokens.resize(tokens.len() + n, self.frame.filter(|_| kind == 1).unwrap_or(row));
            done = place + 1;
            if prompt.get(done) != Some(&end) {
                tokens.push(end);
            }
            for (boundary, old) in boundaries.iter_mut().zip(&old).filter(|(_, old)| **old > place) {
                *boundary = tokens.len() + (old - done);
            }
        }
        tokens.extend_from_slice(&prompt[done..]);
        Ok((tokens, firsts))
    }
}

/// Rows of pictures; what was unused for longest goes first.
#[derive(Default)]
struct Kept {
    rows: HashMap<[u8; 32], (Arc<Embedded>, u64)>,
    n_bytes: usize,
    max_bytes: usize,
    clock: u64,
}

impl Kept {
    fn find(&mut self, hash: &[u8; 32]) -> Option<Arc<Embedded>> {
        self.clock += 1;
        let (embedded, last_used) = self.rows.get_mut(hash)?;
        *last_used = self.clock;
        Some(Arc::clone(embedded))
    }

    fn put(&mut self, hash: [u8; 32], embedded: &Arc<Embedded>) {
        let n_bytes = size_of_val(&embedded.rows[..]);
        if n_bytes > self.max_bytes {
            return;
        }
        while self.n_bytes + n_bytes > self.max_bytes {
            let Some(oldest) = self.rows.iter().min_by_key(|(_, (_, used))| *used).map(|(hash, _)| *hash) else {
                break;
            };
            self.forget(&oldest);
        }
        self.forget(&hash);
        self.n_bytes += n_bytes;
        self.clock += 1;
        self.rows.insert(hash, (Arc::clone(embedded), self.clock));
    }

    fn forget(&mut self, hash: &[u8; 32]) {
        if let Some((gone, _)) = self.rows.remove(hash) {
            self.n_bytes -= size_of_val(&gone.rows[..]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Expands a prompt of tokens 1 (begin), 2 (a place), 3 (end), 4 (a frame) and others.
    fn expanded(prompt: &[u32], n_rows: [&[usize]; 2], boundaries: &mut [usize]) -> Option<(Vec<u32>, Vec<usize>)> {
        let [begin, place, end, frame] = [1, 2, 3, 4].map(TokenId);
        let marks = Marks { begin, place, row: place, end, frame: Some(frame), family: &FAMILIES[0] };
        told(&marks, prompt, n_rows, boundaries)
    }

    fn told(
        marks: &Marks,
        prompt: &[u32],
        n_rows: [&[usize]; 2],
        boundaries: &mut [usize],
    ) -> Option<(Vec<u32>, Vec<usize>)> {
        let prompt: Vec<TokenId> = prompt.iter().copied().map(TokenId).collect();
        let (tokens, firsts) = marks.expanded(&prompt, n_rows, boundaries).ok()?;
        Some((tokens.iter().map(|id| id.0).collect(), firsts.iter().map(|first| first.0).collect()))
    }

    #[test]
    fn places_become_rows_between_marks_and_boundaries_move_along() {
        let mut boundaries = [1, 2, 4, 5, 6];
        let found = expanded(&[9, 1, 2, 3, 8, 2], [&[3, 2], &[]], &mut boundaries);
        let tokens = vec![9, 1, 2, 2, 2, 3, 8, 1, 2, 2, 3];
        assert_eq!(found, Some((tokens, vec![2, 8])));
        assert_eq!(boundaries, [1, 2, 6, 7, 11]);
        assert_eq!(expanded(&[2, 2], [&[1, 1], &[]], &mut []), Some((vec![1, 2, 3, 1, 2, 3], vec![1, 4])));
        assert_eq!(expanded(&[9, 2], [&[], &[]], &mut []), None);
        assert_eq!(expanded(&[9, 2], [&[1, 1], &[]], &mut []), None);
    }

    #[test]
    fn frames_and_pictures_take_their_own_places() {
        let found = expanded(&[4, 9, 2, 1, 4, 3], [&[1], &[2, 3]], &mut []);
        assert_eq!(found, Some((vec![1, 4, 4, 3, 9, 1, 2, 3, 1, 4, 4, 4, 3], vec![1, 6, 9])));
        assert_eq!(expanded(&[4, 2], [&[1, 1], &[]], &mut []), None);
    }

    #[test]
    fn a_mark_that_begins_a_picture_may_be_its_place() {
        let [begin, end, row] = [1, 3, 7].map(TokenId);
        let marks = Marks { begin, place: begin, row, end, frame: None, family: &FAMILIES[2] };
        let found = told(&marks, &[9, 1, 8, 1], [&[2, 3], &[]], &mut []);
        assert_eq!(found, Some((vec![9, 1, 7, 7, 3, 8, 1, 7, 7, 7, 3], vec![2, 7])));
    }

    #[test]
    fn rows_unused_for_longest_make_room() {
        let mut kept = Kept { max_bytes: 3 * 40, ..Kept::default() };
        let rows = Arc::new(Embedded { rows: vec![0.0; 10], grid: [1, 1, 5] });
        for i in 0..3 {
            kept.put([i; 32], &rows);
        }
        assert!(kept.find(&[0; 32]).is_some());
        kept.put([3; 32], &rows);
        let there = [0, 1, 2, 3].map(|i| kept.rows.contains_key(&[i; 32]));
        assert_eq!((there, kept.n_bytes), ([true, false, true, true], 120));
        kept.put([4; 32], &Arc::new(Embedded { rows: vec![0.0; 31], grid: [1, 1, 31] }));
        assert!(!kept.rows.contains_key(&[4; 32]), "more than the budget");
    }
}
