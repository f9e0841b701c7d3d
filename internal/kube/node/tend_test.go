// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/resourceslice"

	"xsched/internal/kube/edits"
)

// TestCollect: claims that are gone are given back, and an answer that was given counts although a later one
// is missing.
func TestCollect(t *testing.T) {
	f, ctx := newFolders(t), t.Context()
	var asked, allowed atomic.Int32
	server := claimServer(t, map[string]*resourceapi.ResourceClaim{"claim-2": allocated(2, []string{gpu0}, 0)})
	n := newNode(t, f, apiServer(t, func(w http.ResponseWriter, r *http.Request) {
		if asked.Add(1); allowed.Add(-1) < 0 {
			http.Error(w, "no", http.StatusForbidden)
			return
		}
		server(w, r)
	}))
	if err := n.store.prepare(ctx, records(t, 1, 2, 3)); err != nil {
		t.Fatal(err)
	}
	if err := n.collect(ctx); err == nil || len(n.store.known()) != 3 {
		t.Errorf("%d claims are left without an answer, %v", len(n.store.known()), err)
	}
	for range 3 { // one answer each time
		allowed.Store(1)
		_ = n.collect(ctx)
	}
	allowed.Store(10)
	asked.Store(0)
	if err := n.collect(ctx); err != nil {
		t.Error(err)
	}
	if asked.Load() != 0 {
		t.Errorf("asked again for %d claims", asked.Load())
	}
	f.consistent(t, n.store, 2)
}

// TestLaterPod: a pod that joins a claim after its preparation gets the grant, and one that left loses it.
func TestLaterPod(t *testing.T) {
	f, ctx := newFolders(t), t.Context()
	claim := allocated(1, []string{gpu0}, 0, class(`"priority":1`))
	owned := allocated(2, []string{gpu0}, 0, class(`"priority":2`))
	owned.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: "pod-2", Controller: new(true)}}
	var asked atomic.Int32
	server := claimServer(t, map[string]*resourceapi.ResourceClaim{"claim-1": claim, "claim-2": owned})
	n := newNode(t, f, apiServer(t, func(w http.ResponseWriter, r *http.Request) {
		if strings.Contains(r.URL.Path, "/resourceclaims/") {
			asked.Add(1)
		}
		server(w, r)
	}))
	if _, err := n.plugin.PrepareResourceClaims(ctx, []*resourceapi.ResourceClaim{claim, owned}); err != nil {
		t.Fatal(err)
	}
	claim.Status.ReservedFor = append(claim.Status.ReservedFor, resourceapi.ResourceClaimConsumerReference{Resource: "pods", Name: "pod-9", UID: uid(podKind, 9)})
	n.tending.done = true
	changed := 0
	n.OnChange(func() { changed++ })
	n.tend(ctx)
	if got := f.daemon.podsGranted(t); !maps.Equal(got, map[string]int32{"pod-1": 1, "pod-2": 2, "pod-9": 1}) || changed != 1 {
		t.Errorf("grants of %v, %d changes", got, changed)
	}
	if asked.Load() != 1 {
		t.Errorf("asked %d times; the claim of one pod can't get others", asked.Load())
	}
	f.daemon.set(func() { f.daemon.down = true })
	claim.Status.ReservedFor = claim.Status.ReservedFor[1:]
	n.tend(ctx)
	f.daemon.set(func() { f.daemon.down = false })
	n.look(ctx, &published{})
	if got := f.daemon.podsGranted(t); !maps.Equal(got, map[string]int32{"pod-2": 2, "pod-9": 1}) {
		t.Errorf("grants of %v", got)
	}
	if s := f.store(t, nil); len(s.known()[claim.UID].Pods) != 1 {
		t.Errorf("after a restart: %+v", s.known())
	}
}

// TestRefreshRests: claims that do not change are read more and more rarely, and never with an older answer
// than the known one. A claim that the kubelet prepared again meanwhile keeps its pods.
func TestRefreshRests(t *testing.T) {
	f, ctx := newFolders(t), t.Context()
	claim := allocated(1, []string{gpu0}, 0)
	claim.ResourceVersion = "100"
	var versions []string
	server := claimServer(t, map[string]*resourceapi.ResourceClaim{"claim-1": claim})
	n := newNode(t, f, apiServer(t, func(w http.ResponseWriter, r *http.Request) {
		version := r.URL.Query().Get("resourceVersion")
		if versions = append(versions, version); len(versions) == 1 {
			tooLarge(w)
			return
		}
		server(w, r)
	}))
	if _, err := n.plugin.PrepareResourceClaims(ctx, []*resourceapi.ResourceClaim{claim}); err != nil {
		t.Fatal(err)
	}
	n.options.Every = 5 * time.Second
	start := time.Now()
	for at := start; at.Before(start.Add(200 * n.options.Every)); at = at.Add(n.options.Every) {
		if err := n.refreshNow(ctx, at); err != nil {
			t.Fatal(err)
		}
	}
	if got := len(versions); got < 200/(mostRests*5/4)-2 || got > 200/mostRests+6 {
		t.Errorf("%d reads in 200 looks", got)
	}
	if len(versions) < 3 || versions[0] != "100" || versions[1] != "" || versions[2] != "100" {
		t.Errorf("versions %q", versions)
	}
	known := n.sharedClaims()
	again := known[claim.UID]
	again.Version = "200"
	if err := n.store.prepare(ctx, map[types.UID]claimRecord{claim.UID: again}); err != nil {
		t.Fatal(err)
	}
	claim.Status.ReservedFor = append(claim.Status.ReservedFor, resourceapi.ResourceClaimConsumerReference{Resource: "pods", Name: "pod-9", UID: uid(podKind, 9)})
	if changed, err := n.refresh(ctx, known); err != nil || changed {
		t.Errorf("an answer from before the preparation counts: %v, %v", changed, err)
	}
	if changed, err := n.refresh(ctx, n.sharedClaims()); err != nil || !changed {
		t.Errorf("an answer from after it does not: %v, %v", changed, err)
	}
}

// TestAnswerOfAnotherServer: an API server that lags behind the one that answered last does not take a pod's
// grant away.
func TestAnswerOfAnotherServer(t *testing.T) {
	f, ctx := newFolders(t), t.Context()
	claim := allocated(1, []string{gpu0}, 0, class(`"priority":1`))
	claim.ResourceVersion = "100"
	old, now := claim.DeepCopy(), claim.DeepCopy()
	old.ResourceVersion, now.ResourceVersion = "110", "120"
	now.Status.ReservedFor = append(now.Status.ReservedFor, resourceapi.ResourceClaimConsumerReference{Resource: "pods", Name: "pod-9", UID: uid(podKind, 9)})
	lags := false
	n := newNode(t, f, apiServer(t, func(w http.ResponseWriter, r *http.Request) {
		switch version := r.URL.Query().Get("resourceVersion"); {
		case !lags || version == "":
			claimServer(t, map[string]*resourceapi.ResourceClaim{"claim-1": now})(w, r)
		case version > "110":
			tooLarge(w)
		default:
			claimServer(t, map[string]*resourceapi.ResourceClaim{"claim-1": old})(w, r)
		}
	}))
	if _, err := n.plugin.PrepareResourceClaims(ctx, []*resourceapi.ResourceClaim{claim}); err != nil {
		t.Fatal(err)
	}
	for _, lags = range []bool{false, true} {
		if _, err := n.refresh(ctx, n.sharedClaims()); err != nil {
			t.Fatal(err)
		}
		if got := f.daemon.podsGranted(t); !maps.Equal(got, map[string]int32{"pod-1": 1, "pod-9": 1}) {
			t.Errorf("grants of %v; the server lags: %v", got, lags)
		}
	}
	if err := n.store.unprepare(ctx, []types.UID{claim.UID}); err != nil {
		t.Fatal(err)
	}
	if _, err := n.refresh(ctx, n.sharedClaims()); err != nil || len(n.tending.read) != 0 {
		t.Errorf("remembers %v of claims that are gone, %v", n.tending.read, err)
	}
}

// tooLarge answers that the server does not have a version yet.
func tooLarge(w http.ResponseWriter) {
	failed := apierrors.NewTimeoutError("Too large resource version", 1)
	failed.ErrStatus.TypeMeta = metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}
	failed.ErrStatus.Details.Causes = []metav1.StatusCause{{Type: metav1.CauseTypeResourceVersionTooLarge}}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusGatewayTimeout)
	_ = json.NewEncoder(w).Encode(failed.Status())
}

// TestManySharedClaims: each claim has its turn.
func TestManySharedClaims(t *testing.T) {
	f, ctx := newFolders(t), t.Context()
	numbers, claims := []int{}, map[string]*resourceapi.ResourceClaim{}
	for i := range 3*maxRefresh - 1 {
		c := allocated(i+1, []string{gpu0}, 0)
		numbers, claims[c.Name] = append(numbers, i+1), c
	}
	asked := map[string]int{}
	server := claimServer(t, claims)
	n := newNode(t, f, apiServer(t, func(w http.ResponseWriter, r *http.Request) { asked[filepath.Base(r.URL.Path)]++; server(w, r) }))
	if err := n.store.prepare(ctx, records(t, numbers...)); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if _, err := n.refresh(ctx, n.sharedClaims()); err != nil {
			t.Fatal(err)
		}
	}
	if len(asked) != len(numbers) {
		t.Errorf("asked for %d of %d claims", len(asked), len(numbers))
	}
}

// TestOldLibraries: versions of the libraries go when no new container got them for a while.
func TestOldLibraries(t *testing.T) {
	n := newNode(t, newFolders(t), apiServer(t, http.NotFound))
	for _, version := range []string{"old", "new"} {
		if err := os.MkdirAll(filepath.Join(n.libraryFolder(), version), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	exists := func(version string) bool {
		_, err := os.Stat(filepath.Join(n.libraryFolder(), version))
		return err == nil
	}
	now := time.Now()
	n.prune(now)
	n.prune(now.Add(2 * libraryGrace)) // nothing is known yet
	e := edits.New(filepath.Join(n.libraryFolder(), "new", "libxsched.so"), "/run/xsched/client")
	n.libs.use(n.libraryFolder(), &e)
	n.prune(now)
	n.prune(now.Add(libraryGrace - time.Second))
	if !exists("old") || !exists("new") {
		t.Error("removed at once")
	}
	n.prune(now.Add(libraryGrace))
	if exists("old") || !exists("new") {
		t.Errorf("old is there: %v, new is there: %v", exists("old"), exists("new"))
	}
}

// blocked is a publisher that waits for the API server, then fails once.
type blocked struct {
	free  chan struct{}
	calls chan resourceslice.DriverResources
	fails atomic.Int32
}

func (b *blocked) PublishResources(_ context.Context, r resourceslice.DriverResources) error {
	<-b.free
	left := b.fails.Add(-1) // before the test sees the call
	b.calls <- r
	if left >= 0 {
		return errors.New("no")
	}
	return nil
}

// TestPublishInBackground: looks do not wait for the API server. What a later look replaced is not published.
func TestPublishInBackground(t *testing.T) {
	to := &blocked{free: make(chan struct{}), calls: make(chan resourceslice.DriverResources, 10)}
	to.fails.Store(1)
	b := newBackground(to, quiet())
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); b.run(ctx, time.Millisecond, nil) }()
	for i := range 3 {
		if err := b.PublishResources(ctx, resources("worker", make([]resourceapi.Device, i+1))); err != nil {
			t.Fatal(err)
		}
	}
	close(to.free)
	for {
		if r := <-to.calls; len(r.Pools["worker"].Slices[0].Devices) == 3 && to.fails.Load() < 0 {
			break // the newest, in spite of the failure
		}
	}
	cancel()
	<-done
}
