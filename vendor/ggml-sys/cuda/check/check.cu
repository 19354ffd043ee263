// Checks the kernels for few columns on this machine's GPU, beside a plain computation on the host, and times them:
//   nvcc -arch=native -O3 -std=c++20 -I vendor/ggml-sys/cuda vendor/ggml-sys/cuda/check/check.cu -o check && ./check
#include "few_columns_kernels.cuh"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
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
__device__ uint32_t hash(uint64_t i) {
    uint64_t z = i * 0x9e3779b97f4a7c15ull;
    z ^= z >> 30;
    z *= 0xbf58476d1ce4e5b9ull;
    z ^= z >> 27;
    z *= 0x94d049bb133111ebull;
    z ^= z >> 31;
    return uint32_t(z);
}
__global__ void fill(uint32_t * w, size_t n) {
    for (size_t i = blockIdx.x * size_t(blockDim.x) + threadIdx.x; i < n; i += size_t(gridDim.x) * blockDim.x)
        w[i] = hash(i);
}
__global__ void halves(uint8_t * w, size_t n_blocks, int type, int bytes) {
    for (size_t i = blockIdx.x * size_t(blockDim.x) + threadIdx.x; i < n_blocks; i += size_t(gridDim.x) * blockDim.x) {
        uint8_t * b = w + i * bytes;
        float r = 1 + (hash(i) & 255) / 256.0f;
        auto set = [&](int at, float v) { *reinterpret_cast<__half *>(b + at) = __float2half(v); };
        if (type < 2) {
            set(0, 1e-3f * r);
            set(2, 7e-3f * r);
        } else if (type == 2)
            set(208, 1e-4f * r);
        else
            for (int s = 0; s < 8; s++)
                set(34 * s, 1e-3f * r);
    }
}
static float half_of(const uint8_t * p) {
    uint16_t h;
    memcpy(&h, p, 2);
    return __half2float(__ushort_as_half(h));
}
static void dequant(int type, const uint8_t * b, float * out) {
    if (type < 2) {
        float d = half_of(b), dmin = half_of(b + 2);
        const uint8_t * s = b + 4;
        const uint8_t * qh = b + 16;
        const uint8_t * q = b + (type ? 48 : 16);
        for (int j = 0; j < 8; j++) {
            int sc, m;
            if (j < 4) {
                sc = s[j] & 63;
                m = s[j + 4] & 63;
            } else {
                sc = (s[j + 4] & 0xf) | ((s[j - 4] >> 6) << 4);
                m = (s[j + 4] >> 4) | ((s[j] >> 6) << 4);
            }
            for (int i = 0; i < 32; i++) {
                int v = q[j / 2 * 32 + i];
                v = j % 2 ? v >> 4 : v & 15;
                if (type)
                    v += (qh[i] >> j & 1) * 16;
                out[j * 32 + i] = d * sc * v - dmin * m;
            }
        }
    } else if (type == 2) {
        float d = half_of(b + 208);
        const int8_t * sc = (const int8_t *)b + 192;
        for (int n = 0; n < 2; n++)
            for (int l = 0; l < 32; l++) {
                const uint8_t *ql = b + 64 * n, *qh = b + 128 + 32 * n;
                int is = l / 16;
                int q[4] = {(ql[l] & 15) | (qh[l] & 3) << 4, (ql[l + 32] & 15) | (qh[l] >> 2 & 3) << 4,
                            (ql[l] >> 4) | (qh[l] >> 4 & 3) << 4, (ql[l + 32] >> 4) | (qh[l] >> 6 & 3) << 4};
                for (int j = 0; j < 4; j++)
                    out[128 * n + 32 * j + l] = d * sc[8 * n + is + 2 * j] * (q[j] - 32);
            }
    } else
        for (int s = 0; s < 8; s++)
            for (int i = 0; i < 32; i++)
                out[s * 32 + i] = half_of(b + 34 * s) * (int8_t)b[34 * s + 2 + i];
}
struct finish {
    __device__ float operator()(const products & p, float v, bool has, float g, int64_t at) const {
        if (p.bias)
            v += p.bias[at];
        return has ? v * g / (1 + expf(-g)) : v;
    }
};
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
template <typename T, int S> static void run(const products & p, int n, cudaStream_t s) {
    if (p.n_blocks >= 4)
        launch(4 * S * 16 * T::WINDOW, few_columns<T, 4, S, finish>, dim3((p.n_rows + 15) / 16, n), dim3(32, 4), s, p, finish());
    else
        launch(2 * S * 16 * T::WINDOW, few_columns<T, 2, S, finish>, dim3((p.n_rows + 15) / 16, n), dim3(32, 2), s, p, finish());
}
static void run(int type, const products & p, int n, cudaStream_t s) {
    type == 0   ? run<k_quants<false>, 3>(p, n, s)
    : type == 1 ? run<k_quants<true>, 3>(p, n, s)
    : type == 2 ? run<q6_k, 3>(p, n, s)
                : run<bytes_with_scales, 2>(p, n, s);
}
int main() {
    const char * names[] = {"q4_k", "q5_k", "q6_k", "q8_0"};
    const int block[] = {144, 176, 210, 272};
    const int max_k = 17408, max_n = 64;
    const int64_t wide = 248320;
    const size_t bytes = size_t(4) << 30;
    uint8_t * w;
    CHECK(cudaMalloc(&w, bytes));
    std::vector<float> hx(size_t(max_k) * max_n);
    uint64_t z = 1;
    for (auto & v : hx) {
        float u = 0;
        for (int i = 0; i < 4; i++) {
            z = z * 6364136223846793005ull + 1442695040888963407ull;
            u += float(z >> 40) / (1 << 24) - 0.5f;
        }
        v = u;
    }
    float * x;
    CHECK(cudaMalloc(&x, hx.size() * 4));
    CHECK(cudaMemcpy(x, hx.data(), hx.size() * 4, cudaMemcpyHostToDevice));
    int8_t * quants;
    float2 * scales;
    float * dst;
    int32_t * ids;
    CHECK(cudaMalloc(&quants, size_t(max_k) * max_n));
    CHECK(cudaMalloc(&scales, size_t(max_k) / 32 * max_n * 8));
    CHECK(cudaMalloc(&dst, wide * 8 * 4));
    CHECK(cudaMalloc(&ids, 256));
    cudaStream_t s;
    CHECK(cudaStreamCreate(&s));
    for (int type = 0; type < 4; type++) {
        fill<<<4096, 256>>>((uint32_t *)w, bytes / 4);
        halves<<<4096, 256>>>(w, bytes / block[type], type, block[type]);
        CHECK(cudaDeviceSynchronize());
        const auto base = [&](int n, int k, int cols) {
            products p = {};
            p.w = w;
            p.row_bytes = int64_t(k / 256) * block[type];
            p.n_blocks = k / 256;
            p.n_rows = n;
            p.y = {quants, scales};
            p.n_tokens = cols;
            p.dst = dst;
            p.dst_token = n;
            return p;
        };
        const auto columns = [&](int k, int cols) {
            launch(0, quantise, dim3((k + 1023) / 1024, cols), dim3(256), s, x, int64_t(max_k), int64_t(max_k), 1, quants, scales,
                   k);
        };
        const auto row = [&](size_t offset, int k) {
            std::vector<uint8_t> b(k / 256 * block[type]);
            CHECK(cudaMemcpy(b.data(), w + offset, b.size(), cudaMemcpyDeviceToHost));
            std::vector<float> f(k);
            for (int l = 0; l < k / 256; l++)
                dequant(type, b.data() + l * block[type], f.data() + l * 256);
            return f;
        };
        const auto dot = [&](const std::vector<float> & f, int c) {
            double v = 0;
            for (size_t i = 0; i < f.size(); i++)
                v += double(f[i]) * hx[size_t(c) * max_k + i];
            return v;
        };
        // right, and the same bits at every width
        double worst = 0;
        bool same = true;
        for (auto [n, k] : {std::pair{1000, 5120}, {517, 256}, {48, 512}, {333, 1280}, {129, 17408}}) {
            std::vector<float> widest;
            for (int cols = 8; cols >= 1; cols--) {
                CHECK(cudaMemsetAsync(dst, 0xff, wide * 8 * 4, s));
                columns(k, cols);
                run(type, base(n, k, cols), 1, s);
                CHECK(cudaStreamSynchronize(s));
                std::vector<float> out(size_t(n) * cols);
                CHECK(cudaMemcpy(out.data(), dst, out.size() * 4, cudaMemcpyDeviceToHost));
                if (cols == 8)
                    widest = out;
                else
                    same = same && !memcmp(out.data(), widest.data(), out.size() * 4);
                if (cols != 8)
                    continue;
                double num = 0, den = 0;
                for (int r = 0; r < n; r += n / 23) {
                    auto f = row(size_t(r) * k / 256 * block[type], k);
                    for (int c = 0; c < cols; c++) {
                        double want = dot(f, c), e = out[size_t(c) * n + r] - want;
                        if (std::isnan(e))
                            e = 1e9;
                        num += e * e;
                        den += want * want;
                    }
                }
                worst = std::max(worst, sqrt(num / den));
            }
        }
        // routed, with a gate and a shared matrix
        double routed = 0;
        for (auto [n, k, each] : {std::tuple{512, 2048, 1}, {200, 512, 3}}) {
            const int tokens = 3, used = 3;
            std::vector<int32_t> which = {4, 0, 9, 4, 1, 2, 7, 4, 3};
            CHECK(cudaMemcpy(ids, which.data(), 36, cudaMemcpyHostToDevice));
            launch(0, quantise, dim3((k + 1023) / 1024, tokens * each), dim3(256), s, x, int64_t(max_k), int64_t(max_k) * each,
                   each, quants, scales, k);
            products p = base(n, k, tokens * each);
            p.n_tokens = tokens;
            p.matrix_bytes = p.row_bytes * n;
            p.gate = w + p.matrix_bytes * 16;
            p.ids = ids;
            p.ids_stride = used;
            p.n_used = used;
            p.n_each = each;
            p.dst_slot = n;
            p.dst_token = n * used;
            if (each == 1) {
                p.shared_w = w + p.matrix_bytes * 40;
                p.shared_gate = w + p.matrix_bytes * 41;
                p.shared_dst = dst + tokens * used * n;
                p.shared_token = n;
            }
            CHECK(cudaMemsetAsync(dst, 0xff, wide * 4, s));
            run(type, p, tokens * used + (each == 1), s);
            CHECK(cudaStreamSynchronize(s));
            std::vector<float> out(size_t(n) * (tokens * used + tokens));
            CHECK(cudaMemcpy(out.data(), dst, out.size() * 4, cudaMemcpyDeviceToHost));
            double num = 0, den = 0;
            const auto compare = [&](size_t up, size_t gate, int c, float got) {
                double g = dot(row(gate, k), c), want = dot(row(up, k), c) * g / (1 + exp(-g)), e = got - want;
                if (std::isnan(e))
                    e = 1e9;
                num += e * e;
                den += want * want;
            };
            for (int t = 0; t < tokens; t++)
                for (int r = 0; r < n; r += 41) {
                    for (int u = 0; u < used; u++) {
                        size_t m = which[t * used + u] * p.matrix_bytes + r * p.row_bytes;
                        compare(m, m + 16 * p.matrix_bytes, t * each + u % each, out[size_t(t * used + u) * n + r]);
                    }
                    if (each == 1)
                        compare(40 * p.matrix_bytes + r * p.row_bytes, 41 * p.matrix_bytes + r * p.row_bytes, t,
                                out[size_t(tokens * used + t) * n + r]);
                }
            routed = std::max(routed, sqrt(num / den));
        }
        printf("%s: error %.1e, same bits at every width: %s, routed with gate %.1e\n", names[type], worst, same ? "yes" : "NO",
               routed);
        printf("  TB/s at 1, 2, 4, 8 columns:");
        struct shape {
            int n, k;
        };
        for (auto h : {shape{10240, 5120}, {5120, 6144}, {17408, 5120}, {5120, 17408}, {1024, 5120}, {248320, 2048}}) {
            printf("  %dx%d", h.n, h.k);
            for (int cols : {1, 2, 4, 8}) {
                const size_t size = size_t(h.n) * (h.k / 256) * block[type];
                const int count = 24;
                cudaGraph_t g;
                cudaGraphExec_t e;
                CHECK(cudaStreamBeginCapture(s, cudaStreamCaptureModeGlobal));
                size_t at = 0;
                for (int i = 0; i < count; i++) {
                    if (at + size > bytes - 4096)
                        at = 0;
                    products p = base(h.n, h.k, cols);
                    p.w += at;
                    run(type, p, 1, s);
                    at += size / 16 * 16;
                }
                CHECK(cudaStreamEndCapture(s, &g));
                CHECK(cudaGraphInstantiate(&e, g, 0));
                cudaEvent_t a, b;
                cudaEventCreate(&a);
                cudaEventCreate(&b);
                std::vector<float> t;
                for (int i = 0; i < 7; i++) {
                    cudaEventRecord(a, s);
                    CHECK(cudaGraphLaunch(e, s));
                    cudaEventRecord(b, s);
                    CHECK(cudaEventSynchronize(b));
                    float ms;
                    cudaEventElapsedTime(&ms, a, b);
                    t.push_back(ms);
                }
                std::sort(t.begin(), t.end());
                printf(" %.2f", size * count / double(t[3]) / 1e9);
                cudaGraphExecDestroy(e);
                cudaGraphDestroy(g);
            }
        }
        printf("\n");
        fflush(stdout);
    }
    { // experts of 35B-A3B: 8 of 256 matrices of 512 x 2048, gate and up, and a shared one
        fill<<<4096, 256>>>((uint32_t *)w, bytes / 4);
        halves<<<4096, 256>>>(w, bytes / 144, 0, 144);
        CHECK(cudaDeviceSynchronize());
        for (int tokens : {1, 2, 4, 8}) {
            std::vector<int32_t> which;
            int32_t * many;
            const int count = 24;
            for (int i = 0; i < count * tokens * 8; i++) {
                z = z * 6364136223846793005ull + 1442695040888963407ull;
                which.push_back(z >> 56);
            }
            CHECK(cudaMalloc(&many, which.size() * 4));
            CHECK(cudaMemcpy(many, which.data(), which.size() * 4, cudaMemcpyHostToDevice));
            float ms_of[2];
            for (int down = 0; down < 2; down++) {
                const int n = down ? 2048 : 512, k = down ? 512 : 2048;
                cudaGraph_t g;
                cudaGraphExec_t e;
                CHECK(cudaStreamBeginCapture(s, cudaStreamCaptureModeGlobal));
                for (int i = 0; i < count; i++) {
                    products p = {};
                    p.row_bytes = k / 256 * 144;
                    p.matrix_bytes = p.row_bytes * n;
                    p.w = w + (i % 6) * 515 * p.matrix_bytes;
                    if (!down) {
                        p.gate = p.w + 256 * p.matrix_bytes;
                        p.shared_w = p.w + 512 * p.matrix_bytes;
                        p.shared_gate = p.shared_w + p.matrix_bytes;
                        p.shared_dst = dst;
                        p.shared_token = n;
                    }
                    p.n_blocks = k / 256;
                    p.n_rows = n;
                    p.n_each = down ? 8 : 1;
                    p.y = {quants, scales};
                    p.n_tokens = tokens;
                    p.ids = many + i * tokens * 8;
                    p.ids_stride = 8;
                    p.n_used = 8;
                    p.dst = dst;
                    p.dst_slot = n;
                    p.dst_token = 8 * n;
                    run(0, p, tokens * 8 + !down, s);
                }
                CHECK(cudaStreamEndCapture(s, &g));
                CHECK(cudaGraphInstantiate(&e, g, 0));
                cudaEvent_t a, b;
                cudaEventCreate(&a);
                cudaEventCreate(&b);
                std::vector<float> t;
                for (int i = 0; i < 7; i++) {
                    cudaEventRecord(a, s);
                    CHECK(cudaGraphLaunch(e, s));
                    cudaEventRecord(b, s);
                    CHECK(cudaEventSynchronize(b));
                    float ms;
                    cudaEventElapsedTime(&ms, a, b);
                    t.push_back(ms);
                }
                std::sort(t.begin(), t.end());
                ms_of[down] = t[3] / count;
            }
            printf("experts, %d tokens: gate and up %.1f us, down %.1f us\n", tokens, ms_of[0] * 1e3, ms_of[1] * 1e3);
        }
    }
}
