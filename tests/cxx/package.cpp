// Runs an AOTInductor package whose model calls the operators of a library, on ones (images are channels_last):
// PACKAGE LIBRARY DEVICE SIZE..., without Python. It prints the shape and the sum of the first result.
#include <cstdio>
#include <cstdlib>
#include <vector>

#include <dlfcn.h>

#include <torch/csrc/inductor/aoti_package/model_package_loader.h>
#include <torch/torch.h>

int main(int count, char** words) {
  if (!dlopen(words[2], RTLD_NOW)) return std::puts(dlerror()), 1;  // registers the operators
  torch::inductor::AOTIModelPackageLoader loader(words[1]);
  auto const like = torch::TensorOptions().dtype(torch::kHalf).device(words[3]);
  std::vector<int64_t> sizes;
  for (int i = 4; i < count; ++i) sizes.push_back(std::atoi(words[i]));
  auto const format = sizes.size() == 4 ? torch::MemoryFormat::ChannelsLast : torch::MemoryFormat::Contiguous;
  auto const results = loader.run({torch::ones(sizes, like).contiguous(format)});
  double const sum = results[0].to(torch::kDouble).sum().item<double>();
  std::printf("%d x %d %.3f\n", int(results[0].size(0)), int(results[0].size(1)), sum);
}
