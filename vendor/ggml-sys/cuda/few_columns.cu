#include "few_columns.cuh"
#include "all_reduce.cuh"
#include "attention.cuh"
#include "few_columns_kernels.cuh"
#include "few_floats_kernels.cuh"
#include "granules.cuh"
#include "gumbel.cuh"
#include "mask.cuh"
#include "nodes.cuh"
#include "states.cuh"
#include "mmvq.cuh"
#include "unary.cuh"

#include <algorithm>
#include <cstdlib>
#include <cstring>

namespace nextn {

static_assert(MAX_TOKENS == MAX_COLUMNS, "both say what is served");

namespace {

// Columns as they are multiplied, and who wants which matrix, kept while a graph runs: products that share an input prepare it once.
// The memory stays where it is for as long as the backend lives, since captured graphs point to it.
struct kept_columns {
    static constexpr size_t SIZE = 8 << 20, CHUNKS = 1 << 20;
    char * data = nullptr;
    const ggml_tensor * of = nullptr;
    int k = 0;
    const ggml_tensor * ids = nullptr;
    int n_groups = 0;
    const ggml_tensor * gated = nullptr, * gated_shared = nullptr;      // what the last launch of gated experts wrote
    std::vector<const ggml_tensor *> left;      // nodes that those who read them compute

    ~kept_columns() {
        if (data) {
            (void) cudaFree(data);
        }
    }
};

struct finish_as_ggml {
    __device__ float operator()(const products & p, float value, bool has_gate, float gate, int64_t, int64_t bias) const {
        if (p.bias) {
            value += p.bias[bias];
        }
        if (!has_gate) {
            return value;
        }
        if (p.gate_bias) {
            gate += p.gate_bias[bias];
        }
        return ggml_cuda_op_glu_single(ggml_glu_op(p.glu), gate, value, p.glu_limit);
    }

    __device__ float operator()(const one_of_several & of, float value, int row) const {
        switch (of.finishing) {
            case WITH_BIAS: return __fadd_rn(value, of.add[row]);
            case AS_DECAY: {
                const float x = __fadd_rn(value, of.add[row]);
                return (x > 20.0f ? x : logf(1.0f + expf(x))) * of.times[row];
            }
            case AS_SIGMOID: return 1.0f / (1.0f + expf(-value));
            default: return value;
        }
    }

    __device__ float operator()(const float_products & p, float value, float gate, int64_t place) const {
        if (p.bias) {
            value += p.bias[place];
        }
        if (!p.gate) {
            return value;
        }
        if (p.gate_bias) {
            gate += p.gate_bias[place];
        }
        return ggml_cuda_op_glu_single(ggml_glu_op(p.glu), gate, value, p.glu_limit);
    }
};

// As finish_as_ggml does it.
struct swiglu {
    __device__ float operator()(float gate, float up) const { return ggml_cuda_op_glu_single(GGML_GLU_OP_SWIGLU, gate, up, 0.0f); }
};

// A weight or some rows of one: nothing that a graph computes, so it can be read before the previous kernel has ended.
bool is_weight(const ggml_tensor * w) {
    const ggml_tensor * whole = w->view_src ? w->view_src : w;
    return whole->buffer && ggml_backend_buffer_get_usage(whole->buffer) == GGML_BACKEND_BUFFER_USAGE_WEIGHTS &&
        reinterpret_cast<uintptr_t>(w->data) % 16 == 0;
}

// Tokens from which on a matrix that several want is read once for them. Fewer seldom want the same one.
constexpr int MIN_SHARED = 9;

// Blocks of a column up to which thread blocks make it by themselves, each for its rows.
constexpr int MAX_OWN = 8;

// Experts among which those that several tokens want are found.
constexpr int MAX_EXPERTS = 1024;

// Columns of an expert, on average, up to which prompts are served: ggml's kernel takes 128 at a time, whether they are there or not,
// and needs as long for them as ours for about 60.
constexpr int64_t MAX_EACH = 40;

// Larger F32 matrices are worth tensor cores.
constexpr int64_t MAX_FLOATS = 4 << 20;

// Tokens up to which a weight of this shape is served.
int most_tokens(ggml_type type, const int64_t * ne) {
    switch (type) {
        case GGML_TYPE_Q4_K:
        case GGML_TYPE_Q5_K:
        case GGML_TYPE_Q6_K:
        case GGML_TYPE_Q8_0:
            return ne[0] % BLOCK != 0 || ne[3] != 1 ? 0 : ne[2] > MAX_EXPERTS ? GROUP : MAX_COLUMNS;
        case GGML_TYPE_F32:
            return ne[0] % 4 != 0 || ne[2] * ne[3] != 1 || ne[0] * ne[1] > MAX_FLOATS ? 0 : MAX_COLUMNS;
        default:
            return 0;
    }
}

bool serves(const ggml_tensor * w, const ggml_tensor * x, const ggml_tensor * ids, const ggml_tensor * dst) {
    // Columns are read four floats at a time.
    const bool aligned = reinterpret_cast<uintptr_t>(x->data) % 16 == 0 && x->nb[1] % 16 == 0 && x->nb[2] % 16 == 0;
    const int64_t n_tokens = ids ? x->ne[2] : x->ne[1];
    const int most = most_tokens(w->type, w->ne);
    const bool are_few_each = ids && most == MAX_COLUMNS && ids->ne[0] * n_tokens <= MAX_EACH * w->ne[2];
    return is_served_here() && (n_tokens <= most || are_few_each) && is_weight(w) && w->nb[1] == ggml_row_size(w->type, w->ne[0]) &&
        x->type == GGML_TYPE_F32 && x->nb[0] == sizeof(float) && x->ne[3] == 1 && aligned && dst->type == GGML_TYPE_F32 &&
        dst->nb[0] == sizeof(float) &&
        (ids ? w->type != GGML_TYPE_F32 && x->ne[1] <= 64 && ids->ne[0] <= 64 : w->ne[2] == 1 && x->ne[2] == 1);
}

struct launch_floats {
    float_products & p;
    cudaStream_t stream;

    template <int ROWS, int COLUMNS> void operator()() const {
        const int n_blocks = blocks_of(p, p.gate ? 1 : ROWS);
        const ggml_cuda_kernel_launch_params params(dim3(n_blocks, (p.n + FLOAT_COLUMNS - 1) / FLOAT_COLUMNS), dim3(FLOAT_THREADS),
            size_t(0), stream);
        ggml_cuda_kernel_launch(few_floats<ROWS, COLUMNS, finish_as_ggml>, params, p, finish_as_ggml());
    }
};

// What is fused is a bias as large as the result, or a gate of the same shape.
void floats(ggml_backend_cuda_context & ctx, const ggml_tensor * w, const ggml_tensor * x, ggml_tensor * dst,
            const ggml_cuda_mm_fusion_args_host * fusion) {
    float_products p = {};
    p.w = (const float *) w->data;
    p.row = w->nb[1] / sizeof(float);
    p.k = int(w->ne[0]);
    p.n_rows = int(w->ne[1]);
    p.n = int(x->ne[1]);
    p.x = (const float *) x->data;
    p.column = x->nb[1] / sizeof(float);
    p.dst = (float *) dst->data;
    p.dst_column = dst->nb[1] / sizeof(float);
    if (fusion) {
        const auto data = [](const ggml_tensor * tensor) { return tensor ? (const float *) tensor->data : nullptr; };
        p.gate = data(fusion->gate);
        p.bias = data(fusion->x_bias);
        p.gate_bias = data(fusion->gate_bias);
        p.glu = fusion->glu_op;
        p.glu_limit = fusion->glu_limit;
    }
    chosen(p, launch_floats{ p, ctx.stream() });
}

// A token at a time, for which ggml has a kernel with any fusion.
void one_by_one(ggml_backend_cuda_context & ctx, const ggml_tensor * w, const ggml_tensor * x, const ggml_tensor * ids, ggml_tensor * dst,
                const ggml_cuda_mm_fusion_args_host & fusion) {
    const int along = ids ? 2 : 1;
    const auto nth = [](const ggml_tensor * tensor, int along, int64_t i) {
        ggml_tensor one = *tensor;
        one.data = (char *) tensor->data + i * tensor->nb[along];
        one.ne[along] = 1;
        return one;
    };
    for (int64_t i = 0; i < x->ne[along]; i++) {
        ggml_cuda_mm_fusion_args_host of_one = fusion;
        const ggml_tensor columns = nth(x, along, i);
        ggml_tensor chosen_by, bias, gate_bias, shared, to = nth(dst, along, i);
        if (ids) {
            chosen_by = nth(ids, 1, i);
        } else {
            if (fusion.x_bias) {
                bias = nth(fusion.x_bias, 1, i);
                of_one.x_bias = &bias;
            }
            if (fusion.gate_bias) {
                gate_bias = nth(fusion.gate_bias, 1, i);
                of_one.gate_bias = &gate_bias;
            }
        }
        if (fusion.shared_dst) {
            shared = nth(fusion.shared_dst, 1, i);
            of_one.shared_dst = &shared;
        }
        ggml_cuda_mul_mat_vec_q(ctx, w, &columns, ids ? &chosen_by : nullptr, &to, &of_one);
    }
}

bool is_set_to(const char * what) {
    const char * value = getenv("NEXTN_CUDA_KERNELS");
    return value && strcmp(value, what) == 0;
}

// For nextn: see function().
extern "C" int32_t columns_alike(int32_t type, const int64_t * ne) {
    return kernels_are_on() ? most_tokens(ggml_type(type), ne) : 0;
}

extern "C" int32_t queries_alike_by_name(int64_t head_size) {
    return queries_alike(head_size);
}

extern "C" int32_t queries_alike_over_by_name(int64_t head_size, int32_t type_k, int32_t type_v) {
    return queries_alike_over(head_size, type_k, type_v);
}

extern "C" int32_t states_by_number_by_name(int64_t n_past, int64_t n_channels, int64_t head_size) {
    return states_by_number(n_past, n_channels, head_size);
}

template <typename T> struct launch {
    products & p;
    int n_matrices;
    cudaStream_t stream;

    template <int LANES, int STAGES, int TILES, int GROUPS, bool OWN = false, bool DENSER = false> void operator()() const {
        const auto kernel = few_columns<T, LANES, STAGES, TILES, GROUPS, OWN, DENSER, finish_as_ggml>;
        constexpr int rows = WARPS / LANES * TILE, each = OWN ? int(sizeof(block_of_columns<1>)) : 0;
        constexpr int most = memory_of<T, LANES, STAGES, TILES, GROUPS>() + MAX_OWN * each;
        if (most > 48 << 10) {
            // More than a thread block has by itself.
            CUDA_SET_SHARED_MEMORY_LIMIT(kernel, most);
        }
        p.rounds = has_rounds(GROUPS) ? rounds_of<LANES, TILES, OWN, DENSER>(p, n_matrices, multiprocessors()) : 1;
        const ggml_cuda_kernel_launch_params params(dim3(blocks_of(p, rows * p.rounds), n_matrices), dim3(32, WARPS),
            size_t(memory_of<T, LANES, STAGES, TILES, GROUPS>() + p.n_blocks * each), stream);
        ggml_cuda_kernel_launch(kernel, params, p, finish_as_ggml());
    }
};

int type_of(ggml_type type) {
    switch (type) {
        case GGML_TYPE_Q4_K: return IS_Q4_K;
        case GGML_TYPE_Q5_K: return IS_Q5_K;
        case GGML_TYPE_Q6_K: return IS_Q6_K;
        case GGML_TYPE_Q8_0: return IS_Q8_0;
        default: return IS_F32;
    }
}

void launch_of(ggml_type type, products & p, int n_matrices, cudaStream_t stream) {
    const auto is_other = [&](const one_of_several & one) { return one.type != p.several[0].type; };
    if (std::any_of(p.several, p.several + p.n_several, is_other)) {
        constexpr int memory = memory_of_types();
        static_assert(memory <= 48 << 10, "a thread block has this much by itself");
        p.rounds = rounds_of<WARPS, 1, false>(p, n_matrices, multiprocessors());
        const ggml_cuda_kernel_launch_params params(dim3(blocks_of(p, TILE * p.rounds)), dim3(32, WARPS), size_t(memory), stream);
        return ggml_cuda_kernel_launch(few_columns_of_types<finish_as_ggml>, params, p, finish_as_ggml());
    }
    switch (type) {
        case GGML_TYPE_Q4_K: return chosen<k_quants<false>>(p, launch<k_quants<false>>{ p, n_matrices, stream });
        case GGML_TYPE_Q5_K: return chosen<k_quants<true>>(p, launch<k_quants<true>>{ p, n_matrices, stream });
        case GGML_TYPE_Q6_K: return chosen<q6_k>(p, launch<q6_k>{ p, n_matrices, stream });
        default: return chosen<bytes_with_scales>(p, launch<bytes_with_scales>{ p, n_matrices, stream });
    }
}

size_t bytes_of_columns(int n, int k) {
    return size_t(GGML_PAD(n, GROUP) / GROUP) * (k / BLOCK) * sizeof(column_block);
}

kept_columns & all_kept(ggml_backend_cuda_context & ctx) {
    if (!ctx.nextn_columns) {
        ctx.nextn_columns = std::make_shared<kept_columns>();
    }
    return *static_cast<kept_columns *>(ctx.nextn_columns.get());
}

// What is kept, if it has room for this much; null if not.
kept_columns * kept_of(ggml_backend_cuda_context & ctx, size_t n_bytes, size_t lists) {
    if (ctx.curr_stream_no != 0 || n_bytes > kept_columns::SIZE || lists > kept_columns::CHUNKS) {
        return nullptr;
    }
    kept_columns * kept = &all_kept(ctx);
    if (!kept->data) {
        // A stream that is being captured allows no allocation.
        cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
        CUDA_CHECK(cudaStreamIsCapturing(ctx.stream(), &capture));
        if (capture == cudaStreamCaptureStatusNone) {
            CUDA_CHECK(cudaMalloc(&kept->data, kept_columns::SIZE + kept_columns::CHUNKS));
        }
    }
    return kept->data ? kept : nullptr;
}

float_columns columns_of(const ggml_tensor * x, bool has_ids, char * to) {
    return { (const float *) x->data, int64_t(x->nb[1] / sizeof(float)), int64_t(x->nb[has_ids ? 2 : 1] / sizeof(float)),
        has_ids ? int(x->ne[1]) : 1, (column_block *) to };
}

bool has_columns(const kept_columns * kept, const ggml_tensor * x) {
    return kept && kept->of == root_of(x) && kept->k == x->ne[0];
}

// Has columns of x, and behind them those of a shared expert's input, ready where the launch reads them.
void prepare(ggml_backend_cuda_context & ctx, kept_columns * kept, char * columns, const ggml_tensor * x, bool has_ids,
             const ggml_tensor * shared) {
    const int k = int(x->ne[0]), n = int(x->ne[1] * x->ne[2]), n_shared = shared ? int(shared->ne[1]) : 0;
    if (!shared && has_columns(kept, x)) {
        return;
    }
    const float_columns first = columns_of(x, has_ids, columns);
    const float_columns second = shared ? columns_of(shared, false, columns + bytes_of_columns(n, k)) : first;
    const ggml_cuda_kernel_launch_params params(dim3((k / BLOCK + 3) / 4, n + n_shared), dim3(128), size_t(0), ctx.stream());
    ggml_cuda_kernel_launch(quantise, params, first, n, second, k / BLOCK);
    if (kept) {
        kept->of = root_of(x);
        kept->k = k;
    }
}

// The products of a matrix and its gate apart, then what the gate makes of them, and the columns of that.
void gate_apart(ggml_backend_cuda_context & ctx, const ggml_tensor * w, ggml_tensor * dst, const products & gated) {
    const int n_rows = gated.n_rows, n = gated.n_tokens;
    ggml_cuda_pool_alloc<float> both(ctx.pool(), size_t(2) * n_rows * n);
    products p = gated;
    p.gate = nullptr;
    p.denser = true;
    p.n_several = 2;
    for (int i = 0; i < 2; i++) {
        p.several[i] = { i == 0 ? gated.w : gated.gate, gated.row_bytes, type_of(w->type), n_rows, 0, both.get() + size_t(i) * n_rows * n, n_rows,
            AS_IT_IS, nullptr, nullptr };
    }
    launch_of(w->type, p, 1, ctx.stream());
    const ggml_cuda_kernel_launch_params params(dim3((n_rows / BLOCK + 3) / 4, n), dim3(128), size_t(0), ctx.stream());
    ggml_cuda_kernel_launch(gate_rows<swiglu>, params, (const float *) both.get(), (const float *) both.get() + size_t(n_rows) * n, gated.dst, gated.dst_token,
        columns_to_be(ctx, dst, n_rows, n), n_rows / BLOCK, swiglu());
}

// Computes what few_columns and with_shared_expert are asked for; of p is set what is fused.
void compute(ggml_backend_cuda_context & ctx, const ggml_tensor * src0, const ggml_tensor * src1, const ggml_tensor * ids, ggml_tensor * dst,
             products & p, const ggml_tensor * shared) {
    cudaStream_t stream = ctx.stream();
    const int k = int(src0->ne[0]);
    const int n_each = ids ? int(src1->ne[1]) : 1;
    p.n_tokens = int(ids ? src1->ne[2] : src1->ne[1]);
    const int n = n_each * p.n_tokens;

    // Whole groups of columns, then chunks.
    const size_t own = bytes_of_columns(n, k), size = own + (shared ? bytes_of_columns(p.n_tokens, k) : 0);
    const int n_slots = ids ? int(ids->ne[0]) * p.n_tokens : 0, n_experts = int(src0->ne[2]);
    const bool in_chunks = ids && p.n_tokens >= MIN_SHARED && n_experts <= MAX_EXPERTS;
    // So large that most experts need one.
    const bool is_short = k / BLOCK < WARPS;
    p.n_groups = is_short && p.gate ? 1 : std::clamp((n_slots / n_experts + GROUP - 1) / GROUP, 1, MAX_OF_CHUNK);
    const int n_chunks = in_chunks ? std::min(n_slots, n_experts + n_slots / (p.n_groups * GROUP)) : 0;
    const size_t lists = n_chunks > 0 ? n_chunks * sizeof(chunk) + n_slots * sizeof(int) : 0;
    ggml_cuda_pool_alloc<char> temporary(ctx.pool());
    kept_columns * kept = kept_of(ctx, size, lists);
    char * columns = kept ? kept->data : temporary.alloc(size + lists);
    chunk * chunks = reinterpret_cast<chunk *>(columns + (kept ? kept_columns::SIZE : size));
    int * slots = reinterpret_cast<int *>(chunks + n_chunks);
    p.y = (const column_block *) columns;
    p.shared_y = shared ? (const column_block *) (columns + own) : nullptr;
    // A column for each slot is read by one matrix: no launch for that.
    p.makes_columns = ids && !in_chunks && n_each == ids->ne[0] && k / BLOCK <= MAX_OWN && !p.gate && (shared || !has_columns(kept, src1));
    if (p.makes_columns) {
        p.x = columns_of(src1, true, nullptr);
        p.shared_x = shared ? columns_of(shared, false, nullptr) : float_columns{};
    } else {
        prepare(ctx, kept, columns, src1, ids != nullptr, shared);
    }
    if (in_chunks && (!kept || kept->ids != ids || kept->n_groups != p.n_groups)) {
        const int n_threads = std::min(GGML_PAD(std::max(n_experts, n_slots), 32), 1024);
        const ggml_cuda_kernel_launch_params params(dim3(1), dim3(n_threads), (2 * n_experts + 64) * sizeof(int), stream);
        ggml_cuda_kernel_launch(find_chunks, params, (const int32_t *) ids->data, int(ids->nb[1] / sizeof(int32_t)), int(ids->ne[0]),
            n_slots, n_experts, p.n_groups * GROUP, slots, chunks, n_chunks);
        if (kept) {
            kept->ids = ids;
            kept->n_groups = p.n_groups;
        }
    }

    p.w = (const uint8_t *) src0->data;
    p.row_bytes = src0->nb[1];
    p.matrix_bytes = src0->nb[2];
    p.n_blocks = k / BLOCK;
    p.n_rows = int(src0->ne[1]);
    p.dst = (float *) dst->data;
    p.dst_slot = ids ? dst->nb[1] / sizeof(float) : 0;
    p.dst_token = dst->nb[ids ? 2 : 1] / sizeof(float);
    if (ids) {
        p.ids = (const int32_t *) ids->data;
        p.ids_stride = int(ids->nb[1] / sizeof(int32_t));
        p.n_used = int(ids->ne[0]);
        p.n_each = n_each;
        p.chunks = in_chunks ? chunks : nullptr;
        p.slots = slots;
    }
    p.n_routed = in_chunks ? n_chunks : ids ? n_slots : 1;
    if (!ids && p.n_blocks < WARPS && p.n_tokens > GROUP) {
        // The kernel for rows of so few blocks takes a group of columns.
        p.shared_w = p.w;
        p.shared_gate = p.gate;
        p.shared_dst = p.dst;
        p.shared_token = p.dst_token;
        p.n_routed = 0;
    }
    if (src0->type == GGML_TYPE_Q4_K && !ids && p.gate && !p.shared_w && !p.bias && !p.gate_bias && p.glu == GGML_GLU_OP_SWIGLU &&
        p.n_tokens <= GROUP && p.n_rows % BLOCK == 0 && is_gate_apart(p.n_rows / TILE, p.n_blocks, multiprocessors())) {
        gate_apart(ctx, src0, dst, p);
        return;
    }
    // A shared matrix takes its columns a group at a time.
    const int n_at_once = p.makes_columns ? 1 : in_chunks ? p.n_groups * GROUP : GROUP;
    const int n_shared = (p.n_tokens + n_at_once - 1) / n_at_once;
    const int n_matrices = p.n_routed + (p.shared_w ? n_shared : 0);
    launch_of(src0->type, p, n_matrices, stream);
}

}  // namespace

bool kernels_are_on() {
    static const bool on = !is_set_to("off");
    return on;
}

bool attention_is_on() {
    static const bool on = kernels_are_on() && !is_set_to("products");
    return on;
}

bool states_are_on() {
    static const bool on = attention_is_on() && !is_set_to("attention");
    return on;
}

bool fusions_are_on() {
    static const bool on = states_are_on() && !is_set_to("states");
    return on;
}

bool is_served_here() {
    const int cc = ggml_cuda_info().devices[ggml_cuda_get_device()].cc;
    return kernels_are_on() && GGML_CUDA_CC_IS_NVIDIA(cc) && ggml_cuda_highest_compiled_arch(cc) >= GGML_CUDA_CC_AMPERE;
}

int multiprocessors() {
    return ggml_cuda_info().devices[ggml_cuda_get_device()].nsm;
}

void * function(const char * name) {
    if (void * found = function_of_granules(name)) {
        return found;
    }
    // All devices, since the functions are of them all.
    for (int i = 0; i < ggml_cuda_info().device_count; i++) {
        const int cc = ggml_cuda_info().devices[i].cc;
        if (!GGML_CUDA_CC_IS_NVIDIA(cc) || ggml_cuda_highest_compiled_arch(cc) < GGML_CUDA_CC_AMPERE) {
            return nullptr;
        }
    }
    if (void * found = function_of_ranks(name)) {
        return found;
    }
    if (strcmp(name, "nextn_columns_alike") == 0) {
        return reinterpret_cast<void *>(columns_alike);
    }
    if (strcmp(name, "nextn_queries_alike") == 0) {
        return reinterpret_cast<void *>(queries_alike_by_name);
    }
    if (strcmp(name, "nextn_queries_alike_over") == 0) {
        return reinterpret_cast<void *>(queries_alike_over_by_name);
    }
    if (strcmp(name, "nextn_states_by_number") == 0) {
        return reinterpret_cast<void *>(states_by_number_by_name);
    }
    if (kernels_are_on() && strcmp(name, "nextn_adds_gumbel") == 0) {
        return reinterpret_cast<void *>(adds_gumbel);
    }
    if (kernels_are_on() && strcmp(name, "nextn_makes_masks") == 0) {
        return reinterpret_cast<void *>(makes_mask);
    }
    return nullptr;
}

bool fuses(const ggml_tensor * product) {
    const ggml_tensor * ids = product->op == GGML_OP_MUL_MAT_ID ? product->src[2] : nullptr;
    return (ids || product->op == GGML_OP_MUL_MAT) && serves(product->src[0], product->src[1], ids, product);
}

void forget_columns(ggml_backend_cuda_context & ctx) {
    if (ctx.nextn_columns) {
        kept_columns & kept = *static_cast<kept_columns *>(ctx.nextn_columns.get());
        kept.of = kept.ids = kept.gated = kept.gated_shared = nullptr;
        kept.left.clear();
    }
}

void leave(ggml_backend_cuda_context & ctx, const ggml_tensor * node) {
    all_kept(ctx).left.push_back(node);
}

bool is_left(ggml_backend_cuda_context & ctx, const ggml_tensor * node) {
    const std::vector<const ggml_tensor *> & left = all_kept(ctx).left;
    return std::find(left.begin(), left.end(), node) != left.end();
}

column_block * columns_to_be(ggml_backend_cuda_context & ctx, const ggml_tensor * of, int k, int n) {
    kept_columns * kept = kept_of(ctx, bytes_of_columns(n, k), 0);
    if (!kept) {
        return nullptr;
    }
    kept->of = root_of(of);
    kept->k = k;
    return (column_block *) kept->data;
}

bool serves_several(const ggml_tensor * x, const several_products & all) {
    return std::all_of(all.begin(), all.end(), [&](const part_of_several & part) {
        // Those of few blocks have warps with rows of their own.
        const bool is_long = part.w->type == GGML_TYPE_F32 || part.w->ne[0] >= WARPS * BLOCK;
        return is_long && serves(part.w, x, nullptr, part.dst);
    });
}

void compute_several(ggml_backend_cuda_context & ctx, const ggml_tensor * x, const several_products & all) {
    const auto as_one = [](const part_of_several & part) {
        const auto data = [](const ggml_tensor * tensor) { return tensor ? (const float *) tensor->data : nullptr; };
        return one_of_several{ (const uint8_t *) part.w->data, int64_t(part.w->nb[1]), type_of(part.w->type), int(part.w->ne[1]), 0, (float *) part.dst->data,
            int64_t(part.dst->nb[1] / sizeof(float)), part.finishing, data(part.add), data(part.times) };
    };
    for (size_t i = 0; i < all.size(); i++) {
        const ggml_tensor * w = all[i].w;
        // Quantised ones are one launch up to a group of columns, whatever their types.
        const bool any = x->ne[1] <= GROUP && w->type != GGML_TYPE_F32;
        const auto is_alike = [&](const part_of_several & part) { return part.w->type == w->type || (any && part.w->type != GGML_TYPE_F32); };
        if (std::any_of(all.begin(), all.begin() + i, is_alike)) {
            continue;
        }
        const auto fill = [&](auto & p) {
            for (const part_of_several & part : all) {
                if (is_alike(part)) {
                    p.several[p.n_several++] = as_one(part);
                }
            }
            // Small ones first: they take as long as a thread block does, and large ones fill the GPU.
            std::stable_sort(p.several, p.several + p.n_several, [](const one_of_several & a, const one_of_several & b) { return a.n_rows < b.n_rows; });
        };
        if (w->type == GGML_TYPE_F32) {
            float_products p = {};
            fill(p);
            p.row = w->nb[1] / sizeof(float);
            p.k = int(w->ne[0]);
            p.n_rows = int(w->ne[1]);
            p.n = int(x->ne[1]);
            p.x = (const float *) x->data;
            p.column = x->nb[1] / sizeof(float);
            chosen(p, launch_floats{ p, ctx.stream() });
        } else {
            products p = {};
            fill(p);
            compute(ctx, w, x, nullptr, all[i].dst, p, nullptr);
        }
    }
}

bool serves_with_shared(const ggml_tensor * routed, const ggml_tensor * shared) {
    const ggml_tensor * w = routed->src[0], * other = shared->src[0];
    return w->type != GGML_TYPE_F32 && w->type == other->type && w->ne[0] == other->ne[0] && w->ne[1] == other->ne[1] &&
        routed->src[1]->ne[2] == shared->src[1]->ne[1] && serves(w, routed->src[1], routed->src[2], routed) &&
        serves(other, shared->src[1], nullptr, shared);
}

bool comes_of_gated(ggml_backend_cuda_context & ctx, const ggml_tensor * routed, const ggml_tensor * shared) {
    const kept_columns & kept = all_kept(ctx);
    const ggml_tensor * gated = routed->src[1];
    return kept.gated == gated && gated->src[0]->op == GGML_OP_MUL_MAT_ID && gated->src[0]->src[2] == routed->src[2] &&
        kept.gated_shared == shared->src[1];
}

void compute_with_shared(ggml_backend_cuda_context & ctx, ggml_tensor * routed, ggml_tensor * shared, bool at_once) {
    products p = {};
    p.shared_w = (const uint8_t *) shared->src[0]->data;
    p.shared_dst = (float *) shared->data;
    p.shared_token = shared->nb[1] / sizeof(float);
    p.ids_are_there = at_once;
    compute(ctx, routed->src[0], routed->src[1], routed->src[2], routed, p, shared->src[1]);
}

bool few_columns(ggml_backend_cuda_context & ctx, const ggml_tensor * src0, const ggml_tensor * src1, const ggml_tensor * ids,
                 ggml_tensor * dst, const ggml_cuda_mm_fusion_args_host * fusion) {
    if (!serves(src0, src1, ids, dst)) {
        return false;
    }
    if (src0->type == GGML_TYPE_F32) {
        floats(ctx, src0, src1, dst, fusion);
        return true;
    }
    products p = {};
    if (fusion) {
        // ggml scales only what is of other types, gates are of the type and shape of what they gate, and both are weights.
        const auto is_as_w = [&](const ggml_tensor * other) { return !other || (is_weight(other) && other->type == src0->type); };
        const auto is_packed = [&](const ggml_tensor * bias) { return !bias || !ids || bias->nb[1] == src0->ne[1] * sizeof(float); };
        const bool can = !fusion->x_scale && !fusion->gate_scale && is_as_w(fusion->gate) && is_as_w(fusion->shared_up) &&
            is_as_w(fusion->shared_gate) && (!fusion->gate || ggml_are_same_stride(fusion->gate, src0)) &&
            is_packed(fusion->x_bias) && is_packed(fusion->gate_bias);
        if (!can) {
            const bool is_one = (ids ? src1->ne[2] : src1->ne[1]) == 1;
            if (!is_one) {
                one_by_one(ctx, src0, src1, ids, dst, *fusion);
            }
            return !is_one;
        }
        const auto data = [](const ggml_tensor * tensor) { return tensor ? tensor->data : nullptr; };
        p.gate = (const uint8_t *) data(fusion->gate);
        p.bias = (const float *) data(fusion->x_bias);
        p.gate_bias = (const float *) data(fusion->gate_bias);
        p.glu = fusion->glu_op;
        p.glu_limit = fusion->glu_limit;
        p.shared_w = (const uint8_t *) data(fusion->shared_up);
        p.shared_gate = (const uint8_t *) data(fusion->shared_gate);
        p.shared_dst = (float *) data(fusion->shared_dst);
        p.shared_token = fusion->shared_dst ? fusion->shared_dst->nb[1] / sizeof(float) : 0;
    }
    compute(ctx, src0, src1, ids, dst, p, nullptr);
    if (ids && p.gate) {
        kept_columns & kept = all_kept(ctx);
        kept.gated = dst;
        kept.gated_shared = fusion->shared_dst;
    }
    return true;
}

}  // namespace nextn
