//! What a tensor is for, told from its name.

use model::block_of;

use crate::heads::ModelInfo;

/// What a tensor is for.
#[allow(missing_docs)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    Embedding,
    HeadMatrix,
    Attention,
    DeltaNet,
    Mamba,
    FeedForward,
    Experts,
    SharedExpert,
    NextN,
    Other,
}

impl Role {
    /// By name; `info` tell which blocks are of the NextN head and which `attn_qkv` are of delta nets.
    pub fn of(name: &str, info: Option<&ModelInfo>) -> Role {
        if info.is_some_and(|f| f.is_head(name)) {
            return Role::NextN;
        }
        match name {
            "token_embd.weight" => return Role::Embedding,
            "output.weight" => return Role::HeadMatrix,
            _ => {}
        }
        // The towers of projectors name their blocks with their own prefix.
        let name = name.strip_prefix("v.").unwrap_or(name);
        let Some((_, part)) = block_of(name) else { return Role::Other };
        match part {
            _ if part.starts_with("ssm_") && info.is_some_and(|f| f.arch.starts_with("nemotron_h")) => Role::Mamba,
            _ if part.starts_with("ssm_") => Role::DeltaNet,
            // In files of these architectures only delta nets have them; elsewhere they are attention's.
            _ if (part.starts_with("attn_qkv.") || part.starts_with("attn_gate."))
                && info.is_some_and(|f| f.arch.starts_with("qwen3")) =>
            {
                Role::DeltaNet
            }
            _ if part.starts_with("attn_") => Role::Attention,
            _ if part.contains("_shexp.") => Role::SharedExpert,
            _ if part.contains("_exps.") || part.starts_with("ffn_gate_inp.") || part.starts_with("ffn_latent_") => {
                Role::Experts
            }
            _ if part.starts_with("ffn_") => Role::FeedForward,
            _ => Role::Other,
        }
    }

    /// In one or two words.
    pub fn name(self) -> &'static str {
        match self {
            Role::Embedding => "embedding",
            Role::HeadMatrix => "head matrix",
            Role::Attention => "attention",
            Role::DeltaNet => "delta nets",
            Role::Mamba => "Mamba mixers",
            Role::FeedForward => "feed-forward",
            Role::Experts => "experts",
            Role::SharedExpert => "shared experts",
            Role::NextN => "NextN head",
            Role::Other => "norms and others",
        }
    }
}
