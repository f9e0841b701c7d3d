/* SPDX-License-Identifier: Apache-2.0
 *
 * selftest: a CUDA program with one kernel, which the daemon suspends and resumes to verify
 * preemption on this driver and GPU. The daemon sends commands as packets on a socket and gets one
 * packet for each. The program never waits for the GPU while it may be suspended.
 *
 *   selftest FD     FD is a connected SOCK_SEQPACKET socket
 *   open PCI        creates a context on a GPU           -> ok NAME
 *   files           sends its control files, one each     -> file (with a descriptor) ..., then ok N
 *   launch WORK SEED                                      -> ok
 *   read            progress of the kernel                -> words W0 W1 running|done
 *   result          copies the result from the device     -> result W0 W1 S0 S1
 *   quit
 *
 * The reply to a failure is "error WHAT: CODE NAME". The program exits when the socket closes, or
 * after a time limit.
 */
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#define TIME_LIMIT_S 120
#define THREADS 128u
#define BLOCKS_PER_SM 2u
#define NOT_READY 600           /* CUDA_ERROR_NOT_READY */
#define MULTIPROCESSOR_COUNT 16 /* CU_DEVICE_ATTRIBUTE_ */
#define HOST_ALLOC_FLAGS 3u     /* CU_MEMHOSTALLOC_PORTABLE | _DEVICEMAP */
#define NON_BLOCKING 1u         /* CU_STREAM_NON_BLOCKING */

typedef int result;
typedef struct handle *handle;

#define DRIVER_CALLS(X)                                                                            \
  X(cuInit, (unsigned))                                                                            \
  X(cuGetErrorName, (result, const char **))                                                       \
  X(cuDeviceGetByPCIBusId, (int *, const char *))                                                  \
  X(cuDeviceGetName, (char *, int, int))                                                           \
  X(cuDeviceGetAttribute, (int *, int, int))                                                       \
  X(cuCtxCreate_v2, (handle *, unsigned, int))                                                     \
  X(cuStreamCreate, (handle *, unsigned))                                                          \
  X(cuModuleLoadData, (handle *, const void *))                                                    \
  X(cuModuleGetFunction, (handle *, handle, const char *))                                         \
  X(cuMemAlloc_v2, (uint64_t *, size_t))                                                           \
  X(cuMemHostAlloc, (void **, size_t, unsigned))                                                   \
  X(cuMemsetD8_v2, (uint64_t, unsigned char, size_t))                                              \
  X(cuMemcpyDtoH_v2, (void *, uint64_t, size_t))                                                   \
  X(cuLaunchKernel, (handle, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, \
                     handle, void **, void **))                                                    \
  X(cuStreamQuery, (handle))                                                                       \
  X(cuCtxSynchronize, (void))

static struct {
#define X(name, parameters) result(*name) parameters;
  DRIVER_CALLS(X)
#undef X
} cu;

/* Every thread iterates x = x * A + C from its own start and adds the result to a sum in device
 * memory. Integer arithmetic makes the sum exact in any order. Each thread also adds a value that
 * its neighbour wrote to shared memory before the loop: state that a preemption must preserve. The
 * first thread of the grid counts its iterations into host memory.
 *
 * The virtual GPU does not execute PTX. Instead it implements a kernel with this name and these
 * first three parameters, which counts in microseconds and writes its progress into the first
 * word. */
static const char ptx[] =
    ".version 7.0\n.target sm_70\n.address_size 64\n"
    ".visible .entry xs_spin(.param .u64 p_progress, .param .u32 p_iterations, .param .u32 "
    "p_seed,\n"
    "                        .param .u64 p_sum) {\n"
    "  .reg .pred %p<4>; .reg .b32 %r<16>; .reg .b64 %d<12>;\n"
    "  .shared .align 8 .b64 kept[128];\n"
    "  ld.param.u64 %d1, [p_progress]; ld.param.u32 %r1, [p_iterations];\n"
    "  ld.param.u32 %r2, [p_seed]; ld.param.u64 %d4, [p_sum];\n"
    "  cvta.to.global.u64 %d1, %d1; cvta.to.global.u64 %d4, %d4;\n"
    "  mov.u32 %r3, %ctaid.x; mov.u32 %r4, %ntid.x; mov.u32 %r5, %tid.x;\n"
    "  mad.lo.u32 %r6, %r3, %r4, %r5;\n"
    "  cvt.u64.u32 %d2, %r6; cvt.u64.u32 %d3, %r2;\n"
    "  mad.lo.u64 %d2, %d2, 0x9E3779B97F4A7C15, %d3;\n"
    "  mov.u32 %r8, kept; shl.b32 %r9, %r5, 3; add.u32 %r9, %r8, %r9;\n"
    "  st.shared.u64 [%r9], %d2;\n"
    "  bar.sync 0;\n"
    "  mov.u32 %r10, 0;\n"
    "  setp.eq.u32 %p1, %r1, 0; @%p1 bra END;\n"
    "LOOP:\n"
    "  mad.lo.u64 %d2, %d2, 6364136223846793005, 1442695040888963407;\n"
    "  add.u32 %r10, %r10, 1;\n"
    "  and.b32 %r11, %r10, 1023; or.b32 %r11, %r11, %r6; setp.ne.u32 %p2, %r11, 0; @%p2 bra NEXT;\n"
    "  cvt.u64.u32 %d5, %r10; st.volatile.global.u64 [%d1], %d5;\n"
    "NEXT:\n"
    "  setp.lt.u32 %p1, %r10, %r1; @%p1 bra LOOP;\n"
    "END:\n"
    "  bar.sync 0;\n"
    "  add.u32 %r12, %r5, 1; and.b32 %r12, %r12, 127; shl.b32 %r12, %r12, 3; add.u32 %r12, %r8, "
    "%r12;\n"
    "  ld.shared.u64 %d6, [%r12];\n"
    "  add.u64 %d2, %d2, %d6;\n"
    "  red.global.add.u64 [%d4], %d2;\n"
    "  red.global.add.u64 [%d4+8], 1;\n"
    "  setp.ne.u32 %p3, %r6, 0; @%p3 bra DONE;\n"
    "  cvt.u64.u32 %d5, %r10; st.volatile.global.u64 [%d1], %d5;\n"
    "DONE:\n  ret;\n}\n";

static struct {
  int socket;
  bool open;
  handle context, stream, function;
  volatile uint64_t *progress; /* two words of pinned memory */
  uint64_t sum;                /* two words of device memory */
  unsigned grid;
} t;

static void send_packet(const char *text, int fd) {
  struct iovec data = {(void *)text, strlen(text)};
  union {
    struct cmsghdr head;
    char bytes[CMSG_SPACE(sizeof(int))];
  } rights;
  memset(&rights, 0, sizeof rights);
  struct msghdr message = {.msg_iov = &data, .msg_iovlen = 1};
  if (fd >= 0) {
    message.msg_control = &rights;
    message.msg_controllen = sizeof rights;
    rights.head = (struct cmsghdr){
        .cmsg_len = CMSG_LEN(sizeof(int)), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS};
    memcpy(CMSG_DATA(&rights.head), &fd, sizeof fd);
  }
  while (sendmsg(t.socket, &message, MSG_NOSIGNAL) < 0)
    if (errno != EINTR) _exit(3);
}

__attribute__((format(printf, 1, 2))) static void answer(const char *format, ...) {
  char text[512];
  va_list rest;
  va_start(rest, format);
  vsnprintf(text, sizeof text, format, rest);
  va_end(rest);
  send_packet(text, -1);
}

/* Replies with an error and returns false, unless code is success. */
static bool succeeded(const char *what, result code) {
  if (code == 0) return true;
  const char *name = NULL;
  if (cu.cuGetErrorName != NULL) (void)cu.cuGetErrorName(code, &name);
  answer("error %s: %d %s", what, code, name != NULL ? name : "");
  return false;
}
#define TRY(call)                                                                                  \
  if (!succeeded(#call, (call))) return

static void open_gpu(const char *pci) {
  void *library = dlopen("libcuda.so.1", RTLD_NOW);
  if (library == NULL) {
    answer("error %s: 0", dlerror());
    return;
  }
#define X(name, parameters)                                                                        \
  if ((*(void **)&cu.name = dlsym(library, #name)) == NULL) {                                      \
    answer("error libcuda.so.1 has no " #name ": 0");                                              \
    return;                                                                                        \
  }
  DRIVER_CALLS(X)
#undef X
  int device = 0, processors = 0;
  char name[128] = "";
  handle module = NULL;
  TRY(cu.cuInit(0));
  TRY(cu.cuDeviceGetByPCIBusId(&device, pci));
  TRY(cu.cuDeviceGetName(name, sizeof name, device));
  TRY(cu.cuDeviceGetAttribute(&processors, MULTIPROCESSOR_COUNT, device));
  TRY(cu.cuCtxCreate_v2(&t.context, 0, device));
  TRY(cu.cuStreamCreate(&t.stream, NON_BLOCKING));
  TRY(cu.cuModuleLoadData(&module, ptx));
  TRY(cu.cuModuleGetFunction(&t.function, module, "xs_spin"));
  TRY(cu.cuMemHostAlloc((void **)&t.progress, 4096, HOST_ALLOC_FLAGS));
  TRY(cu.cuMemAlloc_v2(&t.sum, 16));
  t.grid = (unsigned)processors * BLOCKS_PER_SM;
  t.open = true;
  answer("ok %s", name);
}

/* Sends duplicates of all candidates for the driver's control file; the daemon selects. */
static void send_files(void) {
  DIR *files = opendir("/proc/self/fd");
  int sent = 0;
  if (files == NULL) {
    answer("error /proc/self/fd: %d", errno);
    return;
  }
  for (struct dirent *entry; sent < 64 && (entry = readdir(files)) != NULL;) {
    char path[300], link[256];
    int fd = atoi(entry->d_name);
    if (entry->d_name[0] == '.' || fd == t.socket) continue;
    snprintf(path, sizeof path, "/proc/self/fd/%s", entry->d_name);
    ssize_t length = readlink(path, link, sizeof link - 1);
    if (length < 0) continue;
    link[length] = 0;
    if (strcmp(link, "/dev/nvidiactl") != 0 && strncmp(link, "socket:[", 8) != 0) continue;
    send_packet("file", fd);
    sent++;
  }
  closedir(files);
  answer("ok %d", sent);
}

static void launch(uint32_t work, uint32_t seed) {
  TRY(cu.cuMemsetD8_v2(t.sum, 0, 16));
  TRY(cu.cuCtxSynchronize());
  t.progress[0] = t.progress[1] = 0;
  __sync_synchronize();
  uint64_t progress = (uintptr_t)t.progress; /* unified addressing: the device's address too */
  void *parameters[] = {&progress, &work, &seed, &t.sum};
  TRY(cu.cuLaunchKernel(t.function, t.grid, 1, 1, THREADS, 1, 1, 0, t.stream, parameters, NULL));
  answer("ok");
}

static void read_progress(void) {
  result code = cu.cuStreamQuery(t.stream);
  if (code != NOT_READY) TRY(code);
  answer("words %" PRIu64 " %" PRIu64 " %s", t.progress[0], t.progress[1],
         code == NOT_READY ? "running" : "done");
}

static void read_result(void) {
  uint64_t sum[2] = {0, 0};
  TRY(cu.cuMemcpyDtoH_v2(sum, t.sum, sizeof sum));
  answer("result %" PRIu64 " %" PRIu64 " %" PRIu64 " %" PRIu64, t.progress[0], t.progress[1],
         sum[0], sum[1]);
}

int main(int argc, char **argv) {
  t.socket = argc == 2 ? atoi(argv[1]) : 0;
  if (t.socket < 3) {
    fprintf(stderr, "selftest: for `xsched doctor --self-test`; usage: selftest FD\n");
    return 64;
  }
  alarm(TIME_LIMIT_S);
  prctl(PR_SET_PDEATHSIG, 9);
  prctl(PR_SET_NAME, "xsched-selftest"); /* the daemon recognizes the self-test by this name */
  for (;;) {
    char command[256];
    uint32_t work, seed;
    ssize_t n = recv(t.socket, command, sizeof command - 1, 0);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) _exit(0);
    command[n] = 0;
    if (strncmp(command, "open ", 5) == 0)
      open_gpu(command + 5);
    else if (strcmp(command, "quit") == 0)
      _exit(0);
    else if (!t.open)
      answer("error no GPU is open: 0");
    else if (strcmp(command, "files") == 0)
      send_files();
    else if (sscanf(command, "launch %" SCNu32 " %" SCNu32, &work, &seed) == 2)
      launch(work, seed);
    else if (strcmp(command, "read") == 0)
      read_progress();
    else if (strcmp(command, "result") == 0)
      read_result();
    else
      answer("error unknown command %s: 0", command);
  }
}
