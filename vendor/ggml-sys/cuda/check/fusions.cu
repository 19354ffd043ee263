// Checks the kernels that compute several nodes of a graph at once on this machine's GPU, beside a plain computation on the host and
// beside the same products one by one:
//   nvcc -arch=native -O3 -std=c++20 -I vendor/ggml-sys/cuda vendor/ggml-sys/cuda/check/fusions.cu -o check && ./check
#include "shared.cuh"
#include "fusion_kernels.cuh"

template <typename T> static T * on_device(const std::vector<T> & from) {
    T * to;
    CHECK(cudaMalloc(&to, from.size() * sizeof(T)));
    CHECK(cudaMemcpy(to, from.data(), from.size() * sizeof(T), cudaMemcpyHostToDevice));
    return to;
}
template <typename T> static std::vector<T> on_host(const T * from, size_t n) {
    std::vector<T> to(n);
    CHECK(cudaDeviceSynchronize());
    CHECK(cudaMemcpy(to.data(), from, n * sizeof(T), cudaMemcpyDeviceToHost));
    return to;
}
static std::vector<float> noise(size_t n, float scale, uint32_t seed = 1) {
    std::vector<float> v(n);
    for (float & x : v) {
        seed = seed * 1664525 + 1013904223;
        x = (int(seed >> 8) - (1 << 23)) / float(1 << 23) * scale;
    }
    return v;
}
template <typename T> static bool same(const std::vector<T> & a, const std::vector<T> & b) {
    return a.size() == b.size() && memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0;
}
static double worst(const std::vector<float> & a, const std::vector<double> & b) {
    double most = 0, scale = 0;
    for (size_t i = 0; i < a.size(); i++) {
        most = std::max(most, std::abs(a[i] - b[i]));
        scale = std::max(scale, std::abs(b[i]));
    }
    return most / scale;
}

// Columns of a norm are those that would be made of its values, in which each token stands for itself.
static void norms() {
    for (int n : {256, 2048, 5120, 8192}) {
        for (int tokens : {1, 3, 48}) {
            const auto hx = noise(size_t(n) * tokens, 3), hw = noise(n, 1, 7);
            float *x = on_device(hx), *w = on_device(hw), *dst = on_device(hx), *again = on_device(hx);
            const size_t bytes = size_t(n / 256) * ((tokens + 7) / 8) * sizeof(column_block);
            uint8_t *y = on_device(std::vector<uint8_t>(bytes)), *z = on_device(std::vector<uint8_t>(bytes));
            launch(0, norm_into_columns, dim3(tokens), dim3(n / EACH), 0, x, w, dst, (column_block *)y, n, 1e-6f);
            const float_columns from = {dst, n, n, 1, (column_block *)z};
            launch(0, quantise, dim3((n / 256 + 3) / 4, tokens), dim3(128), 0, from, tokens, from, n / 256);
            std::vector<double> expected(hx.size());
            for (int t = 0; t < tokens; t++) {
                double sum = 0;
                for (int i = 0; i < n; i++)
                    sum += double(hx[size_t(t) * n + i]) * hx[size_t(t) * n + i];
                for (int i = 0; i < n; i++)
                    expected[size_t(t) * n + i] = hx[size_t(t) * n + i] / std::sqrt(sum / n + 1e-6) * hw[i];
            }
            const auto out = on_host(dst, hx.size());
            // The last token by itself.
            launch(0, norm_into_columns, dim3(1), dim3(n / EACH), 0, x + size_t(tokens - 1) * n, w, again, (column_block *)z, n, 1e-6f);
            const auto alone = on_host(again, n);
            const bool alike = same(alone, std::vector<float>(out.end() - n, out.end()));
            launch(0, quantise, dim3((n / 256 + 3) / 4, tokens), dim3(128), 0, from, tokens, from, n / 256);
            const double error = worst(out, expected);
            printf("norm of %d, %d tokens: error %.1e, bits %s, columns %s\n", n, tokens, error, verdict(error < 1e-6 && alike),
                   verdict(same(on_host(y, bytes), on_host(z, bytes))));
            for (void * p : {(void *)x, (void *)w, (void *)dst, (void *)again, (void *)y, (void *)z})
                CHECK(cudaFree(p));
        }
    }
}

template <int HEAD> static void gated(int n_heads, int tokens) {
    const int n = HEAD * n_heads;
    const auto hx = noise(size_t(n) * tokens, 3), hg = noise(size_t(n) * tokens, 4, 5), hw = noise(HEAD, 1, 7);
    float *x = on_device(hx), *g = on_device(hg), *w = on_device(hw), *dst = on_device(hx);
    const size_t bytes = size_t(n / 256) * ((tokens + 7) / 8) * sizeof(column_block);
    uint8_t *y = on_device(std::vector<uint8_t>(bytes)), *z = on_device(std::vector<uint8_t>(bytes));
    launch(0, gated_norm_into_columns<HEAD>, dim3((n / 256 + 3) / 4, tokens), dim3(128), 0, x, w, g, dst, (column_block *)y, n, 1e-6f);
    const float_columns from = {dst, n, n, 1, (column_block *)z};
    launch(0, quantise, dim3((n / 256 + 3) / 4, tokens), dim3(128), 0, from, tokens, from, n / 256);
    std::vector<double> expected(hx.size());
    for (size_t h = 0; h < hx.size(); h += HEAD) {
        double sum = 0;
        for (int i = 0; i < HEAD; i++)
            sum += double(hx[h + i]) * hx[h + i];
        for (int i = 0; i < HEAD; i++)
            expected[h + i] = hx[h + i] / std::sqrt(sum / HEAD + 1e-6) * hw[i] * hg[h + i] / (1 + std::exp(-double(hg[h + i])));
    }
    const double error = worst(on_host(dst, hx.size()), expected);
    printf("gated norm of %d heads of %d, %d tokens: error %.1e %s, columns %s\n", n_heads, HEAD, tokens, error, verdict(error < 2e-6),
           verdict(same(on_host(y, bytes), on_host(z, bytes))));
    for (void * p : {(void *)x, (void *)g, (void *)w, (void *)dst, (void *)y, (void *)z})
        CHECK(cudaFree(p));
}

static void sums() {
    for (int tokens : {1, 5, 48}) {
        const int n = 2048, used = 8;
        const auto he = noise(size_t(n) * used * tokens, 2), hw = noise(used * tokens, 1, 3), hs = noise(size_t(n) * tokens, 2, 4),
                   hg = noise(tokens, 3, 5), hx = noise(size_t(n) * tokens, 2, 6);
        expert_sum p = {};
        p.experts = on_device(he);
        p.weights = on_device(hw);
        p.weights_token = used;
        p.shared = on_device(hs);
        p.gate = on_device(hg);
        p.sigmoid = true;
        // In the place of the stream.
        p.stream = p.dst = on_device(hx);
        p.n = n;
        p.n_used = used;
        launch(0, sum_experts, dim3((n + 511) / 512, tokens), dim3(128), 0, p);
        std::vector<double> expected(hx.size());
        for (int t = 0; t < tokens; t++)
            for (int i = 0; i < n; i++) {
                double v = hx[size_t(t) * n + i] + hs[size_t(t) * n + i] / (1 + std::exp(-double(hg[t])));
                for (int u = 0; u < used; u++)
                    v += double(he[(size_t(t) * used + u) * n + i]) * hw[t * used + u];
                expected[size_t(t) * n + i] = v;
            }
        const auto sum = on_host(p.dst, hx.size());
        const double error = worst(sum, expected);
        // The same with a norm behind it, whose columns are those of the norm alone.
        const size_t bytes = size_t(n / 256) * ((tokens + 7) / 8) * sizeof(column_block);
        uint8_t *y = on_device(std::vector<uint8_t>(bytes)), *z = on_device(std::vector<uint8_t>(bytes));
        float * dst = on_device(hx), * other = on_device(hx);
        CHECK(cudaMemcpy(p.dst, hx.data(), hx.size() * 4, cudaMemcpyHostToDevice));
        p.norm_weights = on_device(hs);
        p.normed = dst;
        p.y = (column_block *)y;
        p.eps = 1e-6f;
        launch(0, sum_experts_and_norm, dim3(tokens), dim3(n / EACH), 0, p);
        const bool alike = same(sum, on_host(p.dst, hx.size()));
        launch(0, norm_into_columns, dim3(tokens), dim3(n / EACH), 0, (const float *)p.dst, p.norm_weights, other, (column_block *)z, n, 1e-6f);
        const bool normed = same(on_host(dst, hx.size()), on_host(other, hx.size())) && same(on_host(y, bytes), on_host(z, bytes));
        printf("sum of experts, %d tokens: error %.1e %s, the same with a norm %s, and the norm %s\n", tokens, error, verdict(error < 1e-6), verdict(alike), verdict(normed));
    }
}

// Gates of heads that lie between others.
static void gates() {
    for (int tokens : {1, 5, 48}) {
        const int head = 64, n_heads = 12, n = head * n_heads;
        const auto hx = noise(size_t(n) * tokens, 2), hg = noise(size_t(n) * 2 * tokens, 4, 3);
        float *x = on_device(hx), *g = on_device(hg), *dst = on_device(hx);
        const size_t bytes = size_t(n / 256) * ((tokens + 7) / 8) * sizeof(column_block);
        uint8_t *y = on_device(std::vector<uint8_t>(bytes)), *z = on_device(std::vector<uint8_t>(bytes));
        launch(0, gate_into_columns, dim3((n / 256 + 3) / 4, tokens), dim3(128), 0, (const float *)x, (const float *)g + head, head, int64_t(2 * head), int64_t(2 * n), dst,
               (column_block *)y, n);
        const float_columns from = {dst, n, n, 1, (column_block *)z};
        launch(0, quantise, dim3((n / 256 + 3) / 4, tokens), dim3(128), 0, from, tokens, from, n / 256);
        std::vector<double> expected(hx.size());
        for (int t = 0; t < tokens; t++)
            for (int i = 0; i < n; i++)
                expected[size_t(t) * n + i] = hx[size_t(t) * n + i] / (1 + std::exp(-double(hg[size_t(t) * 2 * n + i / head * 2 * head + head + i % head])));
        const double error = worst(on_host(dst, hx.size()), expected);
        printf("gate, %d tokens: error %.1e %s, columns %s\n", tokens, error, verdict(error < 1e-6), verdict(same(on_host(y, bytes), on_host(z, bytes))));
    }
}

struct run_floats {
    float_products & p;
    template <int ROWS, int COLUMNS> void operator()() const {
        const dim3 grid(blocks_of(p, ROWS), (p.n + FLOAT_COLUMNS - 1) / FLOAT_COLUMNS);
        launch(0, few_floats<ROWS, COLUMNS, finish>, grid, dim3(FLOAT_THREADS), 0, p, finish());
    }
};

// Several matrices, and routed ones with a shared one, have the bits that each has by itself.
static void several() {
    const int block[] = {144, 176, 210, 272}, k = 2048, short_k = 512, rows[] = {40, 1000, 17, 4096}, n_experts = 16, used = 8, n_down = 2048;
    uint8_t * w;
    const size_t bytes = size_t(64) << 20;
    CHECK(cudaMalloc(&w, bytes));
    const auto hx = noise(size_t(k) * 48 * 9, 2), hadd = noise(4096, 1, 3), htimes = noise(4096, 1, 4);
    float *x = on_device(hx), *add = on_device(hadd), *times = on_device(htimes), *dst = on_device(std::vector<float>(size_t(8192) * 48 * 9)),
          *other = on_device(std::vector<float>(size_t(8192) * 48 * 9));
    uint8_t * y = on_device(std::vector<uint8_t>(size_t(k / 256) * 55 * sizeof(column_block)));
    std::vector<int32_t> hids(used * 48);
    for (size_t i = 0; i < hids.size(); i++)
        hids[i] = (i * 7 + i / 8 * 3) % n_experts;
    int32_t * ids = on_device(hids);
    chunk * chunks;
    CHECK(cudaMalloc(&chunks, used * 48 * sizeof(chunk)));
    int * slots;
    CHECK(cudaMalloc(&slots, used * 48 * sizeof(int)));
    for (int type = 0; type < 4; type++) {
        fill<<<4096, 256>>>((uint32_t *)w, bytes / 4);
        halves<<<4096, 256>>>(w, bytes / block[type], type, block[type]);
        CHECK(cudaDeviceSynchronize());
        for (int tokens : {1, 4, 9, 48}) {
            const float_columns from = {x, k, k, 1, (column_block *)y};
            launch(0, quantise, dim3((k / 256 + 3) / 4, tokens), dim3(128), 0, from, tokens, from, k / 256);
            products p = {};
            p.row_bytes = int64_t(k / 256) * block[type];
            p.n_blocks = k / 256;
            p.y = (column_block *)y;
            p.n_tokens = tokens;
            p.n_routed = 1;
            bool good = true;
            products all = p;
            int64_t at = 0, offset = 0;
            for (int i = 0; i < 4; i++) {
                all.several[all.n_several++] = {w + offset, p.row_bytes, type, rows[i], 0, dst + at * 48, rows[i], AS_IT_IS, add, times};
                at += rows[i];
                offset += rows[i] * p.row_bytes;
            }
            run(type, all, 1, 0);
            at = offset = 0;
            for (int i = 0; i < 4; i++) {
                products one = p;
                one.w = w + offset;
                one.n_rows = rows[i];
                one.dst = other;
                one.dst_token = rows[i];
                run(type, one, 1, 0);
                good = good && same(on_host(other, size_t(rows[i]) * tokens), on_host(dst + at * 48, size_t(rows[i]) * tokens));
                at += rows[i];
                offset += rows[i] * p.row_bytes;
            }
            // Of different types in one launch, up to a group of columns.
            if (tokens <= GROUP) {
                products mixed = p;
                at = 0;
                for (int i = 0; i < 4; i++) {
                    mixed.several[mixed.n_several++] = {w, int64_t(k / 256) * block[i], i, rows[i], 0, dst + at * 48, rows[i], AS_IT_IS, add, times};
                    at += rows[i];
                }
                mixed.rounds = 1;
                launch(memory_of_types(), few_columns_of_types<finish>, dim3(blocks_of(mixed, TILE)), dim3(32, WARPS), 0, mixed, finish());
                at = 0;
                for (int i = 0; i < 4; i++) {
                    products one = p;
                    one.w = w;
                    one.row_bytes = int64_t(k / 256) * block[i];
                    one.n_rows = rows[i];
                    one.dst = other;
                    one.dst_token = rows[i];
                    run(i, one, 1, 0);
                    good = good && same(on_host(other, size_t(rows[i]) * tokens), on_host(dst + at * 48, size_t(rows[i]) * tokens));
                    at += rows[i];
                }
                run(type, all, 1, 0);
            }
            // What becomes of results.
            const auto plain = on_host(dst, size_t(rows[0]) * tokens);
            double error = 0;
            for (int finishing : {WITH_BIAS, AS_DECAY, AS_SIGMOID}) {
                products one = p;
                one.several[one.n_several++] = {w, p.row_bytes, type, rows[0], 0, other, rows[0], finishing, add, times};
                run(type, one, 1, 0);
                std::vector<double> expected(plain.size());
                for (size_t i = 0; i < plain.size(); i++) {
                    const double v = plain[i], a = hadd[i % rows[0]], t = htimes[i % rows[0]];
                    expected[i] = finishing == WITH_BIAS ? v + a : finishing == AS_DECAY ? std::log1p(std::exp(v + a)) * t : 1 / (1 + std::exp(-v));
                }
                error = std::max(error, worst(on_host(other, plain.size()), expected));
            }
            // Routed and shared, with columns of their own: those of the routed ones first.
            const int n_routed = used * tokens;
            const size_t own = size_t((n_routed + 7) / 8) * (short_k / 256) * sizeof(column_block);
            const float_columns routed = {x, short_k, int64_t(used) * short_k, used, (column_block *)y};
            const float_columns shared = {x + size_t(n_routed) * short_k, short_k, short_k, 1, (column_block *)(y + own)};
            launch(0, quantise, dim3(1, n_routed + tokens), dim3(128), 0, routed, n_routed, shared, short_k / 256);
            const bool in_chunks = tokens >= 9;
            const int n_chunks = in_chunks ? std::min(n_routed, n_experts + n_routed / 8) : n_routed;
            if (in_chunks)
                launch((2 * n_experts + 64) * sizeof(int), find_chunks, dim3(1), dim3(32), 0, (const int32_t *)ids, used, used, n_routed, n_experts, 8, slots, chunks, n_chunks);
            products e = {};
            e.w = w;
            e.row_bytes = int64_t(short_k / 256) * block[type];
            e.matrix_bytes = n_down * e.row_bytes;
            e.n_blocks = short_k / 256;
            e.n_rows = n_down;
            e.y = (column_block *)y;
            e.n_tokens = tokens;
            e.ids = ids;
            e.ids_stride = e.n_used = e.n_each = used;
            e.chunks = in_chunks ? chunks : nullptr;
            e.slots = slots;
            e.n_groups = 1;
            e.n_routed = n_chunks;
            e.dst = dst;
            e.dst_slot = n_down;
            e.dst_token = int64_t(used) * n_down;
            products both = e;
            both.shared_w = w + n_experts * e.matrix_bytes;
            both.shared_y = (column_block *)(y + own);
            both.shared_dst = other;
            both.shared_token = n_down;
            run(type, both, n_chunks + (tokens + 7) / 8, 0);
            const auto of_routed = on_host(dst, size_t(n_routed) * n_down), of_shared = on_host(other, size_t(tokens) * n_down);
            run(type, e, n_chunks, 0);
            bool alike = same(of_routed, on_host(dst, of_routed.size()));
            // The shared one alone, as the kernel takes rows of few blocks: a group at a time.
            products s = e;
            s.ids = nullptr;
            s.chunks = nullptr;
            s.y = both.shared_y;
            s.n_routed = 0;
            s.shared_w = both.shared_w;
            s.shared_dst = dst;
            s.shared_token = n_down;
            run(type, s, (tokens + 7) / 8, 0);
            alike = alike && same(of_shared, on_host(dst, of_shared.size()));
            printf("type %d, %d tokens: several %s, finished %.1e %s, with a shared one %s\n", type, tokens, verdict(good), error,
                   verdict(error < 1e-5), verdict(alike));
        }
    }
    // F32, whose rows are taken one by one or in pairs.
    const auto hw = noise(size_t(k) * 300, 1, 9);
    float * f = on_device(hw);
    for (int tokens : {1, 2, 4, 9, 48}) {
        float_products p = {};
        p.row = k;
        p.k = k;
        p.n_rows = 256;
        p.n = tokens;
        p.x = x;
        p.column = k;
        const int n_rows[] = {256, 1, 32};
        int first = 0;
        for (int n : n_rows) {
            p.several[p.n_several++] = {(const uint8_t *)(f + size_t(first) * k), 0, IS_F32, n, 0, dst + first * 48, n, AS_IT_IS, nullptr, nullptr};
            first += n;
        }
        const auto of = [&](float_products & p) {
            chosen(p, run_floats{p});
        };
        of(p);
        bool good = true;
        first = 0;
        for (int n : n_rows) {
            float_products one = {};
            one.w = f + size_t(first) * k;
            one.row = k;
            one.k = k;
            one.n_rows = n;
            one.n = tokens;
            one.x = x;
            one.column = k;
            one.dst = other;
            one.dst_column = n;
            of(one);
            good = good && same(on_host(other, size_t(n) * tokens), on_host(dst + first * 48, size_t(n) * tokens));
            first += n;
        }
        printf("F32, %d tokens: several %s\n", tokens, verdict(good));
    }
}

struct glu_of_check {
    __device__ float operator()(float gate, float up) const { return up * gate / (1 + expf(-gate)); }
};

// A gate apart from what it gates has the bits of both in one launch, and leaves the columns of that.
static void gates_apart() {
    const int k = 5120, n = 8704;
    const size_t bytes = size_t(k / 256) * 144 * n;
    uint8_t * w;
    CHECK(cudaMalloc(&w, 2 * bytes));
    fill<<<1024, 256>>>((uint32_t *)w, 2 * bytes / 4);
    halves<<<1024, 256>>>(w, 2 * bytes / 144, 0, 144);
    for (int tokens : {1, 3, 8}) {
        const auto hx = noise(size_t(k) * tokens, 1);
        float *x = on_device(hx), *both, *together, *apart;
        for (float ** to : {&both, &together, &apart})
            CHECK(cudaMalloc(to, size_t(2) * n * tokens * 4));
        column_block *columns = (column_block *)on_device(std::vector<uint8_t>(size_t(k / 256) * sizeof(column_block)));
        const size_t size = size_t(n / 256) * sizeof(column_block);
        uint8_t *y = on_device(std::vector<uint8_t>(size)), *z = on_device(std::vector<uint8_t>(size));
        const float_columns from = {x, k, k, 1, columns};
        launch(0, quantise, dim3((k / 256 + 3) / 4, tokens), dim3(128), 0, from, tokens, from, k / 256);
        products p = {};
        p.w = w;
        p.row_bytes = k / 256 * 144;
        p.n_blocks = k / 256;
        p.n_rows = n;
        p.n_each = 1;
        p.y = columns;
        p.n_tokens = tokens;
        p.dst = together;
        p.dst_token = n;
        products two = p;
        p.gate = w + bytes;
        run(0, p, 1, 0);
        two.denser = true;
        two.n_several = 2;
        for (int i = 0; i < 2; i++)
            two.several[i] = {w + i * bytes, p.row_bytes, 0, n, 0, both + size_t(i) * n * tokens, n, AS_IT_IS, nullptr, nullptr};
        run(0, two, 1, 0);
        launch(0, gate_rows<glu_of_check>, dim3((n / 256 + 3) / 4, tokens), dim3(128), 0, both, both + size_t(n) * tokens, apart, int64_t(n),
            (column_block *)y, n / 256, glu_of_check());
        const float_columns out = {together, n, n, 1, (column_block *)z};
        launch(0, quantise, dim3((n / 256 + 3) / 4, tokens), dim3(128), 0, out, tokens, out, n / 256);
        const bool good = same(on_host(together, size_t(n) * tokens), on_host(apart, size_t(n) * tokens)) && same(on_host(y, size), on_host(z, size));
        printf("gate apart, %d tokens: %s\n", tokens, verdict(good));
        for (void * of : {(void *)x, (void *)both, (void *)together, (void *)apart, (void *)columns, (void *)y, (void *)z})
            CHECK(cudaFree(of));
    }
    CHECK(cudaFree(w));
}

int main() {
    norms();
    for (int tokens : {1, 7, 48}) {
        gated<32>(16, tokens);
        gated<64>(12, tokens);
        gated<128>(32, tokens);
        gated<256>(5, tokens);
    }
    sums();
    gates();
    several();
    gates_apart();
    printf("%s\n", failed ? "FAILED" : "all good");
    return failed;
}
