#ifndef EVT_PDL_HPP
#define EVT_PDL_HPP

// Programmatic dependent launch (PDL) of sm90. In a stream, and in a CUDA graph captured from one, a kernel is set up
// while the previous kernel ends. It must not access global memory before `wait_for_kernel_before`.

#include "cutlass/cutlass.h"

namespace evt {
namespace pdl {

/// Allow the setup of the next kernel, once all thread blocks have called this. The next kernel still waits for the end
/// of this one.
CUTLASS_DEVICE void let_next_kernel_begin() { asm volatile("griddepcontrol.launch_dependents;"); }

/// Wait until the previous kernel has ended and its writes are visible.
CUTLASS_DEVICE void wait_for_kernel_before() { asm volatile("griddepcontrol.wait;" ::: "memory"); }

}  // namespace pdl
}  // namespace evt

#endif  // EVT_PDL_HPP
