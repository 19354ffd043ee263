//! The engine: sequences, schedule, steps, sampling.

pub mod sample;
pub mod stop;
