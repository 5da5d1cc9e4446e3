// In the place of CUTLASS's header of this name, whose accesses are PTX: the accesses that epilogues make, on the host.

#pragma once

#include <cstring>

#include "cutlass/cutlass.h"
#include "cutlass/arch/cache_operation.h"
#include "cutlass/platform/platform.h"

namespace cutlass {
namespace arch {

template <class Access, int Bytes, CacheOperation::Kind = CacheOperation::Always>
struct global_load {
  global_load(Access& to, void const* from, bool guard) {
    if (guard) std::memcpy(&to, from, Bytes);
  }
};

template <class Access, int Bytes>
struct global_store {
  global_store(Access const& from, void* to, bool guard) {
    if (guard) std::memcpy(to, &from, Bytes);
  }
};

template <int Bytes>
void shared_load(void* to, uint32_t from);
template <int Bytes>
void shared_store(uint32_t to, void const* from);

}  // namespace arch
}  // namespace cutlass

#include "cutlass/arch/memory_sm75.h"
#include "cutlass/arch/memory_sm80.h"
