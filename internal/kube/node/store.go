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

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"

	"xsched/internal/control"
	"xsched/internal/kube/cdi"
	"xsched/internal/kube/edits"
)

// store holds the prepared claims and their effects: a CDI specification each, and the grants of all
// at the daemon.
//
// Preparing writes the checkpoint, then the specification, then the grants. Giving back removes grants
// and specification before the checkpoint. A claim with effects is thus always in the checkpoint, and
// repair restores or removes what a crash left behind.
type store struct {
	file  string
	specs cdi.Dir
	edits func(ctx context.Context) (edits.Edits, error)
	send  func(ctx context.Context, grants []control.Grant) error
	// after is called after each step, for tests; its error ends the operation there.
	after func(step string) error

	// Requests that arrive while another one is served are served together: with one write of the
	// checkpoint and one request to the daemon.
	joining             sync.Mutex
	preparing, removing *batch

	mu    sync.Mutex
	state checkpoint
	// unsent means that the daemon does not have the grants of state.
	unsent bool
}

// open reads the checkpoint and removes specifications that are not in it.
func (s *store) open() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var err error
	if s.state, err = loadCheckpoint(s.file); err != nil {
		return err
	}
	s.unsent = true
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

// with returns the state with other claims.
func (s *store) with(claims map[types.UID]claimRecord) checkpoint {
	return checkpoint{Version: checkpointVersion, Claims: claims}
}

// batch is a set of requests that are served together.
type batch struct {
	claims map[types.UID]claimRecord
	served bool // guarded by store.mu
	err    error
}

// together adds claims to the batch at a place and serves it, unless another caller does.
func (s *store) together(at **batch, claims map[types.UID]claimRecord, serve func(map[types.UID]claimRecord) error) error {
	s.joining.Lock()
	if *at == nil {
		*at = &batch{claims: map[types.UID]claimRecord{}}
	}
	b := *at
	maps.Copy(b.claims, claims)
	s.joining.Unlock()

	s.mu.Lock()
	defer s.mu.Unlock()
	if b.served {
		return b.err
	}
	s.joining.Lock()
	*at = nil
	s.joining.Unlock()
	b.served, b.err = true, serve(b.claims)
	return b.err
}

// prepare makes claims take effect. It is idempotent.
func (s *store) prepare(ctx context.Context, claims map[types.UID]claimRecord) error {
	return s.together(&s.preparing, claims, func(all map[types.UID]claimRecord) error { return s.takeEffect(ctx, all) })
}

func (s *store) takeEffect(ctx context.Context, claims map[types.UID]claimRecord) error {
	e, err := s.edits(ctx)
	if err != nil {
		return err
	}
	all, changed := maps.Clone(s.state.Claims), false
	for uid, r := range claims {
		if old, ok := all[uid]; !ok || !reflect.DeepEqual(old, r) {
			all[uid], changed = r, true
		}
	}
	if changed {
		next := s.with(all)
		if err := next.save(s.file); err != nil {
			return err
		}
		s.state, s.unsent = next, true
		if err := s.did("checkpoint"); err != nil {
			return err
		}
	}
	for uid, r := range claims {
		if err := s.specs.Write(string(uid), r.spec(uid, e)); err != nil {
			return err
		}
		if err := s.did("specification"); err != nil {
			return err
		}
	}
	if !s.unsent {
		return nil
	}
	if err := s.send(ctx, s.state.grants()); err != nil {
		return fmt.Errorf("tell the daemon about the claim: %w", err)
	}
	s.unsent = false
	return s.did("grants")
}

// unprepare gives claims back. Unknown ones are no error. A daemon that does not answer gets the grants
// from repair: a pod's end must not wait for it.
func (s *store) unprepare(ctx context.Context, uids []types.UID) error {
	claims := map[types.UID]claimRecord{}
	for _, uid := range uids {
		claims[uid] = claimRecord{}
	}
	return s.together(&s.removing, claims, func(all map[types.UID]claimRecord) error { return s.giveBack(ctx, all) })
}

func (s *store) giveBack(ctx context.Context, claims map[types.UID]claimRecord) error {
	all := maps.Clone(s.state.Claims)
	for uid := range claims {
		delete(all, uid)
	}
	next := s.with(all)
	changed := len(all) != len(s.state.Claims)
	if changed {
		s.unsent = true
		sent := s.send(ctx, next.grants()) == nil
		defer func() { s.unsent = !sent || len(s.state.Claims) != len(next.Claims) }()
		if err := s.did("grants"); err != nil {
			return err
		}
	}
	for uid := range claims {
		if err := s.specs.Remove(string(uid)); err != nil {
			return err
		}
		if err := s.did("specification"); err != nil {
			return err
		}
	}
	if !changed {
		return nil
	}
	if err := next.save(s.file); err != nil {
		return err
	}
	s.state = next
	return s.did("checkpoint")
}

// repair restores the effects of all claims: after a start of this program or of the daemon, or after
// the daemon did not answer.
func (s *store) repair(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	e, err := s.edits(ctx)
	if err != nil {
		return err
	}
	var failed error
	for uid, r := range s.state.Claims {
		failed = errors.Join(failed, s.specs.Write(string(uid), r.spec(uid, e)))
	}
	if err := s.send(ctx, s.state.grants()); err != nil {
		s.unsent = true
		return errors.Join(failed, fmt.Errorf("tell the daemon about the claims: %w", err))
	}
	s.unsent = false
	return failed
}

// pending reports whether the daemon lacks grants.
func (s *store) pending() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.unsent
}

// known returns the claims.
func (s *store) known() map[types.UID]claimRecord {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.state.Claims)
}

// grantOf returns the grant of a CDI device, without a pod; ok is false for an unknown one.
func (s *store) grantOf(device string) (g control.Grant, ok bool) {
	at := strings.LastIndexByte(device, '-')
	if at < 0 {
		return g, false
	}
	index, err := strconv.Atoi(device[at+1:])
	s.mu.Lock()
	defer s.mu.Unlock()
	r, known := s.state.Claims[types.UID(device[:at])]
	if err != nil || !known || index < 0 || index >= len(r.Devices) {
		return g, false
	}
	return r.Devices[index].grant(device, r.Namespace, types.UID(device[:at]), podRecord{}), true
}

// setPods replaces the pods of claims, except where the kubelet has prepared a claim again since its pods
// were read. Without an answer of the daemon repair sends the grants.
func (s *store) setPods(ctx context.Context, seen map[types.UID]claimRecord) (changed bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := maps.Clone(s.state.Claims)
	for uid, r := range seen {
		if now, ok := all[uid]; ok && now.Version == r.Version && !slices.Equal(now.Pods, r.Pods) {
			all[uid], changed = r, true
		}
	}
	if !changed {
		return false, nil
	}
	next := s.with(all)
	if err := next.save(s.file); err != nil {
		return false, err
	}
	s.state, s.unsent = next, true
	if err := s.send(ctx, s.state.grants()); err != nil {
		return true, fmt.Errorf("tell the daemon about the claims: %w", err)
	}
	s.unsent = false
	return true, nil
}

// results are the prepared devices of a claim.
func results(claim *resourceapi.ResourceClaim, r *claimRecord) []preparedDevice {
	out := make([]preparedDevice, 0, len(r.Devices))
	for i := range r.Devices {
		d := &r.Devices[i]
		out = append(out, preparedDevice{
			Requests: []string{d.Request}, PoolName: d.Pool, DeviceName: d.Device, ShareID: d.ShareID,
			CDIDeviceIDs: []string{cdiKind + "=" + deviceName(claim.UID, i)},
		})
	}
	return out
}
