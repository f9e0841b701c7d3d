// SPDX-License-Identifier: Apache-2.0
//
// What the environment can say, well and badly; and how hints add up.

#include "test_support.h"

#include "hints_gen.h"

static const char *const names[] = {
    "XSCHED_AUTO_XQUEUE",
    "XSCHED_AUTO_XQUEUE_PRIORITY",
    "XSCHED_AUTO_XQUEUE_LEVEL",
    "XSCHED_AUTO_XQUEUE_THRESHOLD",
    "XSCHED_AUTO_XQUEUE_BATCH_SIZE",
    "XSCHED_AUTO_XQUEUE_UTILIZATION",
    "XSCHED_AUTO_XQUEUE_TIMESLICE",
    "XSCHED_AUTO_XQUEUE_DEADLINE",
    "XSCHED_AUTO_XQUEUE_LAXITY",
    "XSCHED_AUTO_XQUEUE_LAX_PRIORITY",
    "XSCHED_AUTO_XQUEUE_CRITICAL_PRIORITY",
    "XSCHED_AUTO_XQUEUE_KDEADLINE",
    "XSCHED_K",
    "XSCHED_WINDOW_ACTIVE",
    "XSCHED_SLO_US",
    "XSCHED_SLO_PERCENTILE",
    "XSCHED_GANG",
    "XSCHED_GRANULARITY",
    "XSCHED_SCHEDULER",
    "XSCHED_SCHED",
    "XSCHED_POLICY",
    "XSCHED_SOCKET",
    "XSCHED_DIR",
};

static void start_over(void) {
  for (unsigned i = 0; i < sizeof names / sizeof *names; i++)
    unsetenv(names[i]);
  xsi_options = (struct xsi_options){.automatic = true, .scheduler = XSW_SCHEDULER_GLOBAL};
}

static const struct xsw_hint *read_with(const char *name, const char *value) {
  start_over();
  setenv(name, value, 1);
  xsi_options_init();
  return &xsi_options.hint;
}

static void nothing_said(void) {
  start_over();
  xsi_options_init();
  CHECK(xsi_options.hint.said == 0 && xsi_options.automatic && !xsi_options.per_stream);
  CHECK(xsi_options.scheduler == XSW_SCHEDULER_GLOBAL && xsi_options.policy[0] == 0);
}

static void each_alone(void) {
  const struct xsw_hint *hint = read_with("XSCHED_AUTO_XQUEUE_PRIORITY", "-256");
  CHECK(hint->said == XSW_HINT_PRIORITY && hint->priority == -256);
  hint = read_with("XSCHED_AUTO_XQUEUE_LEVEL", "auto");
  CHECK(hint->said == XSW_HINT_LEVEL && hint->level == XSW_LEVEL_AUTO);
  hint = read_with("XSCHED_AUTO_XQUEUE_UTILIZATION", "75");
  CHECK(hint->said == XSW_HINT_UTILIZATION && hint->utilization == 75);
  hint = read_with("XSCHED_AUTO_XQUEUE_TIMESLICE", "100");
  CHECK(hint->said == XSW_HINT_TIMESLICE && hint->timeslice_us == 100);
  hint = read_with("XSCHED_AUTO_XQUEUE_DEADLINE", "1000000000000");
  CHECK(hint->said == XSW_HINT_DEADLINE && hint->deadline_us == 1000000000000);
  hint = read_with("XSCHED_AUTO_XQUEUE_LAXITY", "500");
  CHECK(hint->said == XSW_HINT_LAXITY && hint->laxity_us == 500 && hint->lax_priority == 0);
  CHECK(hint->critical_priority == XSW_PRIORITY_MAX);
  hint = read_with("XSCHED_AUTO_XQUEUE_LAXITY", "500:-20:30");
  CHECK(hint->laxity_us == 500 && hint->lax_priority == -20 && hint->critical_priority == 30);
  hint = read_with("XSCHED_AUTO_XQUEUE_LAX_PRIORITY", "-7");
  CHECK(hint->said == XSW_HINT_LAXITY && hint->lax_priority == -7 && hint->laxity_us == 0);
  hint = read_with("XSCHED_AUTO_XQUEUE_CRITICAL_PRIORITY", "9");
  CHECK(hint->said == XSW_HINT_LAXITY && hint->critical_priority == 9);
  hint = read_with("XSCHED_AUTO_XQUEUE_KDEADLINE", "1024");
  CHECK(hint->said == XSW_HINT_K && hint->k == 1024);
  hint = read_with("XSCHED_K", "7");
  CHECK(hint->said == XSW_HINT_K && hint->k == 7);
  hint = read_with("XSCHED_WINDOW_ACTIVE", "on");
  CHECK(hint->said == XSW_HINT_WINDOW_ACTIVE && hint->window_active == 1);
  hint = read_with("XSCHED_WINDOW_ACTIVE", "OFF");
  CHECK(hint->said == XSW_HINT_WINDOW_ACTIVE && hint->window_active == 0);
  hint = read_with("XSCHED_SLO_PERCENTILE", "99.9");
  CHECK(hint->said == XSW_HINT_SLO && hint->slo_percentile == 9990);
  hint = read_with("XSCHED_SLO_PERCENTILE", "50");
  CHECK(hint->slo_percentile == 5000);
  hint = read_with("XSCHED_AUTO_XQUEUE_TIMESLICE", "0");
  CHECK(hint->said == XSW_HINT_TIMESLICE && hint->timeslice_us == 0);
  hint = read_with("XSCHED_GRANULARITY", "process");
  CHECK(hint->said == XSW_HINT_PER_QUEUE && hint->per_queue == 0);
  hint = read_with("XSCHED_SLO_US", "20000");
  CHECK(hint->said == XSW_HINT_SLO && hint->slo_us == 20000);
  hint = read_with("XSCHED_GANG", "ranks");
  CHECK(hint->said == XSW_HINT_GANG && strcmp(hint->gang, "ranks") == 0);
  hint = read_with("XSCHED_GRANULARITY", "queue");
  CHECK(hint->said == XSW_HINT_PER_QUEUE && hint->per_queue == 1 && xsi_options.per_stream);
  read_with("XSCHED_AUTO_XQUEUE", "OFF");
  CHECK(!xsi_options.automatic);
  read_with("XSCHED_AUTO_XQUEUE", "on");
  CHECK(xsi_options.automatic);
  read_with("XSCHED_POLICY", "UP");
  CHECK(strcmp(xsi_options.policy, "UP") == 0);
}

static void nonsense_is_ignored(void) {
  static const char *const bad[][2] = {{"XSCHED_AUTO_XQUEUE_PRIORITY", "256"},
                                       {"XSCHED_AUTO_XQUEUE_PRIORITY", "high"},
                                       {"XSCHED_AUTO_XQUEUE_LEVEL", "0"},
                                       {"XSCHED_AUTO_XQUEUE_UTILIZATION", "101"},
                                       {"XSCHED_AUTO_XQUEUE_UTILIZATION", "-1"},
                                       {"XSCHED_AUTO_XQUEUE_TIMESLICE", "-1"},
                                       {"XSCHED_AUTO_XQUEUE_TIMESLICE", "5ms"},
                                       {"XSCHED_AUTO_XQUEUE_LAXITY", "1:2"},
                                       {"XSCHED_AUTO_XQUEUE_LAXITY", "1:2:999"},
                                       {"XSCHED_AUTO_XQUEUE_LAXITY", "1:2:3:4"},
                                       {"XSCHED_AUTO_XQUEUE_LAXITY", ":1:2"},
                                       {"XSCHED_SLO_US", "20ms"},
                                       {"XSCHED_GANG", ""},
                                       {"XSCHED_GRANULARITY", "stream"},
                                       {"XSCHED_AUTO_XQUEUE_DEADLINE", "-1"},
                                       {"XSCHED_AUTO_XQUEUE_THRESHOLD", "-1"},
                                       {"XSCHED_AUTO_XQUEUE_DEADLINE", "99999999999999999999"},
                                       {"XSCHED_K", "-1"},
                                       {"XSCHED_WINDOW_ACTIVE", "perhaps"},
                                       {"XSCHED_SLO_PERCENTILE", "100"},
                                       {"XSCHED_SLO_PERCENTILE", "99.999"},
                                       {"XSCHED_SLO_PERCENTILE", "0.5"},
                                       {"XSCHED_SLO_PERCENTILE", "P99"},
                                       {"XSCHED_SLO_PERCENTILE", "99."},
                                       {"XSCHED_SLO_PERCENTILE", ".5"},
                                       {"XSCHED_SLO_PERCENTILE", "99.-1"},
                                       {"XSCHED_GANG", "a\nb"},
                                       {"XSCHED_AUTO_XQUEUE_LAX_PRIORITY", "256"},
                                       {"XSCHED_AUTO_XQUEUE_CRITICAL_PRIORITY", "x"}};
  for (unsigned i = 0; i < sizeof bad / sizeof *bad; i++)
    CHECK(read_with(bad[i][0], bad[i][1])->said == 0);
  char name[200];
  memset(name, 'x', sizeof name - 1);
  name[sizeof name - 1] = 0;
  CHECK(read_with("XSCHED_GANG", name)->said == 0);
  read_with("XSCHED_POLICY", name);
  CHECK(xsi_options.policy[0] == 0);
  read_with("XSCHED_AUTO_XQUEUE", "perhaps");
  CHECK(xsi_options.automatic);
}

// Upstream's ranges are larger: the nearest possible value is taken.
static void upstream_ranges(void) {
  CHECK(read_with("XSCHED_AUTO_XQUEUE_TIMESLICE", "1")->timeslice_us == 100);
  CHECK(read_with("XSCHED_AUTO_XQUEUE_TIMESLICE", "20000000")->timeslice_us == 10000000);
  CHECK(read_with("XSCHED_AUTO_XQUEUE_KDEADLINE", "9223372036854775807")->k == XSI_HINT_K_MAX);
  CHECK(read_with("XSCHED_AUTO_XQUEUE_DEADLINE", "9223372036854775807")->deadline_us ==
        XSI_HINT_DEADLINE_US_MAX);
  CHECK(read_with("XSCHED_AUTO_XQUEUE_LAXITY", "9223372036854775807")->laxity_us ==
        XSI_HINT_LAXITY_US_MAX);
  CHECK(read_with("XSCHED_AUTO_XQUEUE_THRESHOLD", "9999999")->in_flight == XSI_HINT_IN_FLIGHT_MAX);
}

// The three of a laxity, each with a variable of its own.
static void laxity_in_parts(void) {
  start_over();
  setenv("XSCHED_AUTO_XQUEUE_LAXITY", "500", 1);
  setenv("XSCHED_AUTO_XQUEUE_LAX_PRIORITY", "-3", 1);
  setenv("XSCHED_AUTO_XQUEUE_CRITICAL_PRIORITY", "40", 1);
  xsi_options_init();
  const struct xsw_hint *hint = &xsi_options.hint;
  CHECK(hint->said == XSW_HINT_LAXITY && hint->laxity_us == 500 && hint->lax_priority == -3 &&
        hint->critical_priority == 40);
}

static void schedulers(void) {
  static const struct {
    const char *name, *value;
    uint32_t scheduler;
  } cases[] = {{"XSCHED_SCHEDULER", "GLB", XSW_SCHEDULER_GLOBAL},
               {"XSCHED_SCHEDULER", "lcl", XSW_SCHEDULER_LOCAL},
               {"XSCHED_SCHED", "APP", XSW_SCHEDULER_APP},
               {"XSCHED_SCHEDULER", "none", XSW_SCHEDULER_GLOBAL}};
  for (unsigned i = 0; i < sizeof cases / sizeof *cases; i++) {
    read_with(cases[i].name, cases[i].value);
    CHECK(xsi_options.scheduler == cases[i].scheduler);
  }
  // A policy alone selects a private scheduler, also against XSCHED_SCHEDULER. A daemon that is
  // named keeps its own.
  read_with("XSCHED_POLICY", "UP");
  CHECK(xsi_options.scheduler == XSW_SCHEDULER_LOCAL);
  setenv("XSCHED_SCHEDULER", "GLB", 1);
  xsi_options_init();
  CHECK(xsi_options.scheduler == XSW_SCHEDULER_LOCAL && strcmp(xsi_options.policy, "UP") == 0);
  setenv("XSCHED_DIR", "/nowhere", 1);
  xsi_options_init();
  CHECK(xsi_options.scheduler == XSW_SCHEDULER_GLOBAL);
  // A policy that is none selects nothing, as in upstream's library.
  read_with("XSCHED_POLICY", "nonsense");
  CHECK(xsi_options.scheduler == XSW_SCHEDULER_GLOBAL && xsi_options.policy[0] == 0);
  setenv("XSCHED_SCHEDULER", "APP", 1);
  xsi_options_init();
  CHECK(xsi_options.scheduler == XSW_SCHEDULER_APP);
  // A private scheduler that was not named is in the given directory alone.
  struct sockaddr_un address;
  read_with("XSCHED_SCHEDULER", "LCL");
  for (unsigned i = 0; xsi_socket_candidate(i, "/own", &address) == 0; i++)
    CHECK(strcmp(address.sun_path, i == 0 ? "/own/xsched.sock" : "") == 0);
  start_over();
  setenv("XSCHED_SCHEDULER", "LCL", 1);
  setenv("XSCHED_SOCKET", "/nowhere/xsched.sock", 1);
  xsi_options_init();
  CHECK(xsi_place_named() && xsi_socket_candidate(0, NULL, &address) == 0);
  CHECK(strcmp(address.sun_path, "/nowhere/xsched.sock") == 0);
}

// Every folder is searched itself and below client/, which a container may have alone.
static void folders(void) {
  struct sockaddr_un address;
  read_with("XSCHED_DIR", "/nowhere");
  CHECK(xsi_socket_candidate(0, NULL, &address) == 0);
  CHECK(strcmp(address.sun_path, "/nowhere/xsched.sock") == 0);
  CHECK(xsi_socket_candidate(1, NULL, &address) == 0);
  CHECK(strcmp(address.sun_path, "/nowhere/client/xsched.sock") == 0);
  for (unsigned i = 2; xsi_socket_candidate(i, NULL, &address) == 0; i++)
    CHECK(address.sun_path[0] == 0);
  read_with("XSCHED_SOCKET", "/nowhere/socket");
  for (unsigned i = 0; xsi_socket_candidate(i, NULL, &address) == 0; i++)
    CHECK(i == 0 ? strcmp(address.sun_path, "/nowhere/socket") == 0 : address.sun_path[0] == 0);
  start_over();
  xsi_options_init();
  unsigned found = 0;
  for (unsigned i = 0; xsi_socket_candidate(i, NULL, &address) == 0; i++) {
    found |= strcmp(address.sun_path, "/run/xsched/xsched.sock") == 0 ? 1u : 0;
    found |= strcmp(address.sun_path, "/run/xsched/client/xsched.sock") == 0 && found == 1 ? 2u : 0;
  }
  CHECK(found == 3);
}

static void hints_add_up(void) {
  struct xsw_hint all = {.said = XSW_HINT_PRIORITY, .priority = 3};
  struct xsw_hint more = {
      .said = XSW_HINT_GANG | XSW_HINT_LIMITS, .priority = 99, .in_flight = 8, .gang = "g"};
  xsi_hint_merge(&all, &more);
  CHECK(all.priority == 3 && all.in_flight == 8 && strcmp(all.gang, "g") == 0);
  CHECK(all.said == (XSW_HINT_PRIORITY | XSW_HINT_GANG | XSW_HINT_LIMITS));
  struct xsw_hint last = {.said = XSW_HINT_GANG | XSW_HINT_PRIORITY, .priority = -1};
  xsi_hint_merge(&all, &last);
  CHECK(all.priority == -1 && all.gang[0] == 0 && all.in_flight == 8);
}

int main(void) {
  alarm(60);
  nothing_said();
  each_alone();
  nonsense_is_ignored();
  upstream_ranges();
  laxity_in_parts();
  folders(); // before a socket is named
  schedulers();
  hints_add_up();
  puts("ok options");
  return 0;
}
