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
    const attention & p;
    int n_sequences;
    cudaStream_t s;
    template <int GROUPS> void operator()() const {
        const int size = attention_memory<D, GROUPS>(), parts = (p.n_columns + 8 * GROUPS - 1) / (8 * GROUPS);
        CHECK(cudaFuncSetAttribute(attend<D, GROUPS>, cudaFuncAttributeMaxDynamicSharedMemorySize, size));
        launch(size, attend<D, GROUPS>, dim3(p.n_head_kv * parts, p.n_chunks, n_sequences), dim3(32 * ATTENTION_WARPS), s, p);
        launch(0, add_chunks<D>, dim3(p.n_columns, p.n_head_kv, n_sequences), dim3(D), s, p);
    }
};
struct finish {
    __device__ float operator()(const float_products & p, float v, float g, int64_t place) const {
        if (p.bias)
            v += p.bias[place];
        return p.gate ? v * g / (1 + expf(-g)) : v;
    }
};
struct launched {
    const float_products & p;
    cudaStream_t s;
    template <int ROWS, int COLUMNS> void operator()() const {
        const int rows = p.gate ? 1 : ROWS;
        launch(0, few_floats<ROWS, COLUMNS, finish>, dim3((p.n_rows + rows - 1) / rows, (p.n + 7) / 8), dim3(FLOAT_THREADS), s, p, finish());
    }
};
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
template <int D> static void check_attention(cudaStream_t s, int n_head, int n_head_kv, float softcap, bool with_sinks) {
    const int most = 48, n_sequences = 2, most_cells = 9216, group = n_head / n_head_kv;
    std::vector<float> q(size_t(D) * n_head * most * n_sequences), sinks(n_head);
    std::vector<__half> k(size_t(D) * n_head_kv * most_cells * n_sequences), v(k.size()), mask(size_t(most_cells) * most * n_sequences);
    for (auto & x : q)
        x = 3 * random_number();
    for (auto & x : sinks)
        x = random_number();
    for (auto & x : k)
        x = __float2half(random_number());
    for (auto & x : v)
        x = __float2half(random_number());
    // Token t of sequence i sees the cells up to t + 300 (of the second, from 200 on as well up to t + 8900); what nobody sees is no number.
    const auto sees = [](int i, int t, int cell) { return i == 0 ? cell <= t + 300 : cell >= 200 && cell <= t + 8900; };
    for (int i = 0; i < n_sequences; i++)
        for (int cell = 0; cell < most_cells; cell++) {
            for (int t = 0; t < most; t++)
                mask[(size_t(i) * most + t) * most_cells + cell] = __float2half(sees(i, t, cell) ? 0.0f : -INFINITY);
            if (i == 0 ? cell > 300 + most : cell > 8900 + most)
                for (int h = 0; h < n_head_kv * D; h++)
                    k[(size_t(i) * most_cells + cell) * n_head_kv * D + h] = __float2half(NAN);
        }
    float * dq = device(q), * ds = device(sinks), * dst, * sums;
    __half * dk = device(k), * dv = device(v), * dm = device(mask);
    float2 * totals;
    const size_t n_out = size_t(D) * n_head * most * n_sequences, n_chunks = chunks_of(most_cells);
    CHECK(cudaMalloc(&dst, n_out * 4));
    CHECK(cudaMalloc(&sums, n_out * n_chunks * 4));
    CHECK(cudaMalloc(&totals, n_out / D * n_chunks * 8));
    // n tokens from first on, over so many cells.
    const auto attended_to = [&](int first, int n, int cells) {
        CHECK(cudaMemset(dst, 0xff, n_out * 4));
        CHECK(cudaMemset(sums, 0xff, n_out * n_chunks * 4));
        attention p = {};
        p.q = dq + size_t(first) * n_head * D;
        p.q_token = n_head * D;
        p.q_head = D;
        p.q_sequence = int64_t(n_head) * D * most;
        p.k = dk;
        p.v = dv;
        p.k_cell = p.v_cell = n_head_kv * D;
        p.k_head = p.v_head = D;
        p.k_sequence = p.v_sequence = int64_t(most_cells) * n_head_kv * D;
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
        chosen_groups(p.n_columns, attended<D>{p, n_sequences, s});
        CHECK(cudaStreamSynchronize(s));
        std::vector<float> out(size_t(D) * n_head * n * n_sequences);
        CHECK(cudaMemcpy(out.data(), dst, out.size() * 4, cudaMemcpyDeviceToHost));
        return out;
    };
    const auto all = attended_to(0, most, most_cells);
    bool alike = true;
    for (int first = 0, n = 1; first < most; first = (first + 5) % 48 + (n == most), n++) {
        const int cells = n % 2 ? most_cells : 9024, here = std::min(n, most - first);
        const auto out = attended_to(first, here, cells);
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
                double total = with_sinks ? exp(double(sinks[h])) : 0;
                for (int cell = 0; cell < most_cells; cell++) {
                    if (!sees(i, t, cell))
                        continue;
                    const size_t at = (size_t(i) * most_cells + cell) * n_head_kv * D + h / group * D;
                    double score = 0;
                    for (int d = 0; d < D; d++)
                        score += double(q[((size_t(i) * most + t) * n_head + h) * D + d]) * __half2float(k[at + d]);
                    score /= sqrt(D);
                    const double weight = exp(softcap != 0 ? softcap * tanh(score / softcap) : score);
                    total += weight;
                    for (int d = 0; d < D; d++)
                        want[d] += weight * __half2float(v[at + d]);
                }
                for (int d = 0; d < D; d++) {
                    double e = all[((size_t(i) * most + t) * n_head + h) * D + d] - want[d] / total;
                    num += std::isnan(e) ? 1e9 : e * e;
                    den += want[d] / total * want[d] / total;
                }
            }
    const double error = sqrt(num / den);
    printf("attention, %d of %d heads of %d%s%s: error %.1e (%s), same bits at every width, place and number of cells: %s\n", n_head_kv, n_head, D,
           softcap != 0 ? ", capped" : "", with_sinks ? ", with sinks" : "", error, verdict(error < (softcap != 0 ? 1e-2 : 2e-3)), verdict(alike));
}
static void time_attention(cudaStream_t s, int n_head, int n_head_kv) {
    constexpr int D = 256;
    const int counts[] = {1, 2, 4, 8, 16, 48};
    for (int cells : {1024, 4096, 16384, 65536}) {
        attention p = {};
        const size_t n = size_t(cells) * n_head_kv * D;
        const int n_chunks = chunks_of(cells), copies = std::max<int>(1, (200 << 20) / (4 * n));
        __half * k, * mask;
        float * q, * sums;
        CHECK(cudaMalloc(&k, n * 4 * copies));
        CHECK(cudaMemset(k, 0, n * 4 * copies));
        CHECK(cudaMalloc(&mask, size_t(cells) * 48 * 2));
        CHECK(cudaMemset(mask, 0, size_t(cells) * 48 * 2));
        CHECK(cudaMalloc(&q, size_t(D) * n_head * 48 * 4 * 2));
        CHECK(cudaMemset(q, 0, size_t(D) * n_head * 48 * 4 * 2));
        CHECK(cudaMalloc(&sums, size_t(D + 2) * n_head * 48 * n_chunks * 4));
        printf("attention, %d of %d heads, %5d cells: microseconds at", n_head_kv, n_head, cells);
        for (int tokens : counts) {
            p.q = q;
            p.q_token = n_head * D;
            p.q_head = D;
            p.k_cell = p.v_cell = n_head_kv * D;
            p.k_head = p.v_head = D;
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
                p.k = k + i % copies * 2 * n;
                p.v = p.k + n;
                chosen_groups(p.n_columns, attended<D>{p, 1, s});
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
    time_attention(s, 24, 4);
    time_attention(s, 16, 2);
    return failed;
}
