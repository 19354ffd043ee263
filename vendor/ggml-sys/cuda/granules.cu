#include "common.cuh"
#include "ggml-backend-impl.h"
#include "ggml-cuda.h"
#include "granules.cuh"

#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

namespace nextn {

namespace {

using memory = CUmemGenericAllocationHandle;

// Each granule shows memory of its own, that of others too, or the one that is all zeros: what kernels read beyond what was written is
// always there. Behind the last one are the addresses of one more, at which a copy is made.
struct addresses {
    int device;
    size_t granule, n;
    CUdeviceptr base = 0;
    memory zeros = 0;
    size_t n_mapped = 0;

    CUdeviceptr at(size_t i) const { return base + i * granule; }

    void * start(size_t i) const { return reinterpret_cast<void *>(at(i)); }

    int physical() const { return ggml_cuda_info().devices[device].physical_device; }

    bool create(memory & made) const {
        CUmemAllocationProp prop = {};
        prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
        prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
        prop.location.id = physical();
        return cuMemCreate(&made, granule, &prop, 0) == CUDA_SUCCESS;
    }

    bool allow(size_t first, size_t many) const {
        CUmemAccessDesc access = {};
        access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
        access.location.id = physical();
        access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
        return cuMemSetAccess(at(first), many * granule, &access, 1) == CUDA_SUCCESS;
    }

    // Has granules that show nothing show memory; false, and they still show nothing, if the driver refuses.
    template <typename F> bool map(size_t first, size_t many, const F & memory_of) const {
        size_t done = 0;
        while (done < many && cuMemMap(at(first + done), granule, 0, memory_of(done), 0) == CUDA_SUCCESS) {
            done++;
        }
        if (done == many && allow(first, many)) {
            return true;
        }
        if (done > 0) {
            CU_CHECK(cuMemUnmap(at(first), done * granule));
        }
        return false;
    }

    void show_zeros(size_t first, size_t many) const {
        // They were mapped so before, so there is room for it.
        GGML_ASSERT(map(first, many, [&](size_t) { return zeros; }) && "granules of zeros were not mapped");
    }

    bool clear(size_t first, size_t many) const {
        return cudaMemsetAsync(start(first), 0, many * granule, cudaStreamPerThread) == cudaSuccess &&
            cudaStreamSynchronize(cudaStreamPerThread) == cudaSuccess;
    }

    // Fills memory that nothing shows yet with what a granule shows.
    bool copy(size_t from, memory into) const {
        if (!map(n, 1, [&](size_t) { return into; })) {
            return false;
        }
        const bool done = cudaMemcpyAsync(start(n), start(from), granule, cudaMemcpyDeviceToDevice, cudaStreamPerThread) == cudaSuccess &&
            cudaStreamSynchronize(cudaStreamPerThread) == cudaSuccess;
        CU_CHECK(cuMemUnmap(at(n), granule));
        return done;
    }

    bool reserve() {
        if (cuMemAddressReserve(&base, (n + 1) * granule, 0, 0, 0) != CUDA_SUCCESS) {
            base = 0;
            return false;
        }
        if (!create(zeros)) {
            zeros = 0;
            return false;
        }
        if (!map(0, n, [&](size_t) { return zeros; })) {
            return false;
        }
        n_mapped = n;
        return clear(0, 1);
    }

    ~addresses() {
        ggml_cuda_set_device(device);
        if (n_mapped > 0) {
            CU_CHECK(cuMemUnmap(base, n_mapped * granule));
        }
        if (zeros) {
            CU_CHECK(cuMemRelease(zeros));
        }
        if (base) {
            CU_CHECK(cuMemAddressFree(base, (n + 1) * granule));
        }
    }
};

addresses & of(ggml_backend_buffer_t buffer) {
    return *static_cast<addresses *>(buffer->context);
}

void free_buffer(ggml_backend_buffer_t buffer) {
    delete &of(buffer);
}

void * base_of(ggml_backend_buffer_t buffer) {
    return of(buffer).start(0);
}

void memset_tensor(ggml_backend_buffer_t buffer, ggml_tensor * tensor, uint8_t value, size_t offset, size_t size) {
    ggml_cuda_set_device(of(buffer).device);
    CUDA_CHECK(cudaMemsetAsync(static_cast<char *>(tensor->data) + offset, value, size, cudaStreamPerThread));
    CUDA_CHECK(cudaStreamSynchronize(cudaStreamPerThread));
}

void set_tensor(ggml_backend_buffer_t buffer, ggml_tensor * tensor, const void * data, size_t offset, size_t size) {
    ggml_cuda_set_device(of(buffer).device);
    CUDA_CHECK(cudaMemcpyAsync(static_cast<char *>(tensor->data) + offset, data, size, cudaMemcpyHostToDevice, cudaStreamPerThread));
    CUDA_CHECK(cudaStreamSynchronize(cudaStreamPerThread));
}

void get_tensor(ggml_backend_buffer_t buffer, const ggml_tensor * tensor, void * data, size_t offset, size_t size) {
    ggml_cuda_set_device(of(buffer).device);
    CUDA_CHECK(cudaMemcpyAsync(data, static_cast<const char *>(tensor->data) + offset, size, cudaMemcpyDeviceToHost, cudaStreamPerThread));
    CUDA_CHECK(cudaStreamSynchronize(cudaStreamPerThread));
}

void clear_buffer(ggml_backend_buffer_t buffer, uint8_t value) {
    GGML_ASSERT(value == 0 && "granules without memory are zeros");
    ggml_cuda_set_device(of(buffer).device);
    GGML_ASSERT(of(buffer).clear(0, of(buffer).n) && "granules were not cleared");
}

// Copies between buffers go through the host: nobody copies state so but ggml, where an op runs on another device.
ggml_backend_buffer_i interface_of_buffers() {
    ggml_backend_buffer_i all = {};
    all.free_buffer = free_buffer;
    all.get_base = base_of;
    all.memset_tensor = memset_tensor;
    all.set_tensor = set_tensor;
    all.get_tensor = get_tensor;
    all.clear = clear_buffer;
    return all;
}

extern "C" size_t granule(ggml_backend_dev_t device) {
    const int i = number_of(device);
    return i >= 0 && ggml_cuda_info().devices[i].vmm ? ggml_cuda_info().devices[i].vmm_granularity : 0;
}

extern "C" ggml_backend_buffer_t granules_new(ggml_backend_dev_t device, size_t n, size_t granule) {
    const int i = number_of(device);
    if (i < 0 || n == 0) {
        return nullptr;
    }
    ggml_cuda_set_device(i);
    auto made = std::make_unique<addresses>();
    made->device = i;
    made->granule = granule;
    made->n = n;
    if (!made->reserve()) {
        GGML_LOG_WARN("%s: no addresses for %zu granules of %zu bytes on device %d\n", __func__, n, granule, i);
        return nullptr;
    }
    // The type of the device's other buffers: what asks whether the device can use a tensor asks for that.
    return ggml_backend_buffer_init(ggml_backend_cuda_buffer_type(i), interface_of_buffers(), made.release(), n * granule);
}

extern "C" int32_t granules_take(ggml_backend_buffer_t buffer, size_t first, size_t n) {
    const addresses & all = of(buffer);
    ggml_cuda_set_device(all.device);
    std::vector<memory> fresh;
    memory made;
    while (fresh.size() < n && all.create(made)) {
        fresh.push_back(made);
    }
    bool done = fresh.size() == n;
    if (done) {
        CU_CHECK(cuMemUnmap(all.at(first), n * all.granule));
        done = all.map(first, n, [&](size_t i) { return fresh[i]; });
        if (!done) {
            all.show_zeros(first, n);
        }
    }
    // Memory that is mapped stays until it is unmapped.
    for (memory each : fresh) {
        CU_CHECK(cuMemRelease(each));
    }
    GGML_ASSERT((!done || all.clear(first, n)) && "granules were not cleared");
    return done;
}

extern "C" void granules_give_back(ggml_backend_buffer_t buffer, size_t first, size_t n) {
    const addresses & all = of(buffer);
    ggml_cuda_set_device(all.device);
    CU_CHECK(cuMemUnmap(all.at(first), n * all.granule));
    all.show_zeros(first, n);
}

// The memory behind granules, to be released.
std::vector<memory> shown(const addresses & all, size_t first, size_t n) {
    std::vector<memory> found(n);
    for (size_t i = 0; i < n; i++) {
        CU_CHECK(cuMemRetainAllocationHandle(&found[i], all.start(first + i)));
    }
    return found;
}

extern "C" int32_t granules_show(ggml_backend_buffer_t buffer, size_t from, size_t to, size_t n) {
    const addresses & all = of(buffer);
    ggml_cuda_set_device(all.device);
    const std::vector<memory> found = shown(all, from, n);
    CU_CHECK(cuMemUnmap(all.at(to), n * all.granule));
    const bool done = all.map(to, n, [&](size_t i) { return found[i]; });
    if (!done) {
        all.show_zeros(to, n);
    }
    for (memory each : found) {
        CU_CHECK(cuMemRelease(each));
    }
    return done;
}

extern "C" int32_t granules_own(ggml_backend_buffer_t buffer, size_t i) {
    const addresses & all = of(buffer);
    ggml_cuda_set_device(all.device);
    memory made;
    if (!all.create(made)) {
        return 0;
    }
    bool done = all.copy(i, made);
    if (done) {
        const memory before = shown(all, i, 1)[0];
        CU_CHECK(cuMemUnmap(all.at(i), all.granule));
        done = all.map(i, 1, [&](size_t) { return made; });
        GGML_ASSERT((done || all.map(i, 1, [&](size_t) { return before; })) && "a granule was not mapped again");
        CU_CHECK(cuMemRelease(before));
    }
    CU_CHECK(cuMemRelease(made));
    return done;
}

}  // namespace

int number_of(ggml_backend_dev_t device) {
    for (int i = 0; i < ggml_cuda_info().device_count; i++) {
        if (ggml_backend_cuda_buffer_type(i)->device == device) {
            return i;
        }
    }
    return -1;
}

void * function_of_granules(const char * name) {
    const char * value = getenv("NEXTN_CUDA_STATE");
    // Where nobody says, with one GPU: state on several was not tried.
    if (value ? strcmp(value, "granules") != 0 : ggml_cuda_info().device_count > 1) {
        return nullptr;
    }
    if (strcmp(name, "nextn_granule") == 0) {
        return reinterpret_cast<void *>(granule);
    }
    if (strcmp(name, "nextn_granules_new") == 0) {
        return reinterpret_cast<void *>(granules_new);
    }
    if (strcmp(name, "nextn_granules_take") == 0) {
        return reinterpret_cast<void *>(granules_take);
    }
    if (strcmp(name, "nextn_granules_give_back") == 0) {
        return reinterpret_cast<void *>(granules_give_back);
    }
    if (strcmp(name, "nextn_granules_show") == 0) {
        return reinterpret_cast<void *>(granules_show);
    }
    if (strcmp(name, "nextn_granules_own") == 0) {
        return reinterpret_cast<void *>(granules_own);
    }
    return nullptr;
}

}  // namespace nextn
