// Checks the sum over ranks on this machine's GPUs, one for each rank or all ranks on one, beside a plain computation on the host, and times
// it:
//   nvcc -arch=native -O3 -std=c++20 -I vendor/ggml-sys/cuda vendor/ggml-sys/cuda/check/all_reduce.cu -o check && ./check [RANKS] [host]
#include "all_reduce_kernels.cuh"

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
    printf("%s\n", good ? "all good" : "NOT GOOD");
    return good ? 0 : 1;
}
