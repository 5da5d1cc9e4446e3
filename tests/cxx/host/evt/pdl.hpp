// Programmatic dependent launch on the host, where no kernel runs before.

#pragma once

namespace evt {
namespace pdl {

inline void let_next_kernel_begin() {}
inline void wait_for_kernel_before() {}

}  // namespace pdl
}  // namespace evt
