// SPDX-License-Identifier: Apache-2.0

// Package identity distinguishes users: by uid, by user namespace and by container. The kernel supplies
// every part; a process can't choose one that gives it more rights or larger limits.
package identity

import (
	"fmt"
	"path"
	"strconv"
	"strings"
)

// User is the owner of a process as the daemon sees it. Two processes with equal users control each
// other. The zero value is root on the host.
type User struct {
	// UID is the uid in the daemon's user namespace; -1: unknown.
	UID int
	// Namespace is the inode of the user namespace; 0: the daemon's own. Of nested namespaces it is
	// the outermost one below the daemon's, because processes nest further ones at will.
	Namespace uint64
	// Container is the cgroup of the process's container, or its namespace; empty: on the host, or in
	// the daemon's own container.
	Container string
	// Creator is the uid that created Namespace; 0: root, or no such namespace; -1: unknown.
	Creator int
}

// Nobody is a user without rights.
var Nobody = User{UID: -1}

// OnHost returns a user of the daemon's own namespaces.
func OnHost(uid int) User { return User{UID: uid} }

// Host reports whether the user is outside of containers and in the daemon's user namespace.
func (u User) Host() bool { return u.Namespace == 0 && u.Container == "" }

// Root reports whether the user is the administrator: uid 0 on the host. Root of a container is not,
// even where the container has no user namespace.
func (u User) Root() bool { return u.UID == 0 && u.Host() }

// Account returns the user whom limits and accounting apply to. It is coarser than the user: root of
// a container can take any uid in it, and every user may create user namespaces and take all
// subordinate uids there. Neither multiplies the limits. A set-user-ID program such as bubblewrap
// creates a PID namespace for any user: all those of one uid have one account.
func (u User) Account() User {
	switch {
	case u.Creator > 0:
		return User{UID: u.Creator}
	case u.Creator < 0 && u.UID == 0: // not root's account
		return User{Namespace: unknownNamespace, Creator: -1}
	case u.Creator < 0:
		return User{UID: u.UID}
	case u.UID > 0 && u.Namespace == 0 && unnamed(u.Container):
		return User{UID: u.UID, Container: sandbox}
	case u.Container != "":
		return User{Container: outermost(u.Container)}
	case u.Namespace != 0:
		return User{Namespace: u.Namespace}
	}
	return u
}

// sandbox stands for all containers of a uid that only a namespace shows.
const sandbox = "namespace"

// unnamed reports whether only a namespace shows a container.
func unnamed(container string) bool {
	return container == sandbox || strings.HasPrefix(container, "pid:[") || strings.HasPrefix(container, "cgroup:[")
}

// Owns reports whether the user may control the processes of another one: its own, all of them for
// root, and those in user namespaces that it created.
func (u User) Owns(other User) bool {
	return u.Root() || u == other && u.UID >= 0 ||
		u.Host() && u.UID > 0 && u.UID == other.Creator
}

// Key returns a text that differs between users, for names that users choose.
func (u User) Key() string {
	if u.Host() {
		return strconv.Itoa(u.UID)
	}
	return fmt.Sprintf("%d@%d:%q", u.UID, u.Namespace, u.Container) // users append to it
}

// String describes the user for people: "uid 1000", "uid 0 in container docker-4f0a".
func (u User) String() string {
	switch {
	case u.UID < 0 && u.Host():
		return "an unknown user"
	case u.Container != "":
		return fmt.Sprintf("uid %d in container %s", u.UID, path.Base(u.Container))
	case u.Namespace != 0 && u.Namespace != unknownNamespace:
		return fmt.Sprintf("uid %d in user namespace %d", u.UID, u.Namespace)
	}
	return fmt.Sprintf("uid %d", u.UID)
}

// Peer is the process at the other end of a connection, or a process that a caller named.
type Peer struct {
	PID   int // in the daemon's PID namespace
	PIDFD int // the receiver owns it; -1: none
	User  User
	// PIDNamespace is the inode of its PID namespace; 0: the daemon's own.
	PIDNamespace uint64
	LocalPID     int // in that namespace
	// Admin reports whether the process is uid 0 of its container.
	Admin  bool
	Groups []int // of the process, in the daemon's user namespace
}

// Owns reports whether the process may control those of a user. Root of a container controls the
// whole container.
func (p Peer) Owns(other User) bool {
	return p.User.Owns(other) ||
		p.Admin && !other.Host() && p.User.Namespace == other.Namespace && p.User.Container == other.Container
}
