// SPDX-License-Identifier: Apache-2.0

// Package api serves the daemon's control interface as JSON over HTTP: the routes
// of control.Control under /api/v1, upstream XSched's routes, events and metrics. It owns connections,
// their limits and their callers, and must not know how the daemon answers.
package api

// maxBodyBytes bounds a request; the largest real one but grants is a few hundred bytes.
const maxBodyBytes = 64 << 10

// maxGrantsBytes bounds a request with control.MaxGrants grants.
const maxGrantsBytes = 2 << 20
