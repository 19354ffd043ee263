//! Good files, damaged: flipped bits, cuts, huge lengths, other types, splices. The same for the same seed.

use super::{attacks, good_files};

pub struct Damage {
    rng: Rng,
    good: Vec<Vec<u8>>,
    donors: Vec<Vec<u8>>,
}

impl Damage {
    pub fn new(seed: u64) -> Damage {
        let good: Vec<Vec<u8>> = good_files().into_iter().map(|f| f.1).collect();
        // Donors of splices; the long ones would only make it slow.
        let attacks = attacks().into_iter().map(|f| f.1).filter(|bytes| bytes.len() < 2000);
        let donors = attacks.chain(good.clone()).collect();
        Damage { rng: Rng(seed), good, donors }
    }

    /// A good file with one to three wounds.
    pub fn file(&mut self) -> Vec<u8> {
        let mut bytes = self.good[self.rng.below(self.good.len())].clone();
        for _ in 0..=self.rng.below(3) {
            damage(&mut bytes, &self.donors, &mut self.rng);
        }
        bytes
    }
}

/// One wound.
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
