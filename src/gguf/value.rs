//! Metadata values with their exact types, and arrays of them, which are walked once for bounds when the header is read.
//! Owns the value types' ids and the encoding of one value; knows nothing of keys.

use crate::cursor::Cursor;
use crate::error::{Error, quoted};
use crate::limits::Limits;

/// Makes the types of values, and what follows from each, of one list: number in the file, name as ggml spells it (but for
/// `arr`), the value, and bytes of one element; of strings and arrays the least they can take: a length, or a type and a
/// length.
macro_rules! value_types {
    ($($variant:ident = $id:literal $name:literal $value:ty, $min_bytes:literal;)*) => {
        /// A metadata value as the file has it; converting is left to the getters of [`crate::Metadata`].
        #[derive(Clone, Copy, Debug, PartialEq)]
        #[allow(missing_docs)]
        pub enum Value<'a> {
            $($variant($value),)*
        }

        /// The types a value can have, numbered as in the file.
        #[allow(missing_docs)]
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u32)]
        pub enum ValueType {
            $($variant = $id,)*
        }

        const ALL: [ValueType; 13] = [$(ValueType::$variant,)*];

        impl ValueType {
            /// As ggml spells it, but for `arr`.
            pub fn name(self) -> &'static str {
                match self {
                    $(ValueType::$variant => $name,)*
                }
            }

            /// Bytes of one element, at least.
            pub(crate) fn min_bytes(self) -> u64 {
                match self {
                    $(ValueType::$variant => $min_bytes,)*
                }
            }
        }

        impl Value<'_> {
            /// The type it has in the file.
            pub fn value_type(&self) -> ValueType {
                match self {
                    $(Value::$variant(_) => ValueType::$variant,)*
                }
            }
        }
    };
}

value_types! {
    U8 = 0 "u8" u8, 1;
    I8 = 1 "i8" i8, 1;
    U16 = 2 "u16" u16, 2;
    I16 = 3 "i16" i16, 2;
    U32 = 4 "u32" u32, 4;
    I32 = 5 "i32" i32, 4;
    F32 = 6 "f32" f32, 4;
    Bool = 7 "bool" bool, 1;
    Str = 8 "string" GgufStr<'a>, 8;
    Array = 9 "array" Array<'a>, 12;
    U64 = 10 "u64" u64, 8;
    I64 = 11 "i64" i64, 8;
    F64 = 12 "f64" f64, 8;
}

/// Bytes that the file calls a string; not always UTF-8 (tokens of byte-level vocabularies may be cut characters).
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct GgufStr<'a>(pub(crate) &'a [u8]);

impl ValueType {
    /// None for numbers that the format has not given.
    pub fn from_id(id: u32) -> Option<ValueType> {
        ALL.get(id as usize).copied()
    }

    /// The number in the file.
    pub fn id(self) -> u32 {
        self as u32
    }

    pub(crate) fn read(c: &mut Cursor<'_>) -> Result<ValueType, Error> {
        let id = c.u32("value type")?;
        ValueType::from_id(id).ok_or_else(|| c.place.rule(format!("value type {id}"), "0 to 12"))
    }
}

impl<'a> Value<'a> {
    /// An integer of any width; None for everything else, bools included.
    pub fn as_int(&self) -> Option<i128> {
        Some(match *self {
            Value::U8(v) => v.into(),
            Value::I8(v) => v.into(),
            Value::U16(v) => v.into(),
            Value::I16(v) => v.into(),
            Value::U32(v) => v.into(),
            Value::I32(v) => v.into(),
            Value::U64(v) => v.into(),
            Value::I64(v) => v.into(),
            _ => return None,
        })
    }

    /// Reads and checks a value of type `ty`; array elements are walked, not kept. `depth` counts the arrays around it.
    pub(crate) fn read(c: &mut Cursor<'a>, ty: ValueType, depth: u32, limits: &Limits) -> Result<Value<'a>, Error> {
        const WHAT: &str = "value";
        Ok(match ty {
            ValueType::U8 => Value::U8(u8::from_le_bytes(c.array(WHAT)?)),
            ValueType::I8 => Value::I8(i8::from_le_bytes(c.array(WHAT)?)),
            ValueType::U16 => Value::U16(u16::from_le_bytes(c.array(WHAT)?)),
            ValueType::I16 => Value::I16(i16::from_le_bytes(c.array(WHAT)?)),
            ValueType::U32 => Value::U32(u32::from_le_bytes(c.array(WHAT)?)),
            ValueType::I32 => Value::I32(i32::from_le_bytes(c.array(WHAT)?)),
            ValueType::F32 => Value::F32(f32::from_le_bytes(c.array(WHAT)?)),
            ValueType::U64 => Value::U64(u64::from_le_bytes(c.array(WHAT)?)),
            ValueType::I64 => Value::I64(i64::from_le_bytes(c.array(WHAT)?)),
            ValueType::F64 => Value::F64(f64::from_le_bytes(c.array(WHAT)?)),
            ValueType::Bool => match c.array(WHAT)? {
                [0] => Value::Bool(false),
                [1] => Value::Bool(true),
                [other] => return Err(c.place.rule(format!("bool {other}"), "0 or 1")),
            },
            ValueType::Str => Value::Str(GgufStr(c.string("string length", "string", limits.max_string_bytes)?)),
            ValueType::Array => Value::Array(Array::read(c, depth + 1, limits)?),
        })
    }

    /// Appends the value as it stands in a file after its type.
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        match *self {
            Value::U8(v) => out.push(v),
            Value::I8(v) => out.extend(v.to_le_bytes()),
            Value::U16(v) => out.extend(v.to_le_bytes()),
            Value::I16(v) => out.extend(v.to_le_bytes()),
            Value::U32(v) => out.extend(v.to_le_bytes()),
            Value::I32(v) => out.extend(v.to_le_bytes()),
            Value::F32(v) => out.extend(v.to_le_bytes()),
            Value::Bool(v) => out.push(v.into()),
            Value::U64(v) => out.extend(v.to_le_bytes()),
            Value::I64(v) => out.extend(v.to_le_bytes()),
            Value::F64(v) => out.extend(v.to_le_bytes()),
            Value::Str(s) => s.encode(out),
            Value::Array(a) => a.encode(out),
        }
    }
}

/// An array as bytes of the file, already checked: every element decodes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Array<'a> {
    pub(crate) elem: ValueType,
    pub(crate) len: usize,
    pub(crate) bytes: &'a [u8],
}

impl<'a> Array<'a> {
    /// The type all elements have.
    pub fn elem_type(&self) -> ValueType {
        self.elem
    }

    /// The number of elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The elements as the file has them, without the type and length in front.
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// Checks every element against the bytes left and against `limits`, allocating nothing.
    pub(crate) fn read(c: &mut Cursor<'a>, depth: u32, limits: &Limits) -> Result<Array<'a>, Error> {
        c.place.limit("array depth", depth.into(), limits.max_depth.into())?;
        let elem = ValueType::read(c)?;
        let n = c.u64("array length")?;
        c.place.limit("array length", n, limits.max_array_len)?;
        c.room_for(n, elem.min_bytes(), "array")?;
        let start = c.pos();
        match elem {
            ValueType::Str => {
                for _ in 0..n {
                    c.string("string length", "string in an array", limits.max_string_bytes)?;
                }
            }
            ValueType::Array => {
                for _ in 0..n {
                    Array::read(c, depth + 1, limits)?;
                }
            }
            ValueType::Bool => {
                if let Some(other) = c.take(n, "array")?.iter().find(|b| **b > 1) {
                    return Err(c.place.rule(format!("bool {other} in an array"), "0 or 1"));
                }
            }
            _ => {
                c.take(n * elem.min_bytes(), "array")?;
            }
        }
        // Every element took at least a byte of a slice, so the count fits a usize.
        Ok(Array { elem, len: n as usize, bytes: c.since(start) })
    }

    pub(crate) fn encode(self, out: &mut Vec<u8>) {
        out.extend(self.elem.id().to_le_bytes());
        out.extend((self.len as u64).to_le_bytes());
        out.extend(self.bytes);
    }
}

/// Type and value in a few words: `u32 7`, `string "qwen35"`, `array of 3 f32`.
impl std::fmt::Display for Value<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let ty = self.value_type().name();
        match self {
            Value::U8(v) => write!(f, "{ty} {v}"),
            Value::I8(v) => write!(f, "{ty} {v}"),
            Value::U16(v) => write!(f, "{ty} {v}"),
            Value::I16(v) => write!(f, "{ty} {v}"),
            Value::U32(v) => write!(f, "{ty} {v}"),
            Value::I32(v) => write!(f, "{ty} {v}"),
            Value::F32(v) => write!(f, "{ty} {v}"),
            Value::Bool(v) => write!(f, "{ty} {v}"),
            Value::U64(v) => write!(f, "{ty} {v}"),
            Value::I64(v) => write!(f, "{ty} {v}"),
            Value::F64(v) => write!(f, "{ty} {v}"),
            Value::Str(v) => write!(f, "{ty} {v:?}"),
            Value::Array(v) => write!(f, "{ty} of {} {}", v.len(), v.elem_type().name()),
        }
    }
}

impl<'a> GgufStr<'a> {
    /// As in the file.
    pub fn bytes(self) -> &'a [u8] {
        self.0
    }

    /// # Errors
    /// The bytes are not UTF-8.
    pub fn as_str(self) -> Result<&'a str, std::str::Utf8Error> {
        std::str::from_utf8(self.0)
    }

    pub(crate) fn encode(self, out: &mut Vec<u8>) {
        out.extend((self.0.len() as u64).to_le_bytes());
        out.extend(self.0);
    }
}

impl<'a> From<&'a str> for GgufStr<'a> {
    fn from(s: &'a str) -> GgufStr<'a> {
        GgufStr(s.as_bytes())
    }
}

/// Quoted, escaped and cut.
impl std::fmt::Debug for GgufStr<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&quoted(self.0))
    }
}

macro_rules! from {
    ($($from:ty => |$v:ident| $value:expr;)*) => {
        $(impl<'a> From<$from> for Value<'a> {
            fn from($v: $from) -> Value<'a> { $value }
        })*
    };
}

from! {
    u8 => |v| Value::U8(v);
    i8 => |v| Value::I8(v);
    u16 => |v| Value::U16(v);
    i16 => |v| Value::I16(v);
    u32 => |v| Value::U32(v);
    i32 => |v| Value::I32(v);
    f32 => |v| Value::F32(v);
    bool => |v| Value::Bool(v);
    u64 => |v| Value::U64(v);
    i64 => |v| Value::I64(v);
    f64 => |v| Value::F64(v);
    &'a str => |v| Value::Str(GgufStr(v.as_bytes()));
    &'a [u8] => |v| Value::Str(GgufStr(v));
    Array<'a> => |v| Value::Array(v);
}
