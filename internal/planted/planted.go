// SPDX-License-Identifier: Apache-2.0

// Package planted names defects that only builds with a tag contain. The fault campaign must find
// each of them (make chaos-planted); a campaign that can't find a defect proves nothing.
package planted
