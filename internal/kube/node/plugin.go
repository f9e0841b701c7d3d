// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"log/slog"
	"sync"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/dynamic-resource-allocation/resourceslice"

	"xsched/internal/health"
)

type preparedDevice = kubeletplugin.Device

// Events records an event on an object, as record.EventRecorder does.
type Events interface {
	Eventf(object runtime.Object, eventtype, reason, messageFmt string, args ...any)
}

// reasonParameters is the reason of events about bad parameters.
const reasonParameters = "BadGpuParameters"

// plugin answers the kubelet.
type plugin struct {
	store  *store
	report *reporter
	events Events
	log    *slog.Logger
	calls  *health.Calls
	// changed is called when the set of prepared claims may have changed.
	changed func()
	// stop ends the program after an error that retrying does not cure.
	stop func(error)

	mu   sync.Mutex
	told map[types.UID]string // the last event of a claim: the kubelet tries again and again
}

// PrepareResourceClaims makes the claims of a pod take effect.
func (p *plugin) PrepareResourceClaims(ctx context.Context, claims []*resourceapi.ResourceClaim) (map[types.UID]kubeletplugin.PrepareResult, error) {
	defer p.calls.Begin()()
	out, good := map[types.UID]kubeletplugin.PrepareResult{}, map[types.UID]claimRecord{}
	for _, claim := range claims {
		r, err := readClaim(claim)
		if err != nil {
			out[claim.UID] = kubeletplugin.PrepareResult{Err: err}
			p.tell(claim, &r, err)
			continue
		}
		good[claim.UID] = r
	}
	if len(good) == 0 {
		return out, nil
	}
	err := p.store.prepare(ctx, good)
	if err != nil {
		p.log.Warn("claims not prepared", "claims", len(good), "err", err)
	}
	p.report.refused(len(good), err)
	for uid, r := range good {
		out[uid] = kubeletplugin.PrepareResult{Devices: results(uid, &r), Err: err}
	}
	p.changed()
	return out, nil
}

// UnprepareResourceClaims gives claims back.
func (p *plugin) UnprepareResourceClaims(ctx context.Context, claims []kubeletplugin.NamespacedObject) (map[types.UID]error, error) {
	defer p.calls.Begin()()
	uids := make([]types.UID, 0, len(claims))
	for _, c := range claims {
		uids = append(uids, c.UID)
	}
	err := p.store.unprepare(ctx, uids)
	if err != nil {
		p.log.Warn("claims not given back", "claims", len(claims), "err", err)
	}
	out := map[types.UID]error{}
	p.mu.Lock()
	for _, uid := range uids {
		out[uid] = err
		delete(p.told, uid)
	}
	p.mu.Unlock()
	p.changed()
	return out, nil
}

// HandleError reports errors of the background, such as refused ResourceSlices.
func (p *plugin) HandleError(_ context.Context, err error, msg string) {
	if dropped, ok := errors.AsType[*resourceslice.DroppedFieldsError](err); ok {
		p.log.Error("the API server drops fields of the GPUs; use Kubernetes 1.36 or later, or turn on the feature gates",
			"gates", dropped.DisabledFeatures())
		return
	}
	p.log.Error("error in the background", "what", msg, "err", err)
	if !errors.Is(err, kubeletplugin.ErrRecoverable) {
		p.stop(err)
	}
}

// tell writes an event on the claim and on its pods, once per message.
func (p *plugin) tell(claim *resourceapi.ResourceClaim, r *claimRecord, cause error) {
	p.mu.Lock()
	again := p.told[claim.UID] == cause.Error()
	p.told[claim.UID] = cause.Error()
	p.mu.Unlock()
	if again {
		return
	}
	p.log.Info("parameters refused", "namespace", claim.Namespace, "claim", claim.Name, "err", cause)
	p.events.Eventf(&corev1.ObjectReference{
		APIVersion: resourceapi.SchemeGroupVersion.String(), Kind: "ResourceClaim", Namespace: claim.Namespace, Name: claim.Name, UID: claim.UID,
	}, corev1.EventTypeWarning, reasonParameters, "%v", cause)
	for _, pod := range r.Pods {
		p.events.Eventf(&corev1.ObjectReference{
			APIVersion: "v1", Kind: "Pod", Namespace: claim.Namespace, Name: pod.Name, UID: pod.UID,
		}, corev1.EventTypeWarning, reasonParameters, "claim %s: %v", claim.Name, cause)
	}
}
