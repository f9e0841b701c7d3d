/* SPDX-License-Identifier: Apache-2.0
 *
 * The address of a PCI device as runtimes write it: domain:bus:device.function, hexadecimal.
 */
#ifndef XSCHED_PCI_H
#define XSCHED_PCI_H

#include <errno.h>
#include <stdbool.h>
#include <stdint.h>

// Takes hexadecimal digits up to the separator.
static inline bool xsi_pci_hex(const char **text, char separator, uint32_t *value) {
  const char *at = *text;
  *value = 0;
  for (; *at && *at != separator; at++) {
    char c = *at;
    uint32_t digit;
    if (c >= '0' && c <= '9')
      digit = (uint32_t)(c - '0');
    else if ((c | 0x20) >= 'a' && (c | 0x20) <= 'f')
      digit = (uint32_t)((c | 0x20) - 'a' + 10);
    else
      return false;
    *value = *value << 4 | digit;
  }
  bool any = at != *text;
  *text = *at ? at + 1 : at;
  return any;
}

/* 0, or -ENODEV if that is none. */
static inline int xsi_pci_parse(const char *text, uint32_t *domain, uint32_t *bus_slot) {
  uint32_t bus, slot, function;
  if (!xsi_pci_hex(&text, ':', domain) || !xsi_pci_hex(&text, ':', &bus) ||
      !xsi_pci_hex(&text, '.', &slot) || !xsi_pci_hex(&text, 0, &function))
    return -ENODEV;
  *bus_slot = bus << 8 | (slot & 31) << 3 | (function & 7);
  return 0;
}

#endif /* XSCHED_PCI_H */
