// SPDX-License-Identifier: Apache-2.0

package gangs

import (
	"cmp"
	"context"
	"slices"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"

	"xsched/internal/control"
	"xsched/internal/kube/gang"
)

// watch follows the lease of one group. Only nodes with ranks of the group do, so that a write costs the API
// server no more events than the job has nodes.
func (s *Service) watch(ctx context.Context, k gang.Key, g *group) {
	one := fields.OneTermEqualSelector("metadata.name", Name(k)).String()
	see := func(object any) {
		l, ok := object.(*coordinationv1.Lease)
		if !ok {
			return
		}
		r, err := read(k, l)
		s.post(ctx, func() {
			at := now()
			if err != nil {
				if g.quietRead.due(at) {
					s.options.Log.Warn("gang not coordinated", "group", k.String(), "err", err)
				}
				r = gang.Record{Version: l.ResourceVersion} // the next write mends it
			}
			g.Observe(at, r)
		})
	}
	store, informer := cache.NewInformerWithOptions(cache.InformerOptions{
		ListerWatcher: &cache.ListWatch{
			ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
				o.FieldSelector = one
				return s.leases.List(ctx, o)
			},
			WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
				o.FieldSelector = one
				return s.leases.Watch(ctx, o)
			},
		},
		ObjectType: &coordinationv1.Lease{},
		Handler: cache.ResourceEventHandlerFuncs{
			AddFunc:    see,
			UpdateFunc: func(_, l any) { see(l) },
			DeleteFunc: func(any) { s.post(ctx, func() { g.Observe(now(), gang.Record{}) }) },
		},
	})
	go func() {
		if cache.WaitForCacheSync(ctx.Done(), informer.HasSynced) && len(store.List()) == 0 {
			s.post(ctx, func() { g.Missing(now()) })
		}
	}()
	informer.RunWithContext(ctx)
}

func sortHolds(all []control.Hold) {
	slices.SortFunc(all, func(a, b control.Hold) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Group, b.Group), cmp.Compare(a.FromNS, b.FromNS), cmp.Compare(a.UntilNS, b.UntilNS), cmp.Compare(priority(a), priority(b)))
	})
}

func sameHold(a, b control.Hold) bool {
	return a.Namespace == b.Namespace && a.Group == b.Group && a.FromNS == b.FromNS && a.UntilNS == b.UntilNS && priority(a) == priority(b)
}

func priority(h control.Hold) int32 {
	if h.Priority == nil {
		return gang.AllPriorities
	}
	return *h.Priority
}
