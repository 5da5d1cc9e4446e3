// Runs an AOTInductor package whose model calls the operators of a library: PACKAGE LIBRARY DEVICE, without Python.
#include <cstdio>

#include <dlfcn.h>

#include <torch/csrc/inductor/aoti_package/model_package_loader.h>
#include <torch/torch.h>

int main(int, char** words) {
  if (!dlopen(words[2], RTLD_NOW)) return std::puts(dlerror()), 1;  // registers the operators
  torch::inductor::AOTIModelPackageLoader loader(words[1]);
  auto const like = torch::TensorOptions().dtype(torch::kHalf).device(words[3]);
  auto const results = loader.run({torch::ones({11, 16}, like)});
  double const sum = results[0].to(torch::kDouble).sum().item<double>();
  std::printf("%d x %d %.1f\n", int(results[0].size(0)), int(results[0].size(1)), sum);
}
