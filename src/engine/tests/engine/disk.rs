//! Sequences on disk: a new engine takes them up; whatever is wrong with a file costs that file only.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use engine::{DiskConfig, EngineConfig, EngineHandle, RequestOptions, Scope};
use model::Model;
use test_support::*;
use text::TokenId;

fn config_in(dir: &Path) -> EngineConfig {
    let disk = Some(DiskConfig { dir: dir.join("cache"), n_bytes: 64 << 20 });
    EngineConfig { disk, checkpoint_every: Some(64), n_batch: 64, ..config(1024, 2) }
}

/// Ends an engine, and waits until its thread has kept what it had.
fn end(engine: EngineHandle) {
    let life = engine.life();
    drop(engine);
    while !life.is_freed() {
        std::thread::yield_now();
    }
}

fn prompt(seed: usize) -> Vec<TokenId> {
    (0..200).map(|i| TokenId(((i * 7 + seed * 13 + i * seed) % 190 + 5) as u32)).collect()
}

fn files(dir: &Path) -> Vec<PathBuf> {
    let mut files: Vec<_> = fs::read_dir(dir.join("cache")).expect("made").map(|f| f.expect("listed").path()).collect();
    files.sort();
    files
}

/// Serves the prompt with an engine of its own; gives how many of its tokens came from disk, and the generation.
fn serve(model: &Arc<Model>, config: &EngineConfig, prompt: &[TokenId], scope: Scope) -> (u64, Vec<TokenId>) {
    let engine = spawn(model, config.clone(), None);
    let options = RequestOptions { scope, ..greedy_exactly(20) };
    let tokens = generate(&engine, prompt, options).tokens;
    let n = engine.stats().expect("it runs").reused.n_disk;
    end(engine);
    (n, tokens)
}

#[test]
fn a_new_engine_takes_up_what_an_old_one_kept() {
    for model in [pocket_moe(), tiny()] {
        let dir = tempfile::TempDir::new().expect("a folder");
        let config = config_in(dir.path());
        let (first, of_first) = serve(&model, &config, &prompt(1), Scope(3));
        assert_eq!((first, files(dir.path()).len()), (0, 1));
        let longer: Vec<_> = prompt(1).into_iter().chain(of_first.iter().copied()).chain([TokenId(9)]).collect();
        let alone = EngineConfig { disk: None, ..config.clone() };
        let expected = generate(&spawn(&model, alone, None), &longer, greedy_exactly(20)).tokens;
        let (n_reused, got) = serve(&model, &config, &longer, Scope(3));
        assert!(n_reused >= 192, "{n_reused} of {}", longer.len());
        assert_eq!(got, expected, "{model:?}");
        // The longer one took the place of the shorter.
        assert_eq!(files(dir.path()).len(), 1);
        assert_eq!(serve(&model, &config, &longer, Scope(4)).0, 0, "it is another's");
        // Other types of cells, other model files: nothing fits, and nothing is dropped.
        let n_files = files(dir.path()).len();
        let q8 = EngineConfig { cache_type_k: memory::CacheType::Q8_0, ..config.clone() };
        assert_eq!(serve(&model, &q8, &longer, Scope(3)).0, 0);
        assert_eq!(files(dir.path()).len(), n_files + 1);
    }
}

#[test]
fn a_sequence_that_left_its_slot_a_moment_ago_is_taken_up_before_it_is_written() {
    let model = tiny();
    let dir = tempfile::TempDir::new().expect("a folder");
    let config = EngineConfig { n_sequences: 1, store_bytes: 0, ..config_in(dir.path()) };
    let engine = spawn(&model, config, None);
    let reused = || engine.stats().expect("it runs").reused.n_disk;
    for turn in 0..10 {
        for seed in 1..3 {
            let before = reused();
            generate(&engine, &prompt(seed), greedy_exactly(4));
            assert_eq!(reused() - before >= 128, turn > 0, "turn {turn}, prompt {seed}");
        }
    }
    end(engine);
    assert_eq!(files(dir.path()).len(), 2);
}

#[cfg(unix)]
#[test]
fn only_the_owner_may_look_at_what_is_kept() {
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::TempDir::new().expect("a folder");
    serve(&tiny(), &config_in(dir.path()), &prompt(1), Scope::default());
    let mode = |path: &Path| fs::metadata(path).expect("there").permissions().mode() & 0o777;
    assert_eq!((mode(&dir.path().join("cache")), mode(&files(dir.path())[0])), (0o700, 0o600));
}

#[test]
fn a_file_that_is_damaged_anywhere_is_dropped_and_the_request_computed() {
    let model = tiny();
    let dir = tempfile::TempDir::new().expect("a folder");
    let config = config_in(dir.path());
    let (_, expected) = serve(&model, &config, &prompt(1), Scope::default());
    let path = files(dir.path()).remove(0);
    let sound = fs::read(&path).expect("written");
    let cuts = [0, 7, 8, 40, 60, sound.len() / 2, sound.len() - 1];
    let cut = cuts.into_iter().map(|n| sound[..n].to_vec());
    let flips = [0, 9, 20, 50, 100, 700, sound.len() / 2, sound.len() - 1];
    let flipped = flips.into_iter().map(|i| {
        let mut bytes = sound.clone();
        bytes[i] ^= 0x10;
        bytes
    });
    for (i, bytes) in cut.chain(flipped).enumerate() {
        fs::write(&path, bytes).expect("written");
        let (n_reused, tokens) = serve(&model, &config, &prompt(1), Scope::default());
        assert_eq!((n_reused, &tokens), (0, &expected), "damage {i}");
        // It was written anew.
        assert_eq!(fs::read(&path).expect("there").len(), sound.len(), "damage {i}");
    }
    assert!(serve(&model, &config, &prompt(1), Scope::default()).0 > 100);
}

#[test]
fn the_folder_stays_within_its_bound_and_one_that_cannot_be_is_told_at_the_start() {
    let model = tiny();
    let dir = tempfile::TempDir::new().expect("a folder");
    let config = config_in(dir.path());
    serve(&model, &config, &prompt(0), Scope::default());
    let one = fs::metadata(&files(dir.path())[0]).expect("there").len();
    let disk = Some(DiskConfig { dir: dir.path().join("cache"), n_bytes: one * 5 / 2 });
    let config = EngineConfig { disk, ..config };
    for seed in 1..5 {
        serve(&model, &config, &prompt(seed), Scope::default());
        let all: u64 = files(dir.path()).iter().map(|f| fs::metadata(f).expect("there").len()).sum();
        assert!(all <= one * 5 / 2, "{all} bytes of {one} each");
    }
    assert_eq!(files(dir.path()).len(), 2);
    assert!(serve(&model, &config, &prompt(4), Scope::default()).0 > 100, "the last one is there");
    // Nothing fits: nothing is kept, and nobody is told but the log.
    let disk = Some(DiskConfig { dir: dir.path().join("cache"), n_bytes: 100 });
    serve(&model, &EngineConfig { disk, ..config.clone() }, &prompt(7), Scope::default());
    assert_eq!(files(dir.path()).len(), 0);
    let file = dir.path().join("file");
    fs::write(&file, "no folder").expect("written");
    let disk = Some(DiskConfig { dir: file, n_bytes: 100 });
    let error = engine::Engine::spawn(model, EngineConfig { disk, ..config }).err().expect("no folder").to_string();
    assert!(error.contains("--cache-dir") && error.contains("file"), "{error}");
}
