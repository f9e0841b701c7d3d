// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"xsched/internal/control"
	"xsched/internal/kube/cdi"
)

// The kubelet gives up a request after 45 s. All waits for the daemon stay far below, so that the kubelet
// gets the reason.
const (
	// sendLimit bounds one request with grants.
	sendLimit = 10 * time.Second
	// prepareLimit bounds the wait of one preparation: for a request that is under way, and its own.
	prepareLimit = 25 * time.Second
	// giveBackLimit bounds how long a pod's end waits until the daemon has dropped its grant. Without an
	// answer the next look at the daemon sends the grants.
	giveBackLimit = 2 * time.Second
)

// store holds the prepared claims and their effects: a CDI specification each, and the grants of all
// at the daemon.
//
// A claim with a specification is always in the checkpoint: it is written there before and removed
// after. The grants follow the checkpoint. After a start, repair sends all of them, and restores or
// removes what a crash left behind.
type store struct {
	file  string
	specs cdi.Dir
	// surroundings and send ask the daemon. Nobody holds mu meanwhile.
	surroundings func(ctx context.Context) (surroundings, error)
	send         func(ctx context.Context, grants []control.Grant) error
	// after is called after each step, for tests; its error ends the operation there.
	after func(step string) error

	mu    sync.Mutex
	state checkpoint
	// version counts the changes of the grants, and sent is the last one that the daemon has.
	version, sent uint64
	flight        *flight // nil: no request is under way
}

// flight is a request with the grants of a version. It belongs to no caller: one that goes away fails none
// of the others.
type flight struct {
	version uint64
	done    chan struct{} // closed after err is set
	err     error
}

// open reads the checkpoint and removes specifications that are not in it.
func (s *store) open() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var err error
	if s.state, err = loadCheckpoint(s.file); err != nil {
		return err
	}
	s.version++
	return s.specs.Clean(func(name string) bool {
		_, known := s.state.Claims[types.UID(name)]
		return known
	})
}

func (s *store) did(step string) error {
	if s.after == nil {
		return nil
	}
	return s.after(step)
}

// replace writes other claims to the checkpoint. Preconditions: mu is held.
func (s *store) replace(claims map[types.UID]claimRecord) error {
	next := checkpoint{Version: checkpointVersion, Claims: claims}
	if err := next.save(s.file); err != nil {
		return err
	}
	s.state = next
	s.version++
	return s.did("checkpoint")
}

// write writes the specification of a claim. Preconditions: mu is held.
func (s *store) write(uid types.UID, r *claimRecord, now *surroundings) error {
	if err := s.specs.Write(string(uid), r.spec(string(uid), now.edits)); err != nil {
		return err
	}
	return s.did("specification")
}

// prepare makes claims take effect and binds them to their GPUs. It is idempotent.
func (s *store) prepare(ctx context.Context, claims map[types.UID]claimRecord) error {
	ctx, cancel := context.WithTimeout(ctx, prepareLimit)
	defer cancel()
	now, err := s.surroundings(ctx)
	if err != nil {
		return err
	}
	for uid, r := range claims {
		if err := r.bind(now.gpus); err != nil {
			return err
		}
		claims[uid] = r
	}
	version, err := s.enter(claims, &now)
	if err != nil {
		return err
	}
	if err := s.sync(ctx, version); err != nil {
		return fmt.Errorf("send the claim to the daemon: %w", err)
	}
	return s.did("grants")
}

// enter adds claims to the checkpoint and writes their specifications.
func (s *store) enter(claims map[types.UID]claimRecord, now *surroundings) (version uint64, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	all, changed := maps.Clone(s.state.Claims), false
	for uid, r := range claims {
		if old, ok := all[uid]; !ok || !reflect.DeepEqual(old, r) {
			all[uid], changed = r, true
		}
	}
	if changed {
		if err := s.replace(all); err != nil {
			return 0, err
		}
	}
	for uid, r := range claims {
		if err := s.write(uid, &r, now); err != nil {
			return 0, err
		}
	}
	return s.version, nil
}

// unprepare gives claims back. Unknown ones are no error. A daemon that does not answer gets the grants
// from repair: a pod's end must not wait for it.
func (s *store) unprepare(ctx context.Context, uids []types.UID) error {
	version, err := s.remove(uids)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, giveBackLimit)
	defer cancel()
	_ = s.sync(ctx, version)
	return s.did("grants")
}

// remove removes the specifications of claims, then the claims.
func (s *store) remove(uids []types.UID) (version uint64, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := maps.Clone(s.state.Claims)
	for _, uid := range uids {
		delete(all, uid)
		if err := s.specs.Remove(string(uid)); err != nil {
			return 0, err
		}
		if err := s.did("specification"); err != nil {
			return 0, err
		}
	}
	if len(all) != len(s.state.Claims) {
		if err := s.replace(all); err != nil {
			return 0, err
		}
	}
	return s.version, nil
}

// repair restores the effects of all claims: after a start of this program or of the daemon, or after
// the daemon did not answer. A claim whose GPU is gone keeps its specification.
func (s *store) repair(ctx context.Context) error {
	now, err := s.surroundings(ctx)
	if err != nil {
		return err
	}
	s.mu.Lock()
	var failed error
	for uid, r := range s.state.Claims {
		if r.bind(now.gpus) == nil {
			s.state.Claims[uid] = r
			failed = errors.Join(failed, s.specs.Write(string(uid), r.spec(string(uid), now.edits)))
		}
	}
	s.version++ // the daemon may have lost them
	version := s.version
	s.mu.Unlock()
	if err := s.sync(ctx, version); err != nil {
		return errors.Join(failed, fmt.Errorf("send the claims to the daemon: %w", err))
	}
	return failed
}

// sync waits until the daemon has the grants of a version or newer ones. Callers that wait together share
// one request.
func (s *store) sync(ctx context.Context, version uint64) error {
	for {
		s.mu.Lock()
		if s.sent >= version {
			s.mu.Unlock()
			return nil
		}
		f := s.flight
		if f == nil {
			f = &flight{version: s.version, done: make(chan struct{})}
			s.flight = f
			go s.fly(f, s.state.grants())
		}
		s.mu.Unlock()
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-f.done:
		}
		if f.version >= version {
			return f.err
		}
	}
}

// fly sends grants.
func (s *store) fly(f *flight, grants []control.Grant) {
	ctx, cancel := context.WithTimeout(context.Background(), sendLimit)
	defer cancel()
	f.err = s.send(ctx, grants)
	s.mu.Lock()
	if s.flight = nil; f.err == nil {
		s.sent = f.version
	}
	s.mu.Unlock()
	close(f.done)
}

// pending reports whether the daemon lacks grants.
func (s *store) pending() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.sent < s.version
}

// known returns the prepared claims.
func (s *store) known() map[types.UID]claimRecord {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.state.Claims)
}

// device returns an allocation by the name of its CDI device, with its claim; ok is false for an unknown one.
func (s *store) device(name string) (d deviceRecord, namespace string, ok bool) {
	at := strings.LastIndexByte(name, '-')
	if at < 0 {
		return d, "", false
	}
	index, err := strconv.Atoi(name[at+1:])
	s.mu.Lock()
	defer s.mu.Unlock()
	r, known := s.state.Claims[types.UID(name[:at])]
	if err != nil || !known || index < 0 || index >= len(r.Devices) {
		return d, "", false
	}
	return r.Devices[index], r.Namespace, true
}

// grantOf returns the grant of a CDI device, without a pod; ok is false for an unknown one.
func (s *store) grantOf(name string) (g control.Grant, ok bool) {
	d, namespace, ok := s.device(name)
	if !ok {
		return g, false
	}
	return d.grant(name, namespace, types.UID(name[:strings.LastIndexByte(name, '-')]), podRecord{}), true
}

// setPods replaces the pods of claims, except where the kubelet has prepared a claim again since its pods
// were read. Without an answer of the daemon repair sends the grants.
func (s *store) setPods(ctx context.Context, seen map[types.UID]claimRecord) (changed bool, err error) {
	version, changed, err := s.replacePods(seen)
	if err != nil || !changed {
		return changed, err
	}
	if err := s.sync(ctx, version); err != nil {
		return true, fmt.Errorf("send the claims to the daemon: %w", err)
	}
	return true, nil
}

func (s *store) replacePods(seen map[types.UID]claimRecord) (version uint64, changed bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := maps.Clone(s.state.Claims)
	for uid, r := range seen {
		if now, ok := all[uid]; ok && now.Version == r.Version && !slices.Equal(now.Pods, r.Pods) {
			all[uid], changed = r, true
		}
	}
	if changed {
		err = s.replace(all)
	}
	return s.version, changed && err == nil, err
}

// results are the prepared devices of a claim.
func results(claim types.UID, r *claimRecord) []preparedDevice {
	out := make([]preparedDevice, 0, len(r.Devices))
	for i := range r.Devices {
		d := &r.Devices[i]
		out = append(out, preparedDevice{
			Requests: []string{d.Request}, PoolName: d.Pool, DeviceName: d.Device, ShareID: d.ShareID,
			CDIDeviceIDs: d.cdiIDs(string(claim), i),
		})
	}
	return out
}
