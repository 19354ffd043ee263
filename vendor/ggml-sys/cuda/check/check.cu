// Checks the kernels for few columns on this machine's GPU, beside a plain computation on the host, and times them:
//   nvcc -arch=native -O3 -std=c++20 -I vendor/ggml-sys/cuda vendor/ggml-sys/cuda/check/check.cu -o check && ./check
#include "shared.cuh"
// Microseconds of one of `count` launches that follow each other in a graph: the median of seven.
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
int main() {
    const char * names[] = {"q4_k", "q5_k", "q6_k", "q8_0"};
    const int block[] = {144, 176, 210, 272};
    const int max_k = 17408, max_n = 8 * MAX_COLUMNS;
    const int64_t wide = 248320;
    const size_t bytes = size_t(4) << 30;
    uint8_t * w;
    CHECK(cudaMalloc(&w, bytes));
    std::vector<float> hx(size_t(max_k) * max_n);
    uint64_t z = 1;
    const auto random = [&] { return z = z * 6364136223846793005ull + 1442695040888963407ull; };
    for (auto & v : hx) {
        float u = 0;
        for (int i = 0; i < 4; i++)
            u += float(random() >> 40) / (1 << 24) - 0.5f;
        v = u;
    }
    // Large values beside small ones, in blocks and between them.
    for (size_t i = 0; i < hx.size(); i += 1009)
        hx[i] *= 300;
    float * x;
    CHECK(cudaMalloc(&x, hx.size() * 4));
    CHECK(cudaMemcpy(x, hx.data(), hx.size() * 4, cudaMemcpyHostToDevice));
    column_block * y;
    float * dst;
    int32_t * ids;
    int * slots;
    chunk * chunks;
    CHECK(cudaMalloc(&y, size_t(max_k / 256) * (max_n / 8) * sizeof(column_block)));
    CHECK(cudaMalloc(&dst, wide * MAX_COLUMNS * 4));
    CHECK(cudaMalloc(&ids, 24 * 512 * 8 * 4));
    CHECK(cudaMalloc(&chunks, 24 * 512 * 8 * sizeof(chunk)));
    CHECK(cudaMalloc(&slots, 24 * 512 * 8 * 4));
    cudaStream_t s;
    CHECK(cudaStreamCreate(&s));
    const auto columns = [&](int k, int cols, int each = 1, int first = 0) {
        const float_columns from = {x + size_t(first) * max_k, max_k, int64_t(max_k) * each, each, y};
        launch(0, quantise, dim3((k / 256 + 3) / 4, cols), dim3(128), s, from, cols, from, k / 256);
    };
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
            p.y = y;
            p.n_tokens = cols;
            p.n_routed = 1;
            p.dst = dst;
            p.dst_token = n;
            return p;
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
        const auto result = [&](size_t n) {
            CHECK(cudaStreamSynchronize(s));
            std::vector<float> out(n);
            CHECK(cudaMemcpy(out.data(), dst, n * 4, cudaMemcpyDeviceToHost));
            return out;
        };
        // Right, and the same bits at every width and place.
        double worst = 0;
        bool widths = true, places = true;
        for (auto [n, k] : {std::pair{1000, 5120}, {517, 256}, {48, 512}, {333, 1280}, {129, 17408}}) {
            std::vector<float> widest, widest_behind_gate;
            const int most = k < 1024 ? 8 : MAX_COLUMNS;
            for (int cols = most; cols >= 1; cols--) {
                CHECK(cudaMemsetAsync(dst, 0xff, wide * 8 * 4, s));
                columns(k, cols);
                products gated = base(n, k, cols);
                gated.gate = w + gated.row_bytes * n;
                run(type, gated, 1, s);
                const auto behind_gate = result(size_t(n) * cols);
                CHECK(cudaMemsetAsync(dst, 0xff, wide * 8 * 4, s));
                run(type, base(n, k, cols), 1, s);
                const auto out = result(size_t(n) * cols);
                if (cols < most) {
                    widths = widths && !memcmp(out.data(), widest.data(), out.size() * 4) &&
                             !memcmp(behind_gate.data(), widest_behind_gate.data(), out.size() * 4);
                    continue;
                }
                widest = out;
                widest_behind_gate = behind_gate;
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
            for (int first = 1; first < most; first++) {
                const int cols = std::min(most - first, 1 + first * 7 % 19);
                columns(k, cols, 1, first);
                run(type, base(n, k, cols), 1, s);
                const auto out = result(size_t(n) * cols);
                places = places && !memcmp(out.data(), widest.data() + size_t(first) * n, out.size() * 4);
            }
        }
        // Routed, with a gate and a shared matrix: each slot by itself, and matrices read once for those who want them.
        double routed = 0;
        bool alike = true, own = true;
        for (auto [n, k, each] : {std::tuple{512, 2048, 1}, {200, 512, 4}, {130, 1280, 4}}) {
            const int tokens = 29, used = 4, matrices = 12;
            std::vector<int32_t> which;
            for (int i = 0; i < tokens * used; i++)
                which.push_back(i % 3 == 0 ? 7 : (random() >> 40) % matrices);
            CHECK(cudaMemcpy(ids, which.data(), which.size() * 4, cudaMemcpyHostToDevice));
            columns(k, tokens * each, each);
            products p = base(n, k, tokens);
            p.matrix_bytes = p.row_bytes * n;
            p.gate = w + p.matrix_bytes * 16;
            p.ids = ids;
            p.ids_stride = used;
            p.n_used = used;
            p.n_each = each;
            p.dst_slot = n;
            p.dst_token = n * used;
            p.n_routed = tokens * used;
            const int n_shared = each == 1 ? (tokens + 7) / 8 : 0;
            if (each == 1) {
                p.shared_w = w + p.matrix_bytes * 40;
                p.shared_gate = w + p.matrix_bytes * 41;
                p.shared_dst = dst + tokens * used * n;
                p.shared_token = n;
            }
            const size_t all = size_t(n) * tokens * (used + (each == 1));
            CHECK(cudaMemsetAsync(dst, 0xff, all * 4, s));
            run(type, p, p.n_routed + n_shared, s);
            const auto out = result(all);
            p.chunks = chunks;
            p.slots = slots;
            for (int groups = 1; groups <= (k < 1024 ? 1 : MAX_OF_CHUNK); groups++) {
                p.n_groups = groups;
                p.n_routed = std::min(tokens * used, matrices + tokens * used / (8 * groups));
                CHECK(cudaMemsetAsync(dst, 0xff, all * 4, s));
                launch((2 * matrices + 64) * 4, find_chunks, dim3(1), dim3(96), s, ids, used, used, tokens * used, matrices, 8 * groups, slots, chunks, p.n_routed);
                run(type, p, p.n_routed + (each == 1 ? (tokens + 8 * groups - 1) / (8 * groups) : 0), s);
                alike = alike && !memcmp(out.data(), result(all).data(), all * 4);
            }
            if (each == used) {
                // A column for each slot, and others for a shared matrix: made by a launch, and by the thread blocks.
                products q = base(n, k, 5);
                q.matrix_bytes = p.matrix_bytes;
                q.ids = ids;
                q.ids_stride = q.n_used = q.n_each = used;
                q.dst_slot = n;
                q.dst_token = n * used;
                q.n_routed = 5 * used;
                q.shared_w = w + p.matrix_bytes * 40;
                q.shared_dst = dst + q.n_routed * n;
                q.shared_token = n;
                q.shared_y = y + 3 * (k / 256);
                q.x = {x, max_k, int64_t(max_k) * each, each, y};
                q.shared_x = {x + size_t(24) * max_k, max_k, max_k, 1, y};
                const size_t every = size_t(n) * 5 * (used + 1);
                CHECK(cudaMemsetAsync(dst, 0xff, every * 4, s));
                run(type, q, q.n_routed + 1, s);
                const auto launched = result(every);
                q.makes_columns = true;
                for (const bool are_there : {false, true}) {
                    q.ids_are_there = are_there;
                    CHECK(cudaMemsetAsync(dst, 0xff, every * 4, s));
                    run(type, q, q.n_routed + 5, s);
                    own = own && !memcmp(launched.data(), result(every).data(), every * 4);
                }
                q.makes_columns = false;
                q.chunks = chunks;
                q.slots = slots;
                for (int groups = 1; groups <= MAX_OF_CHUNK; groups++) {
                    q.n_groups = groups;
                    q.n_routed = std::min(5 * used, matrices + 5 * used / (8 * groups));
                    CHECK(cudaMemsetAsync(dst, 0xff, every * 4, s));
                    launch((2 * matrices + 64) * 4, find_chunks, dim3(1), dim3(32), s, ids, used, used, 5 * used, matrices, 8 * groups, slots, chunks, q.n_routed);
                    run(type, q, q.n_routed + 1, s);
                    alike = alike && !memcmp(launched.data(), result(every).data(), every * 4);
                }
            }
            double num = 0, den = 0;
            const auto compare = [&](size_t up, size_t gate, int c, float got) {
                double g = dot(row(gate, k), c), want = dot(row(up, k), c) * g / (1 + exp(-g)), e = got - want;
                if (std::isnan(e))
                    e = 1e9;
                num += e * e;
                den += want * want;
            };
            for (int t = 0; t < tokens; t += 3)
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
        printf("%s: error %.1e (%s), same bits at every width: %s, at every place: %s; routed with gate %.1e (%s), read once alike: %s, with columns of thread blocks: %s\n",
               names[type], worst, verdict(worst < 1e-3), verdict(widths), verdict(places), routed, verdict(routed < 4e-3), verdict(alike), verdict(own));
        const int counts[] = {1, 2, 4, 8, 16, 24, 32, 40, 48};
        printf("  microseconds at");
        for (int cols : counts)
            printf(" %d", cols);
        printf(" columns, and TB/s at one\n");
        struct shape {
            int n, k;
            bool gate = false;
        };
        for (auto h : {shape{12288, 2048}, {2048, 4096}, {1024, 5120}, {5120, 6144}, {5120, 17408}, {10240, 5120}, {17408, 5120}, {17408, 5120, true}, {248320, 2048}}) {
            printf("  %6d x %5d%s", h.n, h.k, h.gate ? " x 2" : "    ");
            double one = 0;
            const size_t size = size_t(h.n) * (h.k / 256) * block[type], all = h.gate ? 2 * size : size;
            for (int cols : counts) {
                columns(h.k, cols);
                size_t at = 0;
                const double us = timed(s, 24, [&](int) {
                    if (at + all > bytes - 4096)
                        at = 0;
                    products p = base(h.n, h.k, cols);
                    p.w += at;
                    p.gate = h.gate ? p.w + size : nullptr;
                    run(type, p, 1, s);
                    at += all / 16 * 16;
                });
                one = one == 0 ? us : one;
                printf(" %6.1f", us);
            }
            printf("   %.2f\n", all / one / 1e6);
            fflush(stdout);
        }
    }
    { // experts of 35B-A3B: 8 of 256 matrices of 512 x 2048, gate and up, and a shared one
        fill<<<4096, 256>>>((uint32_t *)w, bytes / 4);
        halves<<<4096, 256>>>(w, bytes / 144, 0, 144);
        CHECK(cudaDeviceSynchronize());
        for (int tokens : {1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 128, 256, 512}) {
            const int count = 24, groups = std::clamp((tokens * 8 / 256 + 7) / 8, 1, MAX_OF_CHUNK);
            const int many = std::min(tokens * 8, 256 + tokens / groups);
            const auto find = [&](int i) {
                launch((2 * 256 + 64) * 4, find_chunks, dim3(1), dim3(std::min(1024, std::max(256, tokens * 8))), s, ids + i * tokens * 8, 8, 8, tokens * 8,
                       256, 8 * groups, slots + i * tokens * 8, chunks + i * many, many);
            };
            std::vector<int32_t> which;
            for (int i = 0; i < count * tokens * 8; i++)
                which.push_back(random() >> 56);
            CHECK(cudaMemcpy(ids, which.data(), which.size() * 4, cudaMemcpyHostToDevice));
            printf("experts, %2d tokens:", tokens);
            for (int once = tokens > MAX_COLUMNS; once < 2; once++) {
                printf(once ? ";  matrices read once:" : " microseconds of each slot by itself:");
                for (int way = 0; way < (once ? 2 : 3); way++) {
                    const bool down = way > 0, own = way == 2;
                    const int n = down ? 2048 : 512, k = down ? 512 : 2048, all = tokens * (down ? 8 : 1);
                    const float_columns from = {x, k, k * (down ? 8 : 1), down ? 8 : 1, y};
                    launch(0, quantise, dim3((k / 256 + 3) / 4, all), dim3(128), s, from, all, from, k / 256);
                    for (int i = 0; i < count; i++)
                        find(i);
                    const double us = timed(s, count, [&](int i) {
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
                        p.y = y;
                        p.n_tokens = tokens;
                        p.ids = ids + i * tokens * 8;
                        p.ids_stride = 8;
                        p.n_used = 8;
                        p.dst = dst;
                        p.dst_slot = n;
                        p.dst_token = 8 * n;
                        p.chunks = once ? chunks + i * many : nullptr;
                        p.slots = slots + i * tokens * 8;
                        p.n_groups = groups;
                        p.n_routed = once ? many : tokens * 8;
                        p.makes_columns = own;
                        p.x = {x, k, k * 8, 8, nullptr};
                        const int at_once = once ? 8 * groups : 8;
                        run(0, p, p.n_routed + (down ? 0 : (tokens + at_once - 1) / at_once), s);
                    });
                    printf(" %s %.1f", own ? "down with columns" : down ? "down" : "gate and up", us);
                }
            }
            printf("; finding them %.1f\n", timed(s, count, find));
            fflush(stdout);
        }
    }
    return failed;
}
