/* SPDX-License-Identifier: Apache-2.0
 *
 * A kernel as hipcc makes it: a host stub that is registered under the kernel's name and whose address
 * identifies it in launches. The virtual GPU knows this kernel.
 */
#pragma once

#include <hip/hip_runtime.h>

#include <cstdio>
#include <cstdlib>

#define CHECK(call)                                                                                \
  do {                                                                                             \
    int code_ = static_cast<int>(call);                                                            \
    if (code_ != 0) {                                                                              \
      fprintf(stderr, "%s:%d: %s = %d\n", __FILE__, __LINE__, #call, code_);                       \
      exit(1);                                                                                     \
    }                                                                                              \
  } while (0)

extern "C" void __hipRegisterFunction(void **module, const void *stub, char *device,
                                      const char *name, unsigned threads, void *tid, void *bid,
                                      void *block, void *grid, int *warp);

inline void spin_stub() {}

inline void register_spin() {
  __hipRegisterFunction(nullptr, reinterpret_cast<const void *>(spin_stub), nullptr, "xs_spin", 0,
                        nullptr, nullptr, nullptr, nullptr, nullptr);
}

/* spin<<<1, 64, 0, stream>>>(memory, us, 1) */
inline void spin(void *memory, unsigned us, hipStream_t stream) {
  unsigned seed = 1;
  void *arguments[] = {&memory, &us, &seed};
  CHECK(hipLaunchKernel(reinterpret_cast<const void *>(spin_stub), dim3(1), dim3(64), arguments, 0,
                        stream));
}
