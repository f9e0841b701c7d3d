/* SPDX-License-Identifier: Apache-2.0
 *
 * Commands that the program submits itself, in plain C on OpenCL. Waits for its standard input to end
 * between two rounds.
 */
#define CL_TARGET_OPENCL_VERSION 300
#include <CL/cl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "xsched/opencl/hal.h"
#include "xsched/xqueue.h"

#define CHECK(call)                                                                                \
  do {                                                                                             \
    int code_ = (int)(call);                                                                       \
    if (code_ != 0) {                                                                              \
      fprintf(stderr, "%s:%d: %s = %d\n", __FILE__, __LINE__, #call, code_);                       \
      exit(1);                                                                                     \
    }                                                                                              \
  } while (0)

static const char source[] = "__kernel void set(__global uint *data) { data[get_global_id(0)]++; }";
static cl_kernel kernel;
static cl_command_queue queue;
static HwQueueHandle hwq;
static XQueueHandle xq;

static XResult launch(HwQueueHandle from, void *unused) {
  size_t items = 64;
  (void)unused;
  if (from != hwq) return kXSchedErrorInvalidValue;
  return clEnqueueNDRangeKernel(queue, kernel, 1, NULL, &items, NULL, 0, NULL, NULL) == CL_SUCCESS
             ? kXSchedSuccess
             : kXSchedErrorHardware;
}

static void submit(int count) {
  for (int i = 0; i < count; i++) {
    HwCommandHandle command;
    CHECK(HwCommandCreateCallback(&command, launch, NULL));
    CHECK(XQueueSubmit(xq, command));
    CHECK(HwCommandDestroy(command));
  }
  CHECK(XQueueWaitAll(xq));
}

int main(void) {
  cl_platform_id platform;
  cl_device_id device;
  const char *text = source;
  HwQueueHandle same = 0;
  int64_t count = 0;
  char ignored;
  int result;
  CHECK(clGetPlatformIDs(1, &platform, NULL));
  CHECK(clGetDeviceIDs(platform, CL_DEVICE_TYPE_ALL, 1, &device, NULL));
  cl_context context = clCreateContext(NULL, 1, &device, NULL, NULL, &result);
  CHECK(result);
  queue = clCreateCommandQueueWithProperties(context, device, NULL, &result);
  CHECK(result);
  cl_program program = clCreateProgramWithSource(context, 1, &text, NULL, &result);
  CHECK(result);
  CHECK(clBuildProgram(program, 1, &device, "", NULL, NULL));
  kernel = clCreateKernel(program, "set", &result);
  CHECK(result);
  cl_mem buffer = clCreateBuffer(context, CL_MEM_READ_WRITE, 64 * sizeof(cl_uint), NULL, &result);
  CHECK(result);
  CHECK(clSetKernelArg(kernel, 0, sizeof buffer, &buffer));
  CHECK(OclQueueCreate(&hwq, queue));
  CHECK(OclQueueGet(&same, queue) != kXSchedSuccess || same != hwq);
  CHECK(OclQueueCreate(&same, queue) != kXSchedErrorNotAllowed);
  CHECK(XQueueCreate(&xq, hwq, kPreemptLevelBlock, kQueueCreateFlagNone));
  CHECK(XHintPriority(xq, 7));
  submit(20);
  printf("submitted\n");
  fflush(stdout);
  while (read(0, &ignored, 1) > 0)
    continue;
  submit(20);
  CHECK(XQueueProfileHwCommandCount(xq, &count));
  CHECK(XQueueDestroy(xq));
  CHECK(HwQueueDestroy(hwq));
  CHECK(clReleaseCommandQueue(queue));
  printf("commands %lld\n", (long long)count);
  return 0;
}
