"""A projector of random weights for the small model: its clients' pictures become rows that mean nothing, but depend on them."""

import gguf
import numpy

N_EMBD, N_FF, N_HEAD, N_LAYER, PATCH, SIDE = 24, 20, 2, 2, 4, 5


def write(path, n_embd_text):
    random = numpy.random.default_rng(1)
    writer = gguf.GGUFWriter(path, "clip")
    writer.add_string("clip.projector_type", "qwen3vl_merger")
    numbers = {
        "embedding_length": N_EMBD, "feed_forward_length": N_FF, "block_count": N_LAYER, "attention.head_count": N_HEAD,
        "projection_dim": n_embd_text, "patch_size": PATCH, "image_size": SIDE * PATCH, "spatial_merge_size": 2,
    }
    for key, number in numbers.items():
        writer.add_uint32(f"clip.vision.{key}", number)
    writer.add_array("clip.vision.is_deepstack_layers", [False] * N_LAYER)
    for key in ("image_mean", "image_std"):
        writer.add_array(f"clip.vision.{key}", [0.5] * 3)

    def tensor(name, *shape, scale=0.1):
        writer.add_tensor(name, (random.standard_normal(shape) * scale).astype(numpy.float32))

    def linear(name, n_in, n_out):
        tensor(f"{name}.weight", n_out, n_in)
        tensor(f"{name}.bias", n_out)

    for name in ("v.patch_embd.weight", "v.patch_embd.weight.1"):
        tensor(name, N_EMBD, 3, PATCH, PATCH)
    tensor("v.patch_embd.bias", N_EMBD)
    tensor("v.position_embd.weight", SIDE * SIDE, N_EMBD)
    for layer in range(N_LAYER):
        block = f"v.blk.{layer}"
        for name in ("ln1", "ln2"):
            tensor(f"{block}.{name}.weight", N_EMBD, scale=1)
            tensor(f"{block}.{name}.bias", N_EMBD)
        linear(f"{block}.attn_qkv", N_EMBD, 3 * N_EMBD)
        linear(f"{block}.attn_out", N_EMBD, N_EMBD)
        linear(f"{block}.ffn_up", N_EMBD, N_FF)
        linear(f"{block}.ffn_down", N_FF, N_EMBD)
    tensor("v.post_ln.weight", N_EMBD, scale=1)
    tensor("v.post_ln.bias", N_EMBD)
    linear("mm.0", 4 * N_EMBD, 4 * N_EMBD)
    linear("mm.2", 4 * N_EMBD, n_embd_text)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
