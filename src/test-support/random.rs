//! Random choices of tests: a seed means the same ones on every machine.

/// Marsaglia's xorshift: a few random choices need no crate.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// The choices of a seed.
    pub fn new(seed: u64) -> Self {
        // The generator stays at zero for ever.
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// A number below `n`.
    pub fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % n as u64) as usize
    }
}
