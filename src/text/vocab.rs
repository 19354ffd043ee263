//! The vocabulary of a model: token ids to bytes, text to token ids.
//! Owns the tables and the roles of special tokens; knows nothing of chat templates or of streams.

mod encode;
mod names;
mod source;
mod special;
mod strip;
mod token;
mod tokens;

pub use source::{SpecialIds, VocabSource};
pub use token::{Fim, TokenId, TokenKind};
pub(crate) use tokens::Tokens;

use crate::bpe::Merges;
use crate::error::Error;
use crate::fallback::Fallback;
use crate::pretokenize::{Bos, Rule, Spelling, Splitter, known_names};
use crate::spm::Spm;
use names::Names;
use special::{Roles, SpecialFinder};
use strip::Strips;

/// Whether [`Vocab::encode`] looks for special tokens in the text.
#[derive(Copy, Clone, Eq, PartialEq, Hash, Debug)]
pub enum Special {
    /// Control and user-defined tokens are found by their text: for rendered templates.
    Parse,
    /// No control token comes out, whatever the text says. User-defined tokens still do: they are text that the
    /// model always saw as one token, and the reference tokenizers treat them so.
    Plain,
}

/// The vocabulary of a model and its way to cut text.
///
/// Read-only once made; share it in an `Arc`. Nothing is normalised: decomposed characters stay decomposed.
pub struct Vocab {
    method: Method,
    tokens: Tokens,
    roles: Roles,
    parse: SpecialFinder,
    plain: SpecialFinder,
    strips: Strips,
    /// No token has a space after another character, so merges never cross the place before a space.
    spaces_cut: bool,
}

/// How text between special tokens becomes tokens.
enum Method {
    /// Byte-pair encoding inside the words of a split rule.
    Bpe { rule: &'static Rule, splitter: Splitter, merges: Merges },
    /// SentencePiece, with or without a space before a text.
    Spm { spm: Spm, space_first: bool },
}

impl Vocab {
    /// Reads the tokenizer keys of a GGUF file.
    ///
    /// # Errors
    /// As [`Vocab::new`], and a key that is absent or of another type.
    pub fn from_metadata(metadata: &gguf::Metadata<'_>) -> Result<Self, Error> {
        let source = VocabSource::from_metadata(metadata)?;
        if source.model == "gpt2" && source.pre.is_empty() {
            tracing::warn!(
                "tokenizer.ggml.pre is absent: words are split by rule \"default\", which may not be the model's"
            );
        }
        Self::new(&source)
    }

    /// Builds the tables. Of two tokens with the same text, and of two merges of the same parts, the first counts.
    /// An empty token is kept for its id and never comes out of [`Vocab::encode`].
    ///
    /// # Errors
    /// An unknown tokenizer or split rule; lists that disagree in length or are too long to number; a token type
    /// out of range; a byte that no token stands for; a merge that is not two parts; a special id past the end.
    pub fn new(source: &VocabSource<'_>) -> Result<Self, Error> {
        let rule = rule_of(source)?;
        let mut kinds = source.kinds()?;
        let names = Names::of(&source.tokens, &kinds);
        names.settle(&mut kinds);
        let tokens = Tokens::new(&source.tokens, kinds, rule.map_or(Spelling::Spaces, |rule| rule.spelling))?;
        let roles = Roles::new(source, &names, rule.map_or(Bos::UnlessRefused, |rule| rule.bos))?;
        let unknown = roles.unknown.map(|id| id.0);
        let fallback = || Fallback::new(&tokens, unknown);
        let method = match rule {
            None => {
                let spm = Spm::new(&tokens, &source.scores()?, fallback()?);
                Method::Spm { spm, space_first: source.add_space_prefix.unwrap_or(true) }
            }
            Some(rule) => {
                let merges = source.bounded_merges()?;
                let merges = match rule.spelling {
                    Spelling::ByteLevel => Merges::of_bytes(&tokens, merges, unknown)?,
                    Spelling::Spaces | Spelling::Plain => Merges::of_characters(&tokens, merges, fallback()?)?,
                };
                Method::Bpe { rule, splitter: Splitter::new(rule), merges }
            }
        };
        let of_kinds = |kinds: &[TokenKind]| {
            let ids = tokens.kinds().iter().zip(0..).filter(|(kind, _)| kinds.contains(kind)).map(|(_, id)| id);
            SpecialFinder::new(&tokens, ids)
        };
        let parse = of_kinds(&[TokenKind::Control, TokenKind::UserDefined, TokenKind::Unknown])?;
        let plain = of_kinds(&[TokenKind::UserDefined])?;
        let strips = Strips::new(source, &tokens);
        let spaces_cut = tokens.spelling() == Spelling::Spaces && tokens.spaces_come_first();
        Ok(Self { method, roles, parse, plain, strips, spaces_cut, tokens })
    }

    /// Rows of the head: all tokens, unused ones included.
    #[must_use]
    pub fn len(&self) -> usize {
        self.tokens.len()
    }

    /// Never true: a vocabulary has a token for every byte.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The bytes that a token stands for; of control tokens their text, of unused rows nothing.
    /// One token may be a part of a character: join them with a [`crate::Decoder`].
    #[must_use]
    pub fn bytes(&self, id: TokenId) -> Option<&[u8]> {
        match self.kind(id)? {
            TokenKind::Unused => Some(&[]),
            _ => self.tokens.bytes(id.0),
        }
    }

    /// What kind of token this is; `None` past the end.
    #[must_use]
    pub fn kind(&self, id: TokenId) -> Option<TokenKind> {
        self.tokens.kind(id.0)
    }

    /// The token with exactly this text: a special one before a normal one. The text is not encoded.
    #[must_use]
    pub fn id(&self, text: &str) -> Option<TokenId> {
        self.tokens.find_other(text.as_bytes()).or_else(|| self.tokens.find_plain(text.as_bytes())).map(TokenId)
    }

    /// The token that [`Vocab::add_bos`] is about.
    #[must_use]
    pub fn bos(&self) -> Option<TokenId> {
        self.roles.bos
    }

    /// End of sequence, as the file says. To stop at, use [`Vocab::is_eog`].
    #[must_use]
    pub fn eos(&self) -> Option<TokenId> {
        self.roles.eos
    }

    /// End of a turn: as the file says, else by its usual names.
    #[must_use]
    pub fn eot(&self) -> Option<TokenId> {
        self.roles.eot
    }

    /// Padding, as the file says.
    #[must_use]
    pub fn pad(&self) -> Option<TokenId> {
        self.roles.pad
    }

    /// Whether prompts start with [`Vocab::bos`], which is then there. `encode` does not add it.
    #[must_use]
    pub fn add_bos(&self) -> bool {
        self.roles.add_bos
    }

    /// Separates two texts, as the file says.
    #[must_use]
    pub fn sep(&self) -> Option<TokenId> {
        self.roles.sep
    }

    /// What stands for characters that have no token, as the file says.
    #[must_use]
    pub fn unknown(&self) -> Option<TokenId> {
        self.roles.unknown
    }

    /// Whether a text as a whole ends with [`Vocab::eos`], which is then there. `encode` does not add it.
    #[must_use]
    pub fn add_eos(&self) -> bool {
        self.roles.add_eos
    }

    /// Whether generation ends when this token is sampled.
    #[must_use]
    pub fn is_eog(&self, id: TokenId) -> bool {
        self.roles.eog.binary_search(&id).is_ok()
    }

    /// All tokens that end generation, by id: those that the file names and those known by their text.
    #[must_use]
    pub fn eog(&self) -> &[TokenId] {
        &self.roles.eog
    }

    /// The fill-in-the-middle tokens, if the vocabulary has all three.
    #[must_use]
    pub fn fim(&self) -> Option<Fim> {
        self.roles.fim
    }

    /// The control and user-defined tokens by id, each with its text.
    pub fn special_tokens(&self) -> impl Iterator<Item = (TokenId, &str)> {
        let is_special = |id: &u32| matches!(self.tokens.kind(*id), Some(TokenKind::Control | TokenKind::UserDefined));
        (0..self.len() as u32).filter(is_special).filter_map(|id| {
            let text = std::str::from_utf8(self.tokens.bytes(id)?).ok()?;
            Some((TokenId(id), text))
        })
    }
}

impl std::fmt::Debug for Vocab {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let kind = match &self.method {
            Method::Bpe { rule, .. } => rule.names[0],
            Method::Spm { .. } => "SentencePiece",
        };
        f.debug_struct("Vocab").field("kind", &kind).field("len", &self.len()).finish_non_exhaustive()
    }
}

/// The split rule; `None` for SentencePiece, which has none.
fn rule_of(source: &VocabSource<'_>) -> Result<Option<&'static Rule>, Error> {
    let what = match source.model {
        "gpt2" | "gemma4" => {
            let pre = if source.pre.is_empty() { "default" } else { source.pre };
            let unknown = || Error::UnknownPre { found: pre.chars().take(60).collect(), known: known_names() };
            return Rule::by_name(pre).ok_or_else(unknown).map(Some);
        }
        "llama" => return Ok(None),
        "bert" => " (WordPiece, of embedding models)",
        "t5" => " (SentencePiece unigram)",
        "rwkv" => " (the trie of RWKV)",
        "plamo2" => " (the suffix tables of PLaMo 2)",
        "no_vocab" | "none" => " (a file without a vocabulary)",
        _ => "",
    };
    Err(Error::UnknownModel { found: source.model.chars().take(60).collect(), what })
}
