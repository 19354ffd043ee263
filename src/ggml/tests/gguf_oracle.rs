//! ggml's own reader and type table as the judge of the crate `gguf`: same answers, same refusals, same bytes.
//! The differences that `gguf` documents are listed in `stricter` and nowhere else.

#[path = "../../gguf/tests/support/mod.rs"]
mod support;

use std::ffi::{CStr, c_char, c_void};
use std::ptr::{self, NonNull};

use ggml_sys as sys;
use gguf::{Array, Error, Header, TensorType, Value, ValueType};
use support::{Damage, attacks, good_files, rewrite};

const SEED: u64 = 0x6767_6d6c_2026_0001;
const N: usize = 3_000;

#[test]
fn types_have_the_names_and_sizes_of_ggml() {
    let mut n_known = 0;
    for id in 0..sys::GGML_TYPE_COUNT {
        // SAFETY: an index into a constant table; `id` is below its length.
        let block = unsafe { sys::ggml_blck_size(id) } as u64;
        // SAFETY: as above.
        let bytes = unsafe { sys::ggml_type_size(id) } as u64;
        let Some(ours) = TensorType::from_id(id) else {
            assert_eq!(block, 0, "ggml has a type {id} that gguf does not know");
            continue;
        };
        n_known += 1;
        // SAFETY: as above.
        let name = text(unsafe { sys::ggml_type_name(id) });
        assert_eq!((ours.name().as_bytes(), ours.block_size(), ours.type_size()), (name, block, bytes), "type {id}");
    }
    assert_eq!(n_known, TensorType::ALL.len(), "gguf has types that ggml does not know");
}

#[test]
fn ggml_reads_the_same_from_good_files_and_writes_the_same_header() {
    quiet();
    for (name, bytes) in good_files() {
        let header = Header::parse(&bytes).expect(name);
        let again = rewrite(&bytes, &header).expect(name);
        let theirs = Theirs::parse(&again).expect(name);
        let header = Header::parse(&again).expect(name);
        same(name, &header, &theirs);
        // ggml drops trailing dimensions of 1, makes a scalar one-dimensional, and always writes version 3.
        let canonical =
            header.version() == 3 && header.tensors().iter().all(|t| t.n_dims > 0 && t.dims().last() != Some(&1));
        if canonical {
            let start = if header.tensors().is_empty() { again.len() } else { header.data_start() as usize };
            assert!(theirs.header() == again[..start], "{name}: ggml writes another header");
        }
    }
}

#[test]
fn ggml_and_gguf_refuse_the_same_attacks() {
    quiet();
    for (name, bytes) in attacks() {
        judge(name, &bytes);
    }
}

#[test]
fn ggml_and_gguf_agree_on_damaged_files() {
    quiet();
    println!("seed {SEED:#x}");
    let mut damage = Damage::new(SEED);
    let mut verdicts = [0; 4];
    for i in 0..N {
        verdicts[judge(&format!("file {i}"), &damage.file()) as usize] += 1;
    }
    println!("both read, both refuse, only gguf refuses, only ggml refuses: {verdicts:?} of {N}");
    assert!(
        verdicts[0] > 100 && verdicts[1] > 100,
        "{verdicts:?}: the damage is too small or too large to tell anything"
    );
}

#[derive(Clone, Copy)]
enum Verdict {
    BothRead,
    BothRefuse,
    OnlyOursRefuses,
    OnlyTheirsRefuses,
}

/// Compares all that both read; a difference in refusing must be one of the documented ones.
fn judge(name: &str, bytes: &[u8]) -> Verdict {
    match (Header::parse(bytes), Theirs::parse(bytes)) {
        (Ok(ours), Some(theirs)) => {
            same(name, &ours, &theirs);
            Verdict::BothRead
        }
        (Err(_), None) => Verdict::BothRefuse,
        (Err(error), Some(_)) => {
            assert!(stricter(&error), "{name}: ggml reads it, gguf says: {error}");
            Verdict::OnlyOursRefuses
        }
        (Ok(ours), None) => {
            let nested = |v: &Value<'_>| matches!(v, Value::Array(a) if a.elem_type() == ValueType::Array);
            assert!(ours.metadata().iter().any(|(_, v)| nested(v)), "{name}: ggml refuses it, gguf does not");
            Verdict::OnlyTheirsRefuses
        }
    }
}

/// Where `gguf` is stricter on purpose; its crate page has the same list.
fn stricter(error: &Error) -> bool {
    match error {
        Error::DataMissing { .. } => true,
        Error::Limit { what, .. } => {
            matches!(*what, "number of tensors" | "number of metadata keys" | "key length" | "array depth")
        }
        Error::Rule { place, found, expected } => {
            expected == "UTF-8"
                || found.ends_with("with a NUL byte")
                || found.starts_with("bool ")
                || (found == "empty name" && place.starts_with("tensor"))
        }
        _ => false,
    }
}

fn same(name: &str, ours: &Header<'_>, theirs: &Theirs) {
    assert_eq!((ours.version(), ours.alignment(), ours.data_start()), theirs.layout(), "{name}");
    assert_eq!(ours.metadata().len(), theirs.n_keys(), "{name}");
    for (id, (key, value)) in (0..).zip(ours.metadata().iter()) {
        // A C string ends at the first zero; keys have none.
        assert_eq!(key.as_bytes(), theirs.key(id), "{name}");
        theirs.same_value(&format!("{name}: {key}"), id, value);
    }
    assert_eq!(ours.tensors().len(), theirs.n_tensors(), "{name}");
    for (id, tensor) in (0..).zip(ours.tensors()) {
        let found = theirs.tensor(id);
        assert_eq!(tensor.name.as_bytes(), found.0, "{name}");
        let wanted =
            (tensor.ne.map(|n| n as i64), tensor.dtype.id(), tensor.offset - ours.data_start(), tensor.n_bytes);
        assert_eq!(wanted, (found.1, found.2, found.3, found.4), "{name}: {}", tensor.name);
    }
}

/// A file as ggml sees it. ggml keeps copies, nothing of the input.
struct Theirs(NonNull<sys::gguf_context>);

impl Drop for Theirs {
    fn drop(&mut self) {
        // SAFETY: made by `gguf_init_from_buffer`, freed once.
        unsafe { sys::gguf_free(self.0.as_ptr()) }
    }
}

impl Theirs {
    fn parse(bytes: &[u8]) -> Option<Theirs> {
        let params = sys::gguf_init_params { no_alloc: true, ctx: ptr::null_mut() };
        // SAFETY: pointer and length are of one slice that lives through the call; no tensors are asked for.
        NonNull::new(unsafe { sys::gguf_init_from_buffer(bytes.as_ptr().cast(), bytes.len(), params) }).map(Theirs)
    }

    fn raw(&self) -> *mut sys::gguf_context {
        self.0.as_ptr()
    }

    fn layout(&self) -> (u32, u64, u64) {
        // SAFETY: the context lives as long as `self`; so in all calls below, where also every id is below its count.
        let version = unsafe { sys::gguf_get_version(self.raw()) };
        // SAFETY: see `layout`.
        let alignment = unsafe { sys::gguf_get_alignment(self.raw()) } as u64;
        // SAFETY: see `layout`.
        let data_start = unsafe { sys::gguf_get_data_offset(self.raw()) } as u64;
        (version, alignment, data_start)
    }

    fn n_keys(&self) -> usize {
        // SAFETY: see `layout`.
        unsafe { sys::gguf_get_n_kv(self.raw()) as usize }
    }

    fn n_tensors(&self) -> usize {
        // SAFETY: see `layout`.
        unsafe { sys::gguf_get_n_tensors(self.raw()) as usize }
    }

    fn key(&self, id: i64) -> &[u8] {
        // SAFETY: see `layout`; the text is owned by the context.
        text(unsafe { sys::gguf_get_key(self.raw(), id) })
    }

    /// Panics with `name` when type or bits differ. Strings are compared up to their first zero, which is all that ggml
    /// gives of them.
    fn same_value(&self, name: &str, id: i64, ours: &Value<'_>) {
        // SAFETY: see `layout`.
        let ty = unsafe { sys::gguf_get_kv_type(self.raw(), id) };
        assert_eq!(ours.value_type().id(), ty, "{name}");
        match ours {
            Value::Array(array) => self.same_array(name, id, array),
            Value::Str(ours) => {
                // SAFETY: see `layout`; the value is a string.
                let theirs = text(unsafe { sys::gguf_get_val_str(self.raw(), id) });
                assert_eq!(up_to_nul(ours.bytes()), theirs, "{name}");
            }
            scalar => {
                let bits = bits(scalar);
                // SAFETY: see `layout`; the value is a number.
                let theirs: *const u8 = unsafe { sys::gguf_get_val_data(self.raw(), id) }.cast();
                // SAFETY: ggml holds as many bytes as the type has, and the types are equal.
                let theirs = unsafe { std::slice::from_raw_parts(theirs, bits.len()) };
                assert_eq!(bits, theirs, "{name}");
            }
        }
    }

    fn same_array(&self, name: &str, id: i64, ours: &Array<'_>) {
        // SAFETY: see `layout`; the value is an array.
        let elem = unsafe { sys::gguf_get_arr_type(self.raw(), id) };
        // SAFETY: as above.
        let len = unsafe { sys::gguf_get_arr_n(self.raw(), id) };
        assert_eq!((ours.elem_type().id(), ours.len()), (elem, len), "{name}");
        if ours.elem_type() == ValueType::Str {
            for (i, string) in ours.iter().enumerate() {
                let Value::Str(string) = string else { panic!("{name}: element {i} is no string") };
                // SAFETY: as above; `i` is below the length.
                let theirs = text(unsafe { sys::gguf_get_arr_str(self.raw(), id, i) });
                assert_eq!(up_to_nul(string.bytes()), theirs, "{name}: element {i}");
            }
        } else if len > 0 {
            // SAFETY: as above; the elements are numbers.
            let theirs: *const u8 = unsafe { sys::gguf_get_arr_data(self.raw(), id) }.cast();
            // SAFETY: ggml holds length times element size bytes, and both are equal to ours.
            let theirs = unsafe { std::slice::from_raw_parts(theirs, ours.bytes().len()) };
            assert_eq!(ours.bytes(), theirs, "{name}");
        }
    }

    /// Name, shape, type, offset from the start of the data, bytes.
    fn tensor(&self, id: i64) -> (&[u8], [i64; 4], u32, u64, u64) {
        // SAFETY: see `layout`; the text is owned by the context.
        let name = text(unsafe { sys::gguf_get_tensor_name(self.raw(), id) });
        // SAFETY: see `layout`.
        let ne: *const [i64; 4] = unsafe { sys::gguf_get_tensor_ne(self.raw(), id) }.cast();
        // SAFETY: ggml's shapes have four dimensions (GGML_MAX_DIMS).
        let ne = unsafe { *ne };
        // SAFETY: see `layout`.
        let ty = unsafe { sys::gguf_get_tensor_type(self.raw(), id) };
        // SAFETY: see `layout`.
        let offset = unsafe { sys::gguf_get_tensor_offset(self.raw(), id) } as u64;
        // SAFETY: see `layout`.
        let n_bytes = unsafe { sys::gguf_get_tensor_size(self.raw(), id) } as u64;
        (name, ne, ty, offset, n_bytes)
    }

    /// The header that ggml would write, with its padding.
    fn header(&self) -> Vec<u8> {
        // SAFETY: see `layout`.
        let mut out = vec![0u8; unsafe { sys::gguf_get_meta_size(self.raw()) }];
        // SAFETY: `out` has the size that ggml asked for.
        unsafe { sys::gguf_get_meta_data(self.raw(), out.as_mut_ptr().cast()) };
        out
    }
}

fn bits(scalar: &Value<'_>) -> Vec<u8> {
    match *scalar {
        Value::U8(v) => v.to_le_bytes().into(),
        Value::I8(v) => v.to_le_bytes().into(),
        Value::U16(v) => v.to_le_bytes().into(),
        Value::I16(v) => v.to_le_bytes().into(),
        Value::U32(v) => v.to_le_bytes().into(),
        Value::I32(v) => v.to_le_bytes().into(),
        Value::F32(v) => v.to_le_bytes().into(),
        Value::U64(v) => v.to_le_bytes().into(),
        Value::I64(v) => v.to_le_bytes().into(),
        Value::F64(v) => v.to_le_bytes().into(),
        Value::Bool(v) => vec![v.into()],
        Value::Str(_) | Value::Array(_) => unreachable!("strings and arrays have calls of their own"),
    }
}

fn up_to_nul(bytes: &[u8]) -> &[u8] {
    bytes.split(|b| *b == 0).next().expect("split gives at least one part")
}

fn text<'a>(s: *const c_char) -> &'a [u8] {
    // SAFETY: ggml gives texts that end in zero and live in a table or in a context that the caller holds.
    unsafe { CStr::from_ptr(s) }.to_bytes()
}

/// ggml says every refusal on stderr; here there are thousands.
fn quiet() {
    unsafe extern "C" fn drop_it(_: sys::ggml_log_level, _: *const c_char, _: *mut c_void) {}
    // SAFETY: the callback lives as long as the program and touches nothing.
    unsafe { sys::ggml_log_set(Some(drop_it), ptr::null_mut()) };
}
