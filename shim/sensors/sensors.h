/* SPDX-License-Identifier: Apache-2.0
 *
 * What the parts of the program `sensors` share: one JSON object per line on stdout.
 */
#ifndef SENSORS_H
#define SENSORS_H

#include <stdint.h>

#define PERIOD_MS 1000

/* Report forever, or end the program. */
void nvml_report(void);
void amdgpu_report(const char *root);

/* A line with the GPUs: begin, then for each GPU its address and values, then end. */
void line_begin(void);
void line_gpu(const char *id);
void line_count(const char *name, uint64_t value);
void line_real(const char *name, double value);
void line_text(const char *name, const char *text);
void line_list(const char *name, const char *elements); /* as in JSON */
void line_gpu_end(void);
void line_end(void);

/* A line of its own. */
void line_xid(const char *id, uint64_t xid);

/* The last line says why: "absent" if there is nothing to read on this host, else "error". */
_Noreturn void line_last(const char *kind, const char *text);

void sleep_ms(int64_t ms);

#endif
