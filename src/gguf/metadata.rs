//! The keys and values of one file, in file order, with getters that check types and ranges.
//! Owns conversions between number widths; knows no key by name.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use crate::array::StrArray;
use crate::cursor::Cursor;
use crate::error::{Error, Place};
use crate::limits::{Limits, check_name};
use crate::value::{Array, Value, ValueType};

/// All metadata of one file.
///
/// The typed getters give `Ok(None)` for an absent key. Integers may have any width in the file as long as the value
/// fits; floats are f32, or f64 that an f32 can reach. Bools, numbers and strings never turn into one another.
/// # Errors
/// Of every typed getter: the value is of another type or out of range; the message names the key, what the file has,
/// and what was wanted. Of the `require_` ones also: the key is absent.
#[derive(Clone, Debug)]
pub struct Metadata<'a> {
    entries: Vec<(&'a str, Value<'a>)>,
    by_key: HashMap<&'a str, usize>,
}

impl<'a> Metadata<'a> {
    /// Keys and values in file order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&'a str, &Value<'a>)> {
        self.entries.iter().map(|(key, value)| (*key, value))
    }

    /// The number of keys.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there are no keys.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The value as the file has it.
    pub fn get(&self, key: &str) -> Option<&Value<'a>> {
        self.entry(key).map(|(_, value)| value)
    }

    /// See [`Metadata`] for conversions and errors, also for the getters below.
    #[allow(missing_docs)]
    pub fn u32(&self, key: &str) -> Result<Option<u32>, Error> {
        self.scalar(key, "u32", int)
    }

    /// An unsigned integer of 64 bits.
    pub fn u64(&self, key: &str) -> Result<Option<u64>, Error> {
        self.scalar(key, "u64", int)
    }

    /// A signed integer of 32 bits.
    pub fn i32(&self, key: &str) -> Result<Option<i32>, Error> {
        self.scalar(key, "i32", int)
    }

    /// A float, rounded when the file has f64. NaN and infinities pass.
    pub fn f32(&self, key: &str) -> Result<Option<f32>, Error> {
        self.scalar(key, "f32", float)
    }

    /// A truth value.
    pub fn bool(&self, key: &str) -> Result<Option<bool>, Error> {
        self.scalar(key, "bool", truth)
    }

    /// A string that is UTF-8.
    pub fn str(&self, key: &str) -> Result<Option<&'a str>, Error> {
        self.scalar(key, "UTF-8 string", |value| match value {
            Value::Str(s) => s.as_str().ok(),
            _ => None,
        })
    }

    /// [`Metadata::u32`] of a key that must be there.
    pub fn require_u32(&self, key: &str) -> Result<u32, Error> {
        require(key, "u32", self.u32(key)?)
    }

    /// [`Metadata::u64`] of a key that must be there.
    pub fn require_u64(&self, key: &str) -> Result<u64, Error> {
        require(key, "u64", self.u64(key)?)
    }

    /// [`Metadata::str`] of a key that must be there.
    pub fn require_str(&self, key: &str) -> Result<&'a str, Error> {
        require(key, "string", self.str(key)?)
    }

    /// An array of any element type.
    pub fn array(&self, key: &str) -> Result<Option<&Array<'a>>, Error> {
        match self.entry(key) {
            None => Ok(None),
            Some((_, Value::Array(array))) => Ok(Some(array)),
            Some((key, other)) => Err(Place::Key(key).rule(other.to_string(), "array")),
        }
    }

    /// An array of integers that all fit.
    pub fn u32_array(&self, key: &str) -> Result<Option<Vec<u32>>, Error> {
        self.vec(key, "u32", int)
    }

    /// An array of integers that all fit.
    pub fn i32_array(&self, key: &str) -> Result<Option<Vec<i32>>, Error> {
        self.vec(key, "i32", int)
    }

    /// An array of floats.
    pub fn f32_array(&self, key: &str) -> Result<Option<Vec<f32>>, Error> {
        self.vec(key, "f32", float)
    }

    /// An array of truth values.
    pub fn bool_array(&self, key: &str) -> Result<Option<Vec<bool>>, Error> {
        self.vec(key, "bool", truth)
    }

    /// An array of strings, as bytes that may not be UTF-8.
    pub fn str_array(&self, key: &str) -> Result<Option<StrArray<'a>>, Error> {
        let Some((key, value)) = self.entry(key) else { return Ok(None) };
        let strings = match value {
            Value::Array(array) => StrArray::new(key, *array),
            _ => None,
        };
        strings.map(Some).ok_or_else(|| Place::Key(key).rule(value.to_string(), "array of strings"))
    }

    /// Reads `n` pairs at the cursor.
    pub(crate) fn read(c: &mut Cursor<'a>, n: u64, limits: &Limits) -> Result<Metadata<'a>, Error> {
        c.place.limit("number of metadata keys", n, limits.max_keys)?;
        c.room_for(n, MIN_PAIR_BYTES, "metadata")?;
        let mut entries = Vec::with_capacity(n as usize);
        let mut by_key = HashMap::with_capacity(n as usize);
        for i in 0..n {
            c.place = Place::KeyNo(i);
            let key = check_name(c.string("key length", "key", limits.max_key_bytes)?, c.place)?;
            c.place = Place::Key(key);
            match by_key.entry(key) {
                Entry::Occupied(_) => return Err(c.place.duplicate()),
                Entry::Vacant(slot) => slot.insert(entries.len()),
            };
            let ty = ValueType::read(c)?;
            entries.push((key, Value::read(c, ty, 0, limits)?));
        }
        c.place = Place::Header;
        Ok(Metadata { entries, by_key })
    }

    fn entry(&self, key: &str) -> Option<&(&'a str, Value<'a>)> {
        self.by_key.get(key).map(|i| &self.entries[*i])
    }

    fn scalar<T>(
        &self,
        key: &str,
        expected: &'static str,
        convert: impl Fn(&Value<'a>) -> Option<T>,
    ) -> Result<Option<T>, Error> {
        let Some((key, value)) = self.entry(key) else { return Ok(None) };
        convert(value).map(Some).ok_or_else(|| Place::Key(key).rule(value.to_string(), expected))
    }

    fn vec<T>(
        &self,
        key: &str,
        expected: &'static str,
        convert: impl Fn(&Value<'a>) -> Option<T>,
    ) -> Result<Option<Vec<T>>, Error> {
        let Some((key, value)) = self.entry(key) else { return Ok(None) };
        let wanted = || format!("array of {expected}");
        let Value::Array(array) = value else {
            return Err(Place::Key(key).rule(value.to_string(), wanted()));
        };
        let convert = |(i, value)| {
            convert(&value).ok_or_else(|| Place::Key(key).rule(format!("element {i} is {value}"), wanted()))
        };
        array.iter().enumerate().map(convert).collect::<Result<_, _>>().map(Some)
    }
}

/// Keys and values that are in no file; of keys that are there twice the last counts.
impl<'a> FromIterator<(&'a str, Value<'a>)> for Metadata<'a> {
    fn from_iter<I: IntoIterator<Item = (&'a str, Value<'a>)>>(pairs: I) -> Metadata<'a> {
        let entries: Vec<_> = pairs.into_iter().collect();
        let by_key = entries.iter().enumerate().map(|(i, (key, _))| (*key, i)).collect();
        Metadata { entries, by_key }
    }
}

fn int<T: TryFrom<i128>>(value: &Value<'_>) -> Option<T> {
    T::try_from(value.as_int()?).ok()
}

fn float(value: &Value<'_>) -> Option<f32> {
    match *value {
        Value::F32(v) => Some(v),
        Value::F64(v) => Some(v as f32).filter(|narrow| narrow.is_infinite() == v.is_infinite()),
        _ => None,
    }
}

fn truth(value: &Value<'_>) -> Option<bool> {
    match *value {
        Value::Bool(v) => Some(v),
        _ => None,
    }
}

fn require<T>(key: &str, expected: &'static str, value: Option<T>) -> Result<T, Error> {
    value.ok_or_else(|| Error::MissingKey { place: Place::Key(key).to_string(), expected })
}

/// A length, a type and one byte of value; a key of no bytes is told by its own message.
const MIN_PAIR_BYTES: u64 = 8 + 4 + 1;
