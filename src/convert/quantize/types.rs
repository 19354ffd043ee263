//! The types that a whole file can have, by name and by the number in `general.file_type`.

use std::fmt;
use std::str::FromStr;

use gguf::TensorType;

macro_rules! file_types {
    ($($variant:ident = $id:literal, $base:ident;)*) => {
        /// What most tensors of a file are; those that end in a letter for a size mix several types.
        #[allow(non_camel_case_types, missing_docs)]
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum FileType { $($variant,)* }

        impl FileType {
            /// All of them.
            pub const ALL: &'static [FileType] = &[$(FileType::$variant,)*];

            /// The number that `general.file_type` has in llama.cpp's files.
            pub fn id(self) -> u32 {
                match self { $(FileType::$variant => $id,)* }
            }

            /// The type of tensors to which no other rule applies.
            pub fn base(self) -> TensorType {
                match self { $(FileType::$variant => TensorType::$base,)* }
            }

            fn spelling(self) -> &'static str {
                match self { $(FileType::$variant => stringify!($variant),)* }
            }
        }
    };
}

file_types! {
    F32 = 0, F32;
    F16 = 1, F16;
    BF16 = 32, BF16;
    Q8_0 = 7, Q8_0;
    Q6_K = 18, Q6_K;
    Q5_K_M = 17, Q5_K;
    Q5_K_S = 16, Q5_K;
    Q5_1 = 9, Q5_1;
    Q5_0 = 8, Q5_0;
    Q4_K_M = 15, Q4_K;
    Q4_K_S = 14, Q4_K;
    IQ4_NL = 25, IQ4_NL;
    IQ4_XS = 30, IQ4_XS;
    Q4_1 = 3, Q4_1;
    Q4_0 = 2, Q4_0;
    Q3_K_L = 13, Q3_K;
    Q3_K_M = 12, Q3_K;
    Q3_K_S = 11, Q3_K;
    Q2_K = 10, Q2_K;
}

impl FileType {
    /// Whether it is made of blocks with scales.
    pub fn is_quantized(self) -> bool {
        self.base().block_size() > 1
    }
}

impl fmt::Display for FileType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.spelling())
    }
}

impl FromStr for FileType {
    type Err = String;

    fn from_str(s: &str) -> Result<FileType, String> {
        let found = FileType::ALL.iter().find(|t| t.spelling().eq_ignore_ascii_case(s));
        found.copied().ok_or_else(|| {
            let all: Vec<String> = FileType::ALL.iter().map(|t| t.spelling().to_lowercase()).collect();
            format!("{s:?} is no file type; one of {} expected", all.join(", "))
        })
    }
}

/// A type for single tensors by its name, in any case: one that can be made here.
///
/// # Errors
/// In words: there is no such type.
pub fn tensor_type(s: &str) -> Result<TensorType, String> {
    let makes = |t: &TensorType| ggml::Dtype::from_id(t.id()).is_ok_and(ggml::Dtype::can_be_packed);
    let mut known = TensorType::ALL.iter().copied().filter(makes);
    match known.clone().find(|t| t.name().eq_ignore_ascii_case(s)) {
        Some(t) => Ok(t),
        None => {
            let all: Vec<String> = known.by_ref().map(|t| t.name().to_lowercase()).collect();
            Err(format!("{s:?} is no type of tensors that can be made; one of {} expected", all.join(", ")))
        }
    }
}
