/* SPDX-License-Identifier: Apache-2.0
 *
 * user_event: prints how many locks clSetUserEventStatus takes, and how many of them clEnqueueNDRangeKernel takes, too.
 */
#define CL_TARGET_OPENCL_VERSION 300
#define CL_USE_DEPRECATED_OPENCL_1_2_APIS
#include <CL/cl.h>
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

enum call { OTHER, LAUNCH, SET, CALLS };
enum { MOST = 4096 };
static _Thread_local enum call inside;
static pthread_mutex_t *locked[CALLS][MOST];
static unsigned count[CALLS];

/* In place of the C library's, for the OpenCL implementation, too. */
int pthread_mutex_lock(pthread_mutex_t *mutex) {
  static int (*real)(pthread_mutex_t *);
  if (!real) real = (int (*)(pthread_mutex_t *))dlsym(RTLD_NEXT, "pthread_mutex_lock");
  if (inside != OTHER && count[inside] < MOST) locked[inside][count[inside]++] = mutex;
  return real(mutex);
}

static void check(cl_int result) {
  if (result == CL_SUCCESS) return;
  fprintf(stderr, "user_event: OpenCL gave %d\n", result);
  exit(1);
}

int main(void) {
  const char *source = "__kernel void k(__global int *a) { a[0]++; }";
  cl_platform_id platform;
  cl_device_id device;
  cl_int error;
  size_t items = 1;
  check(clGetPlatformIDs(1, &platform, NULL));
  check(clGetDeviceIDs(platform, CL_DEVICE_TYPE_ALL, 1, &device, NULL));
  cl_context context = clCreateContext(NULL, 1, &device, NULL, NULL, &error);
  check(error);
  cl_command_queue queue = clCreateCommandQueue(context, device, 0, &error);
  check(error);
  cl_program program = clCreateProgramWithSource(context, 1, &source, NULL, &error);
  check(error);
  check(clBuildProgram(program, 1, &device, "", NULL, NULL));
  cl_kernel kernel = clCreateKernel(program, "k", &error);
  check(error);
  cl_mem memory = clCreateBuffer(context, 0, sizeof(cl_int), NULL, &error);
  check(error);
  check(clSetKernelArg(kernel, 0, sizeof memory, &memory));
  cl_event go = clCreateUserEvent(context, &error);
  check(error);
  inside = LAUNCH;
  for (int i = 0; i < 2; i++)
    check(clEnqueueNDRangeKernel(queue, kernel, 1, NULL, &items, NULL, i == 0, i == 0 ? &go : NULL, NULL));
  inside = SET;
  check(clSetUserEventStatus(go, CL_COMPLETE));
  inside = OTHER;
  check(clFinish(queue));
  unsigned common = 0;
  for (unsigned i = 0; i < count[SET]; i++)
    for (unsigned k = 0; k < count[LAUNCH]; k++)
      if (locked[SET][i] == locked[LAUNCH][k]) {
        common++;
        break;
      }
  printf("%u of %u\n", common, count[SET]);
  return 0;
}
