//! Projectors against a plain reference in f64, and files that are refused by name.

mod plain;

use std::path::Path;

use crate::support::projector as tiny;
use model::{LoadError, LoadOptions, Model, Projector, ProjectorOptions, ProjectorSchema, RunError};
use tiny::{N_LAYER, TinyProjector};
use vision::{ImageLimits, Patches, Picture};

const N_EMBD_TEXT: u64 = 16;

fn all() -> Vec<TinyProjector> {
    let (n, limited) = (N_EMBD_TEXT, true);
    vec![
        TinyProjector::qwen(n),
        TinyProjector::gemma(n, false),
        TinyProjector::gemma(n, limited),
        TinyProjector::gemma3(n),
    ]
}

fn open(tiny: &TinyProjector) -> Result<Projector, LoadError> {
    let dir = tempfile::TempDir::new().expect("a folder");
    let path = tiny.write(&dir.path().join("mmproj.gguf"));
    Projector::open(&path, &ProjectorOptions { n_threads: 2, ..ProjectorOptions::default() })
}

fn patches(projector: &Projector, width: usize, height: usize) -> Patches {
    let bytes = (0..width * height * 3).map(|i| (i * i % 251 + i % 5) as u8).collect();
    let picture = Picture::new(width, height, bytes).expect("as many bytes");
    let max_tokens = (projector.kind() != "gemma3").then_some(20);
    let limits = ImageLimits { max_tokens, ..ImageLimits::default() };
    projector.processor(&limits).expect("sound limits").patches(&picture).expect("a sound shape")
}

#[test]
fn rows_are_those_of_the_plain_reference() {
    for tiny in all() {
        let projector = open(&tiny).expect("a sound file");
        for (width, height) in [(40, 24), (7, 90), (8, 8)] {
            let patches = patches(&projector, width, height);
            let found = projector.embed(&patches).expect("a pass");
            assert_eq!(found.n_tokens(), patches.n_tokens);
            let expected = plain::rows(&tiny, &patches);
            assert_eq!(found.rows.len(), expected.len());
            let worst = found.rows.iter().zip(&expected).map(|(&a, &b)| (f64::from(a) - b).abs()).fold(0.0, f64::max);
            // F32 sums of two layers; measured 3e-6.
            assert!(worst < 5e-5, "{} {width} x {height}: {worst}", tiny.kind);
        }
    }
}

#[test]
fn two_frames_are_seen_as_one_by_the_plain_reference() {
    let tiny = TinyProjector::qwen(N_EMBD_TEXT);
    let projector = open(&tiny).expect("a sound file");
    assert!(projector.takes_pairs());
    let limits = ImageLimits { max_tokens: Some(20), ..ImageLimits::default() };
    let processor = projector.processor(&limits).expect("sound limits");
    let frame = |seed: usize| {
        let bytes = (0..40 * 24 * 3).map(|i| (i * i % 251 + i * seed % 7) as u8).collect();
        Picture::new(40, 24, bytes).expect("as many bytes")
    };
    let size = processor.frame_size(2, 40, 24).expect("a size");
    let pair = processor.frame_patches(&frame(1), Some(&frame(3)), size);
    let found = projector.embed(&pair).expect("a pass");
    assert_eq!((found.grid, found.n_tokens()), ([1, size.1 / 8, size.0 / 8], pair.n_tokens));
    let worst = |found: &[f32], patches: &Patches| {
        let expected = plain::rows(&tiny, patches);
        found.iter().zip(&expected).map(|(&a, &b)| (f64::from(a) - b).abs()).fold(0.0, f64::max)
    };
    // As for pictures.
    assert!(worst(&found.rows, &pair) < 5e-5);
    let swapped = processor.frame_patches(&frame(3), Some(&frame(1)), size);
    assert!(worst(&found.rows, &swapped) > 1e-3, "the order of frames counts");
    // One frame is a pair of the same frame, and graphs of both kinds live beside each other.
    let alone = processor.frame_patches(&frame(1), None, size);
    let twice = processor.frame_patches(&frame(1), Some(&frame(1)), size);
    let [alone, twice] = [alone, twice].map(|patches| projector.embed(&patches).expect("a pass").rows);
    let apart = alone.iter().zip(&twice).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    assert!(apart < 1e-4, "{apart}");
    assert_eq!(projector.embed(&pair).expect("a pass"), found);

    let short = Patches { later: pair.later[1..].to_vec(), ..pair.clone() };
    assert!(projector.embed(&short).expect_err("too few").to_string().contains("second frame"));
    let other = open(&TinyProjector::gemma(N_EMBD_TEXT, false)).expect("a sound file");
    let mut film = patches(&other, 40, 24);
    film.later = film.pixels.clone();
    assert!(other.embed(&film).expect_err("one frame").to_string().contains("gemma4v"));
}

#[test]
fn a_picture_that_nobody_wants_any_more_is_left_within_a_layer() {
    use std::sync::atomic::{AtomicUsize, Ordering};
    let projector = open(&TinyProjector::qwen(N_EMBD_TEXT)).expect("a sound file");
    let patches = patches(&projector, 48, 40);
    let whole = projector.embed(&patches).expect("a pass");
    let asked = AtomicUsize::new(0);
    projector.embed_while(&patches, &|| asked.fetch_add(1, Ordering::Relaxed) < usize::MAX).expect("it is wanted");
    let n_asked = asked.swap(0, Ordering::Relaxed);
    assert!(n_asked > 2 * N_LAYER as usize, "it is asked in every layer: {n_asked}");
    let error = projector.embed_while(&patches, &|| asked.fetch_add(1, Ordering::Relaxed) < 5).expect_err("unwanted");
    assert!(matches!(error, RunError::Device(ggml::Error::Stopped)), "{error}");
    assert!(asked.load(Ordering::Relaxed) < n_asked / 2, "it ended early");
    assert_eq!(projector.embed(&patches).expect("a pass"), whole, "the next one is whole");
}

/// The projector with its matrices in another type, as a file; what is left of their numbers stays in `tiny`.
fn retyped(tiny: &mut TinyProjector, dtype: gguf::TensorType, path: &Path) {
    let wide = std::fs::read(tiny.write(path)).expect("just written");
    let header = gguf::Header::parse(&wide).expect("sound");
    let to = ggml::Dtype::from_id(dtype.id()).expect("a known type");
    let is_matrix = |name: &str| name.ends_with(".weight") && name.contains("blk.") && tiny.tensors[name].0.len() == 2;
    let matrices: Vec<String> = tiny.tensors.keys().filter(|name| is_matrix(name)).cloned().collect();
    let mut writer = gguf::Writer::create(path).expect("a folder that can be written");
    for (key, value) in header.metadata().iter() {
        writer.add(key, *value).expect("a key");
    }
    for (name, (ne, _)) in &tiny.tensors {
        let dtype = if matrices.contains(name) { dtype } else { gguf::TensorType::F32 };
        writer.tensor(name, ne, dtype).expect("a shape");
    }
    let mut data = writer.begin().expect("a sound header");
    for (name, (ne, values)) in &mut tiny.tensors {
        if matrices.contains(name) {
            let mut bytes = vec![0; 2 * values.len()];
            ggml::pack_rows(to, values, ne[0] as usize, None, &mut bytes).expect("floats");
            ggml::unpack(to, &bytes, values).expect("as packed");
            data.write_tensor(name, &bytes).expect("as declared");
        } else {
            let bytes: Vec<u8> = values.iter().flat_map(|x| x.to_le_bytes()).collect();
            data.write_tensor(name, &bytes).expect("as declared");
        }
    }
    data.finish().expect("a disk with room");
}

#[test]
fn weights_of_half_the_bits_give_the_rows_of_their_numbers() {
    for mut tiny in all() {
        // Rows of F16 weights are rounded to F16, where scores that are not scaled count most: measured 8e-3. Those of BF16
        // weights stay as they are: measured 6e-6.
        for (dtype, tolerance) in [(gguf::TensorType::F16, 2e-2), (gguf::TensorType::BF16, 5e-5)] {
            let dir = tempfile::TempDir::new().expect("a folder");
            let path = dir.path().join("mmproj.gguf");
            retyped(&mut tiny, dtype, &path);
            let options = ProjectorOptions { n_threads: 2, ..ProjectorOptions::default() };
            let projector = Projector::open(&path, &options).expect("a sound file");
            // Enough patches for the products of many rows.
            let patches = patches(&projector, 40, 32);
            assert!(patches.n_patches() >= 64);
            let found = projector.embed(&patches).expect("a pass").rows;
            let expected = plain::rows(&tiny, &patches);
            let worst = found.iter().zip(&expected).map(|(&a, &b)| (f64::from(a) - b).abs()).fold(0.0, f64::max);
            println!("{} {dtype}: {worst}", tiny.kind);
            assert!(worst < tolerance, "{} {dtype}: {worst}", tiny.kind);
        }
    }
}

#[test]
fn a_picture_has_the_same_rows_whatever_came_before() {
    let projector = open(&TinyProjector::qwen(N_EMBD_TEXT)).expect("a sound file");
    let (small, large) = (patches(&projector, 16, 16), patches(&projector, 48, 40));
    let first = projector.embed(&small).expect("a pass");
    projector.embed(&large).expect("a pass");
    assert_eq!(projector.embed(&small).expect("a pass"), first);
}

#[test]
fn the_schema_lists_what_is_bound() {
    for tiny in all() {
        let dir = tempfile::TempDir::new().expect("a folder");
        let path = tiny.write(&dir.path().join("mmproj.gguf"));
        let bytes = std::fs::read(&path).expect("just written");
        let header = gguf::Header::parse(&bytes).expect("sound");
        let schema = ProjectorSchema::of(&header).expect("a known kind");
        assert_eq!((schema.kind(), schema.n_embd_text), (tiny.kind, N_EMBD_TEXT as usize));
        let mut listed: Vec<&str> =
            schema.tensors.iter().filter(|t| header.tensor(&t.name).is_some()).map(|t| &*t.name).collect();
        listed.sort_unstable();
        assert_eq!(listed, tiny.tensors.keys().map(String::as_str).collect::<Vec<_>>());
        assert!(schema.tensors.iter().all(|t| !t.required || tiny.tensors.contains_key(&t.name)));
    }
}

#[test]
fn each_missing_or_misshapen_tensor_is_named() {
    for tiny in all() {
        for name in tiny.tensors.keys() {
            let mut without = tiny.clone();
            without.tensors.remove(name);
            // What comes in a group is left out as a group.
            let optional = name.ends_with(".input_min") || name == "v.std_bias";
            match open(&without) {
                Err(error) => assert!(error.to_string().contains(name.as_str()), "{name}: {error}"),
                Ok(_) => assert!(optional, "{name} is not missed"),
            }
            let mut longer = tiny.clone();
            let (ne, values) = longer.tensors.get_mut(name).expect("it is there");
            ne[0] += 1;
            values.resize(ne.iter().product::<u64>() as usize, 0.0);
            let error = open(&longer).expect_err("another shape").to_string();
            assert!(error.contains(name.as_str()) && error.contains("expected"), "{name}: {error}");
        }
    }
}

#[test]
fn sizes_out_of_range_are_refused_by_their_key() {
    let tiny = TinyProjector::qwen(N_EMBD_TEXT);
    for (key, values) in [
        ("embedding_length", &[0, u32::MAX, 25][..]),
        ("feed_forward_length", &[0, u32::MAX]),
        ("block_count", &[0, u32::MAX]),
        ("attention.head_count", &[0, 5, u32::MAX]),
        ("projection_dim", &[0, u32::MAX]),
        ("patch_size", &[0, u32::MAX]),
        ("image_size", &[0, 21, u32::MAX]),
        ("spatial_merge_size", &[0, u32::MAX]),
    ] {
        for &value in values {
            let mut changed = tiny.clone();
            changed.numbers.insert(key.to_owned(), value);
            let error = open(&changed).expect_err(key).to_string();
            let says = error.contains(key) || key == "embedding_length" && error.contains("head_count");
            assert!(says, "{key} = {value}: {error}");
        }
        let mut without = tiny.clone();
        without.numbers.remove(key);
        let error = open(&without).expect_err(key).to_string();
        assert!(error.contains(key) && error.contains("missing"), "{key}: {error}");
    }
}

#[test]
fn sizes_of_gemma_3_are_checked() {
    for (key, values) in
        [("image_size", &[0, 35, u32::MAX][..]), ("patch_size", &[0, 5]), ("projector.scale_factor", &[0, 2, 17])]
    {
        for &value in values {
            let mut changed = TinyProjector::gemma3(N_EMBD_TEXT);
            changed.numbers.insert(key.to_owned(), value);
            let error = open(&changed).expect_err(key).to_string();
            let says = [key, "image_size"].iter().any(|key| error.contains(key));
            assert!(says, "{key} = {value}: {error}");
        }
    }
}

#[test]
fn what_is_not_supported_is_named() {
    let mut deep = TinyProjector::qwen(N_EMBD_TEXT);
    deep.flags.insert("is_deepstack_layers".into(), vec![false, true]);
    let error = open(&deep).expect_err("deepstack").to_string();
    assert!(error.contains("is_deepstack_layers") && error.contains("block 1"), "{error}");
    let other = TinyProjector { kind: "ldp", ..TinyProjector::qwen(N_EMBD_TEXT) };
    let error = open(&other).expect_err("another kind").to_string();
    assert!(error.contains("`ldp`") && error.contains("gemma4v"), "{error}");
    for limits in [[f32::NAN, 1.0], [1.0, -1.0]] {
        let mut clipped = TinyProjector::gemma(N_EMBD_TEXT, true);
        let [low, high] = limits.map(|x| (vec![1], vec![x]));
        clipped.tensors.insert("v.blk.1.ffn_up.input_min".into(), low);
        clipped.tensors.insert("v.blk.1.ffn_up.input_max".into(), high);
        let error = open(&clipped).expect_err("limits out of order").to_string();
        assert!(error.contains("v.blk.1.ffn_up"), "{error}");
    }
}

#[test]
fn models_and_projectors_are_not_taken_for_each_other() {
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/pocket-q4_k_m.gguf");
    let error = Projector::open(&model, &ProjectorOptions::default()).expect_err("a model").to_string();
    assert!(error.contains("mmproj"), "{error}");
    let text = Model::open(&model, &LoadOptions::default()).expect("a model of the repository");
    let dir = tempfile::TempDir::new().expect("a folder");
    let path = TinyProjector::qwen(N_EMBD_TEXT).write(&dir.path().join("mmproj.gguf"));
    let error = Model::open(&path, &LoadOptions::default()).expect_err("a projector").to_string();
    assert!(error.contains("--mmproj"), "{error}");

    let n_embd = text.hparams().n_embd as u64;
    open(&TinyProjector::qwen(n_embd)).expect("a sound file").fits(&text).expect("of its width");
    let error = open(&TinyProjector::qwen(n_embd + 1)).expect("a sound file").fits(&text).expect_err("too wide");
    assert!(error.to_string().contains(&format!("the model takes {n_embd}:")), "{error}");
    let error = open(&TinyProjector::gemma(n_embd, false)).expect("a sound file").fits(&text).expect_err("Gemma's");
    assert!(error.to_string().contains("gemma4"), "{error}");
}

#[test]
fn patches_that_are_not_the_towers_are_refused() {
    let projector = open(&TinyProjector::gemma(N_EMBD_TEXT, false)).expect("a sound file");
    let sound = patches(&projector, 24, 24);
    projector.embed(&sound).expect("a pass");
    let short = Patches { pixels: sound.pixels[1..].to_vec(), ..sound.clone() };
    let of_another = Patches { merge: 2, ..sound.clone() };
    let film = Patches { grid: [2, sound.grid[1], sound.grid[2]], ..sound.clone() };
    let n = tiny::N_PLACES as usize + 3;
    let long = Patches { pixels: vec![0.0; n * 3 * 48], later: Vec::new(), grid: [1, 3, n], merge: 3, n_tokens: n / 3 };
    let wild = Patches { grid: [1, usize::MAX - 2, 3], ..sound.clone() };
    for patches in [short, of_another, film, long, wild] {
        let error = projector.embed(&patches).expect_err("not of this tower").to_string();
        assert!(error.contains("patches"), "{error}");
    }
    let mut nan = sound;
    nan.pixels.fill(f32::NAN);
    assert!(projector.embed(&nan).expect_err("no picture").to_string().contains("finite"));
}
