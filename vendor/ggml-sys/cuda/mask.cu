#include "dependent_launch.cuh"
#include "mask.cuh"
#include "nodes.cuh"

namespace nextn {

namespace {

// Cells that a thread writes: 16 bytes.
constexpr int THREADS = 256, CELLS = 8;

// Grid: rows, cells. spans: the first cell that a row sees, and the one after its last.
__global__ void fill(const int2 * spans, uint4 * dst, int n_words) {
    const int word = blockIdx.y * THREADS + threadIdx.x;
    wait_for_previous();
    let_next_start();
    if (word >= n_words) {
        return;
    }
    const int2 seen = spans[blockIdx.x];
    uint4 bits;
    uint16_t * cells = reinterpret_cast<uint16_t *>(&bits);
#pragma unroll
    for (int i = 0; i < CELLS; i++) {
        const int cell = word * CELLS + i;
        cells[i] = cell >= seen.x && cell < seen.y ? 0 : 0xfc00;
    }
    dst[int64_t(blockIdx.x) * n_words + word] = bits;
}

}  // namespace

bool makes_mask(const ggml_tensor * node) {
    if (node->op != GGML_OP_CUSTOM || node->op_params[FIRST_PARAMETER] != MASK_OF_SPANS) {
        return false;
    }
    const ggml_tensor * spans = node->src[0];
    return spans && node->type == GGML_TYPE_F16 && spans->type == GGML_TYPE_I32 && ggml_is_contiguous(node) && ggml_is_contiguous(spans) &&
        ggml_nelements(spans) == 2 * ggml_nrows(node) && node->ne[0] % CELLS == 0 && node->ne[0] / CELLS / THREADS < 65535 &&
        ggml_nrows(node) < INT32_MAX;
}

bool make_mask(ggml_backend_cuda_context & ctx, ggml_tensor * dst) {
    if (!makes_mask(dst)) {
        return false;
    }
    const int n_words = int(dst->ne[0] / CELLS);
    const ggml_cuda_kernel_launch_params params(dim3(ggml_nrows(dst), (n_words + THREADS - 1) / THREADS), dim3(THREADS), size_t(0),
        ctx.stream());
    ggml_cuda_kernel_launch(fill, params, (const int2 *) dst->src[0]->data, (uint4 *) dst->data, n_words);
    return true;
}

}  // namespace nextn
