#include "all_reduce.cuh"
#include "all_reduce_kernels.cuh"
#include "granules.cuh"
#include "nodes.cuh"

#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <vector>

namespace nextn {

namespace {

struct group {
    int n_ranks = 0;
    int devices[MAX_RANKS] = {};
    places all = {};
    bool on_host = false;
    // On each device, how many sums each thread block has made.
    uint32_t * made[MAX_RANKS] = {};

    ~group() {
        for (int rank = 0; rank < n_ranks; rank++) {
            if (cudaSetDevice(devices[rank]) != cudaSuccess) {
                continue;
            }
            if (on_host) {
                cudaFreeHost(all.packets[rank]);
            } else {
                cudaFree(all.packets[rank]);
            }
            cudaFree(made[rank]);
        }
        (void) cudaGetLastError();
    }
};

// Those in use, and the places of those that are not any more.
std::mutex groups_lock;
std::vector<std::unique_ptr<group>> groups;

bool reach_each_other(const int * devices, int n) {
    for (int i = 0; i < n; i++) {
        for (int k = 0; k < n; k++) {
            int can = 0;
            if (devices[i] != devices[k] && (cudaDeviceCanAccessPeer(&can, devices[i], devices[k]) != cudaSuccess || !can)) {
                return false;
            }
        }
    }
    for (int i = 0; i < n; i++) {
        for (int k = 0; k < n; k++) {
            if (devices[i] == devices[k]) {
                continue;
            }
            const cudaError_t error = cudaSetDevice(devices[i]) == cudaSuccess ? cudaDeviceEnablePeerAccess(devices[k], 0) : cudaErrorUnknown;
            (void) cudaGetLastError();
            if (error != cudaSuccess && error != cudaErrorPeerAccessAlreadyEnabled) {
                return false;
            }
        }
    }
    return true;
}

// Memory of all ranks, zeros.
bool allocate(group & made) {
    const size_t n_bytes = bytes_of_packets(made.n_ranks);
    for (int rank = 0; rank < made.n_ranks; rank++) {
        void * own = nullptr, * counts = nullptr;
        if (cudaSetDevice(made.devices[rank]) != cudaSuccess) {
            return false;
        }
        const cudaError_t error = made.on_host ? cudaHostAlloc(&own, n_bytes, cudaHostAllocPortable | cudaHostAllocMapped) :
            cudaMalloc(&own, n_bytes);
        if (error != cudaSuccess) {
            return false;
        }
        made.all.packets[rank] = static_cast<uint4 *>(own);
        if (cudaMemset(own, 0, n_bytes) != cudaSuccess || cudaMalloc(&counts, MAX_BLOCKS * sizeof(uint32_t)) != cudaSuccess) {
            return false;
        }
        made.made[rank] = static_cast<uint32_t *>(counts);
        if (cudaMemset(counts, 0, MAX_BLOCKS * sizeof(uint32_t)) != cudaSuccess || cudaDeviceSynchronize() != cudaSuccess) {
            return false;
        }
    }
    return true;
}

int32_t new_group(int32_t n, const ggml_backend_dev_t * devices) {
    if (n < 2 || n > MAX_RANKS) {
        return -1;
    }
    auto made = std::make_unique<group>();
    made->n_ranks = n;
    for (int rank = 0; rank < n; rank++) {
        const int i = number_of(devices[rank]);
        if (i < 0) {
            return -1;
        }
        made->devices[rank] = ggml_cuda_info().devices[i].physical_device;
    }
    // Where GPUs cannot write to each other's memory, they meet in the host's.
    const char * wanted = getenv("NEXTN_ALL_REDUCE");
    made->on_host = (wanted && strcmp(wanted, "host") == 0) || !reach_each_other(made->devices, n);
    if (!allocate(*made)) {
        (void) cudaGetLastError();
        return -1;
    }
    const std::lock_guard<std::mutex> guard(groups_lock);
    for (size_t i = 0; i < groups.size(); i++) {
        if (!groups[i]) {
            groups[i] = std::move(made);
            return int32_t(i);
        }
    }
    groups.push_back(std::move(made));
    return int32_t(groups.size() - 1);
}

void free_group(int32_t number) {
    // It goes when nobody is kept from the list any more: giving memory back waits for GPUs, which may compute for another group, of
    // which a rank has yet to find its part.
    std::unique_ptr<group> last;
    const std::lock_guard<std::mutex> guard(groups_lock);
    if (number >= 0 && size_t(number) < groups.size()) {
        last = std::move(groups[number]);
    }
}

}  // namespace

void * function_of_ranks(const char * name) {
    if (strcmp(name, "nextn_all_reduce_new") == 0) {
        return reinterpret_cast<void *>(new_group);
    }
    if (strcmp(name, "nextn_all_reduce_free") == 0) {
        return reinterpret_cast<void *>(free_group);
    }
    return nullptr;
}

bool reduces(const ggml_tensor * node) {
    if (node->op != GGML_OP_CUSTOM || node->op_params[FIRST_PARAMETER] != ALL_REDUCE) {
        return false;
    }
    const ggml_tensor * x = node->src[0];
    return x && node->type == GGML_TYPE_F32 && x->type == GGML_TYPE_F32 && ggml_are_same_shape(node, x) && ggml_is_contiguous(node) &&
        ggml_is_contiguous(x) && ggml_nelements(x) % 4 == 0;
}

bool gathers(const ggml_tensor * node) {
    if (node->op != GGML_OP_CUSTOM || node->op_params[FIRST_PARAMETER] != ALL_GATHER) {
        return false;
    }
    const ggml_tensor * x = node->src[0];
    const int each = node->op_params[FIRST_PARAMETER + 3];
    return x && node->type == GGML_TYPE_F32 && x->type == GGML_TYPE_F32 && ggml_is_contiguous(node) && ggml_is_contiguous(x) && each > 0 &&
        each % 4 == 0 && x->ne[0] % each == 0 && x->ne[0] < INT32_MAX && node->ne[0] % x->ne[0] == 0 && ggml_nrows(node) == ggml_nrows(x);
}

part_in_sum part_of(const ggml_tensor * node) {
    const int number = node->op_params[FIRST_PARAMETER + 1], rank = node->op_params[FIRST_PARAMETER + 2];
    const std::lock_guard<std::mutex> guard(groups_lock);
    const group & of = *groups[number];
    return { of.all, rank, of.n_ranks, of.made[rank] };
}

bool all_reduce(ggml_backend_cuda_context & ctx, ggml_tensor * dst) {
    if (gathers(dst)) {
        const ggml_tensor * x = dst->src[0];
        const int64_t n = ggml_nelements(x);
        const ggml_cuda_kernel_launch_params params(dim3(blocks_of_sum(n)), dim3(THREADS_OF_SUMS), size_t(0), ctx.stream());
        ggml_cuda_kernel_launch(gather_rows, params, (const float *) x->data, (float *) dst->data, n, int(x->ne[0]),
            dst->op_params[FIRST_PARAMETER + 3], part_of(dst));
        return true;
    }
    if (!reduces(dst)) {
        return false;
    }
    const int64_t n = ggml_nelements(dst);
    const ggml_cuda_kernel_launch_params params(dim3(blocks_of_sum(n)), dim3(THREADS_OF_SUMS), size_t(0), ctx.stream());
    ggml_cuda_kernel_launch(add_up, params, (const float *) dst->src[0]->data, (float *) dst->data, n, part_of(dst));
    return true;
}

}  // namespace nextn
