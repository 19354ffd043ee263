//! A model that sees: encoded pictures become rows, which are kept by content within a budget.
//! Owns the projector and what it gave. Knows the tokens that stand for a picture in a prompt; knows no templates.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use model::{Embedded, Model, PictureError, Pictures, Placed, Projector, RunError};
use text::{TokenId, Vocab};
use vision::{ContentHash, DecodeLimits, ImageLimits, Picture, Processor, VisionError};

/// A projector beside its model. Threads may share it.
pub struct Sight {
    projector: Projector,
    processor: Processor,
    decoding: DecodeLimits,
    marks: Marks,
    kept: Mutex<Kept>,
}

/// The tokens around a picture in a prompt.
#[derive(Clone, Copy, Debug)]
struct Marks {
    /// Stands for a picture where a template shows one, and for each of its rows.
    row: TokenId,
    begin: TokenId,
    end: TokenId,
    /// The three as text.
    words: &'static [&'static str; 3],
}

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
    #[error("the model's vocabulary has no tokens for pictures ({} expected)", FAMILIES.map(|words| words.concat()).join(" or "))]
    NoMarks,
    /// A text would be taken for a picture.
    #[error("a text holds {word}, which stands for an image: leave it out beside images")]
    Word {
        /// The token's text.
        word: &'static str,
    },
    /// The prompt has other places for pictures than there are pictures.
    #[error(
        "the prompt has {n_places} places for images ({marker}), {n_pictures} images were sent: the text must not hold this \
         token, and the chat template must show every image"
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

    /// Decodes a picture and computes its rows, unless they are there. Takes long: not for a thread that serves others.
    ///
    /// # Errors
    /// [`SightError::Vision`]: bytes that are no picture, or one that is too large or too long. [`SightError::Run`].
    pub fn see(&self, encoded: &[u8]) -> Result<SeenPicture, SightError> {
        let content = ContentHash::of(encoded);
        // Rows of two projectors must not be taken for each other: slots outlive both.
        let hash = ContentHash::of(&[&content.0[..], &self.projector.fingerprint()].concat()).0;
        if let Some(embedded) = self.kept().find(&hash) {
            return Ok(SeenPicture { embedded, hash });
        }
        let picture = Picture::decode(encoded, &self.decoding)?;
        let embedded = Arc::new(self.projector.embed(&self.processor.patches(&picture)?)?);
        self.kept().put(hash, &embedded);
        Ok(SeenPicture { embedded, hash })
    }

    /// Rows of a picture, told by the beginning of its file.
    ///
    /// # Errors
    /// [`SightError::Vision`].
    pub fn n_rows(&self, encoded: &[u8]) -> Result<usize, SightError> {
        let (width, height) = Picture::measure(encoded, &self.decoding)?;
        let (width, height) = self.processor.size(width, height)?;
        let block = self.processor.patch * self.processor.merge;
        Ok((width / block) * (height / block))
    }

    /// The kind of projector.
    pub fn kind(&self) -> &'static str {
        self.projector.kind()
    }

    /// The token that stands for each row of a picture.
    pub fn marker(&self) -> TokenId {
        self.marks.row
    }

    /// The text of that token.
    pub fn row_word(&self) -> &'static str {
        self.marks.words[1]
    }

    /// A picture as a text that has a place for it.
    pub fn shown(&self) -> String {
        self.marks.words.concat()
    }

    /// Places for pictures in a prompt.
    pub fn n_places(&self, prompt: &[TokenId]) -> usize {
        prompt.iter().filter(|&&id| id == self.marks.row).count()
    }

    /// A prompt in which each place for a picture has become its rows, between the tokens that begin and end a picture, and where
    /// each picture's rows begin there. `boundaries` are offsets in the prompt, which move along.
    ///
    /// # Errors
    /// [`SightError::Places`]: other places than pictures.
    pub fn expanded(
        &self,
        prompt: &[TokenId],
        n_rows: &[usize],
        boundaries: &mut [usize],
    ) -> Result<(Vec<TokenId>, Vec<usize>), SightError> {
        self.marks.expanded(prompt, n_rows, boundaries)
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

/// What vocabularies call the tokens before a picture, of each of its rows, and after it: Qwen's, then Gemma 4's.
const FAMILIES: [[&str; 3]; 2] =
    [["<|vision_start|>", "<|image_pad|>", "<|vision_end|>"], ["<|image>", "<|image|>", "<image|>"]];

impl Marks {
    fn of(vocab: &Vocab) -> Option<Self> {
        FAMILIES.iter().find_map(|words| {
            let [begin, row, end] = words.map(|word| vocab.id(word));
            Some(Self { row: row?, begin: begin?, end: end?, words })
        })
    }

    /// As [`Sight::expanded`].
    fn expanded(
        &self,
        prompt: &[TokenId],
        n_rows: &[usize],
        boundaries: &mut [usize],
    ) -> Result<(Vec<TokenId>, Vec<usize>), SightError> {
        let Self { row, begin, end, words } = *self;
        let places: Vec<usize> = (0..prompt.len()).filter(|&i| prompt[i] == row).collect();
        if places.len() != n_rows.len() {
            return Err(SightError::Places { n_places: places.len(), n_pictures: n_rows.len(), marker: words[1] });
        }
        let old = boundaries.to_vec();
        let (mut tokens, mut firsts, mut done) = (Vec::with_capacity(prompt.len()), Vec::new(), 0);
        for (place, &n) in places.into_iter().zip(n_rows) {
            tokens.extend_from_slice(&prompt[done..place]);
            if tokens.last() != Some(&begin) {
                tokens.push(begin);
            }
            firsts.push(tokens.len());
            tokens.resize(tokens.len() + n, row);
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

    /// Expands a prompt of tokens 1 (begin), 2 (a place), 3 (end) and others.
    fn expanded(prompt: &[u32], n_rows: &[usize], boundaries: &mut [usize]) -> Option<(Vec<u32>, Vec<usize>)> {
        let marks = Marks { begin: TokenId(1), row: TokenId(2), end: TokenId(3), words: &FAMILIES[0] };
        let prompt: Vec<TokenId> = prompt.iter().copied().map(TokenId).collect();
        let (tokens, firsts) = marks.expanded(&prompt, n_rows, boundaries).ok()?;
        Some((tokens.iter().map(|id| id.0).collect(), firsts))
    }

    #[test]
    fn places_become_rows_between_marks_and_boundaries_move_along() {
        let mut boundaries = [1, 2, 4, 5, 6];
        let found = expanded(&[9, 1, 2, 3, 8, 2], &[3, 2], &mut boundaries);
        let tokens = vec![9, 1, 2, 2, 2, 3, 8, 1, 2, 2, 3];
        assert_eq!(found, Some((tokens, vec![2, 8])));
        assert_eq!(boundaries, [1, 2, 6, 7, 11]);
        assert_eq!(expanded(&[2, 2], &[1, 1], &mut []), Some((vec![1, 2, 3, 1, 2, 3], vec![1, 4])));
        assert_eq!(expanded(&[9, 2], &[], &mut []), None);
        assert_eq!(expanded(&[9, 2], &[1, 1], &mut []), None);
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
