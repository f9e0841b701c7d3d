// SPDX-License-Identifier: Apache-2.0

package session

// Limits, for the tests.
const (
	RestoreTime = restoreTime
	FrameBurst  = frameBurst
	FrameRate   = frameRate
)

// Pending returns how many users have connections without HELLO.
func (srv *Server) Pending() int {
	srv.mu.Lock()
	defer srv.mu.Unlock()
	return len(srv.pending)
}

// Closing reports whether Close was called.
func (srv *Server) Closing() bool {
	srv.mu.Lock()
	defer srv.mu.Unlock()
	return srv.closing
}
