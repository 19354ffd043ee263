//! Damaged files end in Ok or in an error, quickly, and whatever parses can be walked and written again.

mod support;

use std::time::Instant;

use support::{attacks, good_files, walk};

/// The same run every time; printed so that a failure can be told from a rerun with another seed.
const SEED: u64 = 0x6767_7566_2026_0001;
const N: usize = 5_000;

#[test]
fn five_thousand_damaged_files_neither_panic_nor_hang() {
    println!("seed {SEED:#x}");
    let mut rng = Rng(SEED);
    let good: Vec<Vec<u8>> = good_files().into_iter().map(|f| f.1).collect();
    // Donors of splices; the long ones would only make it slow.
    let donors: Vec<Vec<u8>> =
        attacks().into_iter().map(|f| f.1).chain(good.clone()).filter(|b| b.len() < 2000).collect();
    let (mut n_ok, mut slowest_ms) = (0, 0);
    for i in 0..N {
        let mut bytes = good[rng.below(good.len())].clone();
        for _ in 0..=rng.below(3) {
            damage(&mut bytes, &donors, &mut rng);
        }
        let start = Instant::now();
        n_ok += usize::from(walk(&bytes).is_ok());
        let took_ms = start.elapsed().as_millis();
        slowest_ms = slowest_ms.max(took_ms);
        // Three orders of magnitude over what they take: only a loop over a number from the file gets there.
        assert!(took_ms < 5_000, "file {i} took {took_ms} ms");
    }
    println!("{n_ok} of {N} parse; the slowest took {slowest_ms} ms");
    assert!(
        n_ok > N / 50 && n_ok < N / 2,
        "{n_ok} of {N} parse: the damage is too small or too large to tell anything"
    );
}

fn damage(bytes: &mut Vec<u8>, donors: &[Vec<u8>], rng: &mut Rng) {
    if bytes.is_empty() {
        return;
    }
    let at = rng.below(bytes.len());
    match rng.below(6) {
        0 => bytes[at] ^= 1 << rng.below(8),
        1 => bytes.truncate(at),
        2 => {
            let huge = [u64::MAX, 1 << 63, i64::MAX as u64, 1 << 32, 1 << 61, bytes.len() as u64, 0, 1][rng.below(8)];
            overwrite(bytes, at, &huge.to_le_bytes());
        }
        3 => overwrite(bytes, at, &(rng.below(48) as u32).to_le_bytes()),
        4 => {
            let donor = &donors[rng.below(donors.len())];
            let from = rng.below(donor.len() + 1);
            let to = from + rng.below(donor.len() - from + 1);
            bytes.splice(at..(at + rng.below(32)).min(bytes.len()), donor[from..to].iter().copied());
        }
        _ => {
            let to = (at + rng.below(16)).min(bytes.len());
            bytes.drain(at..to);
        }
    }
}

fn overwrite(bytes: &mut [u8], at: usize, new: &[u8]) {
    let n = new.len().min(bytes.len() - at);
    bytes[at..at + n].copy_from_slice(&new[..n]);
}

/// xorshift64*; Vigna 2014.
struct Rng(u64);

impl Rng {
    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize % n
    }
}
