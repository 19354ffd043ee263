//! The gradients of one step beside those of PyTorch (`scripts/head_gradients.py`).

use model::HeadGate;
use serde_json::Value;
use text::TokenId;

use super::*;
use crate::block::tests::{Kind, layer, shape, wave};

/// As in the script.
const N: usize = 7;

/// Two texts in which every third token does not count, and what the target says of theirs.
fn texts() -> Vec<(Text, Arc<Known>)> {
    let of = |text: usize| {
        let counted = (0..N).map(|i| i % 3 != 0).collect();
        let places = text * N..(text + 1) * N;
        let known = Known {
            ids: places.flat_map(|at| (0..3).map(move |i| ((2 * at + 3 * i) % 11) as u32)).collect(),
            probs: [0.5, 0.375, 0.125].map(half::f16::from_f32).repeat(N),
            ..Known::default()
        };
        (Text { tokens: vec![TokenId(0); N], counted, ..Text::default() }, Arc::new(known))
    };
    (0..2).map(of).collect()
}

/// The gradient of a tensor as files have it, its experts one after the other; `None` if none has one.
fn gradient(name: &str, layer: &crate::block::Layer, found: &Gradients) -> Option<Vec<f32>> {
    let of = |(part, _): &(&str, &candle_core::Var)| part.split('#').next() == Some(name);
    let parts: Vec<_> = layer.vars().filter(of).collect();
    parts.iter().find(|(part, _)| found.contains_key(&(0, (*part).to_owned())))?;
    let numbers = |(part, var): &(&str, &candle_core::Var)| match found.get(&(0, (*part).to_owned())) {
        Some(x) => x.flatten_all().unwrap().to_vec1::<f32>().unwrap(),
        None => vec![0.0; var.elem_count()],
    };
    Some(parts.iter().flat_map(numbers).collect())
}

#[test]
fn the_gradients_of_a_step_are_those_of_pytorch() {
    let golden = miniz_oxide::inflate::decompress_to_vec_zlib(include_bytes!("head_gradients.json.z")).unwrap();
    let golden: Vec<Value> = serde_json::from_slice(&golden).unwrap();
    for case in &golden {
        let is = |name: &str| case["case"][name].as_bool().unwrap();
        let kind = match (is("latent"), is("sinks")) {
            (true, _) => Kind::Latent,
            (_, true) => Kind::Windowed,
            _ => Kind::Gated,
        };
        let shape = shape(kind);
        let a = &shape.attention;
        let (gated, latent) = (a.gate == Some(HeadGate::Elements), a.latent.is_some());
        let found = [gated, a.qk_norm, a.sinks, latent, a.rotation.neox, shape.pre_norm];
        assert_eq!(found, ["gate", "qk_norm", "sinks", "latent", "neox", "pre_norm"].map(is));
        let layers = vec![layer(&shape, 0.11, DType::F32)];
        let head = Head::new(shape, layers, (&[1.0; 8], None), 16, &Device::Cpu).unwrap();
        let tensor =
            |by, shape: &[usize]| Tensor::from_vec(wave(shape.iter().product(), by), shape, &Device::Cpu).unwrap();
        let how = How { depth: 3, pull: 0.5, refused: 1.0, n_threads: 1 };
        let outputs = vec![tensor(0.71, &[11, 8])];
        let student = Student { head, outputs, row_of: None, n_words: 3, how, device: Device::Cpu };
        let (texts, known): (Vec<_>, Vec<_>) = texts().into_iter().unzip();
        let inputs = (&tensor(1.7, &[2, N, 8]), &tensor(0.9, &[2, N, 8]));
        let (counted, found) = student.drafts(&texts.iter().collect::<Vec<_>>(), &known, inputs, Some(1.0)).unwrap();
        assert_eq!(counted.iter().map(Counted::n).collect::<Vec<_>>(), [6, 4, 4]);
        let worth = fetched(3, &[counted], &[]).unwrap().0;
        let loss: f64 = worth.iter().map(|of| of.divergence - f64::from(how.pull) * of.acceptance).sum();
        let wanted = case["loss"].as_f64().unwrap();
        assert!((loss - wanted).abs() <= 1e-5 * wanted, "{loss} and {wanted}");

        let layer = &student.head.layers()[0];
        let names: BTreeSet<&str> = layer.vars().filter_map(|(name, _)| name.split('#').next()).collect();
        let expected = case["gradients"].as_object().unwrap();
        assert!(expected.len() >= 15 && expected.keys().all(|name| names.contains(&name[..])), "{names:?}");
        for name in names {
            let ours = gradient(name, layer, &found);
            assert_eq!(ours.is_some(), expected.contains_key(name), "{name}");
            let Some(ours) = ours else { continue };
            let theirs: Vec<f64> = serde_json::from_value(expected[name].clone()).unwrap();
            assert_eq!(ours.len(), theirs.len(), "{name}");
            let size = theirs.iter().map(|x| x * x).sum::<f64>().sqrt();
            let far = ours.iter().zip(&theirs).map(|(a, b)| (f64::from(*a) - b).powi(2)).sum::<f64>().sqrt();
            assert!(far <= 1e-4 * size, "{name}: {far:e} of {size}");
        }
    }
}
