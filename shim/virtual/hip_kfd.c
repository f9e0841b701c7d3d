/* SPDX-License-Identifier: Apache-2.0
 *
 * HIP contexts: requests to /dev/kfd as ROCr and libhsakmt make them. The topology is from sysfs,
 * RUNTIME_ENABLE precedes the first queue, and the render file is the GPU's memory. The first queue
 * is an internal one of 4 KiB. Streams use up to four queues of 1 MiB, created on first use, and
 * separate ones for high and low priority. A private request submits work in place of packets.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "hip.h"
#include "vkfd.h"

#define TOPOLOGY "/sys/devices/virtual/kfd/kfd/topology/nodes"
#define MAX_NODES 64
#define VRAM_BYTES (28ull << 30) /* sparse: device memory and pinned host memory */
#define RING_BYTES (1u << 20)
#define RING_PACKETS (RING_BYTES / 64)
#define INTERNAL_BYTES 4096u
#define PAGE_BYTES 4096u
#define WAVES_PER_UNIT 40u
#define DEBUG_BYTES_PER_WAVE 32u
/* Channels below FIRST_HIGH have normal priority; the first belongs to the null stream. */
#define FIRST_HIGH 4u
#define FIRST_LOW 6u

#define KFD_GET_VERSION 0x80084B01u
#define KFD_CREATE_QUEUE 0xC0604B02u
#define KFD_DESTROY_QUEUE 0xC0084B03u
#define KFD_ACQUIRE_VM 0x40084B15u
#define KFD_ALLOC_MEMORY 0xC0284B16u
#define KFD_FREE_MEMORY 0x40084B17u
#define KFD_MAP_MEMORY 0xC0184B18u
#define KFD_UNMAP_MEMORY 0xC0184B19u
#define KFD_AVAILABLE_MEMORY 0xC0104B23u
#define ALLOC_VRAM 1u
#define KFD_RUNTIME_ENABLE 0xC0104B25u
#define QUEUE_COMPUTE_AQL 2u

const bool vg_small_by_compute = false;
const char vg_container_variable[] = "AMD_VISIBLE_DEVICES";
/* The lower library narrows first: HIP counts the devices that ROCr leaves. */
const char *const vg_visible_variables[] = {"ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", NULL};

struct buffer {
  void *at;
  size_t bytes;
  uint64_t handle;
};

struct queue {
  bool made;
  uint32_t id;
  struct buffer ring, pointers, save; /* save: for preempted waves, one area per die */
  uint64_t done;                      /* last known value */
};

static int kfd = -1;
static struct hip_gpu gpus[VG_MAX_DEVICES];
static unsigned gpu_count;
static struct { struct queue channels[VG_CHANNELS], internal; } queues[VG_MAX_CONTEXTS];

const struct hip_gpu *hip_gpu_at(int ordinal) {
  return ordinal >= 0 && (unsigned)ordinal < gpu_count ? &gpus[ordinal] : NULL;
}

static CUresult failure(int error);
static int call(unsigned long request, void *arg) {
  int result;
  do
    result = ioctl(kfd, request, arg);
  while (result < 0 && errno == EINTR);
  return result < 0 ? -errno : result;
}

static void put32(unsigned char *arg, unsigned at, uint32_t value) { memcpy(arg + at, &value, 4); }
static void put64(unsigned char *arg, unsigned at, uint64_t value) { memcpy(arg + at, &value, 8); }

/* ---- topology ------------------------------------------------------------------------ */

static uint64_t property(const char *text, const char *name) {
  size_t length = strlen(name);
  for (const char *line = text; line && *line; line = strchr(line, '\n')) {
    if (*line == '\n') line++;
    if (strncmp(line, name, length) == 0 && line[length] == ' ')
      return strtoull(line + length, NULL, 10);
  }
  return 0;
}

static bool read_text(unsigned node, const char *name, char *text, size_t bytes) {
  char path[128];
  snprintf(path, sizeof path, TOPOLOGY "/%u/%s", node, name);
  FILE *file = fopen(path, "r");
  if (!file) return false;
  size_t got = fread(text, 1, bytes - 1, file);
  fclose(file);
  text[got] = 0;
  return true;
}

static void read_topology(void) {
  char text[4096];
  for (unsigned node = 0; node < MAX_NODES && gpu_count < VG_MAX_DEVICES; node++) {
    if (!read_text(node, "gpu_id", text, sizeof text)) break;
    uint32_t id = (uint32_t)strtoul(text, NULL, 10);
    if (id == 0 || !read_text(node, "properties", text, sizeof text)) continue; /* a CPU */
    struct hip_gpu *gpu = &gpus[gpu_count++];
    uint64_t per_cu = property(text, "simd_per_cu"), dies = property(text, "num_xcc");
    *gpu = (struct hip_gpu){.id = id,
                            .location = (uint32_t)property(text, "location_id"),
                            .domain = (uint32_t)property(text, "domain"),
                            .render_minor = (uint32_t)property(text, "drm_render_minor"),
                            .gfx = (uint32_t)property(text, "gfx_target_version"),
                            .units = (int)(property(text, "simd_count") / (per_cu ? per_cu : 1)),
                            .dies = dies ? (uint32_t)dies : 1,
                            .save_bytes = (uint32_t)property(text, "cwsr_size"),
                            .stack_bytes = (uint32_t)property(text, "ctl_stack_size"),
                            .render = -1};
    if (read_text(node, "mem_banks/0/properties", text, sizeof text))
      gpu->total = property(text, "size_in_bytes");
  }
}

/* Opens the driver's file and enables the runtime, once. */
int vg_rm_open(void) {
  if (kfd >= 0) return 0;
  kfd = open("/dev/kfd", O_RDWR | O_CLOEXEC);
  if (kfd < 0) return -errno;
  uint32_t version[2] = {0, 0};
  unsigned char runtime[16] = {0};
  put32(runtime, 8, 1);
  int error = call(KFD_GET_VERSION, version);
  if (error == 0 && version[0] != 1) error = -ENODEV;
  if (error == 0) error = call(KFD_RUNTIME_ENABLE, runtime);
  if (error == -ENOTTY) error = 0; /* an older driver */
  if (error == 0) {
    read_topology();
    return 0;
  }
  close(kfd);
  kfd = -1;
  return error;
}

int vg_rm_device_exists(uint32_t ordinal) { return ordinal < gpu_count; }

bool vg_rm_alive(void) {
  struct pollfd p = {.fd = kfd, .events = 0};
  return poll(&p, 1, 0) == 0;
}

/* ---- memory and queues --------------------------------------------------------------- */

/* The GPU's memory is mapped once per process and outlives contexts. */
static int acquire_memory(struct hip_gpu *gpu) {
  if (gpu->render >= 0) return 0;
  char path[64];
  snprintf(path, sizeof path, "/dev/dri/renderD%u", gpu->render_minor);
  int fd = open(path, O_RDWR | O_CLOEXEC);
  if (fd < 0) return -errno;
  unsigned char arg[8];
  put32(arg, 0, (uint32_t)fd), put32(arg, 4, gpu->id);
  int error = ftruncate(fd, VRAM_BYTES) == 0 ? call(KFD_ACQUIRE_VM, arg) : -errno;
  void *memory = MAP_FAILED;
  if (error == 0)
    memory = mmap(NULL, VRAM_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
  if (memory == MAP_FAILED) {
    close(fd);
    return error != 0 ? error : -ENOMEM;
  }
  (void)madvise(memory, VRAM_BYTES, MADV_DONTFORK);
  gpu->render = fd;
  gpu->memory = memory;
  return 0;
}

static void release(struct buffer *buffer, uint32_t gpu) {
  unsigned char arg[24] = {0};
  if (buffer->handle) {
    put64(arg, 0, buffer->handle), put64(arg, 8, (uintptr_t)&gpu), put32(arg, 16, 1);
    (void)call(KFD_UNMAP_MEMORY, arg);
    put64(arg, 0, buffer->handle);
    (void)call(KFD_FREE_MEMORY, arg);
  }
  if (buffer->at) munmap(buffer->at, buffer->bytes);
}

static void release_queue(struct queue *queue, uint32_t gpu) {
  release(&queue->ring, gpu);
  release(&queue->pointers, gpu);
  release(&queue->save, gpu);
  *queue = (struct queue){.made = false};
}

/* Memory of the program, mapped to the GPU. */
static int allocate(struct buffer *buffer, uint32_t gpu, size_t bytes) {
  void *memory =
      mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) return -ENOMEM;
  *buffer = (struct buffer){memory, bytes, 0};
  unsigned char alloc[40] = {0}, map[24] = {0};
  put64(alloc, 0, (uintptr_t)memory), put64(alloc, 8, bytes), put32(alloc, 32, gpu);
  put32(alloc, 36, 4);
  int error = call(KFD_ALLOC_MEMORY, alloc);
  if (error != 0) return error;
  memcpy(&buffer->handle, alloc + 16, 8);
  put64(map, 0, buffer->handle), put64(map, 8, (uintptr_t)&gpu), put32(map, 16, 1);
  return call(KFD_MAP_MEMORY, map);
}

/* ---- device memory ------------------------------------------------------------------- */

/* The driver records it at an address of its own; the bytes are in the render file. */
CUresult vg_rm_take(CUcontext context, uint64_t bytes, uint64_t *ticket) {
  static uint64_t next = VG_MAPPED_END;
  unsigned char alloc[40] = {0};
  put64(alloc, 0, next), put64(alloc, 8, bytes), put32(alloc, 32, gpus[context->group].id);
  put32(alloc, 36, ALLOC_VRAM);
  *ticket = 0;
  int error = call(KFD_ALLOC_MEMORY, alloc);
  if (error != 0) return failure(error);
  next += bytes;
  memcpy(ticket, alloc + 16, 8);
  return CUDA_SUCCESS;
}

void vg_rm_give(CUcontext context, uint64_t ticket) {
  unsigned char arg[8];
  (void)context;
  put64(arg, 0, ticket);
  (void)call(KFD_FREE_MEMORY, arg);
}

/* Memory that is unmapped under work: the process has a memory access fault. */
CUresult vg_rm_step(CUcontext context, uint32_t op, uint64_t bytes) {
  (void)bytes;
  if (op == VG_MEMORY_TORN) context->broken = CUDA_ERROR_ILLEGAL_ADDRESS;
  return CUDA_SUCCESS;
}

CUresult vg_rm_room(uint32_t ordinal, uint64_t *free_bytes, uint64_t *total) {
  unsigned char arg[16] = {0};
  if (ordinal >= gpu_count) return CUDA_ERROR_INVALID_DEVICE;
  put32(arg, 8, gpus[ordinal].id);
  int error = call(KFD_AVAILABLE_MEMORY, arg);
  if (error != 0) return failure(error);
  memcpy(free_bytes, arg, 8);
  *total = gpus[ordinal].total;
  return CUDA_SUCCESS;
}

/* All dies' save areas with their room for a debugger, in whole pages. */
static size_t save_total(const struct hip_gpu *gpu) {
  size_t waves = (size_t)gpu->units / gpu->dies * WAVES_PER_UNIT;
  size_t bytes = (gpu->save_bytes + waves * DEBUG_BYTES_PER_WAVE) * gpu->dies;
  return (bytes + PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES;
}

static int make_queue(struct queue *queue, const struct hip_gpu *gpu, uint32_t bytes,
                      uint32_t priority) {
  if (queue->made) return 0;
  unsigned char arg[96] = {0};
  int error = allocate(&queue->ring, gpu->id, bytes);
  if (error == 0) error = allocate(&queue->pointers, gpu->id, PAGE_BYTES);
  if (error == 0) error = allocate(&queue->save, gpu->id, save_total(gpu));
  put64(arg, 0, (uintptr_t)queue->ring.at), put32(arg, 32, bytes), put32(arg, 36, gpu->id);
  put64(arg, 8, (uintptr_t)queue->pointers.at), put64(arg, 16, (uintptr_t)queue->pointers.at + 8);
  put32(arg, 40, QUEUE_COMPUTE_AQL), put32(arg, 44, 100), put32(arg, 48, priority);
  put64(arg, 72, (uintptr_t)queue->save.at), put32(arg, 80, gpu->save_bytes);
  put32(arg, 84, gpu->stack_bytes);
  if (error == 0) error = call(KFD_CREATE_QUEUE, arg);
  if (error != 0) {
    release_queue(queue, gpu->id);
    return error;
  }
  memcpy(&queue->id, arg + 52, 4);
  queue->made = true;
  return 0;
}

static void destroy_queue(struct queue *queue, uint32_t gpu) {
  if (!queue->made) return;
  uint32_t arg[2] = {queue->id, 0};
  (void)call(KFD_DESTROY_QUEUE, arg);
  release_queue(queue, gpu);
}

static CUresult failure(int error) {
  switch (error) {
  case -ENOMEM:
  case -ENOSPC: return CUDA_ERROR_OUT_OF_MEMORY;
  case -ENODEV: return CUDA_ERROR_INVALID_DEVICE;
  case -EINVAL: return (CUresult)HIP_LAUNCH_FAILURE;
  default: return CUDA_ERROR_UNKNOWN;
  }
}

CUresult vg_rm_create(CUcontext context, uint32_t ordinal) {
  context->doorbell = -1;
  if (ordinal >= gpu_count) return CUDA_ERROR_INVALID_DEVICE;
  struct hip_gpu *gpu = &gpus[ordinal];
  int error = acquire_memory(gpu);
  if (error == 0) error = make_queue(&queues[context->index].internal, gpu, INTERNAL_BYTES, 7);
  if (error != 0) return failure(error);
  context->group = ordinal;
  context->vram = gpu->memory;
  context->vram_bytes = VRAM_BYTES;
  context->channels = VG_CHANNELS;
  context->control = gpu->memory; /* not NULL: the context is alive */
  return CUDA_SUCCESS;
}

void vg_rm_destroy(CUcontext context) {
  uint32_t gpu = gpus[context->group].id;
  for (unsigned i = 0; i < VG_CHANNELS; i++)
    destroy_queue(&queues[context->index].channels[i], gpu);
  destroy_queue(&queues[context->index].internal, gpu);
  context->control = context->vram = NULL;
}

/* ---- channels ------------------------------------------------------------------------ */

/* HIP's priorities are -1 (high), 0 and 1 (low); streams of one priority share its queues. */
uint32_t vg_pick_channel(CUcontext context, int *priority) {
  uint64_t n = context->stream_count++;
  *priority = *priority < -1 ? -1 : *priority > 1 ? 1 : *priority;
  if (*priority < 0) return FIRST_HIGH + (uint32_t)(n % 2);
  if (*priority > 0) return FIRST_LOW + (uint32_t)(n % 2);
  return 1 + (uint32_t)(n % (FIRST_HIGH - 1));
}

static int retired(struct queue *queue, bool wait, uint64_t seq) {
  struct vk_retired r = {.queue_id = queue->id, .wait = wait, .sequence = seq};
  int error = call(VK_IOC_RETIRED, &r);
  if (error == 0 && r.retired > __atomic_load_n(&queue->done, __ATOMIC_RELAXED))
    __atomic_store_n(&queue->done, r.retired, __ATOMIC_RELAXED);
  return error;
}

uint64_t vg_done(CUcontext context, uint32_t channel) {
  struct queue *queue = &queues[context->index].channels[channel];
  if (queue->made && __atomic_load_n(&queue->done, __ATOMIC_RELAXED) < context->put[channel])
    (void)retired(queue, false, 0);
  return __atomic_load_n(&queue->done, __ATOMIC_RELAXED);
}

CUresult vg_check(CUcontext context) { return context->broken; }

CUresult vg_wait(CUcontext context, uint32_t channel, uint64_t seq) {
  struct queue *queue = &queues[context->index].channels[channel];
  if (seq == 0 || __atomic_load_n(&queue->done, __ATOMIC_RELAXED) >= seq) return CUDA_SUCCESS;
  pthread_mutex_unlock(&vg_lock);
  int error = retired(queue, true, seq);
  pthread_mutex_lock(&vg_lock);
  if (context->magic != MAGIC_CONTEXT) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
  if (error != 0) return context->broken = CUDA_ERROR_UNKNOWN;
  return CUDA_SUCCESS;
}

static uint64_t place(uint64_t offset) { return offset == VG_NO_ADDRESS ? 0 : offset + 1; }

CUresult vg_append(CUcontext context, uint32_t channel, const struct vg_entry *entry) {
  if (context->broken) return context->broken;
  struct queue *queue = &queues[context->index].channels[channel];
  uint32_t priority = channel < FIRST_HIGH ? 7 : channel < FIRST_LOW ? 11 : 0;
  int error = make_queue(queue, &gpus[context->group], RING_BYTES, priority);
  if (error != 0) return failure(error);
  while (context->put[channel] - vg_done(context, channel) >= RING_PACKETS) {
    CUresult result = vg_wait(context, channel, context->put[channel] - RING_PACKETS + 1);
    if (result != CUDA_SUCCESS) return result;
  }
  struct vk_submit submit = {.queue_id = queue->id,
                             .count = 1,
                             .duration_ns = entry->amount,
                             .seed = entry->value,
                             .op = entry->op - VG_KERNEL, /* in the same order */
                             .dst = place(entry->dst),
                             .src = entry->op == VG_COPY ? place(entry->src) : 0,
                             .width = entry->width};
  if (entry->op == VG_WAIT) {
    struct queue *on = &queues[context->index].channels[entry->wait_channel];
    submit.wait_queue = on->id;
    submit.wait_sequence = entry->wait_seq;
  }
  error = call(VK_IOC_SUBMIT, &submit);
  if (error != 0) return failure(error);
  context->put[channel]++;
  return CUDA_SUCCESS;
}

void vg_kick(CUcontext context) { (void)context; }
