/* Two kernels of emitted files in one program of C: `first` is D = relu(acc + bias), `second` is
   D = gelu(alpha*acc) + residual and s = sum[n](D). Files of the folder argv[4] are read and written. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cuda_runtime_api.h>

#include "first.h"
#include "second.h"

static char const* folder;

static void check(int code, char const* what, char const* why) {
  if (code == 0) return;
  fprintf(stderr, "%s: %d: %s\n", what, code, why);
  exit(1);
}

static void checked(cudaError_t error, char const* what) { check(error, what, cudaGetErrorString(error)); }

static FILE* opened(char const* name, char const* mode) {
  char path[4096];
  snprintf(path, sizeof(path), "%s/%s", folder, name);
  FILE* const file = fopen(path, mode);
  check(file == NULL, path, "cannot be opened");
  return file;
}

/* Device memory, of a file's content or else of NaNs. */
static void* memory(char const* name, size_t bytes) {
  void* on_device = NULL;
  checked(cudaMalloc(&on_device, bytes), "cudaMalloc");
  checked(cudaMemset(on_device, 0xff, bytes), "cudaMemset");
  if (name == NULL) return on_device;
  void* const bytes_of_file = malloc(bytes);
  FILE* const file = opened(name, "rb");
  check(fread(bytes_of_file, 1, bytes, file) != bytes, name, "is too short");
  fclose(file);
  checked(cudaMemcpy(on_device, bytes_of_file, bytes, cudaMemcpyHostToDevice), "cudaMemcpy");
  free(bytes_of_file);
  return on_device;
}

static void save(char const* name, void const* on_device, size_t bytes) {
  void* const copy = malloc(bytes);
  checked(cudaMemcpy(copy, on_device, bytes, cudaMemcpyDeviceToHost), "cudaMemcpy");
  FILE* const file = opened(name, "wb");
  check(fwrite(copy, 1, bytes, file) != bytes, name, "cannot be written");
  fclose(file);
  free(copy);
}

int main(int count, char** words) {
  first_arguments first;
  second_arguments second;
  memset(&first, 0, sizeof(first));
  memset(&second, 0, sizeof(second));
  check(count != 5, words[0], "takes m, n, k and a folder");
  int64_t const m = atoll(words[1]), n = atoll(words[2]), k = atoll(words[3]), pitch = n + 8;
  folder = words[4];

  if (strlen(folder) == 0) { /* nothing to read: what does a call say that cannot be made? */
    check(first_run(NULL, sizeof(first), NULL) != 1 << 16, "first", "takes no arguments");
    check(second_run(&second, sizeof(second) - 8, NULL) != 1 << 16, "second", "takes others' arguments");
    puts(first_error_string(0));
    puts(second_error_string(second_run(&second, 0, NULL)));
    first.m = second.m = first.n = second.n = first.k = second.k = first.l = second.l = 1;
    check(first_run(&first, sizeof(first), NULL) != 1 << 16, "first", "takes null pointers");
    first.A = first.B = first.in_bias = first.out_D = &first;
    check(first_run(&first, sizeof(first), NULL), "first", first_error_string(first_run(&first, sizeof(first), NULL)));
    return 0;
  }

  first.m = second.m = m, first.n = second.n = n, first.k = second.k = k, first.l = second.l = 1;
  first.A = second.A = memory("A", m * k * 2);
  first.B = second.B = memory("B", k * n * 2);
  first.stride_m_of_A = second.stride_m_of_A = k;
  first.stride_k_of_B = second.stride_k_of_B = n;
  first.in_bias = memory("bias", n * 2);
  second.in_residual = memory("residual", m * n * 2);
  second.stride_m_of_in_residual = n;
  second.value_of_in_alpha = 0.5;
  void* const d = memory(NULL, m * pitch * 2);
  void* const e = memory(NULL, m * pitch * 2);
  void* const s = memory(NULL, m * 4);
  first.out_D = d, second.out_D = e, second.out_s = s;
  first.stride_m_of_out_D = second.stride_m_of_out_D = pitch;
  second.workspace = memory(NULL, second_workspace(&second));

  for (int call = 0; call < 2; ++call) { /* the second call finds what the first one has kept */
    int code = first_run(&first, sizeof(first), NULL);
    check(code, "first", first_error_string(code));
    code = second_run(&second, sizeof(second), NULL);
    check(code, "second", second_error_string(code));
  }
  checked(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  save("D", d, m * pitch * 2);
  save("E", e, m * pitch * 2);
  save("s", s, m * 4);
  return 0;
}
