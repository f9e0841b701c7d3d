/* SPDX-License-Identifier: Apache-2.0
 *
 * The kernel driver requests of a CUDA context, with the order and handles observed on an H200: one
 * RM client per process, device, subdevice, four channel groups (8 compute channels, three times 4
 * copy channels), their engine objects, scheduling, timeslices.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "driver/rm/abi.h"
#include "standin.h"

#define CLASS_ROOT 0x41
#define CLASS_CHANNEL 0xC86F
#define CLASS_COMPUTE 0xCBC0
#define CLASS_COPY 0xC8B5
#define ENGINE_GRAPHICS 1
#define ENGINE_COPY0 9
#define NV_ERR_INVALID_DEVICE 0x26
#define NV_ERR_NO_MEMORY 0x51
#define COPY_CHANNELS 4

const bool vg_small_by_compute = true;
const char vg_container_variable[] = "NVIDIA_VISIBLE_DEVICES";
const char *const vg_visible_variables[] = {"CUDA_VISIBLE_DEVICES", NULL};

static int rm_fd = -1;
static uint32_t rm_client;
static uint32_t next_handle = 0x5c000002;
static struct { uint32_t device, subdevice; } devices[VG_MAX_DEVICES];

/* Returns the RM status, or -errno. */
static int rm_new(uint32_t parent, uint32_t *object, uint32_t object_class, void *params,
                  uint32_t params_bytes) {
  struct rm_alloc_48 a = {
      .common = {rm_client, parent, *object, object_class, (uintptr_t)params},
      .params_bytes = params_bytes,
  };
  if (ioctl(rm_fd, NV_ESC_RM_ALLOC_48, &a) != 0) return -errno;
  *object = a.common.object;
  return (int)a.status;
}

static int rm_child(uint32_t parent, uint32_t *object, uint32_t object_class, void *params,
                    uint32_t params_bytes) {
  *object = next_handle++;
  return rm_new(parent, object, object_class, params, params_bytes);
}

static void rm_delete(uint32_t parent, uint32_t object) {
  struct rm_free f = {rm_client, parent, object, 0};
  (void)ioctl(rm_fd, NV_ESC_RM_FREE, &f);
}

static int rm_call(uint32_t object, uint32_t command, void *params, uint32_t bytes) {
  struct rm_control c = {.client = rm_client,
                         .object = object,
                         .command = command,
                         .params = (uintptr_t)params,
                         .params_bytes = bytes};
  if (ioctl(rm_fd, NV_ESC_RM_CONTROL, &c) != 0) return -errno;
  return (int)c.status;
}

/* Opens the driver's file and creates this process's RM client, once. */
int vg_rm_open(void) {
  if (rm_fd >= 0) return 0;
  int fd = open("/dev/nvidiactl", O_RDWR | O_CLOEXEC);
  if (fd < 0) return -errno;
  rm_fd = fd;
  rm_client = 0;
  int status = rm_new(0, &rm_client, CLASS_ROOT, NULL, 0);
  if (status != 0) {
    close(fd);
    rm_fd = -1;
    return status < 0 ? status : -EIO;
  }
  return 0;
}

bool vg_rm_alive(void) {
  struct pollfd p = {.fd = rm_fd, .events = 0};
  return poll(&p, 1, 0) == 0;
}

/* Device and subdevice objects of a GPU, created on first use. */
static int device_objects(uint32_t ordinal) {
  if (devices[ordinal].subdevice) return 0;
  uint32_t params[14] = {ordinal}, zero = 0, device, subdevice;
  int status = rm_child(rm_client, &device, NV01_DEVICE_0, params, sizeof params);
  if (status != 0) {
    next_handle--;
    return status;
  }
  status = rm_child(device, &subdevice, NV20_SUBDEVICE_0, &zero, sizeof zero);
  if (status != 0) return status;
  devices[ordinal].device = device;
  devices[ordinal].subdevice = subdevice;
  return 0;
}

/* 1: yes, 0: no, negative: unknown. Frees its objects, because handles of contexts start at the
 * first. */
int vg_rm_device_exists(uint32_t ordinal) {
  uint32_t params[14] = {ordinal}, object = 0;
  int status = rm_new(rm_client, &object, NV01_DEVICE_0, params, sizeof params);
  if (status == 0) rm_delete(rm_client, object);
  if (status == NV_ERR_INVALID_DEVICE) return 0;
  return status == 0 ? 1 : -EIO;
}

static int make_group(uint32_t device, uint32_t engine, int channels, uint32_t engine_class,
                      uint64_t timeslice, uint32_t *group) {
  uint32_t params[5] = {0, 0, 0, engine, 0};
  int status = rm_child(device, group, KEPLER_CHANNEL_GROUP_A, params, sizeof params);
  if (status != 0) return status;
  for (int i = 0; i < channels; i++) {
    unsigned char channel_params[368] = {0};
    uint32_t channel, object;
    status = rm_child(*group, &channel, CLASS_CHANNEL, channel_params, sizeof channel_params);
    if (status != 0) return status;
    status = rm_child(channel, &object, engine_class, NULL, 0);
    if (status != 0) return status;
  }
  unsigned char schedule[3] = {1, 0, 0};
  status = rm_call(*group, NVA06C_CTRL_CMD_GPFIFO_SCHEDULE, schedule, sizeof schedule);
  if (status != 0) return status;
  return rm_call(*group, NVA06C_CTRL_CMD_SET_TIMESLICE, &timeslice, sizeof timeslice);
}

static int map_context(CUcontext context) {
  struct vg_map map = {.client = rm_client, .group = context->group, .control_fd = -1};
  map.vram_fd = map.doorbell_fd = -1;
  memcpy(map.copy_groups, context->copy_groups, sizeof map.copy_groups);
  if (ioctl(rm_fd, _IOC(_IOC_READ | _IOC_WRITE, 'F', VG_ESC_MAP, sizeof map), &map) != 0)
    return -errno;
  if (map.status != 0) return (int)map.status;
  if (map.control_fd < 0 || map.vram_fd < 0 || map.doorbell_fd < 0) return -EIO;
  int protection = PROT_READ | PROT_WRITE;
  size_t control_bytes = VG_HEADER_BYTES + (size_t)map.channels * VG_CHANNEL_BYTES;
  void *control = mmap(NULL, control_bytes, protection, MAP_SHARED, map.control_fd, 0);
  void *vram = mmap(NULL, map.vram_bytes, protection, MAP_SHARED | MAP_NORESERVE, map.vram_fd, 0);
  close(map.control_fd);
  close(map.vram_fd);
  context->doorbell = map.doorbell_fd;
  context->channels = map.channels;
  context->vram_bytes = map.vram_bytes;
  context->number = map.number;
  context->control = control == MAP_FAILED ? NULL : control;
  context->vram = vram == MAP_FAILED ? NULL : vram;
  if (!context->control || !context->vram || map.channels != VG_CHANNELS) return -ENOMEM;
  /* As with the real driver, a forked child must not share the device's memory. */
  (void)madvise(control, control_bytes, MADV_DONTFORK);
  (void)madvise(vram, map.vram_bytes, MADV_DONTFORK);
  return 0;
}

static uint64_t now_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static int memory_call(struct vg_memory *call) {
  uint64_t begun = now_ns();
  call->client = rm_client;
  if (ioctl(rm_fd, _IOC(_IOC_READ | _IOC_WRITE, 'F', VG_ESC_MEMORY, sizeof *call), call) != 0)
    return -errno;
  uint64_t took = now_ns() - begun;
  if (call->takes_ns > took) {
    uint64_t rest = call->takes_ns - took;
    struct timespec sleep = {(time_t)(rest / 1000000000u), (long)(rest % 1000000000u)};
    while (nanosleep(&sleep, &sleep) != 0 && errno == EINTR)
      ;
  }
  return (int)call->status;
}

static CUresult memory_result(int status) {
  return status == 0                  ? CUDA_SUCCESS
         : status == NV_ERR_NO_MEMORY ? CUDA_ERROR_OUT_OF_MEMORY
                                      : CUDA_ERROR_UNKNOWN;
}

/* The kernel counts, so a ticket is its size. */
CUresult vg_rm_take(CUcontext context, uint64_t bytes, uint64_t *ticket) {
  struct vg_memory call = {.group = context->group, .op = VG_MEMORY_TAKE, .bytes = bytes};
  int status = memory_call(&call);
  *ticket = status == 0 ? bytes : 0;
  /* Only this double needs descriptors for a request: without one the memory is not counted. */
  return status == -EMFILE ? CUDA_SUCCESS : memory_result(status);
}

void vg_rm_give(CUcontext context, uint64_t ticket) {
  struct vg_memory call = {.group = context->group, .op = VG_MEMORY_GIVE, .bytes = ticket};
  (void)memory_call(&call);
}

CUresult vg_rm_step(CUcontext context, uint32_t op, uint64_t bytes) {
  const uint32_t *ask = (const void *)(context->control + VG_ASK_OFFSET);
  if (op == VG_MEMORY_COPY && !__atomic_load_n(ask, __ATOMIC_RELAXED)) return CUDA_SUCCESS;
  struct vg_memory call = {.group = context->group, .op = op, .bytes = bytes};
  return memory_call(&call) == 0 ? CUDA_SUCCESS : CUDA_ERROR_UNKNOWN;
}

CUresult vg_rm_room(uint32_t ordinal, uint64_t *free_bytes, uint64_t *total) {
  struct vg_memory call = {.op = VG_MEMORY_INFO, .device = ordinal};
  int status = memory_call(&call);
  *free_bytes = call.free;
  *total = call.total;
  return memory_result(status);
}

CUresult vg_rm_create(CUcontext context, uint32_t ordinal) {
  context->doorbell = -1;
  int status = device_objects(ordinal);
  uint32_t device = devices[ordinal].device;
  if (status == 0)
    status = make_group(device, ENGINE_GRAPHICS, VG_CHANNELS, CLASS_COMPUTE, 2048, &context->group);
  for (uint32_t i = 0; status == 0 && i < 3; i++)
    status = make_group(device, ENGINE_COPY0 + i, COPY_CHANNELS, CLASS_COPY, 1024,
                        &context->copy_groups[i]);
  if (status == 0) status = map_context(context);
  if (status == 0) return CUDA_SUCCESS;
  vg_rm_destroy(context);
  return status == NV_ERR_INVALID_DEVICE ? CUDA_ERROR_INVALID_DEVICE
         : status == -ENOMEM             ? CUDA_ERROR_OUT_OF_MEMORY
                                         : CUDA_ERROR_UNKNOWN;
}

void vg_rm_destroy(CUcontext context) {
  if (context->control)
    munmap(context->control, VG_HEADER_BYTES + (size_t)context->channels * VG_CHANNEL_BYTES);
  if (context->vram) munmap(context->vram, context->vram_bytes);
  context->control = context->vram = NULL;
  if (context->doorbell >= 0) close(context->doorbell);
  context->doorbell = -1;
  uint32_t groups[4] = {context->group, context->copy_groups[0], context->copy_groups[1],
                        context->copy_groups[2]};
  for (int i = 3; i >= 0; i--)
    if (groups[i]) rm_delete(0, groups[i]);
  context->group = 0;
  memset(context->copy_groups, 0, sizeof context->copy_groups);
}
