//! The engine: sequences, schedule, steps, sampling.
