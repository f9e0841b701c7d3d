/* SPDX-License-Identifier: Apache-2.0
 *
 * The values that NVIDIA's management library reports. The declarations are those of its nvml.h;
 * the library keeps old functions and layouts. A function that a release lacks leaves its value out.
 */
#include "sensors.h"

#include <dlfcn.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <time.h>

#define MOST_GPUS 64
#define CLOCK_SM 1        /* NVML_CLOCK_SM */
#define TEMPERATURE_GPU 0 /* NVML_TEMPERATURE_GPU */
#define ECC_CORRECTED 0   /* NVML_MEMORY_ERROR_TYPE_CORRECTED */
#define ECC_UNCORRECTED 1 /* NVML_MEMORY_ERROR_TYPE_UNCORRECTED */
#define ECC_VOLATILE 0    /* NVML_VOLATILE_ECC: since the driver was loaded */
#define EVENT_XID 8       /* nvmlEventTypeXidCriticalError */

/* NVML_ERROR_ */
#define NOT_SUPPORTED 3
#define NO_PERMISSION 4
#define TIMEOUT 10

typedef struct device *device;
typedef struct event_set *event_set;

struct pci_info {
  char bus_id_legacy[16];
  unsigned domain, bus, device, device_id, subsystem_id;
  char bus_id[32];
};

struct memory_info {
  unsigned long long total, free, used;
};

struct event {
  device device;
  unsigned long long type, data;
  unsigned gpu_instance, compute_instance;
};

#define REQUIRED_CALLS(X)                                                                          \
  X(nvmlInit_v2, (void))                                                                           \
  X(nvmlDeviceGetCount_v2, (unsigned *))                                                           \
  X(nvmlDeviceGetHandleByIndex_v2, (unsigned, device *))                                           \
  X(nvmlDeviceGetPciInfo_v3, (device, struct pci_info *))

#define OPTIONAL_CALLS(X)                                                                          \
  X(nvmlDeviceGetMemoryInfo, (device, struct memory_info *))                                       \
  X(nvmlDeviceGetPowerUsage, (device, unsigned *))                                                 \
  X(nvmlDeviceGetEnforcedPowerLimit, (device, unsigned *))                                         \
  X(nvmlDeviceGetTemperature, (device, int, unsigned *))                                           \
  X(nvmlDeviceGetClockInfo, (device, int, unsigned *))                                             \
  X(nvmlDeviceGetCurrentClocksEventReasons, (device, unsigned long long *))                        \
  X(nvmlDeviceGetCurrentClocksThrottleReasons, (device, unsigned long long *))                     \
  X(nvmlDeviceGetTotalEccErrors, (device, int, int, unsigned long long *))                         \
  X(nvmlEventSetCreate, (event_set *))                                                             \
  X(nvmlDeviceRegisterEvents, (device, unsigned long long, event_set))                             \
  X(nvmlEventSetWait_v2, (event_set, struct event *, unsigned))

static struct {
#define X(name, args) int(*name) args;
  REQUIRED_CALLS(X)
  OPTIONAL_CALLS(X)
#undef X
  const char *(*nvmlErrorString)(int);
} nv;

/* GET calls an optional function; true if it exists and succeeds. */
#define GET(name, ...) (nv.name && nv.name(__VA_ARGS__) == 0)

static struct gpu {
  device handle;
  char id[32];
} gpus[MOST_GPUS];
static unsigned count;

static const char *text_of(int code) {
  const char *text = nv.nvmlErrorString ? nv.nvmlErrorString(code) : NULL;
  return text ? text : "unknown error";
}

static void load(void) {
  void *library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
  if (!library) line_last("absent", dlerror());
#define X(name, args) *(void **)&nv.name = dlsym(library, #name);
  REQUIRED_CALLS(X)
  OPTIONAL_CALLS(X)
  X(nvmlErrorString, )
#undef X
#define X(name, args)                                                                              \
  if (!nv.name) line_last("absent", "libnvidia-ml.so.1 has no " #name);
  REQUIRED_CALLS(X)
#undef X
}

static void find_gpus(void) {
  unsigned n = 0;
  int code = nv.nvmlInit_v2();
  if (code == 0) code = nv.nvmlDeviceGetCount_v2(&n);
  if (code != 0) line_last("error", text_of(code));
  for (unsigned i = 0; i < n && count < MOST_GPUS; i++) {
    struct gpu *g = &gpus[count];
    struct pci_info pci = {0};
    /* An index says nothing: only the address is the same everywhere. */
    if (nv.nvmlDeviceGetHandleByIndex_v2(i, &g->handle) != 0 ||
        nv.nvmlDeviceGetPciInfo_v3(g->handle, &pci) != 0)
      continue;
    snprintf(g->id, sizeof g->id, "%04x:%02x:%02x.0", pci.domain, pci.bus, pci.device);
    count++;
  }
}

/* register_events returns the set in which events arrive; NULL: none do. */
static event_set register_events(void) {
  event_set set = NULL;
  bool any = false;
  if (!nv.nvmlEventSetWait_v2 || !GET(nvmlEventSetCreate, &set)) return NULL;
  for (unsigned i = 0; i < count; i++)
    any |= GET(nvmlDeviceRegisterEvents, gpus[i].handle, EVENT_XID, set);
  return any ? set : NULL;
}

static void throttling(device handle) {
  static const struct {
    unsigned long long bit;
    const char *name;
  } reasons[] = {
      {0x02, "clock_setting"},        {0x04, "software_power_cap"},     {0x08, "hardware_slowdown"},
      {0x10, "sync_boost"},           {0x20, "software_thermal"},       {0x40, "hardware_thermal"},
      {0x80, "hardware_power_brake"}, {0x100, "display_clock_setting"},
  };
  unsigned long long bits;
  char names[256] = "";
  size_t used = 0;
  if (!GET(nvmlDeviceGetCurrentClocksEventReasons, handle, &bits) &&
      !GET(nvmlDeviceGetCurrentClocksThrottleReasons, handle, &bits))
    return;
  for (size_t i = 0; i < sizeof reasons / sizeof *reasons; i++)
    if (bits & reasons[i].bit)
      used += (size_t)snprintf(names + used, sizeof names - used, "%s\"%s\"", used ? "," : "",
                               reasons[i].name);
  line_list("throttled", names);
}

static void report(const struct gpu *g) {
  struct memory_info memory;
  unsigned value;
  unsigned long long errors;
  line_gpu(g->id);
  int code = nv.nvmlDeviceGetMemoryInfo ? nv.nvmlDeviceGetMemoryInfo(g->handle, &memory) : -1;
  if (code > 0 && code != NOT_SUPPORTED && code != NO_PERMISSION) { /* such as a GPU that is lost */
    line_text("unknown", text_of(code));
    line_gpu_end();
    return;
  }
  if (code == 0) {
    line_count("memory_total_bytes", memory.total);
    line_count("memory_used_bytes", memory.used);
    line_count("memory_free_bytes", memory.free);
  }
  if (GET(nvmlDeviceGetPowerUsage, g->handle, &value)) line_real("power_watts", value / 1e3);
  if (GET(nvmlDeviceGetEnforcedPowerLimit, g->handle, &value))
    line_real("power_limit_watts", value / 1e3);
  if (GET(nvmlDeviceGetTemperature, g->handle, TEMPERATURE_GPU, &value))
    line_real("temperature_celsius", value);
  if (GET(nvmlDeviceGetClockInfo, g->handle, CLOCK_SM, &value))
    line_count("clock_hertz", value * 1000000ULL);
  throttling(g->handle);
  if (GET(nvmlDeviceGetTotalEccErrors, g->handle, ECC_CORRECTED, ECC_VOLATILE, &errors))
    line_count("ecc_corrected", errors);
  if (GET(nvmlDeviceGetTotalEccErrors, g->handle, ECC_UNCORRECTED, ECC_VOLATILE, &errors))
    line_count("ecc_uncorrected", errors);
  line_gpu_end();
}

static int64_t now_ms(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

/* await_events reports events until the next line is due. */
static void await_events(event_set set) {
  const int64_t end = now_ms() + PERIOD_MS;
  for (int64_t left = PERIOD_MS; left > 0; left = end - now_ms()) {
    struct event event = {0};
    int code = set ? nv.nvmlEventSetWait_v2(set, &event, (unsigned)left) : -1;
    if (code == 0 && event.type == EVENT_XID) {
      for (unsigned i = 0; i < count; i++)
        if (gpus[i].handle == event.device) line_xid(gpus[i].id, event.data);
    } else {
      /* A wait may end early; after an error it does so every time. */
      sleep_ms(code == 0 || code == TIMEOUT ? 10 : end - now_ms());
    }
  }
}

void nvml_report(void) {
  load();
  find_gpus();
  event_set events = register_events();
  for (;;) {
    line_begin();
    for (unsigned i = 0; i < count; i++)
      report(&gpus[i]);
    line_end();
    await_events(events);
  }
}
