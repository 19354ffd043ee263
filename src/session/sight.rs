//! A model that sees: encoded pictures become rows, which are kept by content within a budget.
//! Owns the projector and what it gave. Knows the token that stands for a picture in a prompt; knows no templates.

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
    marker: TokenId,
    kept: Mutex<Kept>,
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
    /// The model's vocabulary has no token for pictures.
    #[error("the model has no token that stands for a picture ({})", MARKERS.join(", "))]
    NoMarker,
    /// The prompt has other places for pictures than there are pictures.
    #[error(
        "the prompt has {n_places} places for pictures ({marker}), {n_pictures} pictures were sent: the text must not hold this \
         token, and the chat template must show every picture"
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
        let processor = projector.processor(limits)?;
        let marker = marker(model.vocab()).ok_or(SightError::NoMarker)?.0;
        let kept = Mutex::new(Kept { max_bytes, ..Kept::default() });
        Ok(Self { projector, processor, decoding: DecodeLimits::default(), marker, kept })
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

    /// The token that stands for a picture in a prompt.
    pub fn marker(&self) -> TokenId {
        self.marker
    }

    /// A prompt in which each place for a picture, one token, has become as many as the picture has, and where the pictures
    /// stand in it. `boundaries` are offsets in the prompt, which move along.
    ///
    /// # Errors
    /// [`SightError::Places`]: other places than pictures. [`SightError::Place`].
    pub fn place(
        &self,
        model: &Model,
        prompt: &[TokenId],
        pictures: Vec<SeenPicture>,
        boundaries: &mut [usize],
    ) -> Result<(Vec<TokenId>, Pictures), SightError> {
        let places: Vec<usize> = (0..prompt.len()).filter(|&i| prompt[i] == self.marker).collect();
        if places.len() != pictures.len() {
            let marker = marker(model.vocab()).map_or("", |(_, text)| text);
            return Err(SightError::Places { n_places: places.len(), n_pictures: pictures.len(), marker });
        }
        let (mut tokens, mut placed, mut done) = (Vec::with_capacity(prompt.len()), Vec::new(), 0);
        let old = boundaries.to_vec();
        for (place, SeenPicture { embedded, hash }) in places.into_iter().zip(pictures) {
            tokens.extend_from_slice(&prompt[done..place]);
            let (first, n) = (tokens.len(), embedded.n_tokens());
            tokens.resize(first + n, self.marker);
            for (boundary, old) in boundaries.iter_mut().zip(&old).filter(|(_, old)| **old > place) {
                *boundary = old + (tokens.len() - place - 1);
            }
            placed.push(Placed { first, embedded, hash });
            done = place + 1;
        }
        tokens.extend_from_slice(&prompt[done..]);
        let pictures = Pictures::new(model.picture_kind(), model.hparams().n_embd, tokens.len(), placed)?;
        Ok((tokens, pictures))
    }

    fn kept(&self) -> std::sync::MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What vocabularies call the token that stands for a picture.
const MARKERS: [&str; 2] = ["<|image_pad|>", "<|image|>"];

/// The token that stands for a picture in prompts of a model, and its text.
fn marker(vocab: &Vocab) -> Option<(TokenId, &'static str)> {
    MARKERS.into_iter().find_map(|text| Some((vocab.id(text)?, text)))
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
