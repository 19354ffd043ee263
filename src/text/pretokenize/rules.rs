//! The split rules that GGUF files can name: which patterns a rule runs one after another, and what else follows from
//! its name. Owns this table as data; how a pattern is run is for others to know.
//!
//! The names are those of `tokenizer.ggml.pre`. The patterns are those of the models' own `tokenizer.json`, also where
//! llama.cpp runs an adapted one (it has no letter cases beyond ASCII, and no marks): Tekken, GPT-4o, Tiny Aya, Youtu,
//! Kimi K2. `docs/measurements/vocabularies.md` counts what that changes.

use super::ranges::{
    BLOOM, CJK, CJK_AND_MORE, DEEPSEEK_LETTERS, DEEPSEEK_PUNCTUATION, SCRIPTS_WITHOUT_SPACES, YOUTU_SCRIPTS,
};

/// A split rule and what its models have in common.
#[derive(Debug)]
pub(crate) struct Rule {
    /// As `tokenizer.ggml.pre` gives it.
    pub(crate) names: &'static [&'static str],
    /// Each cuts the pieces of the one before it.
    pub(crate) patterns: &'static [&'static str],
    /// A word that is a token is taken whole, even where the merges lead elsewhere.
    pub(crate) whole_words: bool,
    /// Prompts start with BOS.
    pub(crate) bos: Bos,
    /// How tokens are spelled.
    pub(crate) spelling: Spelling,
    /// A run of line ends that is a token is taken whole.
    pub(crate) whole_line_ends: bool,
}

/// Whether prompts start with BOS.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Bos {
    /// Where the file asks for it.
    IfAsked,
    /// Unless the file says no.
    UnlessRefused,
    /// Whatever the file says: some files of Gemma 4 say no and are wrong.
    Always,
}

/// How the text of a normal token stands for bytes.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) enum Spelling {
    /// In the byte-level alphabet.
    #[default]
    ByteLevel,
    /// As itself, with U+2581 for a space; bytes without a character are `<0x0A>`.
    Spaces,
    /// As itself.
    Plain,
}

impl Rule {
    /// The rule of this name.
    pub(crate) fn by_name(name: &str) -> Option<&'static Self> {
        RULES.iter().find(|rule| rule.names.contains(&name))
    }

    const fn new(names: &'static [&'static str], patterns: &'static [&'static str]) -> Self {
        let (whole_words, bos, spelling) = (false, Bos::IfAsked, Spelling::ByteLevel);
        Self { names, patterns, whole_words, bos, spelling, whole_line_ends: false }
    }

    const fn whole_words(self) -> Self {
        Self { whole_words: true, ..self }
    }

    const fn bos(self, bos: Bos) -> Self {
        Self { bos, ..self }
    }

    const fn whole_line_ends(self) -> Self {
        Self { whole_line_ends: true, ..self }
    }

    const fn spelled(self, spelling: Spelling) -> Self {
        Self { spelling, ..self }
    }
}

/// All of them. Where several have the same patterns, the first one's name stands for them in a conversion.
pub(crate) const RULES: &[Rule] = &[
    Rule::new(&["qwen35"], &[QWEN35]),
    Rule::new(
        &["qwen2", "deepseek-r1-qwen", "kormo", "f2llmv2", "megrez", "stablelm2", "hunyuan", "solar-open", "grok-2"],
        &[QWEN2],
    ),
    Rule::new(
        &["llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2", "jina-v5-nano"],
        &[LLAMA3],
    )
    .whole_words()
    .bos(Bos::UnlessRefused),
    Rule::new(&["glm4", "glm5"], &[LLAMA3]).whole_words(),
    Rule::new(&["chatglm-bpe", "dbrx", "smaug-bpe"], &[LLAMA3]),
    Rule::new(&["minicpm5"], &[r"\p{N}{1,3}", LLAMA3_ALL_DIGITS]).whole_words(),
    Rule::new(&["jais-2"], &[JAIS2]),
    Rule::new(&["laguna"], &[NEWLINES, QWEN2]),
    Rule::new(&["seed-coder"], &[SEED_CODER]),
    Rule::new(&["ufakzeka"], &[UFAKZEKA]),
    Rule::new(&["bailingmoe", "bailingmoe2", "llada-moe"], &[BAILING]),
    Rule::new(&["exaone-moe"], &[EXAONE_MOE]),
    Rule::new(
        &[
            "gpt-2",
            "phi-2",
            "gigachat",
            "a.x-4.0",
            "mellum",
            "modern-bert",
            "jina-es",
            "jina-de",
            "jina-v2-es",
            "jina-v2-de",
            "jina-v1-en",
            "jina-v2-code",
            "roberta-bpe",
            "mpt",
            "olmo",
            "jais",
            "trillion",
            "granite-docling",
            "exaone4",
        ],
        &[GPT2],
    ),
    Rule::new(
        &["starcoder", "refact", "command-r", "smollm", "codeshell", "exaone", "minerva-7b", "mellum2"],
        &[r"\p{N}", GPT2],
    ),
    Rule::new(&["falcon"], &[r"[\p{P}\$\+<=>\^~\|`]+", GPT2, "[0-9][0-9][0-9]"]),
    Rule::new(&["default"], &[r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", "[0-9][0-9][0-9]"]),
    Rule::new(
        &["chameleon"],
        &[
            "<sentinel:[0-9]+>",
            "(IMGIMG)((A|B|C|D|E|F|G|H|I){1,4})Z",
            r"([\t\n]|    |  )",
            r"\p{N}",
            r"[\p{P}!-/:-@\[-`{-~]",
            GPT2,
        ],
    )
    .bos(Bos::UnlessRefused),
    Rule::new(
        &["deepseek-llm"],
        &[r"[\r\n]", DEEPSEEK_LETTERS, DEEPSEEK_PUNCTUATION, r"\s+$", CJK_AND_MORE, r"\p{N}+"],
    ),
    Rule::new(&["deepseek-coder"], &[r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", CJK_AND_MORE, r"\p{N}"]),
    Rule::new(&["deepseek-v3", "hunyuan-dense", "joyai-llm", "hy_v4"], &[r"\p{N}{1,3}", CJK, DEEPSEEK3]),
    Rule::new(&["spark2_5"], &[r"\p{N}{1,3}", CJK, SPARK, r"\p{N}"]),
    Rule::new(&["afmoe"], &[AFMOE_DIGITS, SCRIPTS_WITHOUT_SPACES, AFMOE]),
    Rule::new(&["poro-chat", "bloom", "gpt3-finnish"], &[BLOOM]),
    Rule::new(&["viking"], &[BLOOM, r"\p{N}"]),
    Rule::new(&["tekken"], &[TEKKEN]).whole_words().bos(Bos::UnlessRefused),
    Rule::new(&["gpt-4o", "llama4", "kanana2", "talkie", "minimax-m2"], &[GPT4O]),
    Rule::new(&["granite-embed-multi-97m"], &[GPT4O]).whole_words(),
    Rule::new(&["tiny_aya", "cohere2moe"], &[TINY_AYA_DIGITS, GPT4O]),
    Rule::new(&["youtu"], &[YOUTU_SCRIPTS, YOUTU]).whole_words(),
    Rule::new(&["kimi-k2"], &[KIMI]),
    Rule::new(&["superbpe"], &[r"\p{N}+", SUPERBPE_DIGITS]),
    Rule::new(&["gemma4", "granite-embed-multi-311m"], &[NEWLINES])
        .spelled(Spelling::Spaces)
        .whole_line_ends()
        .bos(Bos::Always),
    Rule::new(&["sarvam-moe"], &[NEWLINES]).spelled(Spelling::Spaces),
    Rule::new(&["whitespace"], &[r"\S+"]).spelled(Spelling::Plain),
];

/// GPT-2 and most of what came before Llama 3.
pub(super) const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";
/// Llama 3: contractions in any case, digits by three.
pub(super) const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// Qwen2: as Llama 3, one digit at a time.
pub(super) const QWEN2: &str =
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// Qwen3.5: as Qwen2, and combining marks belong to words.
pub(super) const QWEN35: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const LLAMA3_ALL_DIGITS: &str =
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}+| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const JAIS2: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s{512}(?!\S)|\s{256}(?!\S)|\s{128}(?!\S)|\s{64}(?!\S)|\s{32}(?!\S)|\s{16}(?!\S)|\s{8}(?!\S)|\s{4}(?!\S)|\s{1,2}(?!\S)|\s{1}";
const SEED_CODER: &str =
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+";
/// Without contractions: Turkish suffixes follow an apostrophe.
const UFAKZEKA: &str = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// Published with the possessive `?+` and `++`, which change nothing: the classes beside each other are disjoint.
const BAILING: &str =
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+";
const EXAONE_MOE: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+";
const DEEPSEEK3: &str = r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"##;
const AFMOE: &str = DEEPSEEK3;
const SPARK: &str = r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+|[\r\n]|\s+(?!\S)|\s+"##;
const TEKKEN: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const GPT4O: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const YOUTU: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const KIMI: &str = r"[\p{Han}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// Lines and what is between them: for vocabularies whose merges go across words.
pub(super) const NEWLINES: &str = r"[^\n]+|[\n]+";
/// Digits by three, from the last one on.
pub(super) const AFMOE_DIGITS: &str = r"\p{N}{1,3}(?=(?:\p{N}{3})*(?!\p{N}))";
/// As AFMoE's, only where no letter follows the digits.
pub(super) const TINY_AYA_DIGITS: &str = r"\d{1,3}(?=(?:\d{3})*\b)";
/// Cuts before each group of three that ends with the last digit.
pub(super) const SUPERBPE_DIGITS: &str = r"(?=(\d{3})+(?!\d))";
