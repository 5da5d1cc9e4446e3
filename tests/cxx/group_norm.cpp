// The kernel of group norms on the host: the threads of a cluster run one at a time, over instructions of host/evt/kit.
// Each result is compared with a norm in double precision.

#include "kit.hpp"

#include <cstdio>
#include <vector>

#include "evt/group_norm.hpp"

namespace {

using evt::element::bf16;
using evt::element::Stored;
using host::value;

int failures = 0, cases = 0;

/// A number between -1 and 1.
double drawn(uint32_t& state) {
  state = state * 1664525 + 1013904223;
  return double(state >> 8) / (1 << 23) - 1;
}

std::vector<Stored> numbers(size_t count, uint32_t seed, double mean, double deviation) {
  std::vector<Stored> found(count);
  for (Stored& each : found) evt::element::store(each, float(mean + deviation * drawn(seed)));
  return found;
}

/// Check the norm of images whose pixels have `pitch` elements, by clusters of `Ctas`.
template <int OfGroup, int Slice, int Ctas, bool IsSilu>
void check(int images, int channels, int pixels, int pitch, double mean, double deviation, bool affine = true) {
  constexpr int kThreads = 256;
  using Kernel = evt::group_norm::Kernel<Stored, float, OfGroup, Slice, Ctas, kThreads, IsSilu>;
  ++cases;
  std::vector<Stored> const x = numbers(size_t(images * pixels * pitch), 1, mean, deviation);
  std::vector<float> gain(static_cast<size_t>(channels)), shift(static_cast<size_t>(channels));
  uint32_t seed = 2;
  for (float& each : gain) each = float(drawn(seed));
  for (float& each : shift) each = float(drawn(seed));
  std::vector<Stored> y(size_t(images * pixels + 1) * size_t(channels), Stored{0x7fc0});  // a pixel beyond stays NaN
  evt::group_norm::Params<Stored, float> const params = {x.data(), y.data(), affine ? gain.data() : nullptr,
      affine ? shift.data() : nullptr, int64_t(pixels) * pitch, pitch, pixels, channels, 1e-6f};
  for (blockIdx.y = 0; blockIdx.y < unsigned(images); ++blockIdx.y) {
    for (int slice = 0; slice < channels / Slice; ++slice) {
      blockIdx.x = unsigned(slice * Ctas);
      std::memset(host::memory, 0xff, sizeof(host::memory));
      host::run(kThreads, [&] { Kernel::run(params, host::memory[host::rank_of_block()] + 16); }, Ctas);
    }
  }
  for (int image = 0; image < images; ++image) {
    for (int group = 0; group < channels / OfGroup; ++group) {
      auto const at = [&](int pixel, int channel) {
        return double(value(x[size_t(image * pixels + pixel) * size_t(pitch) + size_t(group * OfGroup + channel)]));
      };
      double sum = 0, squares = 0;
      for (int i = 0; i < pixels * OfGroup; ++i) sum += at(i / OfGroup, i % OfGroup);
      double const average = sum / (pixels * OfGroup);
      for (int i = 0; i < pixels * OfGroup; ++i) squares += std::pow(at(i / OfGroup, i % OfGroup) - average, 2);
      double const factor = 1 / std::sqrt(squares / (pixels * OfGroup) + 1e-6);
      for (int i = 0; i < pixels * OfGroup; ++i) {
        int const channel = group * OfGroup + i % OfGroup;
        double wanted = (at(i / OfGroup, i % OfGroup) - average) * factor;
        if (affine) wanted = wanted * gain[size_t(channel)] + shift[size_t(channel)];
        if (IsSilu) wanted /= 1 + std::exp(-wanted);
        double const found = value(y[size_t(image * pixels + i / OfGroup) * size_t(channels) + size_t(channel)]);
        if (std::fabs(found - wanted) <= 0.004 * std::fabs(wanted) + 1e-4) continue;
        if (++failures < 20) std::printf("case %d: pixel %d, channel %d is %g, not %g\n", cases, i / OfGroup, channel, found, wanted);
      }
    }
  }
  for (int i = 0; i < channels; ++i) {
    if (y[size_t(images * pixels * channels + i)].bits != 0x7fc0 && ++failures < 20) std::printf("a pixel beyond is written\n");
  }
}

}  // namespace

int main() {
  check<16, 16, 4, true>(1, 32, 210, 32, 0, 1);
  check<10, 40, 8, true>(2, 40, 333, 56, 3, 1);     // vectors of two groups, pixels apart
  check<9, 72, 2, false>(1, 72, 61, 72, -5, 2);     // each vector has a boundary or two groups
  check<40, 40, 1, true>(2, 80, 256, 80, 0.5, 1);   // a CTA alone
  check<8, 8, 8, false>(3, 16, 5, 16, 1, 1);        // CTAs without pixels
  check<12, 24, 8, true>(1, 48, 9, 48, 0, 1, false);
  check<20, 40, 4, false>(1, 40, 1, 40, 100, 10);
  check<15, 120, 4, true>(1, 120, 77, 120, 0, 1);
  check<8, 16, 4, false>(1, 16, 400, 16, 256, 8);   // a mean of many deviations
  std::printf("%d failures\n", failures);
  return failures != 0;
}
