#include "dependent_launch.cuh"
#include "gumbel.cuh"
#include "nodes.cuh"

namespace nextn {

namespace {

constexpr int THREADS = 256;

// The noise of one token: src/kernels/gumbel.rs says what it is. A draft may be wrong, so logarithms need not have all their bits.
__device__ float noise(uint64_t key, uint32_t id) {
    uint64_t z = key + (uint64_t(id) + 1) * 0x9e3779b97f4a7c15ull;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    z ^= z >> 31;
    // An odd multiple of 2^-53 in (0, 1), and what it lacks to 1, which is exact before it is rounded.
    const uint64_t odd = (z >> 12) * 2 + 1;
    const float u = float(odd) * 0x1p-53f, rest = float((1ull << 53) - odd) * 0x1p-53f;
    const float exponential = rest < 1.0f / 64.0f ? rest * (1.0f + 0.5f * rest) : -__logf(u);
    return -__logf(exponential);
}

// Grid: words, rows. keys: two halves of the key, the temperature, nothing. ids: the token of each word, its number if null; mask:
// below zero for words that are not there.
__global__ void add_noise(const float * logits, const int4 * keys, const int32_t * ids, const float * mask, float * dst, int n_words) {
    const int word = blockIdx.x * THREADS + threadIdx.x;
    wait_for_previous();
    let_next_start();
    if (word >= n_words) {
        return;
    }
    const int64_t at = int64_t(blockIdx.y) * n_words + word;
    const int4 key = keys[blockIdx.y];
    const float temperature = __int_as_float(key.z);
    if (mask && mask[word] < 0.0f) {
        dst[at] = -1e30f;
    } else if (temperature > 0.0f) {
        const uint64_t both = uint64_t(uint32_t(key.y)) << 32 | uint32_t(key.x);
        dst[at] = logits[at] + temperature * noise(both, ids ? uint32_t(ids[word]) : uint32_t(word));
    } else {
        dst[at] = logits[at];
    }
}

}  // namespace

bool adds_gumbel(const ggml_tensor * node) {
    if (node->op != GGML_OP_CUSTOM || node->op_params[FIRST_PARAMETER] != GUMBEL) {
        return false;
    }
    const ggml_tensor * logits = node->src[0], * keys = node->src[1], * ids = node->src[2], * mask = node->src[3];
    return logits && keys && node->type == GGML_TYPE_F32 && logits->type == GGML_TYPE_F32 && keys->type == GGML_TYPE_I32 &&
        ggml_is_contiguous(node) && ggml_is_contiguous(logits) && ggml_is_contiguous(keys) && ggml_are_same_shape(node, logits) &&
        keys->ne[0] == 4 && ggml_nrows(keys) == ggml_nrows(logits) && ggml_nrows(logits) < 65536 && logits->ne[0] < INT32_MAX &&
        (!ids || (ids->type == GGML_TYPE_I32 && ggml_is_contiguous(ids) && ggml_nelements(ids) == logits->ne[0])) &&
        (!mask || (mask->type == GGML_TYPE_F32 && ggml_is_contiguous(mask) && ggml_nelements(mask) == logits->ne[0]));
}

bool add_gumbel(ggml_backend_cuda_context & ctx, ggml_tensor * dst) {
    if (!adds_gumbel(dst)) {
        return false;
    }
    const ggml_tensor * logits = dst->src[0], * ids = dst->src[2], * mask = dst->src[3];
    const int n_words = int(logits->ne[0]);
    const ggml_cuda_kernel_launch_params params(dim3((n_words + THREADS - 1) / THREADS, ggml_nrows(logits)), dim3(THREADS), size_t(0),
        ctx.stream());
    ggml_cuda_kernel_launch(add_noise, params, (const float *) logits->data, (const int4 *) dst->src[1]->data,
        ids ? (const int32_t *) ids->data : nullptr, mask ? (const float *) mask->data : nullptr, (float *) dst->data, n_words);
    return true;
}

}  // namespace nextn
