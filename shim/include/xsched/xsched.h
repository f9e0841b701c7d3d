/* SPDX-License-Identifier: Apache-2.0
 *
 * The C interface of libxsched.so: hints, queues the program makes itself, and marks for requests.
 * Names, numbers and meanings of the X*, Hw* and Cuda* functions are those of upstream XSched, so
 * that programs written for it compile; xs_* is ours. docs/programming.md says what differs.
 *
 * Link with -lxsched, or dlopen("libxsched.so") what the loader has preloaded. Without a daemon
 * every call succeeds and changes nothing; with XSCHED_DISABLE=1 the same. All functions may be
 * called from any thread.
 *
 * tools/apigen reads the enums of this header (anonymous enums with a typedef name, values written
 * out) and writes python/xsched/enums_gen.py.
 */
#ifndef XSCHED_XSCHED_H
#define XSCHED_XSCHED_H

#include <stddef.h>
#include <stdint.h>

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

typedef enum {
  kQueueCreateFlagNone = 0,
  kQueueCreateFlagBlockingSubmit = 1, /* what every submit here is */
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
  kQueueResumeFlagDropCommands = 1, /* not supported: nothing is ever buffered */
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
  kPolicyFirstInFirstOut = 100, /* ours from here on */
  kPolicyRoundRobin = 101,
  kPolicyEarliestDeadlineFirst = 102,
  kPolicyServiceLevel = 103,
} XPolicyType;

typedef XResult (*LaunchCallback)(HwQueueHandle, void *);

typedef int32_t Priority; /* bigger is more important */
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

typedef int64_t Laxity; /* microseconds */
#define NO_LAXITY (-1)

typedef int64_t Deadline; /* microseconds */
#define NO_DEADLINE (-1)

/* ---- queues of the program's own -------------------------------------------------- */

/* A queue is one stream that is scheduled by itself. level must be kPreemptLevelBlock: the hardware
 * can't stop one stream of a process alone, so the higher ones are not supported here. */
XResult XQueueCreate(XQueueHandle *xq, HwQueueHandle hwq, int64_t level, int64_t flags);
XResult XQueueDestroy(XQueueHandle xq);
XResult XQueueGet(XQueueHandle *xq, HwQueueHandle hwq);
XResult XQueueSetPreemptLevel(XQueueHandle xq, XPreemptLevel level);
/* Most launches in flight while others may want the GPU, and launches between two checks of that. */
XResult XQueueSetLaunchConfig(XQueueHandle xq, int64_t threshold, int64_t batch_size);
/* Waits until the queue may run, then launches in the calling thread and returns what the launch
 * returned. Nothing is buffered. */
XResult XQueueSubmit(XQueueHandle xq, HwCommandHandle hw_cmd);
/* Waits for the command: for all that was in the stream when it is called. */
XResult XQueueWait(XQueueHandle xq, HwCommandHandle hw_cmd);
XResult XQueueWaitAll(XQueueHandle xq);
XResult XQueueQuery(XQueueHandle xq, XQueueState *state);
/* Holds the stream's next launches until XQueueResume, whatever the scheduler says. With any flag it
 * returns after what is in the stream is over. */
XResult XQueueSuspend(XQueueHandle xq, int64_t flags);
XResult XQueueResume(XQueueHandle xq, int64_t flags);
/* Commands submitted so far. */
XResult XQueueProfileHwCommandCount(XQueueHandle xq, int64_t *count);

XResult HwQueueDestroy(HwQueueHandle hwq);
/* Launches past every gate of ours. */
XResult HwQueueLaunch(HwQueueHandle hwq, HwCommandHandle hw_cmd);
XResult HwQueueSynchronize(HwQueueHandle hwq);
XResult HwCommandCreateCallback(HwCommandHandle *hw_cmd, LaunchCallback launch, void *data);
XResult HwCommandDestroy(HwCommandHandle hw_cmd);

#ifndef XSCHED_CUSTREAM_
#define XSCHED_CUSTREAM_
typedef struct CUstream_st *CUstream; /* as cuda.h has it */
#endif
/* The stream of the current context; NULL is the default stream. Destroy the queues before it. */
XResult CudaQueueCreate(HwQueueHandle *hwq, CUstream stream);
XResult CudaQueueGet(HwQueueHandle *hwq, CUstream stream);

/* ---- hints: xq is a queue, or 0 for the whole process -------------------------------- */

/* kSchedulerAppManaged: nobody but the program holds its queues. kSchedulerGlobal: the daemon.
 * kSchedulerLocal: a private daemon, if `xsched run --local` started one; it takes the policy. */
XResult XHintSetScheduler(XSchedulerType scheduler, XPolicyType policy);
XResult XHintPriority(XQueueHandle xq, Priority prio);
XResult XHintUtilization(XQueueHandle xq, Utilization util);
XResult XHintTimeslice(Timeslice ts_us);
XResult XHintLaxity(XQueueHandle xq, Laxity lax_us, Priority lax_prio, Priority crit_prio);
XResult XHintDeadline(XQueueHandle xq, Deadline ddl_us);
XResult XHintKDeadline(size_t k);

/* ---- ours ------------------------------------------------------------------------- */

/* struct xs_hint sets several hints at once: all are taken, or none. */
#include "xsched/hints_gen.h"

XResult xs_hint_set(XQueueHandle xq, const xs_hint *hint);
/* The same about a queue that xs_queues shows, by its index; from then on it is scheduled by itself.
 * kXSchedErrorNotFound: there is none. */
XResult xs_queue_hint(uint32_t index, const xs_hint *hint);

/* A request of the program begins, and ends: what the SLO policy measures. Up to 16 names, up to
 * 1024 requests at once; beyond that begin returns 0, which end ignores. */
uint64_t xs_request_begin(const char *name);
void xs_request_end(uint64_t request);

/* What this process has: contexts and streams that are scheduled. */
typedef enum {
  kQueueKindContext = 0,
  kQueueKindStream = 1,
} XSQueueKind;

typedef struct xs_queue_info {
  uint32_t index;
  uint32_t kind; /* XSQueueKind */
  uint32_t pci_domain;
  uint32_t pci_bus_slot; /* bus << 8 | device << 3 | function */
  int32_t priority;      /* of the stream, added to the process's */
  uint32_t busy;
  uint32_t held; /* by the scheduler's gate, now */
  uint32_t rsv;
  uint64_t submitted;
} xs_queue_info;

/* Writes up to room of them and returns how many there are. */
uint32_t xs_queues(xs_queue_info *list, uint32_t room);

/* 1: a daemon schedules this process now. 0: it runs natively. */
int xs_available(void);
/* An XSchedulerType. */
int xs_scheduler(void);
/* Of this interface; grows with it. */
#define XS_API_VERSION 2
uint32_t xs_api_version(void);

#ifdef __cplusplus
}
#endif

#endif /* XSCHED_XSCHED_H */
