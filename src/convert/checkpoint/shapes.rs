//! Which tensors a model of given sizes has in a GGUF file, with their shapes.
//! Owns the list; works on sizes alone.

use super::config::Config;

/// Name without the block, and shape with the fastest dimension first.
pub(crate) type Expected = (&'static str, Vec<u64>);

/// Of a layer of the trunk.
pub(crate) fn trunk_layer(c: &Config, il: u64) -> Vec<Expected> {
    let (d, nv, v) = (c.n_embd, c.value_heads.0, c.n_value());
    let channels = 2 * c.n_key() + v;
    let mut list = if c.is_recurrent(il) {
        vec![
            ("attn_qkv.weight", vec![d, channels]),
            ("attn_gate.weight", vec![d, v]),
            ("ssm_conv1d.weight", vec![c.n_conv, channels]),
            ("ssm_dt.bias", vec![nv]),
            ("ssm_a", vec![nv]),
            ("ssm_beta.weight", vec![d, nv]),
            ("ssm_alpha.weight", vec![d, nv]),
            ("ssm_norm.weight", vec![c.value_heads.1]),
            ("ssm_out.weight", vec![v, d]),
        ]
    } else {
        attention(c)
    };
    list.extend(norms_and_ffn(c));
    list
}

/// Of a layer of the head; the first also has the head's own tensors.
pub(crate) fn head_layer(c: &Config, k: u64) -> Vec<Expected> {
    let d = c.n_embd;
    let mut list = attention(c);
    list.extend(norms_and_ffn(c));
    if k == 0 {
        list.extend([
            ("nextn.eh_proj.weight", vec![2 * d, d]),
            ("nextn.enorm.weight", vec![d]),
            ("nextn.hnorm.weight", vec![d]),
            ("nextn.shared_head_norm.weight", vec![d]),
        ]);
    }
    list
}

/// What a head may have besides.
pub(crate) fn head_extras(c: &Config) -> Vec<Expected> {
    vec![
        ("nextn.embed_tokens.weight", vec![c.n_embd, c.n_vocab]),
        ("nextn.shared_head_head.weight", vec![c.n_embd, c.n_vocab]),
    ]
}

/// Outside of layers; the last may be absent.
pub(crate) fn global(c: &Config) -> [Expected; 3] {
    let d = c.n_embd;
    [("token_embd.weight", vec![d, c.n_vocab]), ("output_norm.weight", vec![d]), ("output.weight", vec![d, c.n_vocab])]
}

fn attention(c: &Config) -> Vec<Expected> {
    let (d, hd) = (c.n_embd, c.head_dim);
    vec![
        ("attn_q.weight", vec![d, 2 * hd * c.n_head]),
        ("attn_k.weight", vec![d, hd * c.n_head_kv]),
        ("attn_v.weight", vec![d, hd * c.n_head_kv]),
        ("attn_output.weight", vec![hd * c.n_head, d]),
        ("attn_q_norm.weight", vec![hd]),
        ("attn_k_norm.weight", vec![hd]),
    ]
}

fn norms_and_ffn(c: &Config) -> Vec<Expected> {
    let d = c.n_embd;
    let mut list = vec![("attn_norm.weight", vec![d]), ("post_attention_norm.weight", vec![d])];
    match (c.experts, c.n_ff) {
        (Some(e), _) => list.extend([
            ("ffn_gate_inp.weight", vec![d, e.n]),
            ("ffn_gate_exps.weight", vec![d, e.n_ff, e.n]),
            ("ffn_up_exps.weight", vec![d, e.n_ff, e.n]),
            ("ffn_down_exps.weight", vec![e.n_ff, d, e.n]),
            ("ffn_gate_inp_shexp.weight", vec![d, 1]),
            ("ffn_gate_shexp.weight", vec![d, e.n_ff_shared]),
            ("ffn_up_shexp.weight", vec![d, e.n_ff_shared]),
            ("ffn_down_shexp.weight", vec![e.n_ff_shared, d]),
        ]),
        (None, n_ff) => {
            let n_ff = n_ff.unwrap_or(0);
            list.extend([
                ("ffn_gate.weight", vec![d, n_ff]),
                ("ffn_up.weight", vec![d, n_ff]),
                ("ffn_down.weight", vec![n_ff, d]),
            ]);
        }
    }
    list
}
