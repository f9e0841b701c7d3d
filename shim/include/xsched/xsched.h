/* SPDX-License-Identifier: Apache-2.0
 *
 * The C interface of libxsched.so: hints, explicit queues, and request marks. The X*, Hw*, Cuda*,
 * Hip* and Ocl* functions have upstream XSched's names, values and semantics, so that its programs
 * compile. xs_* functions are extensions. docs/programming.md lists the differences. HIP streams are
 * in xsched/hip/hal.h, OpenCL command queues in xsched/opencl/hal.h.
 *
 * Link with -lxsched (pkg-config xsched), or dlopen("libxsched.so.2") the preloaded library. Without
 * a daemon, or with XSCHED_DISABLE=1, every call succeeds without effect. All functions are
 * thread-safe.
 *
 * tools/apigen generates python/xsched/enums_gen.py from the anonymous enums with a typedef name
 * and explicit values.
 */
#ifndef XSCHED_XSCHED_H
#define XSCHED_XSCHED_H

#include <stddef.h>
#include <stdint.h>

#include "xsched/version.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- types ---------------------------------------------------------------------- */

typedef uint64_t XDevice;
typedef uint32_t XDeviceId;
typedef uint64_t XQueueHandle;
typedef uint64_t HwQueueHandle;
typedef uint64_t HwCommandHandle;

typedef enum {
  kXSchedSuccess = 0,
  kXSchedErrorHardware = 1,
  kXSchedErrorInvalidValue = 2,
  kXSchedErrorNotFound = 3,
  kXSchedErrorNotAllowed = 4,
  kXSchedErrorNotSupported = 5,
  kXSchedErrorBadResponse = 6,
  kXSchedErrorUnknown = 999,
} XResult;

typedef enum {
  kPlatformUnknown = 0,
  kPlatformVPI = 1,
  kPlatformCUDA = 2,
  kPlatformCUDLA = 3,
  kPlatformHIP = 4,
  kPlatformAscend = 5,
  kPlatformOpenCL = 6,
  kPlatformLevelZero = 7,
} XPlatform;

typedef enum {
  kDeviceTypeUnknown = 0,
  kDeviceTypeCPU = 1,
  kDeviceTypeGPU = 2,
  kDeviceTypeNPU = 3,
  kDeviceTypeFPGA = 4,
  kDeviceTypeASIC = 5,
  kDeviceTypeMCA = 6,
} XDeviceType;

typedef enum {
  kPreemptLevelUnknown = 0,
  kPreemptLevelBlock = 1,
  kPreemptLevelDeactivate = 2,
  kPreemptLevelInterrupt = 3,
  kPreemptLevelMax = 4,
} XPreemptLevel;

typedef enum {
  kQueueStateUnknown = 0,
  kQueueStateIdle = 1,
  kQueueStateReady = 2,
} XQueueState;

/* XSched's queues have the dynamic threshold, dynamic batch size and synchronous suspend. */
typedef enum {
  kQueueFeatureNone = 0,
  kQueueFeatureAsyncSubmit = 1,
  kQueueFeatureDynamicLevel = 2,
  kQueueFeatureDynamicThreshold = 4,
  kQueueFeatureDynamicBatchSize = 8,
  kQueueFeatureSyncSuspend = 16,
  kQueueFeatureResumeDropCommands = 32,
  kQueueFeatureMaskAll = -1,
} XQueueFeature;

typedef enum {
  kQueueCreateFlagNone = 0,
  kQueueCreateFlagBlockingSubmit = 1, /* implied: every submit blocks */
  kQueueCreateFlagMaskAll = -1,
} XQueueCreateFlag;

typedef enum {
  kQueueSuspendFlagNone = 0,
  kQueueSuspendFlagSyncHwQueue = 1,
  kQueueSuspendFlagWaitAll = 2,
  kQueueSuspendFlagWaitIdle = 4,
  kQueueSuspendFlagMaskAll = -1,
} XQueueSuspendFlag;

typedef enum {
  kQueueResumeFlagNone = 0,
  kQueueResumeFlagDropCommands = 1, /* not supported: nothing is buffered */
  kQueueResumeFlagMaskAll = -1,
} XQueueResumeFlag;

typedef enum {
  kSchedulerUnknown = 0,
  kSchedulerAppManaged = 1,
  kSchedulerLocal = 2,
  kSchedulerGlobal = 3,
  kSchedulerMax = 4,
} XSchedulerType;

typedef enum {
  kPolicyUnknown = 0,
  kPolicyHighestPriorityFirst = 1,
  kPolicyHeterogeneousHighestPriorityFirst = 2,
  kPolicyCPUHighestPriorityFirst = 3,
  kPolicyUtilizationPartition = 4,
  kPolicyProcessUtilizationPartition = 5,
  kPolicyStrictProcessUtilizationPartition = 6,
  kPolicyKEarliestDeadlineFirst = 7,
  kPolicyLaxity = 8,
  kPolicyActiveWindowFirst = 9,
  kPolicyCompletelyFairScheduler = 10,
  kPolicyMultiLevelFeedbackQueue = 11,
  kPolicyMax = 12,
  kPolicyFirstInFirstOut = 100, /* extensions from here on */
  kPolicyRoundRobin = 101,
  kPolicyEarliestDeadlineFirst = 102,
  kPolicyServiceLevel = 103,
} XPolicyType;

typedef XResult (*LaunchCallback)(HwQueueHandle, void *);

typedef int32_t Priority; /* higher is more important */
#define PRIORITY_NO_EXECUTE (-256)
#define PRIORITY_MIN (-255)
#define PRIORITY_DEFAULT 0
#define PRIORITY_MAX 255

typedef int32_t Utilization; /* percent of a device */
#define UTILIZATION_MIN 0
#define UTILIZATION_DEFAULT 100
#define UTILIZATION_MAX 100

typedef int64_t Timeslice; /* microseconds */
#define TIMESLICE_MIN 100
#define TIMESLICE_DEFAULT 5000
#define TIMESLICE_MAX 10000000
#define TIMESLICE_UNLIMITED UINT64_MAX /* the same as TIMESLICE_MAX */

typedef int64_t Laxity; /* microseconds */
#define NO_LAXITY (-1)

typedef int64_t Deadline; /* microseconds */
#define NO_DEADLINE (-1)

/* ---- explicit queues ------------------------------------------------------------ */

/* A queue is one individually scheduled stream. level must be kPreemptLevelBlock, because the
 * hardware can't preempt a single stream of a process. */
XResult XQueueCreate(XQueueHandle *xq, HwQueueHandle hwq, int64_t level, int64_t flags);
XResult XQueueDestroy(XQueueHandle xq);
XResult XQueueGet(XQueueHandle *xq, HwQueueHandle hwq);
XResult XQueueSetPreemptLevel(XQueueHandle xq, int64_t level);
/* Limit on launches in flight under contention, and launches between two checks of the limit. */
XResult XQueueSetLaunchConfig(XQueueHandle xq, int64_t threshold, int64_t batch_size);
/* Waits until the queue may run, then launches in the calling thread and returns the launch's
 * result. Nothing is buffered. */
XResult XQueueSubmit(XQueueHandle xq, HwCommandHandle hw_cmd);
/* Waits for the command, that is, for all work in the stream at the time of the call. */
XResult XQueueWait(XQueueHandle xq, HwCommandHandle hw_cmd);
XResult XQueueWaitAll(XQueueHandle xq);
XResult XQueueQuery(XQueueHandle xq, XQueueState *state);
/* Holds the stream's launches until XQueueResume, regardless of the scheduler. With any flag, the
 * call also waits for the work in the stream. */
XResult XQueueSuspend(XQueueHandle xq, int64_t flags);
XResult XQueueResume(XQueueHandle xq, int64_t flags);
/* Commands submitted so far. */
XResult XQueueProfileHwCommandCount(XQueueHandle xq, int64_t *count);

XResult HwQueueDestroy(HwQueueHandle hwq);
/* Launches without passing a gate. */
XResult HwQueueLaunch(HwQueueHandle hwq, HwCommandHandle hw_cmd);
XResult HwQueueSynchronize(HwQueueHandle hwq);
XResult HwCommandCreateCallback(HwCommandHandle *hw_cmd, LaunchCallback launch, void *data);
XResult HwCommandDestroy(HwCommandHandle hw_cmd);

#ifndef XSCHED_CUSTREAM_
#define XSCHED_CUSTREAM_
typedef struct CUstream_st *CUstream; /* as in cuda.h */
#endif
/* A stream of the current context; NULL: the default stream. Destroy the queue first. */
XResult CudaQueueCreate(HwQueueHandle *hwq, CUstream stream);
XResult CudaQueueGet(HwQueueHandle *hwq, CUstream stream);

/* ---- hints: xq is a queue, or 0 for the process ---------------------------------- */

/* kSchedulerAppManaged: only the program holds its queues. kSchedulerGlobal: the daemon schedules.
 * kSchedulerLocal: a private daemon schedules with policy; it is started once the program has a
 * queue. kXSchedErrorNotSupported: the xsched program was not found. */
XResult XHintSetScheduler(XSchedulerType scheduler, XPolicyType policy);
XResult XHintPriority(XQueueHandle xq, Priority prio);
XResult XHintUtilization(XQueueHandle xq, Utilization util);
XResult XHintTimeslice(Timeslice ts_us);
XResult XHintLaxity(XQueueHandle xq, Laxity lax_us, Priority lax_prio, Priority crit_prio);
XResult XHintDeadline(XQueueHandle xq, Deadline ddl_us);
XResult XHintKDeadline(size_t k);

/* ---- extensions ----------------------------------------------------------------- */

/* struct xs_hint sets several hints atomically. */
#include "xsched/hints_gen.h"

XResult xs_hint_set(XQueueHandle xq, const xs_hint *hint);
/* Sets hints of a queue by its index in xs_queues and schedules the queue individually.
 * kXSchedErrorNotFound: no such queue. */
XResult xs_queue_hint(uint32_t index, const xs_hint *hint);

/* Mark the start and end of a request for the SLO policy: up to 16 names and 1024 concurrent
 * requests. Beyond these limits begin returns 0, which end ignores. */
uint64_t xs_request_begin(const char *name);
void xs_request_end(uint64_t request);

/* The scheduled contexts and streams of this process. */
typedef enum {
  kQueueKindContext = 0,
  kQueueKindStream = 1,
} XSQueueKind;

typedef struct xs_queue_info {
  uint32_t index;
  uint32_t kind; /* XSQueueKind */
  uint32_t pci_domain;
  uint32_t pci_bus_slot; /* bus << 8 | device << 3 | function */
  int32_t priority;      /* stream priority, added to the process's */
  uint32_t busy;
  uint32_t held; /* currently held at the gate */
  uint32_t rsv;
  uint64_t submitted;
} xs_queue_info;

/* Writes at most room entries and returns the number of queues. */
uint32_t xs_queues(xs_queue_info *list, uint32_t room);

/* 1: a daemon schedules this process, or answers and will schedule it: the library connects with the
 * first queue. 0: the process runs natively. */
int xs_available(void);
/* Returns an XSchedulerType. */
int xs_scheduler(void);
/* Version of this interface. */
#define XS_API_VERSION XS_VERSION_MAJOR
uint32_t xs_api_version(void);

#ifdef __cplusplus
}
#endif

#endif /* XSCHED_XSCHED_H */
