// Checks the kernels for recurrent layers on this machine's GPU, beside a plain computation on the host, and times them:
//   nvcc -arch=native -O3 -std=c++20 -I vendor/ggml-sys/cuda vendor/ggml-sys/cuda/check/states.cu -o check && ./check
#include "states_kernels.cuh"

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
static bool failed = false;
static const char * verdict(bool good) {
    failed = failed || !good;
    return good ? "yes" : "NO";
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
static std::vector<float> random_numbers(size_t n) {
    std::vector<float> all(n);
    for (auto & x : all)
        x = random_number();
    return all;
}
template <typename T> static T * device(const std::vector<T> & from) {
    T * to;
    CHECK(cudaMalloc(&to, from.size() * sizeof(T)));
    CHECK(cudaMemcpy(to, from.data(), from.size() * sizeof(T), cudaMemcpyHostToDevice));
    return to;
}
static std::vector<float> host(const float * from, size_t n) {
    std::vector<float> to(n);
    CHECK(cudaMemcpy(to.data(), from, n * 4, cudaMemcpyDeviceToHost));
    return to;
}
static double timed(cudaStream_t s, const std::function<void()> & each) {
    cudaGraph_t g;
    cudaGraphExec_t e;
    CHECK(cudaStreamBeginCapture(s, cudaStreamCaptureModeGlobal));
    for (int i = 0; i < 48; i++)
        each();
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
    return t[3] / 48 * 1e3;
}
// States on some planes of some slots; sequences on slots that are not in order, each on a plane of its own.
constexpr int SLOTS = 5, PLANES = 6;
static const std::vector<int32_t> slots = { 3, 0, 4 }, planes = { 0, 2, 5 };
static int row_of(int plane, int slot) {
    return plane * SLOTS + slot;
}
struct worst {
    double output = 0, state = 0;
    bool alike = true, untouched = true;
};
// Rows of states: what was expected of those that were written, and what stood in the others before.
static void compare(worst & w, const std::vector<float> & found, const std::vector<float> & before,
                    const std::vector<std::vector<std::vector<double>>> & expected, size_t n, int n_snapshots) {
    std::vector<bool> written(SLOTS * PLANES);
    for (size_t i = 0; i < expected.size(); i++)
        for (int back = 0; back < n_snapshots; back++) {
            const int row = row_of(back, slots[i]);
            const auto & want = expected[i][expected[i].size() - 1 - back];
            written[row] = true;
            for (size_t j = 0; j < n; j++)
                w.state = std::max(w.state, std::abs(found[row * n + j] - want[j]));
        }
    for (int row = 0; row < SLOTS * PLANES; row++)
        w.untouched = w.untouched && (written[row] || memcmp(&found[row * n], &before[row * n], n * 4) == 0);
}
template <int S> static void check_delta_rule(cudaStream_t s, int n_keys, int n_heads) {
    const int most = 48, n_seqs = int(slots.size());
    const size_t n = size_t(S) * S * n_heads, row = size_t(S) * n_heads, key_row = size_t(S) * n_keys;
    const auto q = random_numbers(key_row * most * n_seqs), k = random_numbers(q.size()), v = random_numbers(row * most * n_seqs);
    auto decay = random_numbers(size_t(n_heads) * most * n_seqs), beta = random_numbers(decay.size());
    for (auto & x : decay)
        x = -0.2f * std::abs(x);
    for (auto & x : beta)
        x = 1 / (1 + std::exp(-x));
    // Keys of length 1, as models have.
    auto keys = k, queries = q;
    for (auto * all : { &keys, &queries })
        for (size_t i = 0; i < all->size(); i += S) {
            float sum = 0;
            for (int j = 0; j < S; j++)
                sum += (*all)[i + j] * (*all)[i + j];
            for (int j = 0; j < S; j++)
                (*all)[i + j] /= std::sqrt(sum);
        }
    const auto before = random_numbers(n * SLOTS * PLANES);
    std::vector<std::vector<std::vector<double>>> states(n_seqs);       // of each sequence after each token
    std::vector<double> outputs(row * most * n_seqs);
    std::vector<int32_t> which;
    for (int i = 0; i < n_seqs; i++) {
        which.push_back(row_of(planes[i], slots[i]));
        std::vector<double> m(before.begin() + which[i] * n, before.begin() + (which[i] + 1) * n);
        for (int t = 0; t < most; t++) {
            for (int h = 0; h < n_heads; h++) {
                const float * kt = &keys[(size_t(i) * most + t) * key_row + h % n_keys * S], * qt = &queries[(size_t(i) * most + t) * key_row + h % n_keys * S];
                const double g = std::exp(double(decay[(size_t(i) * most + t) * n_heads + h])), b = beta[(size_t(i) * most + t) * n_heads + h];
                for (int c = 0; c < S; c++) {
                    double * mc = &m[(size_t(h) * S + c) * S], sum = 0, o = 0;
                    for (int j = 0; j < S; j++)
                        sum += mc[j] * kt[j];
                    const double update = (v[(size_t(i) * most + t) * row + h * S + c] - g * sum) * b;
                    for (int j = 0; j < S; j++) {
                        mc[j] = g * mc[j] + update * kt[j];
                        o += mc[j] * qt[j];
                    }
                    outputs[(size_t(i) * most + t) * row + h * S + c] = o / std::sqrt(double(S));
                }
            }
            states[i].push_back(m);
        }
    }
    float * dq = device(queries), * dk = device(keys), * dv = device(v), * dd = device(decay), * db = device(beta), * all = device(before), * dst;
    int32_t * dw = device(which), * ds = device(slots);
    CHECK(cudaMalloc(&dst, outputs.size() * 4));
    const auto run = [&](int first, int n_tokens, int n_snapshots, bool from_newest) {
        delta_rule p = {};
        p.q = dq + first * key_row;
        p.k = dk + first * key_row;
        p.v = dv + first * row;
        p.decay = dd + first * n_heads;
        p.beta = db + first * n_heads;
        p.q_head = p.k_head = p.v_head = S;
        p.q_token = p.k_token = key_row;
        p.q_sequence = p.k_sequence = key_row * most;
        p.v_token = row;
        p.v_sequence = row * most;
        p.decay_head = p.beta_head = 1;
        p.decay_token = p.beta_token = n_heads;
        p.decay_sequence = p.beta_sequence = int64_t(n_heads) * most;
        p.states = { all, int64_t(n), from_newest ? ds : dw, all, int64_t(n), int64_t(n) * SLOTS, ds, n_snapshots };
        p.dst = dst;
        p.n_key_heads = n_keys;
        p.n_heads = n_heads;
        p.n_tokens = n_tokens;
        p.scale = 1.0f / std::sqrt(float(S));
        apply_delta_rule<S><<<dim3(S / (DELTA_ROWS<S> * DELTA_WARPS<S>), n_heads, n_seqs), 32 * DELTA_WARPS<S>, 0, s>>>(p);
        CHECK(cudaGetLastError());
    };
    const auto put_back = [&] { CHECK(cudaMemcpy(all, before.data(), before.size() * 4, cudaMemcpyHostToDevice)); };
    worst w;
    std::vector<float> whole;
    for (int n_tokens : { 48, 4, 1 }) {
        const int n_snapshots = n_tokens == 48 ? 1 : n_tokens;
        put_back();
        run(0, n_tokens, n_snapshots, false);
        CHECK(cudaStreamSynchronize(s));
        const auto found = host(dst, size_t(n_seqs) * n_tokens * row);
        if (n_tokens == 48)
            whole = found;
        for (int i = 0; i < n_seqs; i++)
            for (size_t j = 0; j < n_tokens * row; j++) {
                w.output = std::max(w.output, std::abs(found[i * n_tokens * row + j] - outputs[i * most * row + j]));
                w.alike = w.alike && found[i * n_tokens * row + j] == whole[i * most * row + j];
            }
        auto some = states;
        for (auto & of : some)
            of.resize(n_tokens);
        compare(w, host(all, before.size()), before, some, n, n_snapshots);
    }
    // Token by token and in fours, from the plane that was written last.
    for (int width : { 1, 4 }) {
        put_back();
        for (int first = 0; first < most; first += width) {
            run(first, width, 1, first > 0);
            CHECK(cudaStreamSynchronize(s));
            const auto found = host(dst, size_t(n_seqs) * width * row);
            for (int i = 0; i < n_seqs; i++)
                w.alike = w.alike && memcmp(&found[i * width * row], &whole[i * most * row + first * row], width * row * 4) == 0;
        }
    }
    printf("delta rule %3d, %2d of %2d heads: error of outputs %.1e, of states %.1e; others untouched %s, same bits at widths 1, 4, 48 %s; us",
        S, n_keys, n_heads, w.output, w.state, verdict(w.untouched && w.output < 1e-5 && w.state < 1e-5), verdict(w.alike));
    for (int n_tokens : { 1, 2, 4, 8, 16, 48 })
        printf(" %d: %.1f", n_tokens, timed(s, [&] { run(0, n_tokens, std::min(n_tokens, 6), true); }));
    printf("\n");
    for (void * p : { (void *) dq, (void *) dk, (void *) dv, (void *) dd, (void *) db, (void *) all, (void *) dst, (void *) dw, (void *) ds })
        cudaFree(p);
}
static void check_convolution(cudaStream_t s, int n_channels) {
    const int most = 48, n_seqs = int(slots.size());
    const size_t n = size_t(TAPS - 1) * n_channels;
    const auto x = random_numbers(size_t(n_channels) * most * n_seqs), weights = random_numbers(size_t(TAPS) * n_channels);
    const auto before = random_numbers(n * SLOTS * PLANES);
    std::vector<std::vector<std::vector<double>>> states(n_seqs);
    std::vector<double> outputs(x.size());
    std::vector<int32_t> which;
    for (int i = 0; i < n_seqs; i++) {
        which.push_back(row_of(planes[i], slots[i]));
        std::vector<double> past(before.begin() + which[i] * n, before.begin() + (which[i] + 1) * n);
        for (int t = 0; t < most; t++) {
            for (int c = 0; c < n_channels; c++) {
                double * p = &past[size_t(c) * 3];
                const float * w = &weights[size_t(c) * 4];
                const double now = x[(size_t(i) * most + t) * n_channels + c];
                const double sum = p[0] * w[0] + p[1] * w[1] + p[2] * w[2] + now * w[3];
                outputs[(size_t(i) * most + t) * n_channels + c] = sum / (1 + std::exp(-sum));
                p[0] = p[1];
                p[1] = p[2];
                p[2] = now;
            }
            states[i].push_back(past);
        }
    }
    float * dx = device(x), * dw = device(weights), * all = device(before), * dst;
    int32_t * dr = device(which), * ds = device(slots);
    CHECK(cudaMalloc(&dst, outputs.size() * 4));
    const auto run = [&](int n_tokens, int n_snapshots) {
        convolution p = {};
        p.x = dx;
        p.x_token = n_channels;
        p.x_sequence = int64_t(n_channels) * most;
        p.weights = (const float4 *) dw;
        p.states = { all, int64_t(n), dr, all, int64_t(n), int64_t(n) * SLOTS, ds, n_snapshots };
        p.dst = dst;
        p.n_channels = n_channels;
        p.n_tokens = n_tokens;
        p.silu = true;
        convolve<<<dim3((n_channels + CHANNELS - 1) / CHANNELS, n_seqs), CHANNELS, 0, s>>>(p);
        CHECK(cudaGetLastError());
    };
    worst w;
    std::vector<float> whole;
    for (int n_tokens : { 48, 5, 4, 3, 2, 1 }) {
        const int n_snapshots = n_tokens == 48 ? 1 : n_tokens;
        CHECK(cudaMemcpy(all, before.data(), before.size() * 4, cudaMemcpyHostToDevice));
        run(n_tokens, n_snapshots);
        CHECK(cudaStreamSynchronize(s));
        const auto found = host(dst, size_t(n_seqs) * n_tokens * n_channels);
        if (n_tokens == 48)
            whole = found;
        for (int i = 0; i < n_seqs; i++)
            for (size_t j = 0; j < size_t(n_tokens) * n_channels; j++) {
                const float y = found[size_t(i) * n_tokens * n_channels + j];
                w.output = std::max(w.output, std::abs(y - outputs[size_t(i) * most * n_channels + j]));
                w.alike = w.alike && y == whole[size_t(i) * most * n_channels + j];
            }
        auto some = states;
        for (auto & of : some)
            of.resize(n_tokens);
        compare(w, host(all, before.size()), before, some, n, n_snapshots);
    }
    printf("convolution of %5d channels: error of outputs %.1e, of states %.1e; others untouched %s, same bits at all widths %s; us", n_channels,
        w.output, w.state, verdict(w.untouched && w.output < 1e-5 && w.state == 0), verdict(w.alike));
    for (int n_tokens : { 1, 2, 4, 8, 16, 48 })
        printf(" %d: %.1f", n_tokens, timed(s, [&] { run(n_tokens, std::min(n_tokens, 6)); }));
    printf("\n");
    for (void * p : { (void *) dx, (void *) dw, (void *) all, (void *) dst, (void *) dr, (void *) ds })
        cudaFree(p);
}
int main() {
    cudaStream_t s;
    CHECK(cudaStreamCreate(&s));
    check_delta_rule<16>(s, 1, 3);
    check_delta_rule<32>(s, 2, 6);
    check_delta_rule<64>(s, 2, 4);
    check_delta_rule<128>(s, 16, 48);
    check_delta_rule<128>(s, 16, 32);
    check_convolution(s, 80);
    check_convolution(s, 10240);
    return failed;
}
