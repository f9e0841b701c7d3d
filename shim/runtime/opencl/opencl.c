// SPDX-License-Identifier: Apache-2.0
//
// OpenCL's entry points, and the library that has the real ones.

#include "account.h"

#include <dlfcn.h>
#include <link.h>
#include <string.h>

#include "core/fork.h"
#include "core/options.h"
#include "core/real.h"

// ---- the library ------------------------------------------------------------------------

#define LIBRARY "libOpenCL"

static void *real_functions[XSI_CL_SLOTS];
static bool missing[XSI_CL_SLOTS];
static void *library;

// libOpenCL.so, .so.1, and libOpenCL-1a2b3c.so.1 as Python wheels name their copy. Any copy serves:
// each dispatches by the object that it is called with.
static bool is_library(const char *path) {
  const char *name = xsi_base_name(path);
  size_t length = strlen(LIBRARY);
  return strncmp(name, LIBRARY, length) == 0 && (name[length] == '.' || name[length] == '-') &&
         strstr(name + length, ".so") != NULL;
}

/* Paths of all copies that are loaded: the loader's own strings go with their library. */
struct copies {
  unsigned count;
  char path[8][1024];
};

static int visit(struct dl_phdr_info *object, size_t size, void *argument) {
  (void)size;
  struct copies *copies = argument;
  const char *name = object->dlpi_name;
  if (!name || !is_library(name) || xsi_runtime_stands_in(object) ||
      strlen(name) >= sizeof copies->path[0])
    return 0;
  strcpy(copies->path[copies->count++], name);
  return copies->count == sizeof copies->path / sizeof *copies->path;
}

// By the path the loader has it under: a library of Python is in no global scope.
static void *find_library(void) {
  void *handle = __atomic_load_n(&library, __ATOMIC_ACQUIRE);
  if (handle) return handle;
  xsi_runtime_init();
  struct copies copies = {.count = 0};
  dl_iterate_phdr(visit, &copies);
  for (unsigned i = 0; !handle && i < copies.count; i++)
    handle = xsi_runtime_loaded(&library, copies.path[i]);
  return handle || !copies.count ? handle : xsi_runtime_loaded(&library, LIBRARY ".so.1");
}

// The first copy may be older than the one that the program means, or have another name.
static void *find_elsewhere(unsigned slot) {
  int saved_errno = errno;
  const char *name = xsi_cl_runtime.symbols[slot].name;
  struct copies copies = {.count = 0};
  void *real = NULL;
  dl_iterate_phdr(visit, &copies);
  for (unsigned i = 0; !real && i < copies.count; i++) {
    void *handle = dlopen(copies.path[i], RTLD_LAZY | RTLD_NOLOAD);
    if (handle) real = xsi_real_dlsym(handle, name);
    if (handle) dlclose(handle);
    if (real && xsi_in_shim(real)) real = NULL;
  }
  if (!real) real = xsi_real_dlsym(RTLD_NEXT, name);
  if (!real) dlerror(); // ours, not the application's
  if (real) __atomic_store_n(&real_functions[slot], real, __ATOMIC_RELEASE);
  errno = saved_errno;
  return real;
}

void *xsi_cl_slot(unsigned slot) {
  void *real = __atomic_load_n(&real_functions[slot], __ATOMIC_ACQUIRE);
  if (XSI_UNLIKELY(!real)) real = xsi_runtime_bind(&xsi_cl_runtime, slot);
  return XSI_LIKELY(real != NULL) ? real : find_elsewhere(slot);
}

// ---- accounting ---------------------------------------------------------------------------

int xsi_cl_state;

bool xsi_cl_start(void) {
  static bool registered;
  xsi_runtime_init();
  bool active = !xsi_options.disabled;
  if (active) {
    // The watcher must not ask the loader for a function: it holds locks.
    for (unsigned slot = 0; slot < XSI_CL_SLOTS; slot++)
      (void)xsi_cl_slot(slot);
    active = xsi_work_start(&xsi_cl_platform);
  }
  if (active && !__atomic_exchange_n(&registered, true, __ATOMIC_SEQ_CST))
    xsi_at_fork_child(xsi_cl_queues_reset);
  int now = active ? XSI_CL_ACTIVE : XSI_CL_DISABLED;
  __atomic_store_n(&xsi_cl_state, now, __ATOMIC_RELEASE);
  return now == XSI_CL_ACTIVE;
}

static bool enter(void) { return xsi_cl_enter(); }

static struct xsi_work_stream *work(uintptr_t queue) {
  return queue ? xsi_work_find(&xsi_cl_platform, 0, queue) : NULL;
}

static bool never(uintptr_t queue) {
  (void)queue;
  return false;
}

static struct xsi_call begin_launch(uintptr_t queue) { return xsi_cl_begin_launch(queue); }

const struct xsi_account xsi_cl_account = {.enter = enter,
                                           .enter_submit = enter,
                                           .begin = begin_launch,
                                           .work = work,
                                           .is_capturing = never,
                                           .still_capturing = never};

// ---- entry points by hand -------------------------------------------------------------------

#define TAIL cl_uint waits, const cl_event *wait_list, cl_event *event

static void fail(cl_int *error) {
  if (error) *error = CL_INVALID_OPERATION;
}

#define MAP(name, parameters, arguments)                                                           \
  XSI_EXPORT void *name parameters {                                                               \
    XSI_CL_REAL(name);                                                                             \
    if (XSI_UNLIKELY(!real)) return fail(error), NULL;                                             \
    struct xsi_cl_command command;                                                                 \
    cl_event *program = event;                                                                     \
    event = xsi_cl_begin(&command, XSI_CL_COPY, queue, blocking, event);                           \
    void *mapped = real arguments;                                                                 \
    xsi_cl_end(&command, XSI_CL_COPY, program, mapped ? CL_SUCCESS : CL_INVALID_OPERATION);        \
    return mapped;                                                                                 \
  }                                                                                                \
  XSI_HOOK(name)

MAP(clEnqueueMapBuffer,
    (cl_command_queue queue, cl_mem buffer, cl_bool blocking, cl_map_flags flags, size_t offset,
     size_t bytes, TAIL, cl_int *error),
    (queue, buffer, blocking, flags, offset, bytes, waits, wait_list, event, error))
MAP(clEnqueueMapImage,
    (cl_command_queue queue, cl_mem image, cl_bool blocking, cl_map_flags flags,
     const size_t *origin, const size_t *region, size_t *row, size_t *slice, TAIL, cl_int *error),
    (queue, image, blocking, flags, origin, region, row, slice, waits, wait_list, event, error))

XSI_EXPORT cl_int clFinish(cl_command_queue queue) {
  XSI_CL_REAL(clFinish);
  XSI_CL_GUARD();
  struct xsi_wait wait;
  xsi_begin_sync(&xsi_cl_account, &wait, (uintptr_t)queue);
  return xsi_end_sync(&wait, real(queue));
}
XSI_HOOK(clFinish)

#define LOOKED_AT 32 /* events of one wait; the watcher finds the end of further ones */

XSI_EXPORT cl_int clWaitForEvents(cl_uint count, const cl_event *events) {
  XSI_CL_REAL(clWaitForEvents);
  XSI_CL_GUARD();
  if (!xsi_cl_enter() || !events) return real(count, events);
  struct xsi_work_standing standing[LOOKED_AT];
  cl_uint looked = count < LOOKED_AT ? count : LOOKED_AT;
  for (cl_uint i = 0; i < looked; i++)
    xsi_work_event_look(&standing[i], (uintptr_t)events[i], true);
  cl_int result = real(count, events);
  if (result == CL_SUCCESS) xsi_count(syncs, 1);
  for (cl_uint i = 0; i < looked; i++)
    xsi_work_event_conclude(&standing[i], (uintptr_t)events[i], true, result == CL_SUCCESS);
  return result;
}
XSI_HOOK(clWaitForEvents)

// Programs poll the status of an event instead of waiting for it.
XSI_EXPORT cl_int clGetEventInfo(cl_event event, cl_event_info name, size_t bytes, void *value,
                                 size_t *returned) {
  XSI_CL_REAL(clGetEventInfo);
  XSI_CL_GUARD();
  if (name != CL_EVENT_COMMAND_EXECUTION_STATUS || !value || bytes < sizeof(cl_int) ||
      !xsi_cl_enter())
    return real(event, name, bytes, value, returned);
  struct xsi_work_standing standing;
  xsi_work_event_look(&standing, (uintptr_t)event, false);
  cl_int result = real(event, name, bytes, value, returned);
  bool over = result == CL_SUCCESS && *(const cl_int *)value <= CL_COMPLETE;
  xsi_work_event_conclude(&standing, (uintptr_t)event, false, over);
  return result;
}
XSI_HOOK(clGetEventInfo)

// An extension's function of one platform is not another's: only what is bound already has a hook.
static void *answered(const char *name, void *address) {
  if (!name || !address || !xsi_cl_enter()) return address;
  int slot = xsi_runtime_find(&xsi_cl_runtime, name);
  if (slot >= 0)
    return address == xsi_cl_slot((unsigned)slot) ? xsi_cl_runtime.symbols[slot].hook : address;
  if (xsi_runtime_suspects(&xsi_cl_runtime, name)) xsi_runtime_unknown(name);
  return address;
}

XSI_EXPORT void *clGetExtensionFunctionAddress(const char *name) {
  XSI_CL_REAL(clGetExtensionFunctionAddress);
  return real ? answered(name, real(name)) : NULL;
}
XSI_HOOK(clGetExtensionFunctionAddress)

XSI_EXPORT void *clGetExtensionFunctionAddressForPlatform(cl_platform_id platform,
                                                          const char *name) {
  XSI_CL_REAL(clGetExtensionFunctionAddressForPlatform);
  return real ? answered(name, real(platform, name)) : NULL;
}
XSI_HOOK(clGetExtensionFunctionAddressForPlatform)

static cl_command_queue created(cl_command_queue queue) {
  int saved_errno = errno;
  if (queue && xsi_cl_enter()) {
    xsi_work_stream_created((uintptr_t)queue);
    xsi_cl_queue_created(queue);
  }
  errno = saved_errno;
  return queue;
}

XSI_EXPORT cl_command_queue clCreateCommandQueue(cl_context context, cl_device_id device,
                                                 cl_command_queue_properties properties,
                                                 cl_int *error) {
  XSI_CL_REAL(clCreateCommandQueue);
  if (XSI_UNLIKELY(!real)) return fail(error), NULL;
  return created(real(context, device, properties, error));
}
XSI_HOOK(clCreateCommandQueue)

XSI_EXPORT cl_command_queue clCreateCommandQueueWithProperties(
    cl_context context, cl_device_id device, const cl_queue_properties *properties, cl_int *error) {
  XSI_CL_REAL(clCreateCommandQueueWithProperties);
  if (XSI_UNLIKELY(!real)) return fail(error), NULL;
  return created(real(context, device, properties, error));
}
XSI_HOOK(clCreateCommandQueueWithProperties)

XSI_EXPORT cl_int clRetainCommandQueue(cl_command_queue queue) {
  XSI_CL_REAL(clRetainCommandQueue);
  XSI_CL_GUARD();
  cl_int result = real(queue);
  if (result == CL_SUCCESS && xsi_cl_enter()) xsi_cl_queue_retained(queue);
  return result;
}
XSI_HOOK(clRetainCommandQueue)

XSI_EXPORT cl_int clReleaseCommandQueue(cl_command_queue queue) {
  XSI_CL_REAL(clReleaseCommandQueue);
  XSI_CL_GUARD();
  int saved_errno = errno;
  if (queue && xsi_cl_enter()) (void)xsi_cl_queue_released(queue);
  errno = saved_errno;
  return real(queue);
}
XSI_HOOK(clReleaseCommandQueue)

// ---- the registry's entry -------------------------------------------------------------------

static const char *const prefixes[] = {"cl", NULL};

const struct xsi_runtime xsi_cl_runtime = {
    .name = "OpenCL",
    .prefixes = prefixes,
    .known = xsi_known_opencl,
    .known_count = &xsi_known_opencl_count,
    .symbols = xsi_cl_symbols,
    .hooks = XSI_CL_HOOKS,
    .slots = XSI_CL_SLOTS,
    .real = real_functions,
    .missing = missing,
    .is_library = is_library,
    .library = find_library,
};
