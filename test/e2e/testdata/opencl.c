/* SPDX-License-Identifier: Apache-2.0
 *
 * An OpenCL program without support for XSched:
 *   opencl sum            real kernels in queues of both orders, every kind of wait; prints a checksum
 *   opencl spin           one kernel after the other until standard input ends; "I N TIME" for each
 *   opencl churn          queues that are released while their work runs; prints the context's references
 *   opencl user           commands that wait for an event which the program sets afterwards
 */
#define CL_TARGET_OPENCL_VERSION 300
#define CL_USE_DEPRECATED_OPENCL_1_2_APIS
#include <CL/cl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define ITEMS 4096
static const char source[] =
    "__kernel void stir(__global ulong *data, uint rounds) {\n"
    "  ulong x = data[get_global_id(0)];\n"
    "  for (uint i = 0; i < rounds; i++) x = x * 6364136223846793005UL + 1442695040888963407UL;\n"
    "  data[get_global_id(0)] = x;\n"
    "}\n";

static void check(cl_int result, const char *what) {
  if (result == CL_SUCCESS) return;
  fprintf(stderr, "opencl: %s: %d\n", what, result);
  exit(1);
}
#define TRY(call) check((call), #call)

static cl_context context;
static cl_device_id device;
static cl_kernel kernel;
static cl_mem buffer;
static cl_ulong host[ITEMS];

static void launch(cl_command_queue queue, cl_uint rounds, cl_event *event) {
  size_t items = ITEMS;
  TRY(clSetKernelArg(kernel, 1, sizeof rounds, &rounds));
  TRY(clEnqueueNDRangeKernel(queue, kernel, 1, NULL, &items, NULL, 0, NULL, event));
}

static cl_ulong checksum(void) {
  cl_ulong sum = 0;
  for (int i = 0; i < ITEMS; i++) sum = sum * 31 + host[i];
  return sum;
}

static void run_all(cl_command_queue queue) {
  cl_event event, copy;
  for (int i = 0; i < ITEMS; i++) host[i] = (cl_ulong)i;
  TRY(clEnqueueWriteBuffer(queue, buffer, CL_TRUE, 0, sizeof host, host, 0, NULL, NULL));
  for (int i = 0; i < 20; i++) { /* a chain of events, in either kind of queue */
    cl_event next;
    size_t items = ITEMS;
    cl_uint rounds = 100;
    TRY(clSetKernelArg(kernel, 1, sizeof rounds, &rounds));
    TRY(clEnqueueNDRangeKernel(queue, kernel, 1, NULL, &items, NULL, i != 0, i ? &event : NULL, &next));
    if (i) TRY(clReleaseEvent(event));
    event = next;
  }
  TRY(clFlush(queue));
  TRY(clWaitForEvents(1, &event));
  TRY(clReleaseEvent(event));
  launch(queue, 100, NULL);
  TRY(clFinish(queue));
  launch(queue, 100, &event);
  TRY(clFlush(queue));
  for (cl_int now = CL_QUEUED; now > CL_COMPLETE;) /* a program that polls */
    TRY(clGetEventInfo(event, CL_EVENT_COMMAND_EXECUTION_STATUS, sizeof now, &now, NULL));
  TRY(clReleaseEvent(event));
  cl_int error;
  cl_ulong *mapped = clEnqueueMapBuffer(queue, buffer, CL_TRUE, CL_MAP_READ | CL_MAP_WRITE, 0, sizeof host,
                                        0, NULL, NULL, &error);
  check(error, "clEnqueueMapBuffer");
  mapped[7] ^= 1;
  TRY(clEnqueueUnmapMemObject(queue, buffer, mapped, 0, NULL, &event));
  TRY(clEnqueueReadBuffer(queue, buffer, CL_FALSE, 0, sizeof host, host, 1, &event, &copy));
  TRY(clWaitForEvents(1, &copy));
  TRY(clReleaseEvent(event));
  TRY(clReleaseEvent(copy));
  printf("checksum %016llx\n", (unsigned long long)checksum());
  /* A launch without a buffer fails; the error must be the library's. */
  size_t nothing = 0;
  printf("refused %d\n", clEnqueueNDRangeKernel(queue, kernel, 4, NULL, &nothing, NULL, 0, NULL, NULL));
}

int main(int argc, char **argv) {
  cl_platform_id platform;
  cl_int error;
  const char *text = source;
  TRY(clGetPlatformIDs(1, &platform, NULL));
  TRY(clGetDeviceIDs(platform, CL_DEVICE_TYPE_ALL, 1, &device, NULL));
  context = clCreateContext(NULL, 1, &device, NULL, NULL, &error);
  check(error, "clCreateContext");
  cl_program program = clCreateProgramWithSource(context, 1, &text, NULL, &error);
  check(error, "clCreateProgramWithSource");
  TRY(clBuildProgram(program, 1, &device, "", NULL, NULL));
  kernel = clCreateKernel(program, "stir", &error);
  check(error, "clCreateKernel");
  buffer = clCreateBuffer(context, CL_MEM_READ_WRITE, sizeof host, NULL, &error);
  check(error, "clCreateBuffer");
  TRY(clSetKernelArg(kernel, 0, sizeof buffer, &buffer));
  cl_command_queue queue = clCreateCommandQueue(context, device, 0, &error);
  check(error, "clCreateCommandQueue");

  if (argc > 1 && strcmp(argv[1], "churn") == 0) {
    cl_uint before = 0, after = 0;
    TRY(clGetContextInfo(context, CL_CONTEXT_REFERENCE_COUNT, sizeof before, &before, NULL));
    for (int i = 0; i < 300; i++) {
      cl_command_queue one = clCreateCommandQueue(context, device, 0, &error);
      check(error, "clCreateCommandQueue");
      for (int n = 0; n < 1 + i % 5; n++) launch(one, 1000, NULL);
      if (i % 3) TRY(clFlush(one));
      if (i % 7 == 0) TRY(clFinish(one));
      TRY(clReleaseCommandQueue(one));
      usleep(i % 10 * 100);
    }
    for (int i = 0; i < 200 && after != before; i++) { /* the last work ends, and with it its queue */
      launch(queue, 10, NULL);
      TRY(clFinish(queue));
      usleep(10000);
      TRY(clGetContextInfo(context, CL_CONTEXT_REFERENCE_COUNT, sizeof after, &after, NULL));
    }
    printf("references %s\n", after == before ? "equal" : "differ");
    return 0;
  }
  if (argc > 1 && strcmp(argv[1], "user") == 0) {
    cl_event go = clCreateUserEvent(context, &error);
    check(error, "clCreateUserEvent");
    for (int i = 0; i < 16; i++) {
      size_t items = ITEMS;
      cl_uint rounds = 10;
      TRY(clSetKernelArg(kernel, 1, sizeof rounds, &rounds));
      TRY(clEnqueueNDRangeKernel(queue, kernel, 1, NULL, &items, NULL, 1, &go, NULL));
    }
    TRY(clSetUserEventStatus(go, CL_COMPLETE));
    TRY(clFinish(queue));
    printf("done\n");
    return 0;
  }
  if (argc > 1 && strcmp(argv[1], "spin") == 0) {
    printf("ready\n");
    fflush(stdout);
    for (int n = 0;; n++) {
      struct pollfd in = {.fd = 0, .events = POLLIN};
      struct timespec now;
      if (poll(&in, 1, 0) > 0) break;
      launch(queue, 20000, NULL);
      TRY(clFinish(queue));
      clock_gettime(CLOCK_MONOTONIC, &now);
      printf("I %d %lld\n", n, (long long)now.tv_sec * 1000000000 + now.tv_nsec);
      fflush(stdout);
    }
    return 0;
  }
  run_all(queue);
  TRY(clReleaseCommandQueue(queue));
  cl_queue_properties any_order[] = {CL_QUEUE_PROPERTIES, CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE, 0};
  queue = clCreateCommandQueueWithProperties(context, device, any_order, &error);
  check(error, "clCreateCommandQueueWithProperties");
  run_all(queue);
  if (argc > 1 && strcmp(argv[1], "stay") == 0) { /* work without a wait */
    launch(queue, 100, NULL);
    TRY(clFlush(queue));
    printf("submitted\n");
    fflush(stdout);
    (void)!getchar();
  }
  TRY(clReleaseCommandQueue(queue));
  return 0;
}
