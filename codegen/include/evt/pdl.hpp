#ifndef EVT_PDL_HPP
#define EVT_PDL_HPP

// Programmatic dependent launch (PDL) of sm90: in a stream, and in a CUDA graph captured from one, a kernel is set up
// while the one before it ends. A kernel that is launched so must not touch global memory before `wait_for_kernel_before`.

#include "cutlass/cutlass.h"

namespace evt {
namespace pdl {

/// The kernel after this one may be set up from now on, once all thread blocks have said so. It waits for the end of this
/// one nevertheless.
CUTLASS_DEVICE void let_next_kernel_begin() { asm volatile("griddepcontrol.launch_dependents;"); }

/// The kernel before this one has ended, and what it has written is visible.
CUTLASS_DEVICE void wait_for_kernel_before() { asm volatile("griddepcontrol.wait;" ::: "memory"); }

}  // namespace pdl
}  // namespace evt

#endif  // EVT_PDL_HPP
