// SPDX-License-Identifier: Apache-2.0
//
// Logs the variables of upstream's library that have no effect here. `xsched run` prints the same.

#include <errno.h>
#include <stdbool.h>
#include <strings.h>

#include "core/environment.h"
#include "core/init.h"
#include "core/log.h"
#include "core/options.h"
#include "variables_gen.h"

__attribute__((constructor)) static void look(void) {
  static const struct {
    const char *name;
    bool is_switch;
    const char *instead;
  } variables[] = {
#define ROW(name, is_switch, instead) {name, is_switch, instead},
      XSI_UPSTREAM_VARIABLES(ROW)
#undef ROW
  };
  xsi_init();
  if (xsi_options.disabled) return;
  for (unsigned i = 0; i < sizeof variables / sizeof *variables; i++) {
    char value[8] = "";
    int length = xsi_environment(variables[i].name, value, sizeof value); // the text may be longer
    if (length == 0 || length == -ENOENT) continue;
    if (variables[i].is_switch && strcasecmp(value, "OFF") == 0) continue;
    xsi_log(XSI_WARN, "%s has no effect: %s", variables[i].name, variables[i].instead);
  }
}
