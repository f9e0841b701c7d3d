// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

const (
	// maxRefresh bounds the claims that are read at once for their pods. A node has few that pods share.
	maxRefresh = 16
	// mostRests is the longest time between two such reads, in looks.
	mostRests = 8
	// askLimit bounds one request to the API server.
	askLimit = 10 * time.Second
)

// tending is what the node remembers from one look at the API server to the next.
type tending struct {
	there map[types.UID]bool // claims of an earlier run that exist; nil: none was looked for
	done  bool               // all of them were looked for
	told  string             // last problem

	read   map[types.UID]lastRead
	last   types.UID     // last claim whose pods were read
	shared int           // claims that pods share
	pause  time.Duration // between two reads of these
	next   time.Time     // read
	joined atomic.Bool   // a pod came that may use one
}

// lastRead is the newest known state of a claim. A later answer, maybe of another API server, must not be older.
type lastRead struct {
	prepared string // version of the preparation; another one: the kubelet has a newer state
	version  string
}

// tend gives back claims that no longer exist, and learns about pods that joined a claim or find no node.
func (n *Node) tend(ctx context.Context) {
	n.parts.claims.Beat()
	t := &n.tending
	err := n.collect(ctx)
	if err == nil {
		err = n.refreshNow(ctx, time.Now())
	}
	changed, unread := n.demand.read(ctx, n.client, n.options.Every, time.Now())
	if changed {
		n.lookSoon()
	}
	err = errors.Join(err, unread)
	text := ""
	if err != nil {
		text = err.Error()
	}
	if text != t.told && ctx.Err() == nil {
		if t.told = text; err != nil {
			n.options.Log.Info("claims not read; trying again", "err", err)
		}
	}
	n.prune(time.Now())
}

// collect gives back the claims of an earlier run that no longer exist, once. A failure continues with the
// claims that are left.
func (n *Node) collect(ctx context.Context) error {
	t := &n.tending
	if t.done {
		return nil
	}
	if t.there == nil {
		t.there = map[types.UID]bool{}
	}
	var gone []types.UID
	var failed error
	for uid, r := range n.store.known() {
		if t.there[uid] {
			continue
		}
		claim, err := n.claim(ctx, uid, &r)
		if failed = err; err != nil {
			break
		}
		if t.there[uid] = claim != nil; claim == nil {
			gone = append(gone, uid)
		}
	}
	if len(gone) > 0 {
		if err := n.store.unprepare(ctx, gone); err != nil {
			return err
		}
		n.options.Log.Info("claims given back that no longer exist", "claims", len(gone))
		n.changed()
	}
	if failed == nil {
		t.done, t.there = true, nil
	}
	return failed
}

// claim asks for a claim; nil: it no longer exists.
func (n *Node) claim(ctx context.Context, uid types.UID, r *claimRecord) (*resourceapi.ResourceClaim, error) {
	n.parts.claims.Beat() // a slow API server delays each claim, not the plugin
	ctx, cancel := context.WithTimeout(ctx, askLimit)
	defer cancel()
	// With a version the API server answers from memory: with this state of the claim, or a newer one.
	version := r.Version
	if last := n.tending.read[uid]; last.version != "" && last.prepared == r.Version {
		version = last.version
	}
	claims := n.client.ResourceV1().ResourceClaims(r.Namespace)
	claim, err := claims.Get(ctx, r.Name, metav1.GetOptions{ResourceVersion: version})
	if version != "" && apierrors.HasStatusCause(err, metav1.CauseTypeResourceVersionTooLarge) { // the server lags, or etcd was restored
		claim, err = claims.Get(ctx, r.Name, metav1.GetOptions{})
	}
	switch {
	case apierrors.IsNotFound(err):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("look for claim %s/%s: %w", r.Namespace, r.Name, err)
	case claim.UID != uid:
		return nil, nil
	}
	if n.tending.read == nil {
		n.tending.read = map[types.UID]lastRead{}
	}
	n.tending.read[uid] = lastRead{prepared: r.Version, version: claim.ResourceVersion}
	return claim, nil
}

// sharedClaims are those that may get other pods. The kubelet prepares a claim for its first pod only.
func (n *Node) sharedClaims() map[types.UID]claimRecord {
	known := n.store.known()
	maps.DeleteFunc(known, func(_ types.UID, r claimRecord) bool { return r.Own })
	return known
}

// refreshNow reads the pods of shared claims, soon after a change and then more and more rarely: many nodes
// ask one API server.
func (n *Node) refreshNow(ctx context.Context, now time.Time) error {
	t, known := &n.tending, n.sharedClaims()
	if joined := t.joined.Swap(false); len(known) == t.shared && now.Before(t.next) && !joined {
		return nil
	}
	changed, err := n.refresh(ctx, known)
	if t.pause = min(2*t.pause, mostRests*n.options.Every); changed || len(known) != t.shared {
		t.pause = n.options.Every / 2
	}
	t.shared = len(known)
	t.next = now.Add(t.pause + rand.N(t.pause/4+1)) // a random part: nodes shall not ask all at once
	return err
}

// refresh reads the pods of claims, and reports whether they have changed.
func (n *Node) refresh(ctx context.Context, known map[types.UID]claimRecord) (changed bool, err error) {
	uids := slices.Sorted(maps.Keys(known))
	start, _ := slices.BinarySearch(uids, n.tending.last)
	seen := map[types.UID]claimRecord{}
	maps.DeleteFunc(n.tending.read, func(uid types.UID, _ lastRead) bool { _, ok := known[uid]; return !ok })
	var failed error
	for i := range min(len(uids), maxRefresh) {
		uid := uids[(start+1+i)%len(uids)]
		r := known[uid]
		claim, err := n.claim(ctx, uid, &r)
		if failed = err; err != nil {
			break
		}
		n.tending.last = uid
		if claim == nil {
			continue // the kubelet gives it back
		}
		if list := podsOf(claim); len(list) > 0 && !slices.Equal(list, r.Pods) {
			r.Pods = list
			seen[uid] = r
		}
	}
	changed, err = n.store.setPods(ctx, seen)
	if changed {
		n.options.Log.Info("other pods use a claim")
		n.changed()
	}
	if failed == nil {
		failed = err
	}
	return changed, failed
}
