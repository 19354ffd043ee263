//! Another number type for the matrices of a head.
//! Owns which tensors take part and what stands in where rows do not fit; computes nothing.

use gguf::TensorType;

use crate::error::Error;
use crate::stream::{Stored, TensorPlan};

/// What matrices become; vectors, norms and routers stay as they are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WeightType {
    /// As they are.
    #[default]
    Keep,
    /// This type, or Q8_0 and then F16 for rows that are no whole blocks of it.
    To(TensorType),
}

impl WeightType {
    /// Reads `keep` or the name of a type that can be made, whatever its case: `q8_0`, `f16`, `bf16`, `q6_k`.
    ///
    /// # Errors
    /// Another word; the message lists those that can be.
    pub fn parse(word: &str) -> Result<WeightType, String> {
        if word.eq_ignore_ascii_case("keep") {
            return Ok(WeightType::Keep);
        }
        let known = || TensorType::ALL.iter().copied().filter(|t| can_be_made(*t));
        match known().find(|t| t.name().eq_ignore_ascii_case(word)) {
            Some(dtype) => Ok(WeightType::To(dtype)),
            None => Err(format!("keep, {} expected", known().map(TensorType::name).collect::<Vec<_>>().join(", "))),
        }
    }

    /// Changes the plan of one tensor.
    ///
    /// # Errors
    /// The numbers of the source cannot be read as floats.
    pub(crate) fn apply(self, plan: &mut TensorPlan) -> Result<(), Error> {
        let WeightType::To(wanted) = self else { return Ok(()) };
        if !is_matrix(plan) {
            return Ok(());
        }
        let fits = |t: &TensorType| plan.row_len.is_multiple_of(t.block_size());
        let dtype = [wanted, TensorType::Q8_0, TensorType::F16].into_iter().find(fits).unwrap_or(TensorType::F16);
        let readable = |stored: Stored| !matches!(stored, Stored::Ggml(dtype) if !dtype.unpacks());
        if let Some(piece) = plan.pieces.iter().find(|piece| plan.dtype != dtype && !readable(piece.stored)) {
            return Err(Error::tensor(
                &plan.name,
                format!("{:?} cannot be read as floats; keep its type, or start from other weights", piece.stored),
            ));
        }
        plan.dtype = dtype;
        Ok(())
    }

    /// The value of `general.file_type` for files whose matrices are mostly of this type.
    pub(crate) fn file_type(self) -> Option<u32> {
        let WeightType::To(dtype) = self else { return None };
        Some(match dtype {
            TensorType::F32 => 0,
            TensorType::F16 => 1,
            TensorType::Q4_0 => 2,
            TensorType::Q4_1 => 3,
            TensorType::Q8_0 => 7,
            TensorType::Q5_0 => 8,
            TensorType::Q5_1 => 9,
            TensorType::Q2_K => 10,
            TensorType::Q3_K => 12,
            TensorType::Q4_K => 15,
            TensorType::Q5_K => 17,
            TensorType::Q6_K => 18,
            TensorType::IQ4_NL => 25,
            TensorType::IQ4_XS => 30,
            TensorType::BF16 => 32,
            _ => return None,
        })
    }
}

/// Whether a tensor is one of those that types are for: no vector, no norm, no router.
pub(super) fn is_matrix(plan: &TensorPlan) -> bool {
    let name = plan.name.as_str();
    plan.ne.len() > 1 && name.ends_with(".weight") && !name.contains("_norm.") && !name.contains("ffn_gate_inp")
}

pub(super) fn can_be_made(dtype: TensorType) -> bool {
    ggml::Dtype::from_id(dtype.id()).is_ok_and(ggml::Dtype::can_be_packed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_types_that_can_be_made() {
        assert_eq!(WeightType::parse("keep"), Ok(WeightType::Keep));
        assert_eq!(WeightType::parse("Q4_K"), Ok(WeightType::To(TensorType::Q4_K)));
        assert_eq!(WeightType::parse("bf16"), Ok(WeightType::To(TensorType::BF16)));
        let refused = WeightType::parse("q8_k").unwrap_err();
        assert!(refused.contains("q8_0") && !refused.contains("i32"), "{refused}");
    }
}
