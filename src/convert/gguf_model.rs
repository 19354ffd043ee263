//! A model on its way into a GGUF file: keys in order, tensors as plans, the files that they come from.
//! Owns the step from there to a [`Job`]; knows no key and no tensor by name, but for those of shards.

use std::path::PathBuf;

use gguf::{ArrayBuf, Metadata, TensorType, Value, Writer};

use crate::error::Error;
use crate::io::Input;
use crate::stream::{Job, TensorPlan};

/// Keys and tensors of a file to be.
#[derive(Debug)]
pub struct Model {
    /// In the order of the file.
    pub keys: Vec<(String, Key)>,
    /// In the order of the file.
    pub tensors: Vec<TensorPlan>,
    /// What the tensors are read from.
    pub inputs: Vec<Input>,
    /// Other files that were read for it: the output must not take the place of any.
    pub side_inputs: Vec<PathBuf>,
    /// Of the format: that of the source, or 3.
    pub version: u32,
}

/// A value that owns its data.
#[allow(missing_docs)]
#[derive(Clone, Debug, PartialEq)]
pub enum Key {
    U8(u8),
    I8(i8),
    U16(u16),
    I16(i16),
    U32(u32),
    I32(i32),
    U64(u64),
    I64(i64),
    F32(f32),
    F64(f64),
    Bool(bool),
    /// Bytes that need not be UTF-8.
    Str(Vec<u8>),
    Array(ArrayBuf),
}

impl Model {
    /// The value of a key.
    pub fn key(&self, name: &str) -> Option<&Key> {
        self.keys.iter().find(|(key, _)| key == name).map(|(_, value)| value)
    }

    /// Replaces a key where it stands, or adds it at the end.
    pub fn set(&mut self, name: &str, value: Key) {
        match self.keys.iter_mut().find(|(key, _)| key == name) {
            Some((_, old)) => *old = value,
            None => self.keys.push((name.to_owned(), value)),
        }
    }

    /// Removes a key and adds it at the end.
    pub fn set_last(&mut self, name: &str, value: Key) {
        self.keys.retain(|(key, _)| key != name);
        self.keys.push((name.to_owned(), value));
    }

    /// Bytes of all tensors in the file to be.
    pub fn n_bytes(&self) -> u64 {
        self.tensors.iter().map(|t| t.dtype.tensor_bytes(&padded(&t.ne)).unwrap_or(0)).sum()
    }

    /// Numbers and bits of the types that its tensors become, largest share first: how it is mixed.
    pub fn mix(&self) -> Vec<(TensorType, u64)> {
        let mut mix: Vec<(TensorType, u64)> = Vec::new();
        for t in &self.tensors {
            let n = t.dtype.tensor_bytes(&padded(&t.ne)).unwrap_or(0);
            match mix.iter_mut().find(|(dtype, _)| *dtype == t.dtype) {
                Some((_, sum)) => *sum += n,
                None => mix.push((t.dtype, n)),
            }
        }
        mix.sort_by_key(|(_, n)| std::cmp::Reverse(*n));
        mix
    }

    /// The work that makes the file. `options` is for what changes bytes without changing the header.
    ///
    /// # Errors
    /// The header would not be a GGUF header: a key twice, a shape that its type cannot have.
    pub fn into_job(self, options: String) -> Result<Job, Error> {
        let mut writer = Writer::in_memory();
        writer.set_version(self.version).map_err(Error::Header)?;
        for (key, value) in &self.keys {
            writer.add(key, value.value()).map_err(Error::Header)?;
        }
        for t in &self.tensors {
            writer.tensor(&t.name, &t.ne, t.dtype).map_err(Error::Header)?;
        }
        let layout = writer.layout().map_err(Error::Header)?;
        let Model { inputs, side_inputs, tensors, .. } = self;
        Ok(Job { inputs, side_inputs, tensors, layout, options })
    }
}

/// Owned keys as the metadata of a file.
pub(crate) fn metadata(keys: &[(String, Key)]) -> Metadata<'_> {
    keys.iter().map(|(key, value)| (key.as_str(), value.value())).collect()
}

/// A shape with all four dimensions.
fn padded(ne: &[u64]) -> [u64; 4] {
    let mut all = [1; 4];
    all[..ne.len().min(4)].copy_from_slice(&ne[..ne.len().min(4)]);
    all
}

impl Key {
    /// The number, if it is an integer of any width.
    pub fn as_u64(&self) -> Option<u64> {
        u64::try_from(self.value().as_int()?).ok()
    }
}

/// Both ways between owned and borrowed values: `plain` ones are copied.
macro_rules! owned {
    ($($plain:ident)*) => {
        impl Key {
            /// For the writer.
            pub fn value(&self) -> Value<'_> {
                match self {
                    $(Key::$plain(v) => (*v).into(),)*
                    Key::Str(v) => v.as_slice().into(),
                    Key::Array(v) => v.into(),
                }
            }
        }

        impl From<Value<'_>> for Key {
            fn from(value: Value<'_>) -> Key {
                match value {
                    $(Value::$plain(v) => Key::$plain(v),)*
                    Value::Str(v) => Key::Str(v.bytes().to_vec()),
                    Value::Array(v) => Key::Array(v.into()),
                }
            }
        }
    };
}

owned!(U8 I8 U16 I16 U32 I32 U64 I64 F32 F64 Bool);

impl From<&str> for Key {
    fn from(s: &str) -> Key {
        Key::Str(s.into())
    }
}
