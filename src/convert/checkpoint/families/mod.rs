//! The families of checkpoints that become files by a table: one file each, and the list of them.

mod deepseek;
mod dflash;
mod eagle3;
mod gemma;
mod gemma3;
mod glm;
mod gpt_oss;
mod granite;
mod lfm2;
mod llama;
mod mimo;
mod mistral;
mod nemotron;
mod phi3;
mod qwen;
mod step;

pub(crate) use eagle3::CLASS as EAGLE3;
pub(crate) use mistral::in_words_of_transformers;

use super::table::Row;

const ROWS: &[&Row] = &[
    &llama::ROW,
    &llama::MISTRAL3,
    &mistral::ROW,
    &qwen::QWEN2,
    &qwen::QWEN3,
    &qwen::QWEN3_MOE,
    &glm::GLM4,
    &glm::GLM4_MOE,
    &granite::ROW,
    &phi3::ROW,
    &lfm2::ROW,
    &deepseek::ROW,
    &deepseek::GLM_FLASH,
    &gemma3::GEMMA2,
    &gemma3::ROW,
    &gemma::GEMMA4,
    &gemma::ASSISTANT,
    &mimo::ROW,
    &step::ROW,
    &nemotron::ROW,
    &gpt_oss::ROW,
    &eagle3::ROW,
    &dflash::ROW,
];

/// The family of a class, and the architecture of its files.
pub(crate) fn find(class: &str) -> Option<(&'static Row, &'static str)> {
    let arch = |row: &&'static Row| row.classes.iter().find(|(name, _)| *name == class).map(|(_, arch)| (*row, *arch));
    ROWS.iter().find_map(arch)
}

/// All classes.
pub(crate) fn classes() -> Vec<&'static str> {
    ROWS.iter().flat_map(|row| row.classes.iter().map(|(class, _)| *class)).collect()
}
