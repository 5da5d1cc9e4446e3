// Loads an AOTInductor package whose model calls an exported operator, and runs it, without Python.
#include <cstdio>

#include <dlfcn.h>

#include <torch/csrc/inductor/aoti_package/model_package_loader.h>
#include <torch/torch.h>

int main(int, char** words) {
  if (!dlopen(words[1], RTLD_NOW)) return std::puts(dlerror()), 1;  // registers the operators
  torch::inductor::AOTIModelPackageLoader loader(words[2]);
  auto const half = torch::TensorOptions().dtype(torch::kHalf);
  auto const results = loader.run({torch::zeros({256, 64}, half), torch::zeros({64, 32}, half)});
  std::printf("%d x %d\n", int(results[0].size(0)), int(results[0].size(1)));
}
