/* SPDX-License-Identifier: Apache-2.0
 *
 * The tenant's two runtime interfaces and its kernel.
 */
#ifndef XSCHED_VIRTUAL_TENANT_API_H
#define XSCHED_VIRTUAL_TENANT_API_H

#include <stddef.h>
#include <stdint.h>

typedef int result;
typedef struct handle *handle;

/* The driver's calls, in the order of the tables below. */
static struct {
  result (*cuInit)(unsigned);
  result (*cuDeviceGet)(int *, int);
  result (*cuDeviceGetName)(char *, int, int);
  result (*cuDeviceGetAttribute)(int *, int, int);
  result (*cuCtxCreate_v2)(handle *, unsigned, int);
  result (*cuStreamCreate)(handle *, unsigned);
  result (*cuModuleLoadData)(handle *, const void *);
  result (*cuModuleGetFunction)(handle *, handle, const char *);
  result (*cuMemAlloc_v2)(uint64_t *, size_t);
  result (*cuMemsetD8_v2)(uint64_t, unsigned char, size_t);
  result (*cuMemcpyDtoH_v2)(void *, uint64_t, size_t);
  result (*cuLaunchKernel)(handle, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                           unsigned, handle, void **, void **);
  result (*cuStreamSynchronize)(handle);
  result (*cuCtxSynchronize)(void);
  result (*cuEventCreate)(handle *, unsigned);
  result (*cuEventRecord)(handle, handle);
  result (*cuEventSynchronize)(handle);
  result (*cuEventElapsedTime)(float *, handle, handle);
  result (*cuMemcpyDtoHAsync_v2)(void *, uint64_t, size_t, handle);
  result (*cuStreamQuery)(handle);
} cu;

static const char *const names[] = {"cuInit",
                                    "cuDeviceGet",
                                    "cuDeviceGetName",
                                    "cuDeviceGetAttribute",
                                    "cuCtxCreate_v2",
                                    "cuStreamCreate",
                                    "cuModuleLoadData",
                                    "cuModuleGetFunction",
                                    "cuMemAlloc_v2",
                                    "cuMemsetD8_v2",
                                    "cuMemcpyDtoH_v2",
                                    "cuLaunchKernel",
                                    "cuStreamSynchronize",
                                    "cuCtxSynchronize",
                                    "cuEventCreate",
                                    "cuEventRecord",
                                    "cuEventSynchronize",
                                    "cuEventElapsedTime",
                                    "cuMemcpyDtoHAsync_v2",
                                    "cuStreamQuery"};
#define CALLS (sizeof names / sizeof *names)

/* HIP's equivalents, with the same parameters: see use_device and the number of processors. */
static const char *const hip_names[CALLS] = {"hipInit",
                                             "hipDeviceGet",
                                             "hipDeviceGetName",
                                             "hipDeviceGetAttribute",
                                             "hipSetDevice",
                                             "hipStreamCreateWithFlags",
                                             "hipModuleLoadData",
                                             "hipModuleGetFunction",
                                             "hipMalloc",
                                             "hipMemsetD8",
                                             "hipMemcpyDtoH",
                                             "hipModuleLaunchKernel",
                                             "hipStreamSynchronize",
                                             "hipDeviceSynchronize",
                                             "hipEventCreateWithFlags",
                                             "hipEventRecord",
                                             "hipEventSynchronize",
                                             "hipEventElapsedTime",
                                             "hipMemcpyDtoHAsync",
                                             "hipStreamQuery"};

/* Every thread iterates x = x * A + C from its own start. The first of each warp adds its result
 * and counts itself. Integer arithmetic makes the sum exact in any order. */
static const char ptx[] =
    ".version 7.0\n.target sm_70\n.address_size 64\n"
    ".visible .entry xs_spin(.param .u64 p_out, .param .u32 p_iterations, .param .u32 p_seed) {\n"
    "  .reg .pred %p<3>; .reg .b32 %r<8>; .reg .b64 %d<8>;\n"
    "  ld.param.u64 %d1, [p_out]; ld.param.u32 %r1, [p_iterations]; ld.param.u32 %r2, [p_seed];\n"
    "  mov.u32 %r3, %ctaid.x; mov.u32 %r4, %ntid.x; mov.u32 %r5, %tid.x;\n"
    "  mad.lo.u32 %r6, %r3, %r4, %r5;\n"
    "  cvt.u64.u32 %d2, %r6; cvt.u64.u32 %d3, %r2;\n"
    "  mad.lo.u64 %d2, %d2, 0x9E3779B97F4A7C15, %d3;\n"
    "  setp.eq.u32 %p1, %r1, 0; @%p1 bra END;\n"
    "LOOP:\n"
    "  mad.lo.u64 %d2, %d2, 6364136223846793005, 1442695040888963407;\n"
    "  sub.u32 %r1, %r1, 1; setp.ne.u32 %p1, %r1, 0; @%p1 bra LOOP;\n"
    "END:\n"
    "  and.b32 %r7, %r5, 31; setp.ne.u32 %p2, %r7, 0; @%p2 bra DONE;\n"
    "  cvta.to.global.u64 %d1, %d1;\n"
    "  red.global.add.u64 [%d1], %d2;\n"
    "  red.global.add.u64 [%d1+8], 1;\n"
    "DONE:\n  ret;\n}\n";

#endif /* XSCHED_VIRTUAL_TENANT_API_H */
