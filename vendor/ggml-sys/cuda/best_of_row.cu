#include "best_of_row.cuh"
#include "best_of_row_kernels.cuh"

namespace nextn {

bool best_of_row(ggml_backend_cuda_context & ctx, ggml_tensor * dst) {
    // Shorter rows ggml's thread blocks read as quickly.
    constexpr int64_t LONG = 8192;
    if (dst->op != GGML_OP_ARGMAX || !kernels_are_on()) {
        return false;
    }
    const ggml_tensor * rows = dst->src[0];
    const int64_t n = rows->ne[0];
    if (rows->type != GGML_TYPE_F32 || dst->type != GGML_TYPE_I32 || !ggml_is_contiguous(rows) || n < LONG || n % 4 != 0 || n > INT32_MAX ||
        uintptr_t(rows->data) % sizeof(float4) != 0) {
        return false;
    }
    const ggml_cuda_kernel_launch_params params(dim3(ggml_nrows(rows)), dim3(BEST_THREADS), size_t(0), ctx.stream());
    ggml_cuda_kernel_launch(best_of_rows, params, (const float4 *) rows->data, (int32_t *) dst->data, int(n / 4));
    return true;
}

}  // namespace nextn
