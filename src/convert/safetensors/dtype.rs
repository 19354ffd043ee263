//! The element types of safetensors files, with their sizes.

use std::fmt;

macro_rules! dtypes {
    ($($variant:ident = $name:literal, $bits:literal;)*) => {
        /// How the elements of a tensor are stored; spelled as in the files.
        #[allow(non_camel_case_types, missing_docs)]
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Dtype { $($variant,)* }

        impl Dtype {
            /// None for a name that is not known.
            pub fn from_name(name: &str) -> Option<Dtype> {
                match name { $($name => Some(Dtype::$variant),)* _ => None }
            }

            /// The name in the files.
            pub fn name(self) -> &'static str {
                match self { $(Dtype::$variant => $name,)* }
            }

            /// Bits of one element.
            pub fn bits(self) -> u64 {
                match self { $(Dtype::$variant => $bits,)* }
            }
        }
    };
}

dtypes! {
    F64 = "F64", 64;
    F32 = "F32", 32;
    F16 = "F16", 16;
    BF16 = "BF16", 16;
    F8_E4M3 = "F8_E4M3", 8;
    F8_E5M2 = "F8_E5M2", 8;
    F8_E8M0 = "F8_E8M0", 8;
    F6_E2M3 = "F6_E2M3", 6;
    F6_E3M2 = "F6_E3M2", 6;
    F4 = "F4", 4;
    I64 = "I64", 64;
    I32 = "I32", 32;
    I16 = "I16", 16;
    I8 = "I8", 8;
    U64 = "U64", 64;
    U32 = "U32", 32;
    U16 = "U16", 16;
    U8 = "U8", 8;
    BOOL = "BOOL", 8;
    C64 = "C64", 64;
}

impl fmt::Display for Dtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
