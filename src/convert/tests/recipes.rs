//! Types by the recipe are those of llama.cpp's files, but for the head and the embedding; importance matrices are used.

use std::path::{Path, PathBuf};

use crate::support::unpacked;
use convert::quantize::{FileType, Imatrix, Recipe};
use convert::stream::{Control, OnFailure, Stored};
use convert::{Model, Source};
use ggml::Dtype;
use gguf::{ArrayBuf, Header, TensorType, Writer};

fn recipe(file_type: FileType) -> Recipe<'static> {
    Recipe { file_type, head: None, plain: false, imatrix: None, requantize: false }
}

/// The model of a file as if its tensors had never been quantised.
fn as_if_wide(path: &Path) -> Model {
    let mut model = Source::open(path).unwrap().into_model().unwrap();
    for t in &mut model.tensors {
        t.dtype = TensorType::F32;
        t.pieces[0].stored = Stored::Ggml(Dtype::F32);
    }
    model
}

fn compare(path: &Path, recipe: &Recipe<'_>) {
    let mut model = as_if_wide(path);
    recipe.apply(&mut model).unwrap();
    let bytes = std::fs::read(path).unwrap();
    let header = Header::parse(&bytes).unwrap();
    let ours: Vec<_> = model.tensors.iter().map(|t| (t.name.as_str(), t.dtype)).collect();
    let theirs: Vec<_> = header.tensors().iter().map(|t| (t.name, t.dtype)).collect();
    assert_eq!(ours, theirs);
    let keys: Vec<_> = model.keys.iter().map(|(key, _)| key.as_str()).collect();
    assert_eq!(keys, header.metadata().iter().map(|(key, _)| key).collect::<Vec<_>>());
}

fn models() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models")
}

#[test]
fn the_mixes_are_those_of_llama_cpp() {
    // Made by llama-quantize with the head at Q8_0, which is what the recipe does by itself.
    compare(&models().join("pocket-q4_k_m.gguf"), &recipe(FileType::Q4_K_M));
    compare(&models().join("pocket-moe-q8_0.gguf"), &recipe(FileType::Q8_0));
    // Made without exceptions.
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("dense-k.gguf");
    std::fs::write(&path, unpacked("dense-k.Q4_K_M.gguf.z")).unwrap();
    compare(&path, &Recipe { plain: true, ..recipe(FileType::Q4_K_M) });
}

#[test]
fn every_file_type_can_be_made_and_read() {
    let dir = tempfile::tempdir().unwrap();
    let from = dir.path().join("in.gguf");
    std::fs::write(&from, unpacked("dense-a.bf16.gguf.z2")).unwrap();
    for file_type in FileType::ALL {
        let mut model = Source::open(&from).unwrap().into_model().unwrap();
        let recipe = recipe(*file_type);
        recipe.apply(&mut model).unwrap();
        let out = dir.path().join("out.gguf");
        model.into_job(recipe.stamp()).unwrap().run(&out, 2, &Control::default(), OnFailure::Remove).unwrap();
        let bytes = std::fs::read(&out).unwrap();
        let header = Header::parse(&bytes).unwrap();
        assert_eq!(header.metadata().u32("general.file_type").unwrap(), Some(file_type.id()), "{file_type}");
        assert_eq!(header.tensors().len(), 123, "{file_type}");
        assert_eq!(
            header.tensor("blk.8.nextn.eh_proj.weight").unwrap().dtype,
            if file_type.is_quantized() { TensorType::Q8_0 } else { file_type.base() }
        );
    }
}

#[test]
fn what_is_quantised_is_not_quantised_again_unless_told() {
    let path = models().join("pocket-moe-q8_0.gguf");
    let mut model = Source::open(&path).unwrap().into_model().unwrap();
    let e = recipe(FileType::Q4_K_M).apply(&mut model).unwrap_err().to_string();
    assert!(e.contains("is quantized already") && e.contains("--requantize"), "{e}");
    let mut model = Source::open(&path).unwrap().into_model().unwrap();
    Recipe { requantize: true, ..recipe(FileType::Q4_K_M) }.apply(&mut model).unwrap();
    // The same type changes nothing, so nothing is lost.
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out.gguf");
    let mut model = Source::open(&path).unwrap().into_model().unwrap();
    recipe(FileType::Q8_0).apply(&mut model).unwrap();
    model.into_job(String::new()).unwrap().run(&out, 2, &Control::default(), OnFailure::Remove).unwrap();
    assert!(std::fs::read(&out).unwrap() == std::fs::read(&path).unwrap());
}

/// A model of one matrix, `[256, 4]` in two slices, and its numbers.
fn tiny(dir: &Path) -> (PathBuf, Vec<f32>) {
    let x: Vec<f32> = (0..2048).map(|i| (i as f32 * 0.61).sin() * (1.0 + (i % 5) as f32)).collect();
    let bytes: Vec<u8> = x.iter().flat_map(|x| x.to_le_bytes()).collect();
    let path = dir.join("tiny.gguf");
    let mut w = Writer::create(&path).unwrap();
    w.add("general.architecture", "qwen35moe").unwrap();
    w.add("qwen35moe.block_count", 4u32).unwrap();
    w.tensor("blk.1.ffn_up_exps.weight", &[256, 4, 2], TensorType::F32).unwrap();
    let mut data = w.begin().unwrap();
    data.write_tensor("blk.1.ffn_up_exps.weight", &bytes).unwrap();
    data.finish().unwrap();
    (path, x)
}

fn quantized(from: &Path, imatrix: Option<&Imatrix>) -> Result<Vec<u8>, String> {
    let mut model = Source::open(from).and_then(Source::into_model).map_err(|e| e.to_string())?;
    let recipe = Recipe { imatrix, ..recipe(FileType::Q4_K_M) };
    recipe.apply(&mut model).map_err(|e| e.to_string())?;
    let out = from.with_extension("out");
    model.into_job(recipe.stamp()).unwrap().run(&out, 1, &Control::default(), OnFailure::Remove).unwrap();
    Ok(std::fs::read(&out).unwrap())
}

#[test]
fn importance_matrices_of_both_formats_weigh_the_errors_of_each_matrix() {
    let dir = tempfile::tempdir().unwrap();
    let (model, x) = tiny(dir.path());
    let weights: Vec<f32> =
        (0..512).map(|i| if i < 256 { 0.01 + (i % 7) as f32 } else { 1.0 + (i % 3) as f32 * 5.0 }).collect();
    let counts = [4f32, 0.5];
    let gguf = dir.path().join("imatrix.gguf");
    let mut w = Writer::create(&gguf).unwrap();
    w.add("general.type", "imatrix").unwrap();
    w.tensor("blk.1.ffn_up_exps.weight.in_sum2", &[256, 2], TensorType::F32).unwrap();
    w.tensor("blk.1.ffn_up_exps.weight.counts", &[1, 2], TensorType::F32).unwrap();
    let mut data = w.begin().unwrap();
    let sums = weights.iter().enumerate().flat_map(|(i, w)| (w * counts[i / 256]).to_le_bytes()).collect::<Vec<u8>>();
    data.write_tensor("blk.1.ffn_up_exps.weight.in_sum2", &sums).unwrap();
    data.write_tensor("blk.1.ffn_up_exps.weight.counts", &counts.map(f32::to_le_bytes).concat()).unwrap();
    data.finish().unwrap();

    let dat = dir.path().join("imatrix.dat");
    let name = b"blk.1.ffn_up_exps.weight";
    let mut bytes = [1i32, name.len() as i32].map(i32::to_le_bytes).concat();
    bytes.extend(name);
    bytes.extend([2i32, 512].map(i32::to_le_bytes).concat());
    bytes.extend(weights.iter().flat_map(|w| (w * 2.0).to_le_bytes()));
    std::fs::write(&dat, &bytes).unwrap();

    let mut expected = vec![0; Dtype::Q4_K.row_bytes(2048).unwrap()];
    let (first, second) = expected.split_at_mut(Dtype::Q4_K.row_bytes(1024).unwrap());
    ggml::pack_rows(Dtype::Q4_K, &x[..1024], 256, Some(&weights[..256]), first).unwrap();
    ggml::pack_rows(Dtype::Q4_K, &x[1024..], 256, Some(&weights[256..]), second).unwrap();
    let data = |file: &[u8]| file[Header::parse(file).unwrap().tensors()[0].range()].to_vec();
    let plain = quantized(&model, None).unwrap();
    assert_ne!(data(&plain), expected);
    for path in [&gguf, &dat] {
        let imatrix = Imatrix::open(path).unwrap();
        assert_eq!(imatrix.len(), 1);
        let file = quantized(&model, Some(&imatrix)).unwrap();
        assert_eq!(data(&file), expected, "{}", path.display());
        let header = Header::parse(&file).unwrap();
        let name = path.file_name().unwrap().to_str();
        assert_eq!(header.metadata().str("quantize.imatrix.file").unwrap(), name);
    }

    // Of another shape, cut short, of nothing, and with a number that is no weight.
    let mut other = bytes.clone();
    other[8 + name.len() + 4..][..4].copy_from_slice(&256i32.to_le_bytes());
    let cases: [(Vec<u8>, &str); 5] = [
        (other, "256 weights"),
        (bytes[..bytes.len() - 1].to_vec(), "cut short"),
        (vec![0; 4], "no entries"),
        ([&bytes[..bytes.len() - 4], &f32::NAN.to_le_bytes()[..]].concat(), "NaN"),
        ([&(-1i32).to_le_bytes()[..], &bytes[4..]].concat(), "cut short"),
    ];
    for (bytes, words) in cases {
        std::fs::write(&dat, bytes).unwrap();
        let e = Imatrix::open(&dat).map_err(|e| e.to_string()).and_then(|i| quantized(&model, Some(&i))).unwrap_err();
        assert!(e.contains(words), "{e:?} does not say {words:?}");
    }
    let e = Imatrix::open(&model).unwrap_err().to_string();
    assert!(e.contains("no importance matrix"), "{e}");
}

#[test]
fn a_model_that_the_rules_do_not_know_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    for (architecture, words) in [("mamba", ["mamba", "qwen35moe"]), ("clip", ["projectors of type", "qwen3vl_merger"])]
    {
        let path = dir.path().join("other.gguf");
        let mut w = Writer::create(&path).unwrap();
        w.add("general.architecture", architecture).unwrap();
        w.add("list", &[1u32, 2].into_iter().collect::<ArrayBuf>()).unwrap();
        w.begin().unwrap().finish().unwrap();
        let e = quantized(&path, None).unwrap_err();
        assert!(words.iter().all(|word| e.contains(word)), "{e}");
    }
}
