// SPDX-License-Identifier: Apache-2.0

#include "test_fake.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

CUresult fake_launch_result;
_Thread_local void (*fake_in_sync)(void);
uint64_t fake_most_in_flight, fake_events_made, fake_launches;
static _Thread_local struct fake_context *current;
static _Thread_local struct fake_stream *of_thread;
static _Thread_local bool watching;                    /* this is the watcher's thread */
static int captures;                                   /* of all contexts, in global mode */
static _Thread_local CUstreamCaptureMode capture_mode; /* global at first */
static void (*at_launch)(void);
void fake_at_launch(void (*call)(void)) { at_launch = call; }
int fake_stuck, fake_blocked;
uint64_t fake_queries;

#define LOAD(x) __atomic_load_n(&(x), __ATOMIC_SEQ_CST)
#define STORE(x, v) __atomic_store_n(&(x), (v), __ATOMIC_SEQ_CST)

static void meanwhile(void) {
  void (*during)(void) = fake_in_sync;
  fake_in_sync = NULL;
  if (during) during();
}

struct fake_stream *fake_of_thread(void) {
  if (!of_thread) of_thread = calloc(1, sizeof *of_thread);
  of_thread->context = current;
  return of_thread;
}

// The watcher dawdles in the driver, so that what must not happen meanwhile would.
static void dawdle(void) {
  struct timespec time = {0, 100000};
  if (watching) nanosleep(&time, NULL);
}

// As the driver's lock of a context, which a launch keeps while it waits for room in a channel.
static void wait_for_room(const struct fake_context *context) {
  struct timespec time = {0, 100000};
  if (!LOAD(context->stopped)) return;
  __atomic_fetch_add(&fake_blocked, 1, __ATOMIC_SEQ_CST);
  while (LOAD(context->stopped))
    nanosleep(&time, NULL);
  __atomic_fetch_sub(&fake_blocked, 1, __ATOMIC_SEQ_CST);
}

static struct fake_stream *stream_of(CUstream handle) {
  if ((uintptr_t)handle <= 1) return &current->legacy;
  if ((uintptr_t)handle == 2) return fake_of_thread();
  struct fake_stream *stream = (struct fake_stream *)handle;
  CHECK(!LOAD(stream->destroyed)); // nobody may touch a stream that was destroyed
  CHECK(!LOAD(stream->context->destroyed));
  return stream;
}

static uint64_t raise_to(uint64_t *value, uint64_t to) {
  uint64_t now = LOAD(*value);
  while (now < to &&
         !__atomic_compare_exchange_n(value, &now, to, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) {
  }
  return now;
}

static CUresult submit(CUstream handle) {
  if (!current && (uintptr_t)handle <= 2) return XSI_CU_INVALID_CONTEXT;
  struct fake_stream *stream = stream_of(handle);
  if (LOAD(stream->capturing)) return XSI_CU_SUCCESS;
  uint64_t submitted = __atomic_add_fetch(&stream->submitted, 1, __ATOMIC_SEQ_CST);
  uint64_t done = LOAD(stream->done);
  if (submitted > done) raise_to(&fake_most_in_flight, submitted - done);
  return XSI_CU_SUCCESS;
}

static CUresult fake_launch(CUfunction f, unsigned a, unsigned b, unsigned c, unsigned d,
                            unsigned e, unsigned g, unsigned h, CUstream stream, void **i,
                            void **j) {
  (void)f, (void)a, (void)b, (void)c, (void)d, (void)e, (void)g, (void)h, (void)i, (void)j;
  if (fake_launch_result) return fake_launch_result;
  if (at_launch) at_launch();
  CUresult result = submit(stream);
  if (!result && ((uintptr_t)stream <= 2 || !LOAD(((struct fake_stream *)stream)->capturing)))
    __atomic_fetch_add(&fake_launches, 1, __ATOMIC_SEQ_CST);
  return result;
}
static CUresult fake_launch_ptsz(CUfunction f, unsigned a, unsigned b, unsigned c, unsigned d,
                                 unsigned e, unsigned g, unsigned h, CUstream stream, void **i,
                                 void **j) {
  return fake_launch(f, a, b, c, d, e, g, h, stream ? stream : (CUstream)2, i, j);
}

uint64_t fake_holds, fake_late;

static bool held(struct fake_stream *stream) {
  const uint32_t *word = LOAD(stream->word);
  return word && (int32_t)(LOAD(*word) - LOAD(stream->at_least)) < 0;
}
bool fake_is_held(CUstream stream) { return held((struct fake_stream *)stream); }

// Like the device: the wait ends with the value, not before. A test that fails goes on after a while.
static void until_released(struct fake_stream *stream) {
  if (!held(stream)) return;
  __atomic_fetch_add(&fake_late, 1, __ATOMIC_SEQ_CST);
  const struct timespec pause = {.tv_nsec = 100000};
  for (int i = 0; i < 2000 && held(stream); i++)
    nanosleep(&pause, NULL);
}

static CUresult wait_for(struct fake_stream *stream) {
  if (LOAD(stream->capturing)) return XSI_CU_CAPTURE_FIRST;
  until_released(stream);
  uint64_t submitted = LOAD(stream->submitted);
  meanwhile();
  raise_to(&stream->done, submitted);
  return XSI_CU_SUCCESS;
}
static CUresult fake_sync(CUstream stream) { return wait_for(stream_of(stream)); }
static CUresult fake_sync_ptsz(CUstream stream) { return fake_sync(stream ? stream : (CUstream)2); }

static CUresult fake_query(CUstream handle) {
  __atomic_fetch_add(&fake_queries, 1, __ATOMIC_SEQ_CST);
  dawdle();
  meanwhile();
  struct fake_stream *stream = stream_of(handle);
  wait_for_room(stream->context);
  CHECK(capture_mode == XSI_CU_CAPTURE_RELAXED || LOAD(captures) == 0); // as does any question
  // Breaks the capture of a real driver: nobody but the test itself may ask.
  CHECK(!LOAD(stream->capturing));
  CHECK((uintptr_t)handle > 2 || LOAD(stream->context->capturing) == 0);
  CHECK(!LOAD(stream->destroyed));
  bool idle = LOAD(stream->done) >= LOAD(stream->submitted);
  return idle && !LOAD(stream->awaits) && !held(stream) ? XSI_CU_SUCCESS : XSI_CU_NOT_READY;
}

// ---- what waits, and what does not ----
bool fake_eager;
bool fake_refuses, fake_refuses_rows;
uint32_t fake_rows, fake_uploads;
static CUresult fake_pointer(void *data, CUpointer_attribute attribute, CUdeviceptr_v2 address) {
  CHECK(attribute == XSI_CU_POINTER_MEMORY_TYPE);
  if (address != 0 && address != (uintptr_t)FAKE_PINNED) return XSI_CU_INVALID_VALUE;
  *(int *)data = address == 0 ? 2 : XSI_CU_MEMORY_HOST;
  return XSI_CU_SUCCESS;
}
static CUresult fake_back_async(void *to, CUdeviceptr_v2 from, size_t bytes, CUstream stream) {
  (void)from, (void)bytes;
  CUresult result = submit(stream);
  bool waits = to != FAKE_PINNED && !fake_eager && !LOAD(stream_of(stream)->capturing);
  return result || !waits ? result : wait_for(stream_of(stream));
}
static CUresult fake_back_async_ptsz(void *to, CUdeviceptr_v2 from, size_t bytes, CUstream stream) {
  return fake_back_async(to, from, bytes, stream ? stream : (CUstream)2);
}
static CUresult fake_3d_batch(size_t count, CUDA_MEMCPY3D_BATCH_OP_v1 *operations,
                              unsigned long long flags, CUstream stream) {
  (void)flags;
  return fake_back_async((void *)(uintptr_t)operations[count - 1].to.pointer, 0, 1, stream);
}
static CUresult fake_3d_batch_v1(size_t count, CUDA_MEMCPY3D_BATCH_OP_v1 *operations,
                                 size_t *failed, unsigned long long flags, CUstream stream) {
  (void)failed;
  return fake_3d_batch(count, operations, flags, stream);
}
static CUresult fake_2d_async(const CUDA_MEMCPY2D_v2 *copy, CUstream stream) {
  if (copy->to.type == XSI_CU_MEMORY_DEVICE) {
    if (fake_refuses_rows) return XSI_CU_INVALID_VALUE;
    __atomic_fetch_add(&fake_rows, 1, __ATOMIC_RELAXED);
    for (size_t row = 0; copy->to.device && row < copy->height;
         row++) // device memory is the host's
      memcpy((char *)(uintptr_t)copy->to.device + row * copy->to_pitch,
             (const char *)copy->source.host + row * copy->source_pitch, copy->width);
    return submit(stream);
  }
  return fake_back_async((void *)(uintptr_t)copy->to.host, 0, 1, stream);
}
static CUresult fake_write(CUstream stream, CUdeviceptr_v2 address, cuuint32_t value,
                           unsigned flags) {
  (void)address, (void)value, (void)flags;
  STORE(stream_of(stream)->awaits, 0); // stands for any writer
  return XSI_CU_SUCCESS;
}
static CUresult fake_await(CUstream stream, CUdeviceptr_v2 address, cuuint32_t value,
                           unsigned flags) {
  struct fake_stream *waits = stream_of(stream);
  CHECK(!LOAD(waits->capturing));
  if (address == 0) {
    STORE(waits->awaits, 1);
    return XSI_CU_SUCCESS;
  }
  CHECK(flags == XSI_CU_WAIT_VALUE_GEQ);
  STORE(waits->at_least, value);
  STORE(waits->word, (const uint32_t *)(uintptr_t)address);
  __atomic_fetch_add(&fake_holds, 1, __ATOMIC_SEQ_CST);
  return XSI_CU_SUCCESS;
}
static CUresult fake_batch(CUstream stream, unsigned count, CUstreamBatchMemOpParams_v1 *operations,
                           unsigned flags) {
  for (unsigned i = 0; i < count; i++)
    if (operations[i].operation == XSI_CU_OP_WAIT_32) fake_await(stream, 0, 0, flags);
  return XSI_CU_SUCCESS;
}
static CUresult fake_context_record(CUcontext context, CUevent event) {
  (void)context;
  STORE(((struct fake_event *)event)->stream, NULL); // over at once
  return XSI_CU_SUCCESS;
}

static CUresult fake_copy_async(CUdeviceptr_v2 a, const void *b, size_t c, CUstream stream) {
  __atomic_fetch_add(&fake_uploads, 1, __ATOMIC_RELAXED);
  if (fake_refuses) return XSI_CU_INVALID_VALUE;
  if (a && b) memcpy((void *)(uintptr_t)a, b, c);
  return submit(stream);
}
static CUresult copy_there(CUstream stream, size_t bytes) {
  if (at_launch) at_launch();
  if (fake_refuses) return XSI_CU_INVALID_VALUE;
  submit(stream);
  if (bytes > 65536 || !fake_eager) return wait_for(stream_of(stream));
  meanwhile();
  return XSI_CU_SUCCESS;
}
static CUresult fake_copy(CUdeviceptr_v2 a, const void *b, size_t c) {
  return (void)a, (void)b, copy_there((CUstream)1, c);
}
static CUresult fake_copy_ptds(CUdeviceptr_v2 a, const void *b, size_t c) {
  return (void)a, (void)b, copy_there((CUstream)2, c);
}
static CUresult fake_copy_any(CUdeviceptr_v2 a, CUdeviceptr_v2 b, size_t c) {
  return fake_copy(a, (void *)(uintptr_t)b, c);
}
static CUresult fake_copy_back(void *a, CUdeviceptr_v2 b, size_t c) {
  (void)a, (void)b, (void)c;
  submit((CUstream)1);
  return wait_for(&current->legacy);
}
static CUresult fake_copy_back_ptds(void *a, CUdeviceptr_v2 b, size_t c) {
  return fake_back_async_ptsz(a, b, c, NULL);
}
static CUresult fake_host_function(CUstream stream, CUhostFn function, void *data) {
  (void)function, (void)data;
  return submit(stream);
}
static CUresult fake_copy_on_device(CUdeviceptr_v2 a, CUdeviceptr_v2 b, size_t c) {
  (void)a, (void)b, (void)c;
  return submit((CUstream)1);
}

static CUresult fake_event_create(CUevent *event, unsigned flags) {
  (void)flags;
  *event = calloc(1, sizeof(struct fake_event));
  __atomic_fetch_add(&fake_events_made, 1, __ATOMIC_SEQ_CST);
  return XSI_CU_SUCCESS;
}
static CUresult fake_event_record(CUevent handle, CUstream stream) {
  struct fake_event *event = (struct fake_event *)handle;
  STORE(event->stream, stream_of(stream));
  STORE(event->at, LOAD(event->stream->submitted));
  STORE(event->behind, LOAD(event->stream->awaits));
  return XSI_CU_SUCCESS;
}
static CUresult fake_event_query(CUevent handle) {
  struct fake_event *event = (struct fake_event *)handle;
  struct fake_stream *stream = LOAD(event->stream);
  // A launcher at its limit asks in relaxed mode, and the device gets on meanwhile.
  char name[16] = "";
  pthread_getname_np(pthread_self(), name, sizeof name);
  if (stream && capture_mode == XSI_CU_CAPTURE_RELAXED && !LOAD(fake_stuck) &&
      strcmp(name, "xsched-watch") != 0)
    raise_to(&stream->done, LOAD(event->at));
  if (stream && LOAD(event->behind) && LOAD(stream->awaits)) return XSI_CU_NOT_READY;
  return !stream || LOAD(stream->done) >= LOAD(event->at) ? XSI_CU_SUCCESS : XSI_CU_NOT_READY;
}
static CUresult fake_event_sync(CUevent handle) {
  struct fake_event *event = (struct fake_event *)handle;
  struct fake_stream *stream = LOAD(event->stream);
  if (stream && LOAD(stream->done) < LOAD(event->at)) until_released(stream);
  if (stream) raise_to(&stream->done, LOAD(event->at));
  return XSI_CU_SUCCESS;
}
static CUresult fake_event_destroy(CUevent event) {
  (void)event; // kept: a stale pointer must stay readable for the checks
  return XSI_CU_SUCCESS;
}

static CUresult fake_stream_create(CUstream *stream, unsigned flags) {
  (void)flags;
  struct fake_stream *made = calloc(1, sizeof *made);
  made->context = current;
  *stream = (CUstream)made;
  return XSI_CU_SUCCESS;
}
static CUresult fake_stream_destroy(CUstream handle) {
  struct fake_stream *stream = stream_of(handle);
  wait_for_room(stream->context);
  if (LOAD(stream->capturing)) {
    __atomic_fetch_sub(&stream->context->capturing, 1, __ATOMIC_SEQ_CST);
    __atomic_fetch_sub(&captures, 1, __ATOMIC_SEQ_CST);
  }
  STORE(stream->destroyed, 1);
  return XSI_CU_SUCCESS;
}
static CUresult fake_stream_context(CUstream stream, CUcontext *context) {
  *context = (CUcontext)stream_of(stream)->context;
  return XSI_CU_SUCCESS;
}

static CUresult fake_stream_priority(CUstream stream, int *priority) {
  *priority = stream_of(stream)->priority;
  return XSI_CU_SUCCESS;
}

static CUresult fake_begin(CUstream handle, CUstreamCaptureMode mode) {
  (void)mode;
  struct fake_stream *stream = stream_of(handle);
  if (LOAD(stream->capturing)) return 401;
  wait_for_room(stream->context);
  STORE(stream->capturing, 1);
  __atomic_fetch_add(&stream->context->capturing, 1, __ATOMIC_SEQ_CST);
  __atomic_fetch_add(&captures, 1, __ATOMIC_SEQ_CST);
  return XSI_CU_SUCCESS;
}
static CUresult fake_end(CUstream handle, CUgraph *graph) {
  struct fake_stream *stream = stream_of(handle);
  if (!LOAD(stream->capturing)) return 401;
  STORE(stream->capturing, 0);
  __atomic_fetch_sub(&stream->context->capturing, 1, __ATOMIC_SEQ_CST);
  __atomic_fetch_sub(&captures, 1, __ATOMIC_SEQ_CST);
  if (graph) *graph = NULL;
  return XSI_CU_SUCCESS;
}
static CUresult fake_recapture(CUstream handle, CUstreamCaptureMode mode, CUgraph graph,
                               CUgraphRecaptureCallback callback, void *data) {
  (void)graph, (void)callback, (void)data;
  return fake_begin(handle, mode);
}
static CUresult fake_begin_cig(CUstream handle, CUstreamCigCaptureParams *parameters) {
  (void)parameters;
  return fake_begin(handle, 0);
}
static CUresult fake_end_cig(CUstream handle) { return fake_end(handle, NULL); }
static CUresult fake_is_capturing(CUstream handle, CUstreamCaptureStatus *status) {
  if ((uintptr_t)handle <= 1 && LOAD(current->capturing)) return 906;
  *status = LOAD(stream_of(handle)->capturing);
  return XSI_CU_SUCCESS;
}
static CUresult fake_exchange_mode(CUstreamCaptureMode *mode) {
  CUstreamCaptureMode before = capture_mode;
  CHECK(*mode == XSI_CU_CAPTURE_RELAXED || before == XSI_CU_CAPTURE_RELAXED);
  capture_mode = *mode;
  *mode = before;
  watching = true;
  return XSI_CU_SUCCESS;
}

_Thread_local uint64_t fake_asked_current;
static CUresult fake_get_current(CUcontext *context) {
  fake_asked_current++;
  *context = (CUcontext)current;
  return XSI_CU_SUCCESS;
}
static _Thread_local struct fake_context *below;
static CUresult fake_push(CUcontext context) {
  CHECK(!LOAD(((struct fake_context *)context)->destroyed));
  below = current;
  current = (struct fake_context *)context;
  return XSI_CU_SUCCESS;
}
static CUresult fake_pop(CUcontext *context) {
  *context = (CUcontext)current;
  current = below;
  return XSI_CU_SUCCESS;
}
static CUresult fake_device(CUdevice_v1 *device) {
  *device = 3;
  return XSI_CU_SUCCESS;
}
static CUresult fake_pci(char *name, int bytes, CUdevice_v1 device) {
  CHECK(device == 3 && bytes > 13);
  strcpy(name, "0000:3B:01.2");
  return XSI_CU_SUCCESS;
}
static CUresult fake_context_create(CUcontext *context, unsigned flags, CUdevice_v1 device) {
  (void)flags, (void)device;
  current = calloc(1, sizeof *current);
  current->legacy.context = current;
  *context = (CUcontext)current;
  return XSI_CU_SUCCESS;
}
static CUresult fake_context_destroy(CUcontext context) {
  STORE(((struct fake_context *)context)->destroyed, 1);
  if (current == (struct fake_context *)context) current = NULL;
  return XSI_CU_SUCCESS;
}
static CUresult fake_context_sync(void) {
  meanwhile();
  return XSI_CU_SUCCESS;
}

static CUresult fake_memset(CUdeviceptr_v2 a, unsigned char b, size_t c, CUstream stream) {
  (void)a, (void)b, (void)c;
  return submit(stream);
}
static CUresult fake_nothing(void) { return XSI_CU_SUCCESS; }
static CUresult fake_register(void *page, size_t bytes, unsigned flags) {
  CHECK(page && bytes == 4096 && flags == XSI_CU_HOST_MAPPED);
  return XSI_CU_SUCCESS;
}
static CUresult fake_device_pointer(CUdeviceptr_v2 *address, void *page, unsigned flags) {
  CHECK(flags == 0);
  *address = (uintptr_t)page;
  return XSI_CU_SUCCESS;
}

void fake_install(void) {
#define BIND(symbol, function) xsi_cu_real[XSI_CU_##symbol] = (void *)function
  BIND(cuLaunchKernel, fake_launch);
  BIND(cuLaunchKernel_ptsz, fake_launch_ptsz);
  BIND(cuStreamSynchronize, fake_sync);
  BIND(cuStreamSynchronize_ptsz, fake_sync_ptsz);
  BIND(cuStreamQuery, fake_query);
  BIND(cuMemcpyHtoDAsync_v2, fake_copy_async);
  BIND(cuMemcpyHtoD_v2, fake_copy);
  BIND(cuMemcpyDtoH_v2, fake_copy_back);
  BIND(cuMemcpyHtoD_v2_ptds, fake_copy_ptds);
  BIND(cuMemcpyDtoH_v2_ptds, fake_copy_back_ptds);
  BIND(cuMemcpyDtoHAsync_v2_ptsz, fake_back_async_ptsz);
  BIND(cuMemsetD8Async, fake_memset);
  BIND(cuMemcpy, fake_copy_any);
  BIND(cuMemHostRegister_v2, fake_register);
  BIND(cuMemHostGetDevicePointer_v2, fake_device_pointer);
  BIND(cuStreamAddCallback, fake_nothing);
  BIND(cuStreamAttachMemAsync, fake_nothing);
  BIND(cuGraphLaunch, fake_nothing);
  BIND(cuGraphUpload, fake_nothing);
  BIND(cuMemAllocAsync, fake_nothing);
  BIND(cuMemcpyPeerAsync, fake_nothing);
  BIND(cuLaunchCooperativeKernel, fake_nothing);
  BIND(cuLaunchKernelEx, fake_nothing);
  BIND(cuLaunchCooperativeKernelMultiDevice, fake_nothing);
  BIND(cuEventElapsedTime, fake_nothing);
  BIND(cuStreamWaitEvent, fake_nothing);
  BIND(cuSignalExternalSemaphoresAsync, fake_nothing);
  BIND(cuWaitExternalSemaphoresAsync, fake_nothing);
  BIND(cuMemHostRegister, fake_nothing);
  BIND(cuGraphicsMapResources, fake_nothing);
  BIND(cuMemcpy3DBatchAsync, fake_3d_batch_v1);
  BIND(cuMemcpy3DBatchAsync_v2, fake_3d_batch);
  BIND(cuLaunchHostFunc, fake_host_function);
  BIND(cuMemcpyDtoHAsync_v2, fake_back_async);
  BIND(cuMemcpy2DAsync_v2, fake_2d_async);
  BIND(cuPointerGetAttribute, fake_pointer);
  BIND(cuStreamWriteValue32_v2, fake_write);
  BIND(cuStreamWaitValue32_v2, fake_await);
  BIND(cuStreamBatchMemOp_v2, fake_batch);
  BIND(cuCtxRecordEvent, fake_context_record);
  BIND(cuMemcpyDtoD_v2, fake_copy_on_device);
  BIND(cuEventCreate, fake_event_create);
  BIND(cuEventRecord, fake_event_record);
  BIND(cuEventQuery, fake_event_query);
  BIND(cuEventSynchronize, fake_event_sync);
  BIND(cuEventDestroy_v2, fake_event_destroy);
  BIND(cuStreamCreate, fake_stream_create);
  BIND(cuStreamDestroy_v2, fake_stream_destroy);
  BIND(cuStreamGetCtx, fake_stream_context);
  BIND(cuStreamGetPriority, fake_stream_priority);
  BIND(cuStreamBeginCapture_v2, fake_begin);
  BIND(cuStreamEndCapture, fake_end);
  BIND(cuStreamBeginRecaptureToGraph, fake_recapture);
  BIND(cuStreamBeginCaptureToCig, fake_begin_cig);
  BIND(cuStreamEndCaptureToCig, fake_end_cig);
  BIND(cuStreamIsCapturing, fake_is_capturing);
  BIND(cuThreadExchangeStreamCaptureMode, fake_exchange_mode);
  BIND(cuCtxGetCurrent, fake_get_current);
  BIND(cuCtxPushCurrent_v2, fake_push);
  BIND(cuCtxPopCurrent_v2, fake_pop);
  BIND(cuCtxGetDevice, fake_device);
  BIND(cuDeviceGetPCIBusId, fake_pci);
  BIND(cuCtxCreate_v2, fake_context_create);
  BIND(cuCtxDestroy_v2, fake_context_destroy);
  BIND(cuCtxSynchronize, fake_context_sync);
}

struct fake_context *fake_unseen_context(void) {
  CUcontext context;
  CHECK(fake_context_create(&context, 0, 3) == 0);
  return (struct fake_context *)context;
}

struct fake_context *fake_context(void) {
  CUcontext context;
  CHECK(cuCtxCreate_v2(&context, 0, 3) == 0);
  return (struct fake_context *)context;
}

CUstream fake_stream(void) {
  CUstream stream;
  CHECK(cuStreamCreate(&stream, 0) == 0);
  return stream;
}

void fake_finish(CUstream stream) {
  struct fake_stream *it = stream_of(stream);
  raise_to(&it->done, LOAD(it->submitted));
}
