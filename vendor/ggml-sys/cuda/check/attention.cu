// Checks the kernels for attention and for F32 products on this machine's GPU, beside a plain computation on the host, and times them:
//   nvcc -arch=native -O3 -std=c++20 -I vendor/ggml-sys/cuda vendor/ggml-sys/cuda/check/attention.cu -o check && ./check
#include "attention_kernels.cuh"
#include "few_floats_kernels.cuh"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <vector>
#define CHECK(x)                                                                                                                 \
    do {                                                                                                                         \
        cudaError_t err_ = (x);                                                                                                  \
        if (err_ != cudaSuccess) {                                                                                               \
            printf("%s:%d %s\n", __FILE__, __LINE__, cudaGetErrorString(err_));                                                  \
            exit(1);                                                                                                             \
        }                                                                                                                        \
    } while (0)
using namespace nextn;
template <typename... P, typename... A> static void launch(size_t size, void (*f)(P...), dim3 g, dim3 b, cudaStream_t s, A... a) {
    cudaLaunchAttribute at{};
    at.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    at.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t c{};
    c.gridDim = g;
    c.blockDim = b;
    c.dynamicSmemBytes = size;
    c.stream = s;
    c.attrs = &at;
    c.numAttrs = 1;
    CHECK(cudaLaunchKernelEx(&c, f, P(a)...));
}
template <int D> struct attended {
    const few_queries & p;
    int n_sequences;
    cudaStream_t s;
    template <int GROUPS> void operator()() const {
        const bool packed = p.k.kind != CELLS_F16 || p.v.kind != CELLS_F16;
        const auto kernel = packed ? attend<D, GROUPS, true> : attend<D, GROUPS, false>;
        const int size = attention_memory<D, GROUPS>(), parts = (p.n_columns + 8 * GROUPS - 1) / (8 * GROUPS);
        CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, size));
        launch(size, kernel, dim3(p.n_head_kv * parts, p.n_chunks, n_sequences),
               dim3(packed ? ATTENTION_THREADS<true> : ATTENTION_THREADS<false>), s, p);
        launch(0, add_chunks<D>, dim3(p.n_columns, p.n_head_kv, n_sequences), dim3(D), s, p);
    }
};
struct finish {
    __device__ float operator()(const float_products & p, float v, float g, int64_t place) const {
        if (p.bias)
            v += p.bias[place];
        return p.gate ? v * g / (1 + expf(-g)) : v;
    }
    __device__ float operator()(const one_of_several &, float v, int64_t) const { return v; }
};
struct launched {
    const float_products & p;
    cudaStream_t s;
    template <int ROWS, int COLUMNS> void operator()() const {
        const int rows = p.gate ? 1 : ROWS;
        launch(0, few_floats<ROWS, COLUMNS, finish>, dim3((p.n_rows + rows - 1) / rows, (p.n + 7) / 8), dim3(FLOAT_THREADS), s, p, finish());
    }
};
static int multiprocessors() {
    static int n = 0;
    if (n == 0)
        CHECK(cudaDeviceGetAttribute(&n, cudaDevAttrMultiProcessorCount, 0));
    return n;
}
static bool failed = false;
static const char * verdict(bool good) {
    failed = failed || !good;
    return good ? "yes" : "NO";
}
static double timed(cudaStream_t s, int count, const std::function<void(int)> & each) {
    cudaGraph_t g;
    cudaGraphExec_t e;
    CHECK(cudaStreamBeginCapture(s, cudaStreamCaptureModeGlobal));
    for (int i = 0; i < count; i++)
        each(i);
    CHECK(cudaStreamEndCapture(s, &g));
    CHECK(cudaGraphInstantiate(&e, g, 0));
    cudaEvent_t a, b;
    CHECK(cudaEventCreate(&a));
    CHECK(cudaEventCreate(&b));
    std::vector<float> t;
    for (int i = 0; i < 7; i++) {
        CHECK(cudaEventRecord(a, s));
        CHECK(cudaGraphLaunch(e, s));
        CHECK(cudaEventRecord(b, s));
        CHECK(cudaEventSynchronize(b));
        float ms;
        CHECK(cudaEventElapsedTime(&ms, a, b));
        t.push_back(ms);
    }
    std::sort(t.begin(), t.end());
    cudaGraphExecDestroy(e);
    cudaGraphDestroy(g);
    return t[3] / count * 1e3;
}
static uint64_t z = 1;
static float random_number() {
    float u = 0;
    for (int i = 0; i < 4; i++) {
        z = z * 6364136223846793005ull + 1442695040888963407ull;
        u += float(z >> 40) / (1 << 24) - 0.5f;
    }
    return u;
}
template <typename T> static T * device(const std::vector<T> & from) {
    T * to;
    CHECK(cudaMalloc(&to, from.size() * sizeof(T)));
    CHECK(cudaMemcpy(to, from.data(), from.size() * sizeof(T), cudaMemcpyHostToDevice));
    return to;
}
// Cells of a kind, with anything that it may say, and what they say.
struct cells {
    int kind, d, n_head, n_cells;
    std::vector<uint8_t> bytes;
    std::vector<float> values;
    int row() const { return bytes_of(kind, d); }
    kept_cells kept(const uint8_t * data) const {
        const int64_t cell = int64_t(n_head) * row();
        return {(const char *) data, cell, row(), cell * n_cells, kind};
    }
};
static float place(int kind, int code, int group) {
    static const int nl[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
    static const float three[4] = {0.24509418f, 0.7560053f, 1.3439093f, 2.1519458f};
    static const float four[8] = {0.12839503f, 0.3880483f, 0.6567591f, 0.94234046f, 1.2562312f, 1.6180464f, 2.0690172f, 2.7325896f};
    if (kind == CELLS_IQ4_NL)
        return nl[code];
    const float * half = kind == CELLS_TURBO3 ? three : four;
    const int n = kind == CELLS_TURBO3 ? 4 : 8;
    return (code < n ? -half[n - 1 - code] : half[code - n]) / sqrtf(group);
}
static void put(uint8_t * to, float x) {
    const __half h = __float2half(x);
    memcpy(to, &h, 2);
}
// Values with a deviation of about 0.6, as random_number has.
static cells random_cells(int kind, int d, int n_head, int n_all, int n_cells) {
    cells c = {kind, d, n_head, n_cells, std::vector<uint8_t>(size_t(n_all) * n_head * bytes_of(kind, d) + 16), std::vector<float>(size_t(n_all) * n_head * d)};
    const bool turbo = kind == CELLS_TURBO4 || kind == CELLS_TURBO3, fifth = kind == CELLS_Q5_0 || kind == CELLS_Q5_1, least = kind == CELLS_Q4_1 || kind == CELLS_Q5_1;
    const int n = turbo ? group_of(d) : 32, bits = kind == CELLS_TURBO3 ? 3 : 4;
    uint8_t * to = c.bytes.data();
    for (float * v = c.values.data(); v < c.values.data() + c.values.size(); v += n) {
        if (kind == CELLS_F16) {
            for (int i = 0; i < n; i++, to += 2) {
                put(to, random_number());
                v[i] = __half2float(*(__half *) to);
            }
            continue;
        }
        const float range = kind == CELLS_Q8_0 ? 74 : kind == CELLS_IQ4_NL ? 70 : fifth ? 9.2f : 4.6f;
        const float scale = __half2float(__float2half((0.4f + 0.4f * fabsf(random_number())) / (turbo ? 1 / sqrtf(n) : range)));
        const float low = __half2float(__float2half(-scale * range * 1.7f));
        if (turbo) {
            put(to + n * bits / 8, scale);
            for (int i = 0; i < n; i++) {
                z = z * 6364136223846793005ull + 1442695040888963407ull;
                const int code = z >> 40 & ((1 << bits) - 1), at = i * bits;
                to[at / 8] |= code << at % 8;
                if (at % 8 + bits > 8)
                    to[at / 8 + 1] |= code >> (8 - at % 8);
                v[i] = scale * place(kind, code, n);
            }
            to += n * bits / 8 + 2;
            continue;
        }
        put(to, scale);
        to += 2;
        if (least) {
            put(to, low);
            to += 2;
        }
        uint32_t upper = 0;
        uint8_t * q = to + (fifth ? 4 : 0);
        for (int i = 0; i < 32; i++) {
            z = z * 6364136223846793005ull + 1442695040888963407ull;
            const int x = z >> 40 & 255;
            if (kind == CELLS_Q8_0) {
                q[i] = x;
                v[i] = scale * int8_t(x);
                continue;
            }
            const int code = x % (fifth ? 32 : 16);
            q[i % 16] |= (code & 15) << i / 16 * 4;
            upper |= uint32_t(code >> 4) << i;
            v[i] = kind == CELLS_IQ4_NL ? scale * place(kind, code, 0) : least ? scale * code + low : scale * (code - (fifth ? 16 : 8));
        }
        if (fifth)
            memcpy(to, &upper, 4);
        to = q + (kind == CELLS_Q8_0 ? 32 : 16);
    }
    return c;
}
// The Walsh-Hadamard transform of runs of n, with signs before it, or behind it if it is undone.
static void rotate(float * x, int size, const rotation & r, bool back) {
    static const uint32_t signs[4] = {0x5cedc834, 0xf39cc060, 0x7f4a7c15, 0x9e3779b9};
    const auto change = [&] {
        for (int i = 0; r.with_signs && i < size; i++)
            if (signs[i % r.n / 32] >> i % 32 & 1)
                x[i] = -x[i];
    };
    if (!back)
        change();
    for (int half = 1; half < r.n; half *= 2)
        for (int i = 0; i < size; i++)
            if (!(i & half)) {
                const float a = x[i], b = x[i + half];
                x[i] = a + b;
                x[i + half] = a - b;
            }
    for (int i = 0; r.n > 0 && i < size; i++)
        x[i] /= sqrtf(r.n);
    if (back)
        change();
}
template <int D>
static void check_attention(cudaStream_t s, int n_head, int n_head_kv, float softcap, bool with_sinks, int kind_k = CELLS_F16, int kind_v = CELLS_F16,
                            rotation of_queries = {}, rotation of_sums = {}) {
    const int most = 48, n_sequences = 2, most_cells = 9216, group = n_head / n_head_kv;
    std::vector<float> q(size_t(D) * n_head * most * n_sequences), sinks(n_head);
    std::vector<__half> mask(size_t(most_cells) * most * n_sequences);
    for (auto & x : q)
        x = 3 * random_number();
    for (auto & x : sinks)
        x = random_number();
    cells k = random_cells(kind_k, D, n_head_kv, most_cells * n_sequences, most_cells), v = random_cells(kind_v, D, n_head_kv, most_cells * n_sequences, most_cells);
    // Token t of sequence i sees the cells up to t + 300 (of the second, from 200 on as well up to t + 8900); what nobody sees is no number.
    const auto sees = [](int i, int t, int cell) { return i == 0 ? cell <= t + 300 : cell >= 200 && cell <= t + 8900; };
    for (int i = 0; i < n_sequences; i++)
        for (int cell = 0; cell < most_cells; cell++) {
            for (int t = 0; t < most; t++)
                mask[(size_t(i) * most + t) * most_cells + cell] = __float2half(sees(i, t, cell) ? 0.0f : -INFINITY);
            if (kind_k == CELLS_F16 && (i == 0 ? cell > 300 + most : cell > 8900 + most))
                memset(k.bytes.data() + (size_t(i) * most_cells + cell) * n_head_kv * k.row(), 0xff, n_head_kv * k.row());
        }
    float * dq = device(q), * ds = device(sinks), * dst, * sums;
    uint8_t * dk = device(k.bytes), * dv = device(v.bytes);
    __half * dm = device(mask);
    float2 * totals;
    const size_t n_out = size_t(D) * n_head * most * n_sequences, n_chunks = chunks_of(most_cells);
    CHECK(cudaMalloc(&dst, n_out * 4));
    CHECK(cudaMalloc(&sums, n_out * n_chunks * 4));
    CHECK(cudaMalloc(&totals, n_out / D * n_chunks * 8));
    // n tokens from first on, over so many cells, by blocks of which so many run at once.
    const auto attended_to = [&](int first, int n, int cells, int at_once) {
        CHECK(cudaMemset(dst, 0xff, n_out * 4));
        CHECK(cudaMemset(sums, 0xff, n_out * n_chunks * 4));
        few_queries p = {};
        p.q = dq + size_t(first) * n_head * D;
        p.q_token = n_head * D;
        p.q_head = D;
        p.q_sequence = int64_t(n_head) * D * most;
        p.k = k.kept(dk);
        p.v = v.kept(dv);
        p.of_queries = of_queries;
        p.of_sums = of_sums;
        p.mask = dm + size_t(first) * most_cells;
        p.mask_token = most_cells;
        p.mask_sequence = int64_t(most_cells) * most;
        p.n_tokens = n;
        p.n_head = n_head;
        p.n_head_kv = n_head_kv;
        p.group = group;
        p.n_columns = n * group;
        p.n_cells = cells;
        p.n_chunks = chunks_of(cells);
        p.scale = 1 / sqrtf(D);
        p.softcap = softcap;
        p.sinks = with_sinks ? ds : nullptr;
        p.sums = sums;
        p.totals = totals;
        p.dst = dst;
        chosen_groups(p, n_sequences, at_once, attended<D>{p, n_sequences, s});
        CHECK(cudaStreamSynchronize(s));
        std::vector<float> out(size_t(D) * n_head * n * n_sequences);
        CHECK(cudaMemcpy(out.data(), dst, out.size() * 4, cudaMemcpyDeviceToHost));
        return out;
    };
    const auto all = attended_to(0, most, most_cells, 0);
    bool alike = true;
    for (int first = 0, n = 1; first < most; first = (first + 5) % 48 + (n == most), n++) {
        const int cells = n % 2 ? most_cells : 9024, here = std::min(n, most - first);
        // Of four groups of columns where there are so many, of two, of one.
        const int one = (n_head_kv * chunks_of(cells) * n_sequences) * ((here * group + 7) / 8), at_once[] = {0, one, (one + 1) / 2};
        const auto out = attended_to(first, here, cells, at_once[n % 3]);
        for (int i = 0; i < n_sequences; i++)
            alike = alike && !memcmp(out.data() + size_t(i) * here * n_head * D, all.data() + (size_t(i) * most + first) * n_head * D, size_t(here) * n_head * D * 4);
        if (n >= most)
            break;
    }
    double num = 0, den = 0;
    for (int i = 0; i < n_sequences; i++)
        for (int t = 0; t < most; t += 7)
            for (int h = 0; h < n_head; h++) {
                std::vector<double> want(D);
                std::vector<float> query(q.begin() + ((size_t(i) * most + t) * n_head + h) * D, q.begin() + ((size_t(i) * most + t) * n_head + h + 1) * D);
                rotate(query.data(), D, of_queries, false);
                double total = with_sinks ? exp(double(sinks[h])) : 0;
                for (int cell = 0; cell < most_cells; cell++) {
                    if (!sees(i, t, cell))
                        continue;
                    const size_t at = (size_t(i) * most_cells + cell) * n_head_kv * D + h / group * D;
                    double score = 0;
                    for (int d = 0; d < D; d++)
                        score += double(query[d]) * k.values[at + d];
                    score /= sqrt(D);
                    const double weight = exp(softcap != 0 ? softcap * tanh(score / softcap) : score);
                    total += weight;
                    for (int d = 0; d < D; d++)
                        want[d] += weight * v.values[at + d];
                }
                std::vector<float> result(D);
                for (int d = 0; d < D; d++)
                    result[d] = float(want[d] / total);
                rotate(result.data(), D, of_sums, true);
                for (int d = 0; d < D; d++) {
                    double e = all[((size_t(i) * most + t) * n_head + h) * D + d] - result[d];
                    num += std::isnan(e) ? 1e9 : e * e;
                    den += result[d] * result[d];
                }
            }
    const double error = sqrt(num / den);
    printf("attention, %d of %d heads of %d, kinds %d and %d, rotated by %d and %d%s%s: error %.1e (%s), same bits at every width, place and number of cells: %s\n", n_head_kv, n_head, D, kind_k,
           kind_v, of_queries.n, of_sums.n, softcap != 0 ? ", capped" : "", with_sinks ? ", with sinks" : "", error, verdict(error < (softcap != 0 ? 1e-2 : 2e-3)), verdict(alike));
}
static void time_attention(cudaStream_t s, int n_head, int n_head_kv, int kind, int run) {
    constexpr int D = 256;
    const int counts[] = {1, 2, 4, 8, 16, 48};
    for (int cells : {1024, 4096, 16384, 65536}) {
        few_queries p = {};
        const int row = bytes_of(kind, D);
        const size_t n = size_t(cells) * n_head_kv * row;
        const int n_chunks = chunks_of(cells), copies = std::max<int>(1, (200 << 20) / (2 * n));
        char * k;
        __half * mask;
        float * q, * sums;
        CHECK(cudaMalloc(&k, n * 2 * copies));
        CHECK(cudaMemset(k, 0, n * 2 * copies));
        CHECK(cudaMalloc(&mask, size_t(cells) * 48 * 2));
        CHECK(cudaMemset(mask, 0, size_t(cells) * 48 * 2));
        CHECK(cudaMalloc(&q, size_t(D) * n_head * 48 * 4 * 2));
        CHECK(cudaMemset(q, 0, size_t(D) * n_head * 48 * 4 * 2));
        CHECK(cudaMalloc(&sums, size_t(D + 2) * n_head * 48 * n_chunks * 4));
        printf("attention, %d of %d heads, kind %d, %5d cells: microseconds at", n_head_kv, n_head, kind, cells);
        for (int tokens : counts) {
            p.q = q;
            p.q_token = n_head * D;
            p.q_head = D;
            p.of_queries = p.of_sums = {run, false};
            p.mask = mask;
            p.mask_token = cells;
            p.n_tokens = tokens;
            p.n_head = n_head;
            p.n_head_kv = n_head_kv;
            p.group = n_head / n_head_kv;
            p.n_columns = tokens * p.group;
            p.n_cells = cells;
            p.n_chunks = n_chunks;
            p.scale = 1.0f / 16;
            p.sums = sums;
            p.totals = (float2 *) (sums + size_t(D) * n_head * 48 * n_chunks);
            p.dst = q + size_t(D) * n_head * 48;
            const double us = timed(s, 16, [&](int i) {
                p.k = {k + i % copies * 2 * n, int64_t(n_head_kv) * row, row, int64_t(n), kind};
                p.v = p.k;
                p.v.data += n;
                chosen_groups(p, 1, multiprocessors(), attended<D>{p, 1, s});
            });
            printf(" %d: %.1f", tokens, us);
        }
        printf("\n");
        CHECK(cudaFree(k));
        CHECK(cudaFree(mask));
        CHECK(cudaFree(q));
        CHECK(cudaFree(sums));
    }
}
static void check_floats(cudaStream_t s) {
    bool alike = true;
    double worst = 0;
    struct shape { int n, k; };
    for (auto h : {shape{256, 2048}, {1, 2048}, {48, 5120}, {129, 20}, {64, 1028}}) {
        const int most = 48;
        std::vector<float> w(size_t(2) * h.n * h.k), x(size_t(h.k) * most), bias(size_t(h.n) * most);
        for (auto * all : {&w, &x, &bias})
            for (auto & value : *all)
                value = random_number();
        float * dw = device(w), * dx = device(x), * db = device(bias), * dst;
        CHECK(cudaMalloc(&dst, size_t(h.n) * most * 4));
        const auto multiplied = [&](int first, int n, bool gated) {
            float_products p = {};
            p.w = dw;
            p.gate = gated ? dw + size_t(h.n) * h.k : nullptr;
            p.row = h.k;
            p.k = h.k;
            p.n_rows = h.n;
            p.n = n;
            p.x = dx + size_t(first) * h.k;
            p.column = h.k;
            p.dst = dst;
            p.dst_column = h.n;
            p.bias = db + size_t(first) * h.n;
            CHECK(cudaMemset(dst, 0xff, size_t(h.n) * most * 4));
            chosen(p, launched{p, s});
            CHECK(cudaStreamSynchronize(s));
            std::vector<float> out(size_t(h.n) * n);
            CHECK(cudaMemcpy(out.data(), dst, out.size() * 4, cudaMemcpyDeviceToHost));
            return out;
        };
        for (bool gated : {false, true}) {
            const auto all = multiplied(0, most, gated);
            for (int n = 1; n <= most; n++) {
                const int first = (n * 7) % (most - n + 1);
                const auto out = multiplied(first, n, gated);
                alike = alike && !memcmp(out.data(), all.data() + size_t(first) * h.n, out.size() * 4);
            }
            double num = 0, den = 0;
            for (int c = 0; c < most; c++)
                for (int r = 0; r < h.n; r++) {
                    double v = 0, g = 0;
                    for (int i = 0; i < h.k; i++) {
                        v += double(w[size_t(r) * h.k + i]) * x[size_t(c) * h.k + i];
                        g += double(w[size_t(h.n + r) * h.k + i]) * x[size_t(c) * h.k + i];
                    }
                    v += bias[size_t(c) * h.n + r];
                    const double want = gated ? v * g / (1 + exp(-g)) : v, e = all[size_t(c) * h.n + r] - want;
                    num += std::isnan(e) ? 1e9 : e * e;
                    den += want * want;
                }
            worst = std::max(worst, sqrt(num / den));
        }
        if (h.n == 256 || h.n == 48) {
            printf("F32 %d x %d: microseconds at", h.n, h.k);
            for (int n : {1, 2, 4, 8, 16, 48}) {
                float_products p = {};
                p.w = dw;
                p.row = p.k = p.column = h.k;
                p.n_rows = p.dst_column = h.n;
                p.n = n;
                p.x = dx;
                p.dst = dst;
                printf(" %d: %.1f", n, timed(s, 24, [&](int) { chosen(p, launched{p, s}); }));
            }
            printf("\n");
        }
    }
    printf("F32 products: error %.1e (%s), same bits at every width and place: %s\n", worst, verdict(worst < 1e-6), verdict(alike));
}
int main() {
    cudaStream_t s;
    CHECK(cudaStreamCreate(&s));
    check_floats(s);
    check_attention<256>(s, 24, 4, 0, false);
    check_attention<256>(s, 16, 2, 0, true);
    check_attention<128>(s, 4, 2, 0, false);
    check_attention<64>(s, 3, 3, 5, true);
    for (int kind : {CELLS_Q8_0, CELLS_Q5_1, CELLS_Q5_0, CELLS_Q4_1, CELLS_Q4_0, CELLS_IQ4_NL, CELLS_TURBO4, CELLS_TURBO3}) {
        const bool turbo = kind == CELLS_TURBO4 || kind == CELLS_TURBO3;
        check_attention<256>(s, 16, 2, 0, true, kind, kind, {turbo ? 128 : 256, turbo}, {turbo ? 128 : 64, turbo});
        check_attention<128>(s, 4, 1, 0, false, kind, CELLS_F16, {128, turbo}, {});
        check_attention<64>(s, 3, 3, 5, true, kind, CELLS_Q8_0, {64, turbo}, {64, false});
    }
    for (int kind : {CELLS_F16, CELLS_Q8_0, CELLS_Q4_0, CELLS_Q5_1, CELLS_TURBO3}) {
        time_attention(s, 24, 4, kind, kind == CELLS_F16 ? 0 : 64);
        time_attention(s, 16, 2, kind, kind == CELLS_F16 ? 0 : 64);
    }
    return failed;
}
