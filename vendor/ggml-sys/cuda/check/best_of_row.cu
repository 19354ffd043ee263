// Checks the places of largest elements on this machine's GPU beside a loop on the host, and times them:
//   nvcc -arch=native -O3 -std=c++20 -I vendor/ggml-sys/cuda vendor/ggml-sys/cuda/check/best_of_row.cu -o check && ./check
#include "best_of_row_kernels.cuh"

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <limits>
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

int main() {
    const float inf = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
    bool good = true;
    for (int n : { 8192, 66560, 151936, 248320 }) {
        // Random; equal ones far apart; one after numbers that are none; all below every number; nothing but numbers that are none.
        constexpr int ROWS = 6;
        std::vector<float> x(size_t(n) * ROWS);
        uint64_t z = n;
        for (auto & value : x) {
            z = z * 6364136223846793005ull + 1442695040888963407ull;
            value = float(z >> 40) / (1 << 24);
        }
        x[n + n - 1] = x[n + n / 3] = 2;
        for (int i = 0; i < n; i++) {
            x[2 * n + i] = i < n - 5 ? nan : -3;
            x[3 * n + i] = -inf;
            x[4 * n + i] = nan;
        }
        x[5 * n + 7] = inf;
        float * from;
        int32_t * to;
        CHECK(cudaMalloc(&from, x.size() * 4));
        CHECK(cudaMalloc(&to, ROWS * 4));
        CHECK(cudaMemcpy(from, x.data(), x.size() * 4, cudaMemcpyHostToDevice));
        best_of_rows<<<ROWS, BEST_THREADS>>>((const float4 *) from, to, n / 4);
        std::vector<int32_t> found(ROWS);
        CHECK(cudaMemcpy(found.data(), to, ROWS * 4, cudaMemcpyDeviceToHost));
        for (int r = 0; r < ROWS; r++) {
            int place = -1;
            float best = -FLT_MAX;
            for (int i = 0; i < n; i++)
                if (x[size_t(r) * n + i] > best)
                    best = x[size_t(r) * n + i], place = i;
            good = good && found[r] == place;
            if (found[r] != place)
                printf("row %d of %d: %d instead of %d\n", r, n, found[r], place);
        }
        cudaEvent_t a, b;
        CHECK(cudaEventCreate(&a));
        CHECK(cudaEventCreate(&b));
        float least = 1e9;
        for (int round = 0; round < 5; round++) {
            CHECK(cudaEventRecord(a));
            for (int i = 0; i < 200; i++)
                best_of_rows<<<1, BEST_THREADS>>>((const float4 *) from, to, n / 4);
            CHECK(cudaEventRecord(b));
            CHECK(cudaEventSynchronize(b));
            float ms;
            CHECK(cudaEventElapsedTime(&ms, a, b));
            least = fminf(least, ms);
        }
        printf("%d elements: %.1f us\n", n, least * 5);
        CHECK(cudaFree(from));
        CHECK(cudaFree(to));
    }
    printf("all good: %s\n", good ? "yes" : "NO");
    return good ? 0 : 1;
}
