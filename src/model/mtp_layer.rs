//! The layers of a NextN head as tensors: those of the model's own file or of another one, and what each attends with.
//! Owns which of them may be missing and why a head is refused; how drafts are made of layers is the decoder's.

use ggml::{Graph, Tensor, WeightId};

use crate::architecture::NextNHead;
use crate::blocks::{LayerNorm, Linear, RmsNorm};
use crate::decoder_config::DecoderConfig;
use crate::error::LoadError;
use crate::head_file::refused;
use crate::keys::Keys;
use crate::layer::Layer;
use crate::step::AttentionInputs;
use crate::tensors::Tensors;

/// One layer of the NextN head: attention on the embedding of a token and the hidden state before it.
pub(crate) struct MtpLayer {
    pub(crate) embed: WeightId,
    embed_norm: RmsNorm,
    hidden_norm: RmsNorm,
    project: Linear,
    pub(crate) layer: Layer,
    /// The target model's final norm if absent.
    pub(crate) norm: Option<HeadNorm>,
    /// The target model's output matrix if absent.
    pub(crate) head: Option<Linear>,
}

/// The norm at the end of a NextN head.
pub(crate) enum HeadNorm {
    Rms(RmsNorm),
    Layer(LayerNorm),
}

impl HeadNorm {
    pub(crate) fn forward<'g>(&self, g: &Graph<'g>, x: Tensor<'g>) -> Tensor<'g> {
        match self {
            Self::Rms(norm) => norm.forward(g, x),
            Self::Layer(norm) => norm.forward(g, x),
        }
    }
}

impl MtpLayer {
    /// A block of the head, or which of its tensors are missing.
    fn open(
        t: &mut Tensors<'_>,
        il: usize,
        c: &DecoderConfig,
        n_vocab: usize,
        embed: WeightId,
    ) -> Result<Result<Self, Vec<String>>, LoadError> {
        let needed = ["nextn.eh_proj.weight", "nextn.enorm.weight", "nextn.hnorm.weight", "attn_norm.weight"];
        let missing = t.block(il).missing(&needed);
        if !missing.is_empty() {
            return Ok(Err(missing));
        }
        let layer = match Layer::open(t, il, c) {
            Ok(layer) => layer,
            Err(LoadError::Missing(tensor)) => return Ok(Err(vec![tensor])),
            Err(error) => return Err(error),
        };
        let (d, eps, t) = (c.n_embd, c.eps, &mut t.block(il));
        let norm = match c.mtp.layer_norm {
            None => match RmsNorm::find(t, "nextn.shared_head_norm", d, eps)? {
                Some(norm) => Some(HeadNorm::Rms(norm)),
                None => RmsNorm::find(t, "layer_output_norm", d, eps)?.map(HeadNorm::Rms),
            },
            Some(eps) => match LayerNorm::open(t, "nextn.shared_head_norm", d, eps) {
                Ok(norm) => Some(HeadNorm::Layer(norm)),
                Err(LoadError::Missing(tensor)) => return Ok(Err(vec![tensor])),
                Err(error) => return Err(error),
            },
        };
        Ok(Ok(Self {
            project: Linear::open(t, "nextn.eh_proj", 2 * d, d)?,
            embed_norm: RmsNorm::open(t, "nextn.enorm", d, eps)?,
            hidden_norm: RmsNorm::open(t, "nextn.hnorm", d, eps)?,
            layer,
            norm,
            embed: t.find("nextn.embed_tokens.weight", &[d, n_vocab])?.unwrap_or(embed),
            head: Linear::find(t, "nextn.shared_head_head", d, n_vocab, false)?,
        }))
    }

    /// One entry a column: embeddings of tokens and hidden states, `[n_embd, n_entries]` each; gives the layer's stream and
    /// what its attention adds, for [`Layer::rest`]. Its KV cache is layer `k` of the head's memory.
    pub(crate) fn attend<'g>(
        &self,
        g: &Graph<'g>,
        inputs: &AttentionInputs<'_, 'g>,
        k: usize,
        (tokens, hidden): (Tensor<'g>, Tensor<'g>),
    ) -> (Tensor<'g>, Tensor<'g>) {
        let e = self.embed_norm.forward(g, tokens); // [n_embd, n_entries]
        let h = self.hidden_norm.forward(g, hidden);
        let x = self.project.forward(g, g.concat(e, h, 0)); // [n_embd, n_entries], of [2 * n_embd, n_entries]
        (x, self.layer.attend(g, inputs, k, x))
    }
}

/// The NextN head of the model's own file.
pub(crate) fn mtp_of_model(
    t: &mut Tensors<'_>,
    c: &DecoderConfig,
    n_vocab: usize,
    embed: WeightId,
) -> Result<(Vec<MtpLayer>, NextNHead), LoadError> {
    if c.n_nextn == 0 {
        return Ok((Vec::new(), NextNHead::Absent));
    }
    Ok(match mtp_layers(t, c, n_vocab, embed)? {
        Ok(mtp) => (mtp, NextNHead::Bound),
        Err(missing) => (Vec::new(), NextNHead::Missing(missing)),
    })
}

/// The NextN head of the model's own file beside that of another one, which has `n_given` layers. Where the two cannot take turns
/// there is none, and the log says why.
pub(crate) fn own_beside(
    t: &mut Tensors<'_>,
    c: &DecoderConfig,
    n_given: usize,
    n_vocab: usize,
    embed: WeightId,
) -> Vec<MtpLayer> {
    if c.n_nextn > 0 && c.n_nextn != n_given {
        let n_own = c.n_nextn;
        tracing::info!(n_given, n_own, "the given NextN head replaces the model's own: they differ in layers");
        return Vec::new();
    }
    match mtp_of_model(t, c, n_vocab, embed) {
        Ok((own, _)) => own,
        Err(error) => {
            tracing::warn!(%error, "the given NextN head replaces the model's own, which cannot be used");
            Vec::new()
        }
    }
}

/// All layers of the NextN head, or which tensors are missing: those of the first layer that is not whole.
fn mtp_layers(
    t: &mut Tensors<'_>,
    c: &DecoderConfig,
    n_vocab: usize,
    embed: WeightId,
) -> Result<Result<Vec<MtpLayer>, Vec<String>>, LoadError> {
    let layers = (c.n_layer()..c.blocks.len()).map(|il| MtpLayer::open(t, il, c, n_vocab, embed));
    Ok(layers.collect::<Result<Vec<_>, _>>()?.into_iter().collect())
}

/// Whether a file has a NextN head, for a model of `n_layer` layers. Looked at before its lists of layers are.
pub(crate) fn fits_after(keys: &Keys<'_, '_>, n_layer: usize) -> Result<(), LoadError> {
    let (n_block, n_nextn) = (keys.n_block()?, keys.n_nextn()?);
    if n_nextn == 0 {
        let name = keys.full("nextn_predict_layers");
        return Err(refused(format!("its {name} is 0, 1 or more expected: it holds no NextN head")));
    }
    if n_block - n_nextn != n_layer {
        return Err(refused(format!("layers before the head: {} there, {n_layer} in the model", n_block - n_nextn)));
    }
    Ok(())
}

/// The NextN head of another file. Embedding, final norm and output matrix are the model's own unless the head brings some
/// of its own kind: copies of the model's in that file are left alone.
pub(crate) fn mtp_of_file(
    t: &mut Tensors<'_>,
    model: &DecoderConfig,
    own: &DecoderConfig,
    n_vocab: usize,
    embed: WeightId,
) -> Result<Vec<MtpLayer>, LoadError> {
    let pairs = [("embedding_length", own.n_embd, model.n_embd), ("experts", own.n_expert().0, model.n_expert().0)];
    if let Some((what, own, wanted)) = pairs.into_iter().find(|(_, own, wanted)| own != wanted) {
        return Err(refused(format!("{what}: {own} there, {wanted} in the model")));
    }
    let mtp = t.in_head_file("", |t| {
        if t.has("d2t") {
            let what = "its head is cut to a part of the vocabulary (tensor d2t): take the whole head, drafts use a part of it by themselves";
            return Err(refused(what));
        }
        mtp_layers(t, own, n_vocab, embed)
    })?;
    mtp.map_err(|missing| refused(format!("it lacks {}", missing.join(", "))))
}
