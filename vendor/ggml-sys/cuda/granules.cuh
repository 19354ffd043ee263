// Addresses of a device that memory is put behind granule by granule, for state that is taken when it is written.
#pragma once

#include "ggml-backend.h"

namespace nextn {

// The number of a device of this backend; below zero for any other.
int number_of(ggml_backend_dev_t device);

// Functions of the backend by name, for nextn; null if there is none, as with NEXTN_CUDA_STATE=reserved, or with several GPUs
// and without NEXTN_CUDA_STATE=granules.
//
// nextn_granule(device): bytes of a granule; 0 if the device has none.
// nextn_granules_new(device, n, granule): a buffer of n granules of so many bytes, a multiple of what nextn_granule says. All can be read
// and are zeros; none has memory of its own. Null if the device has no room for it.
// nextn_granules_take(buffer, first, n): gives each of these memory of its own, zeros. 0, and nothing has changed, if there is no room.
// nextn_granules_give_back(buffer, first, n): takes it away: they are zeros again, and must not be written. Memory that others show stays
// theirs.
// nextn_granules_show(buffer, from, to, n): granules without memory from `to` on show that of those from `from` on, which have some. What
// several show must not be written. 0, and nothing has changed, if the driver refuses.
// nextn_granules_own(buffer, i): gives a granule that shows memory of others its own, with the same bytes. 0, and nothing has changed, if
// there is no room.
//
// Nothing may be computed on what is taken or given back meanwhile.
void * function_of_granules(const char * name);

}  // namespace nextn
