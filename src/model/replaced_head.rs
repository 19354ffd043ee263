//! Another head's numbers in the place of those that a model drafts with, while it is in use.
//! Owns whether a file has all that may change, as it has to be. Knows nothing of who made the file.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use ggml::{Mapping, WeightId};
use gguf::{Header, TensorInfo, TensorType};

use crate::arch;
use crate::error::LoadError;
use crate::head_file::{head_keys, refused};
use crate::load::map_shards;
use crate::model::Model;
use crate::tensors::{trimmed, weight_type};

impl Model {
    /// True when it was opened with [`crate::LoadOptions::replaceable_head`], and its head is one whose numbers can be replaced.
    pub fn can_replace_head(&self) -> bool {
        self.weights().replaceable().next().is_some()
    }

    /// Drafts with the numbers of another head from the next pass on: a file with a head for this model, all of whose tensors have
    /// the types and shapes of those in use. Drafts are verified, so replies stay what they are. Entries of sequences that the
    /// former head computed stay as well.
    ///
    /// # Errors
    /// [`LoadError`], and nothing has changed: no GGUF file with a head for this model; a tensor is missing, of another type or
    /// shape, or holds numbers that are not finite.
    pub fn replace_head(&self, path: &Path) -> Result<(), LoadError> {
        let maps = map_shards(path)?;
        let header = Header::parse(maps[0].bytes())?;
        let of_model = self.weights().mappings().first().ok_or_else(|| refused("the model has no file"))?;
        let model = Header::parse(of_model.bytes())?;
        let name = model.metadata().require_str("general.architecture")?;
        head_keys(header.metadata(), model.metadata(), name, self.rope, arch::drafts_for)?;
        self.take_numbers(&maps)
    }

    /// Drafts with the numbers again that its head was opened with.
    ///
    /// # Errors
    /// As [`Model::replace_head`]: the file has changed since.
    pub fn restore_head(&self) -> Result<(), LoadError> {
        let [n_model, n_head] = self.n_files;
        let of_head = if n_head > 0 { n_model..n_model + n_head } else { 0..n_model };
        self.take_numbers(self.weights().mappings().get(of_head).unwrap_or_default())
    }

    fn take_numbers(&self, maps: &[Arc<Mapping>]) -> Result<(), LoadError> {
        let headers = maps.iter().map(|map| Header::parse(map.bytes())).collect::<Result<Vec<_>, _>>()?;
        let mut tensors: HashMap<&str, (&TensorInfo<'_>, &Mapping)> = HashMap::new();
        for (header, map) in headers.iter().zip(maps) {
            tensors.extend(header.tensors().iter().map(|t| (t.name, (t, &**map))));
        }
        let mut new: Vec<(WeightId, &[u8])> = Vec::new();
        for id in self.weights().replaceable() {
            let name = self.weights().name(id).unwrap_or_default();
            let (t, map) = *tensors.get(name).ok_or_else(|| LoadError::Missing(name.to_owned()))?;
            new.push((id, self.numbers_for(id, name, t, map)?));
        }
        if new.is_empty() {
            return Err(refused("the model was opened with a head that stays as it is"));
        }
        Ok(self.weights().replace(&new)?)
    }

    /// The bytes of a tensor of `map` that may take the place of `id`'s.
    fn numbers_for<'m>(
        &self,
        id: WeightId,
        name: &str,
        t: &TensorInfo<'_>,
        map: &'m Mapping,
    ) -> Result<&'m [u8], LoadError> {
        let wrong = |what: String| LoadError::Tensor { name: name.to_owned(), what };
        let dtype = weight_type(t.dtype).map_err(wrong)?;
        if let (Some(of), Some(ne)) = (self.weights().dtype(id), self.weights().ne(id))
            && (of, ne) != (dtype, t.ne.map(|n| n as i64))
        {
            let (ne, found) = (ne.map(|n| n as u64), trimmed(&t.ne));
            return Err(wrong(format!("{of} {:?} expected, {dtype} {found:?} found", trimmed(&ne))));
        }
        let bytes = map.bytes().get(t.range()).ok_or_else(|| wrong("its bytes lie outside the file".into()))?;
        match t.dtype == TensorType::F32 && !all_finite(bytes) {
            true => Err(wrong("some of its numbers are not finite".into())),
            false => Ok(bytes),
        }
    }
}

fn all_finite(bytes: &[u8]) -> bool {
    bytes.as_chunks::<4>().0.iter().all(|bytes| f32::from_le_bytes(*bytes).is_finite())
}
