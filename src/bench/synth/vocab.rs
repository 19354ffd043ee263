//! Vocabulary and chat template of synthetic models: made-up words of syllables, as many merges as a real vocabulary has.
//! Owns the texts and ids of tokens; knows nothing of what follows what.

use gguf::{ArrayBuf, Writer};

use super::shapes::Shape;

/// A vocabulary of `Shape::n_vocab` tokens.
pub(crate) struct Words {
    pub(crate) tokens: Vec<String>,
    /// How many of them are text; special ones and padding follow.
    pub(crate) n_text: usize,
    merges: Vec<String>,
}

/// Special tokens, in the order of the published vocabulary.
const SPECIAL: &[&str] = &[
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|object_ref_start|>",
    "<|object_ref_end|>",
    "<|box_start|>",
    "<|box_end|>",
    "<|quad_start|>",
    "<|quad_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|vision_pad|>",
    "<|image_pad|>",
    "<|video_pad|>",
    "<tool_call>",
    "</tool_call>",
    "<|fim_prefix|>",
    "<|fim_middle|>",
    "<|fim_suffix|>",
    "<|fim_pad|>",
    "<|repo_name|>",
    "<|file_sep|>",
    "<tool_response>",
    "</tool_response>",
    "<think>",
    "</think>",
];

/// The end of a turn.
const IM_END: usize = 2;

/// Padding behind the special tokens, as a share of the vocabulary: 250 of 248,320.
const PADDING: usize = 1000;

const CONSONANTS: &[u8] = b"bdfghjklmnprstvz";
const VOWELS: &[u8] = b"aeiou";

/// A space, as byte-level vocabularies spell it.
const SPACE: char = '\u{120}';

/// A chat in the usual form; what the model says to it does not depend on it.
const TEMPLATE: &str = "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}\
{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";

impl Words {
    pub(crate) fn new(shape: &Shape) -> Self {
        let n_text = shape.n_vocab - shape.n_vocab / PADDING - SPECIAL.len();
        let mut words = Self { tokens: Vec::with_capacity(shape.n_vocab), n_text, merges: Vec::new() };
        words.tokens.extend((0..=255).map(|byte| letter(byte).to_string()));
        let syllables: Vec<String> = CONSONANTS
            .iter()
            .flat_map(|&c| VOWELS.iter().map(move |&v| format!("{}{}", char::from(c), char::from(v))))
            .collect();
        for s in &syllables {
            words.merge(&s[..1], &s[1..]);
        }
        let spaced = |s: &str| format!("{SPACE}{s}");
        for s in &syllables {
            words.merge(&SPACE.to_string(), s);
        }
        let pairs = syllables.iter().flat_map(|a| syllables.iter().map(move |b| (a, b)));
        for (a, b) in pairs.clone() {
            words.merge(a, b);
        }
        for (a, b) in pairs.clone() {
            words.merge(&spaced(a), b);
        }
        for (a, b) in pairs {
            for c in &syllables {
                words.merge(&spaced(&format!("{a}{b}")), c);
            }
        }
        words.tokens.extend(SPECIAL.iter().map(|&name| name.to_owned()));
        words.tokens.extend((words.tokens.len()..shape.n_vocab).map(|id| format!("[PAD{id}]")));
        words
    }

    /// A token of two others, while there is room for words.
    fn merge(&mut self, a: &str, b: &str) {
        if self.tokens.len() < self.n_text {
            self.tokens.push(format!("{a}{b}"));
            self.merges.push(format!("{a} {b}"));
        }
    }

    /// Adds the tokenizer's keys and the chat template.
    ///
    /// # Errors
    /// As [`Writer::add`].
    pub(crate) fn write(&self, writer: &mut Writer) -> Result<(), gguf::Error> {
        let of = |strings: &[String]| strings.iter().map(String::as_str).collect::<ArrayBuf>();
        let n_special = self.n_text + SPECIAL.len();
        // 1 is text, 3 special, 5 unused.
        let kind = |id: usize| if id < self.n_text { 1i32 } else { [3, 5][usize::from(id >= n_special)] };
        let types: ArrayBuf = (0..self.tokens.len()).map(kind).collect();
        let (tokens, merges) = (of(&self.tokens), of(&self.merges));
        writer.add("tokenizer.ggml.model", "gpt2")?;
        writer.add("tokenizer.ggml.pre", "qwen35")?;
        writer.add("tokenizer.ggml.tokens", &tokens)?;
        writer.add("tokenizer.ggml.token_type", &types)?;
        writer.add("tokenizer.ggml.merges", &merges)?;
        writer.add("tokenizer.ggml.eos_token_id", (self.n_text + IM_END) as u32)?;
        writer.add("tokenizer.ggml.padding_token_id", self.n_text as u32)?;
        writer.add("tokenizer.ggml.add_bos_token", false)?;
        writer.add("tokenizer.chat_template", TEMPLATE)
    }
}

/// The letter that byte-level vocabularies write for a byte: printable ones stand for themselves, the rest are numbered
/// from 256 on.
fn letter(byte: u8) -> char {
    let printable = |b: u8| matches!(b, 33..=126 | 161..=172 | 174..=255);
    let code = if printable(byte) { byte.into() } else { 256 + (0..byte).filter(|&b| !printable(b)).count() as u32 };
    char::from_u32(code).expect("codes below 512 are letters")
}
