//! The elements of arrays: decoded only when iterated, and collected into arrays to write.
//! Knows nothing of keys, but for naming one in a message.

use crate::cursor::Cursor;
use crate::error::{Error, Place};
use crate::limits::Limits;
use crate::value::{Array, GgufStr, Value, ValueType};

impl<'a> Array<'a> {
    /// Decodes one element per step.
    pub fn iter(&self) -> ArrayIter<'a> {
        ArrayIter { elem: self.elem, left: self.len, c: Cursor::new(self.bytes) }
    }
}

impl std::fmt::Debug for Array<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.iter().take(8)).finish_non_exhaustive()
    }
}

impl<'a> IntoIterator for Array<'a> {
    type Item = Value<'a>;
    type IntoIter = ArrayIter<'a>;
    fn into_iter(self) -> ArrayIter<'a> {
        self.iter()
    }
}

/// The elements of an [`Array`], in order.
#[derive(Clone, Debug)]
pub struct ArrayIter<'a> {
    elem: ValueType,
    left: usize,
    c: Cursor<'a>,
}

impl<'a> Iterator for ArrayIter<'a> {
    type Item = Value<'a>;

    fn next(&mut self) -> Option<Value<'a>> {
        self.left = self.left.checked_sub(1)?;
        let value = Value::read(&mut self.c, self.elem, 0, &Limits::NONE);
        Some(value.expect("an Array is made only from bytes that were walked or encoded here"))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left, Some(self.left))
    }
}

impl ExactSizeIterator for ArrayIter<'_> {}

/// An array whose elements are strings.
#[derive(Clone, Copy, Debug)]
pub struct StrArray<'a> {
    key: &'a str,
    array: Array<'a>,
}

impl<'a> StrArray<'a> {
    /// None when the elements are of another type.
    pub(crate) fn new(key: &'a str, array: Array<'a>) -> Option<StrArray<'a>> {
        (array.elem == ValueType::Str).then_some(StrArray { key, array })
    }

    /// The number of strings.
    pub fn len(&self) -> usize {
        self.array.len
    }

    /// Whether there are no strings.
    pub fn is_empty(&self) -> bool {
        self.array.is_empty()
    }

    /// The bytes of each string, in order. Finding the n-th means walking: keep them in a Vec for random access.
    pub fn iter(&self) -> StrIter<'a> {
        StrIter { left: self.array.len, c: Cursor::new(self.array.bytes) }
    }

    /// Each string as text; an element that is not UTF-8 is an error that names the key and the index.
    pub fn iter_str(&self) -> impl ExactSizeIterator<Item = Result<&'a str, Error>> + use<'a> {
        let key = self.key;
        self.iter().enumerate().map(move |(i, bytes)| {
            std::str::from_utf8(bytes)
                .map_err(|_| Place::Key(key).rule(format!("element {i} {:?}", GgufStr(bytes)), "UTF-8"))
        })
    }
}

/// The strings of a [`StrArray`], as bytes.
#[derive(Clone, Debug)]
pub struct StrIter<'a> {
    left: usize,
    c: Cursor<'a>,
}

impl<'a> Iterator for StrIter<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        self.left = self.left.checked_sub(1)?;
        Some(
            self.c
                .string("string length", "string", u64::MAX)
                .expect("a StrArray is made only from strings that were walked"),
        )
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left, Some(self.left))
    }
}

impl ExactSizeIterator for StrIter<'_> {}

/// An array to write: `[1u32, 2].into_iter().collect::<ArrayBuf>()`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArrayBuf {
    elem: ValueType,
    len: usize,
    bytes: Vec<u8>,
}

impl ArrayBuf {
    /// The same array, borrowed, as a reader would give it.
    pub fn as_array(&self) -> Array<'_> {
        Array { elem: self.elem, len: self.len, bytes: &self.bytes }
    }
}

impl<'a> From<&'a ArrayBuf> for Value<'a> {
    fn from(array: &'a ArrayBuf) -> Value<'a> {
        Value::Array(array.as_array())
    }
}

impl From<Array<'_>> for ArrayBuf {
    fn from(array: Array<'_>) -> ArrayBuf {
        ArrayBuf { elem: array.elem, len: array.len, bytes: array.bytes.to_vec() }
    }
}

/// What can be an element of an [`ArrayBuf`]: every type that a [`Value`] can be made of.
pub trait Element<'a>: Into<Value<'a>> {
    /// The type in the file, also of an empty array.
    const TYPE: ValueType;
}

impl<'a, T: Element<'a>> FromIterator<T> for ArrayBuf {
    fn from_iter<I: IntoIterator<Item = T>>(items: I) -> ArrayBuf {
        let mut array = ArrayBuf { elem: T::TYPE, len: 0, bytes: Vec::new() };
        for item in items {
            item.into().encode(&mut array.bytes);
            array.len += 1;
        }
        array
    }
}

macro_rules! elements {
    ($($ty:ty => $value_type:ident),* $(,)?) => {
        $(impl<'a> Element<'a> for $ty { const TYPE: ValueType = ValueType::$value_type; })*
    };
}

elements! {
    u8 => U8, i8 => I8, u16 => U16, i16 => I16, u32 => U32, i32 => I32, u64 => U64, i64 => I64,
    f32 => F32, f64 => F64, bool => Bool, &'a str => Str, &'a [u8] => Str, Array<'a> => Array,
}
