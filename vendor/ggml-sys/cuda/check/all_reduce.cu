// Checks the sum over ranks on this machine's GPUs, one for each rank or all ranks on one, beside a plain computation on the host, and times
// it:
//   nvcc -arch=native -O3 -std=c++20 -I vendor/ggml-sys/cuda vendor/ggml-sys/cuda/check/all_reduce.cu -o check && ./check [RANKS] [host]
#include "all_reduce_kernels.cuh"
#include "fusion_kernels.cuh"

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>
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

struct rank_of_check {
    int device;
    cudaStream_t stream;
    uint32_t * made;
    float * x, * y;
};

int main(int argc, char ** argv) {
    const int n_ranks = argc > 1 ? atoi(argv[1]) : 2;
    const bool on_host = argc > 2 && strcmp(argv[2], "host") == 0;
    constexpr int64_t MOST = 600 * 5120;
    int n_devices = 0;
    CHECK(cudaGetDeviceCount(&n_devices));
    std::vector<rank_of_check> ranks(n_ranks);
    places all = {};
    for (int r = 0; r < n_ranks; r++) {
        ranks[r].device = r % n_devices;
        CHECK(cudaSetDevice(ranks[r].device));
        for (int other = 0; other < n_devices && !on_host; other++) {
            if (other != ranks[r].device) {
                const cudaError_t error = cudaDeviceEnablePeerAccess(other, 0);
                if (error != cudaErrorPeerAccessAlreadyEnabled) {
                    CHECK(error);
                }
                (void) cudaGetLastError();
            }
        }
        void * own;
        const size_t n_bytes = bytes_of_packets(n_ranks);
        CHECK(on_host ? cudaHostAlloc(&own, n_bytes, cudaHostAllocPortable | cudaHostAllocMapped) : cudaMalloc(&own, n_bytes));
        CHECK(cudaMemset(own, 0, n_bytes));
        all.packets[r] = static_cast<uint4 *>(own);
        CHECK(cudaMalloc(&ranks[r].made, MAX_BLOCKS * 4));
        CHECK(cudaMemset(ranks[r].made, 0, MAX_BLOCKS * 4));
        CHECK(cudaMalloc(&ranks[r].x, MOST * 4));
        CHECK(cudaMalloc(&ranks[r].y, MOST * 4));
        CHECK(cudaStreamCreateWithFlags(&ranks[r].stream, cudaStreamNonBlocking));
        CHECK(cudaDeviceSynchronize());
    }
    printf("%d ranks on %d GPUs%s\n", n_ranks, n_devices, on_host ? ", by the host's memory" : "");
    bool good = true;
    uint64_t z = 1;
    for (int64_t n : { 4, 2048, 5120, 8 * 5120, 48 * 2048, 512 * 5120, 5120 }) {
        std::vector<std::vector<float>> x(n_ranks, std::vector<float>(n));
        std::vector<float> sum(n), y(n);
        for (int r = 0; r < n_ranks; r++) {
            for (int64_t i = 0; i < n; i++) {
                z = z * 6364136223846793005ull + 1442695040888963407ull;
                x[r][i] = float(z >> 40) / (1 << 24) - 0.5f;
                sum[i] = r == 0 ? x[r][i] : sum[i] + x[r][i];
            }
            CHECK(cudaSetDevice(ranks[r].device));
            CHECK(cudaMemcpy(ranks[r].x, x[r].data(), n * 4, cudaMemcpyHostToDevice));
        }
        // Again and again, as a model's layers do, in one graph a rank.
        constexpr int TIMES = 128;
        std::vector<cudaGraphExec_t> graphs(n_ranks);
        for (int r = 0; r < n_ranks; r++) {
            CHECK(cudaSetDevice(ranks[r].device));
            cudaGraph_t graph;
            CHECK(cudaStreamBeginCapture(ranks[r].stream, cudaStreamCaptureModeRelaxed));
            for (int i = 0; i < TIMES; i++) {
                const part_in_sum part = { all, r, n_ranks, ranks[r].made };
                add_up<<<blocks_of_sum(n), THREADS_OF_SUMS, 0, ranks[r].stream>>>(ranks[r].x, ranks[r].y, n, part);
            }
            CHECK(cudaStreamEndCapture(ranks[r].stream, &graph));
            CHECK(cudaGraphInstantiate(&graphs[r], graph, 0));
        }
        double best = 1e9;
        for (int again = 0; again < 5; again++) {
            const auto start = std::chrono::steady_clock::now();
            std::vector<std::thread> threads;
            for (int r = 0; r < n_ranks; r++) {
                threads.emplace_back([&, r] {
                    CHECK(cudaSetDevice(ranks[r].device));
                    CHECK(cudaGraphLaunch(graphs[r], ranks[r].stream));
                    CHECK(cudaStreamSynchronize(ranks[r].stream));
                });
            }
            for (auto & thread : threads) {
                thread.join();
            }
            const std::chrono::duration<double, std::micro> took = std::chrono::steady_clock::now() - start;
            best = std::min(best, took.count() / TIMES);
        }
        bool same = true;
        for (int r = 0; r < n_ranks; r++) {
            CHECK(cudaSetDevice(ranks[r].device));
            CHECK(cudaMemcpy(y.data(), ranks[r].y, n * 4, cudaMemcpyDeviceToHost));
            same = same && memcmp(y.data(), sum.data(), n * 4) == 0;
        }
        printf("%8lld numbers: the same bits on all ranks: %s, %.2f us each\n", (long long) n, same ? "yes" : "NO", best);
        good = good && same;
    }
    // With the stream and a norm behind it, in one launch and apart.
    for (int n : { 2048, 5120 }) {
        for (int tokens : { 1, 8 }) {
            const size_t n_all = size_t(n) * tokens, n_columns = size_t(n / BLOCK) * sizeof(column_block);
            std::vector<std::vector<float>> x(n_ranks, std::vector<float>(n_all));
            std::vector<float> stream(n_all), weights(n), sum(n_all);
            const auto random = [&] {
                z = z * 6364136223846793005ull + 1442695040888963407ull;
                return float(z >> 40) / (1 << 24) - 0.5f;
            };
            for (auto & v : stream) {
                v = random();
            }
            for (auto & v : weights) {
                v = random();
            }
            for (size_t i = 0; i < n_all; i++) {
                for (int r = 0; r < n_ranks; r++) {
                    x[r][i] = random();
                    sum[i] = r == 0 ? x[r][i] : sum[i] + x[r][i];
                }
                sum[i] += stream[i];
            }
            struct of_rank {
                float * stream, * weights, * dst, * normed, * again;
                char * y, * z;
            };
            std::vector<of_rank> all_of(n_ranks);
            for (int r = 0; r < n_ranks; r++) {
                of_rank & of = all_of[r];
                CHECK(cudaSetDevice(ranks[r].device));
                for (float ** to : { &of.stream, &of.weights, &of.dst, &of.normed, &of.again }) {
                    CHECK(cudaMalloc(to, n_all * 4));
                }
                for (char ** to : { &of.y, &of.z }) {
                    CHECK(cudaMalloc(to, n_columns));
                    CHECK(cudaMemset(*to, 0, n_columns));
                }
                CHECK(cudaMemcpy(ranks[r].x, x[r].data(), n_all * 4, cudaMemcpyHostToDevice));
                CHECK(cudaMemcpy(of.stream, stream.data(), n_all * 4, cudaMemcpyHostToDevice));
                CHECK(cudaMemcpy(of.weights, weights.data(), n * 4, cudaMemcpyHostToDevice));
                CHECK(cudaDeviceSynchronize());
            }
            for (int r = 0; r < n_ranks; r++) {
                const of_rank & of = all_of[r];
                CHECK(cudaSetDevice(ranks[r].device));
                const sum_of_ranks p = { ranks[r].x, of.stream, of.dst, n, of.weights, of.normed, (column_block *) of.y, 1e-6f,
                    { all, r, n_ranks, ranks[r].made } };
                sum_ranks_and_norm<<<tokens, n / EACH, 0, ranks[r].stream>>>(p);
            }
            bool same = true;
            for (int r = 0; r < n_ranks; r++) {
                const of_rank & of = all_of[r];
                CHECK(cudaSetDevice(ranks[r].device));
                norm_into_columns<<<tokens, n / EACH, 0, ranks[r].stream>>>(of.dst, of.weights, of.again, (column_block *) of.z, n, 1e-6f);
                CHECK(cudaStreamSynchronize(ranks[r].stream));
                std::vector<float> dst(n_all), normed(n_all), again(n_all);
                std::vector<char> a(n_columns), b(n_columns);
                CHECK(cudaMemcpy(dst.data(), of.dst, n_all * 4, cudaMemcpyDeviceToHost));
                CHECK(cudaMemcpy(normed.data(), of.normed, n_all * 4, cudaMemcpyDeviceToHost));
                CHECK(cudaMemcpy(again.data(), of.again, n_all * 4, cudaMemcpyDeviceToHost));
                CHECK(cudaMemcpy(a.data(), of.y, n_columns, cudaMemcpyDeviceToHost));
                CHECK(cudaMemcpy(b.data(), of.z, n_columns, cudaMemcpyDeviceToHost));
                same = same && dst == sum && normed == again && a == b;
            }
            printf("%d rows of %d with the stream and a norm, the same bits: %s\n", tokens, n, same ? "yes" : "NO");
            good = good && same;
        }
    }
    // Rows of all ranks side by side, more than there are places for at once.
    {
        const int n_rows = 124160, n_columns = 3, each = 64;
        const int64_t n = int64_t(n_rows) * n_columns;
        std::vector<float *> to(n_ranks);
        std::vector<float> x(n), y(n * n_ranks);
        for (int r = 0; r < n_ranks; r++) {
            for (int64_t i = 0; i < n; i++) {
                x[i] = float(r + n_ranks * (i % 4000000));
            }
            CHECK(cudaSetDevice(ranks[r].device));
            CHECK(cudaMalloc(&to[r], y.size() * 4));
            CHECK(cudaMemcpy(ranks[r].x, x.data(), n * 4, cudaMemcpyHostToDevice));
            CHECK(cudaDeviceSynchronize());
        }
        for (int r = 0; r < n_ranks; r++) {
            CHECK(cudaSetDevice(ranks[r].device));
            const part_in_sum part = { all, r, n_ranks, ranks[r].made };
            gather_rows<<<blocks_of_sum(n), THREADS_OF_SUMS, 0, ranks[r].stream>>>(ranks[r].x, to[r], n, n_rows, each, part);
        }
        bool same = true;
        for (int r = 0; r < n_ranks; r++) {
            CHECK(cudaSetDevice(ranks[r].device));
            CHECK(cudaStreamSynchronize(ranks[r].stream));
            CHECK(cudaMemcpy(y.data(), to[r], y.size() * 4, cudaMemcpyDeviceToHost));
            for (int64_t i = 0; i < int64_t(y.size()); i++) {
                const int64_t column = i / (n_rows * n_ranks), row = i % (n_rows * n_ranks), step = row / (each * n_ranks), within = row % (each * n_ranks);
                const int64_t own = column * n_rows + step * each + within % each;
                same = same && y[i] == float(within / each + n_ranks * (own % 4000000));
            }
        }
        printf("rows side by side: %s\n", same ? "yes" : "NO");
        good = good && same;
    }
    printf("%s\n", good ? "all good" : "NOT GOOD");
    return good ? 0 : 1;
}
