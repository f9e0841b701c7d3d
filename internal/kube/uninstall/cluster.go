// SPDX-License-Identifier: Apache-2.0

// Package uninstall removes what XSched leaves in a cluster beyond the objects of its chart: files on
// the nodes, ResourceSlices and leases.
package uninstall

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"xsched/internal/kube/cluster"
	"xsched/internal/kube/gangs"
)

// Cluster removes XSched from a cluster.
type Cluster struct {
	Client    kubernetes.Interface
	Namespace string
	// Cleanup is the DaemonSet whose pods are ready when their node is clean.
	Cleanup *appsv1.DaemonSet
	// Owner is the ConfigMap that owns the cleanup: if this program dies, the cleanup goes with it. Else
	// it would remove the files of a later installation. Empty: none.
	Owner string
	// Force continues although pods use claims.
	Force bool
	// LabelsOnly is a release without claims and slices, whose API server may not know them.
	LabelsOnly bool
	Log        *slog.Logger
}

// poll is the time between two looks at the API server.
const poll = 500 * time.Millisecond

// endLimit bounds the end of the cleanup, also when the time for all is over.
const endLimit = 30 * time.Second

// Run ends the DaemonSet, cleans the nodes and deletes slices and leases. It can be repeated after a failure.
func (c *Cluster) Run(ctx context.Context) error {
	if !c.LabelsOnly {
		if err := c.checkClaims(ctx); err != nil {
			return err
		}
	}
	c.Log.Info("ending the daemons")
	if err := c.end(ctx, cluster.DaemonSet); err != nil {
		return err
	}
	c.Log.Info("cleaning the nodes")
	if err := c.clean(ctx); err != nil {
		return err
	}
	if c.LabelsOnly {
		return c.deleteLeases(ctx)
	}
	return errors.Join(c.deleteSlices(ctx), c.deleteLeases(ctx))
}

// checkClaims refuses while pods use claims: without the plugin the kubelet can't end such pods.
func (c *Cluster) checkClaims(ctx context.Context) error {
	claims, err := c.Client.ResourceV1().ResourceClaims(metav1.NamespaceAll).List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("list claims: %w", err)
	}
	used := InUse(claims.Items)
	switch {
	case len(used) == 0:
		return nil
	case c.Force:
		c.Log.Warn("pods use claims; the kubelet can't end them until XSched is back", "claims", used)
		return nil
	}
	shown := used[:min(len(used), 5)]
	return fmt.Errorf("pods use %d claims (%s); delete these pods, or set uninstall.force=true", len(used), strings.Join(shown, ", "))
}

// InUse returns the claims, as NAMESPACE/NAME, that pods use and for which XSched's driver allocated a device.
func InUse(claims []resourcev1.ResourceClaim) []string {
	var out []string
	for _, c := range claims {
		if c.Status.Allocation == nil || len(c.Status.ReservedFor) == 0 {
			continue
		}
		if slices.ContainsFunc(c.Status.Allocation.Devices.Results, func(r resourcev1.DeviceRequestAllocationResult) bool { return r.Driver == cluster.Driver }) {
			out = append(out, c.Namespace+"/"+c.Name)
		}
	}
	slices.Sort(out)
	return out
}

// end deletes a DaemonSet and waits until its pods are gone.
func (c *Cluster) end(ctx context.Context, name string) error {
	sets := c.Client.AppsV1().DaemonSets(c.Namespace)
	foreground := metav1.DeletePropagationForeground
	err := sets.Delete(ctx, name, metav1.DeleteOptions{PropagationPolicy: &foreground})
	for ; err == nil; _, err = sets.Get(ctx, name, metav1.GetOptions{}) {
		if !wait(ctx) {
			return fmt.Errorf("DaemonSet %s does not end; see its pods", name)
		}
	}
	if !apierrors.IsNotFound(err) {
		return fmt.Errorf("delete DaemonSet %s: %w", name, err)
	}
	return nil
}

// clean runs the cleanup on each node, and ends it in any case.
func (c *Cluster) clean(ctx context.Context) (err error) {
	if err := c.end(ctx, c.Cleanup.Name); err != nil { // of an earlier attempt
		return err
	}
	set := c.Cleanup.DeepCopy()
	if c.Owner != "" {
		owner, err := c.Client.CoreV1().ConfigMaps(c.Namespace).Get(ctx, c.Owner, metav1.GetOptions{})
		if err != nil {
			return fmt.Errorf("read ConfigMap %s: %w", c.Owner, err)
		}
		set.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "ConfigMap", Name: owner.Name, UID: owner.UID}}
	}
	defer func() {
		fresh, cancel := context.WithTimeout(context.WithoutCancel(ctx), endLimit)
		defer cancel()
		err = errors.Join(err, c.end(fresh, set.Name))
	}()
	sets := c.Client.AppsV1().DaemonSets(c.Namespace)
	if _, err := sets.Create(ctx, set, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("create DaemonSet %s: %w", c.Cleanup.Name, err)
	}
	for {
		set, err := sets.Get(ctx, c.Cleanup.Name, metav1.GetOptions{})
		if err != nil && ctx.Err() == nil {
			return fmt.Errorf("read DaemonSet %s: %w", c.Cleanup.Name, err)
		}
		if err == nil && Clean(set) {
			c.Log.Info("cleaned the nodes", "nodes", set.Status.NumberReady)
			return nil
		}
		if !wait(ctx) {
			return c.notClean()
		}
	}
}

// Clean reports whether the cleanup is done on all nodes.
func Clean(set *appsv1.DaemonSet) bool {
	s := &set.Status
	return s.ObservedGeneration >= set.Generation && s.ObservedGeneration > 0 && s.NumberReady >= s.DesiredNumberScheduled
}

// notClean names the nodes that are not clean.
func (c *Cluster) notClean() error {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	selector := metav1.FormatLabelSelector(c.Cleanup.Spec.Selector)
	pods, err := c.Client.CoreV1().Pods(c.Namespace).List(ctx, metav1.ListOptions{LabelSelector: selector})
	if err != nil {
		return fmt.Errorf("list the pods of the cleanup: %w", err)
	}
	var nodes []string
	for _, p := range pods.Items {
		ready := slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
			return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
		})
		if !ready {
			nodes = append(nodes, p.Spec.NodeName)
		}
	}
	slices.Sort(nodes)
	return fmt.Errorf("no cleanup on %d nodes (%s); repair them and repeat, or set uninstall.cleanup=false", len(nodes), strings.Join(nodes[:min(len(nodes), 5)], ", "))
}

// deleteSlices deletes the slices of the driver. Their owner is the node, which stays.
func (c *Cluster) deleteSlices(ctx context.Context) error {
	all := c.Client.ResourceV1().ResourceSlices()
	slices, err := all.List(ctx, metav1.ListOptions{FieldSelector: resourcev1.ResourceSliceSelectorDriver + "=" + cluster.Driver})
	if err != nil {
		return fmt.Errorf("list slices: %w", err)
	}
	for _, s := range slices.Items {
		if err := all.Delete(ctx, s.Name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("delete slice %s: %w", s.Name, err)
		}
	}
	c.Log.Info("deleted slices", "slices", len(slices.Items))
	return nil
}

// deleteLeases deletes the leases of gangs. The namespace may have those of other programs.
func (c *Cluster) deleteLeases(ctx context.Context) error {
	all := c.Client.CoordinationV1().Leases(c.Namespace)
	leases, err := all.List(ctx, metav1.ListOptions{LabelSelector: gangs.Label})
	if err != nil {
		return fmt.Errorf("list leases: %w", err)
	}
	for _, l := range leases.Items {
		if err := all.Delete(ctx, l.Name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("delete lease %s: %w", l.Name, err)
		}
	}
	return nil
}

// wait returns false if ctx ends first.
func wait(ctx context.Context) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(poll):
		return true
	}
}
