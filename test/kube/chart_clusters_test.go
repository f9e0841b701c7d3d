// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
)

// selectorLabels returns the labels by which a pod selects its nodes.
func selectorLabels(p *corev1.PodSpec) (out []string) {
	if p.Affinity == nil || p.Affinity.NodeAffinity == nil {
		return nil
	}
	for _, term := range p.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms {
		for _, e := range term.MatchExpressions {
			out = append(out, e.Key+" "+string(e.Operator))
		}
	}
	return out
}

// TestChartSelectsGPUNodes checks that no privileged pod runs on a node without a GPU, and that an administrator's
// own selection replaces the labels.
func TestChartSelectsGPUNodes(t *testing.T) {
	for _, c := range []struct {
		set  string
		want string // among the labels; empty: none
	}{
		{"image.tag=v1", "xsched.dev/gpu Exists"},
		{"image.tag=v1", "feature.node.kubernetes.io/pci-0302_10de.present Exists"},
		{"gpuNodeLabels={example.com/accelerator}", "example.com/accelerator Exists"},
		{"gpuNodeLabels=null", ""},
		{"virtual.enabled=true", ""},
		{"nodeSelector.gpu=own", ""},
	} {
		for _, d := range of[*appsv1.DaemonSet](chartObjects(t, "--set", c.set)) {
			if d.Spec.Template.Spec.NodeSelector["xsched.dev/no-node"] != "" {
				continue
			}
			got := selectorLabels(&d.Spec.Template.Spec)
			if c.want == "" && len(got) > 0 || c.want != "" && !slices.Contains(got, c.want) {
				t.Errorf("--set %s: %s selects nodes by %q; want %q", c.set, d.Name, got, c.want)
			}
		}
	}
	own := of[*appsv1.DaemonSet](chartObjects(t, "--set-json", `affinity={"nodeAffinity":{"requiredDuringSchedulingIgnoredDuringExecution":{"nodeSelectorTerms":[{"matchExpressions":[{"key":"own","operator":"Exists"}]}]}}}`))
	if got := selectorLabels(&own[0].Spec.Template.Spec); !slices.Equal(got, []string{"own Exists"}) {
		t.Errorf("with an own affinity: %q", got)
	}
}

// TestChartForClusters checks the objects that only some clusters know, and that no other cluster gets them.
func TestChartForClusters(t *testing.T) {
	plain := helmMust(t, "template", "xsched", chart)
	for _, kind := range []string{"SecurityContextConstraints", "PodMonitor", "ResourceQuota", "xsched-class-"} {
		if strings.Contains(plain, kind) {
			t.Errorf("by default the chart has %s", kind)
		}
	}
	text := helmMust(t, "template", "xsched", chart, "--set", "openshift.enabled=true,metrics.port=9400,metrics.tokenSecret=scrape,metrics.podMonitor.create=true,metrics.podMonitor.labels.release=prom")
	for _, want := range []string{
		"system:serviceaccount:" + chartSpace + ":xsched\n", "allowPrivilegedContainer: true\n",
		"authorization: {type: Bearer, credentials: {name: scrape, key: token}}", "    release: prom\n", "- port: metrics\n",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
	text = helmMust(t, "template", "xsched", chart, "--set", "openshift.enabled=true,virtual.enabled=true")
	if !strings.Contains(text, "allowPrivilegedContainer: false\nallowPrivilegeEscalation: false\n") {
		t.Error("the constraints permit privileged containers that the chart does not have")
	}
	for _, d := range of[*appsv1.DaemonSet](chartObjects(t)) { // the constraints are those of this account
		if hostPaths := slices.ContainsFunc(d.Spec.Template.Spec.Volumes, func(v corev1.Volume) bool { return v.HostPath != nil }); hostPaths && d.Spec.Template.Spec.ServiceAccountName != "xsched" {
			t.Errorf("%s runs as %q", d.Name, d.Spec.Template.Spec.ServiceAccountName)
		}
		if most := d.Spec.UpdateStrategy.RollingUpdate; d.Name == "xsched" && most.MaxUnavailable.String() != "10%" {
			t.Errorf("%s replaces %s at once", d.Name, most.MaxUnavailable.String())
		}
	}
}

// TestChartLabelsOnly checks that a release without claims has nothing that an older cluster does not know, and that the
// chart says which setting such a cluster needs.
func TestChartLabelsOnly(t *testing.T) {
	old := []string{"template", "xsched", chart, "--kube-version", "1.29.0"}
	if text, err := helm(old...); err == nil || !strings.Contains(text+err.Error(), "set dra.enabled=false to serve labels only") {
		t.Errorf("claims on Kubernetes 1.29: %v", err)
	}
	text := helmMust(t, append(old, "--set", "dra.enabled=false")...)
	for _, absent := range []string{"resource.k8s.io", "DeviceClass", "ValidatingAdmissionPolicy", "--cdi-dir=/var", "--tenants"} {
		if strings.Contains(text, absent) {
			t.Errorf("without claims the chart has %s", absent)
		}
	}
	if n := strings.Count(text, "- --labels-only\n"); n != 2 {
		t.Errorf("%d programs know that there are no claims; the plugin and the uninstall need it", n)
	}
	if text, err := helm("template", "xsched", chart, "--set", "dra.enabled=false,nri.enabled=false"); err == nil || !strings.Contains(text+err.Error(), "no pod can ask for a class") {
		t.Errorf("neither claims nor labels: %v", err)
	}
}

// claimOf is a claim, or a template of claims, of a class in a namespace. The form is one of exactly and first.
func claimOf(kind, form, class, space string) string {
	request := "exactly: {deviceClassName: " + class + "}"
	if form == "first" {
		request = "firstAvailable: [{name: a, deviceClassName: " + class + "}]"
	}
	spec := fmt.Sprintf("{devices: {requests: [{name: gpu, %s}]}}", request)
	if kind == "ResourceClaimTemplate" {
		spec = "{spec: " + spec + "}"
	}
	return fmt.Sprintf("apiVersion: resource.k8s.io/v1\nkind: %s\nmetadata: {generateName: c-, namespace: %s}\nspec: %s\n", kind, space, spec)
}

// TestChartRestrictsClasses tries claims of a restricted class in two namespaces that may and one that may not.
func TestChartRestrictsClasses(t *testing.T) {
	c := StartAPI(t)
	for _, space := range []string{"listed", "labelled", "neither"} { // without the controllers nothing deletes them
		c.Kubectl(t, "create", "namespace", space)
	}
	c.Kubectl(t, "label", "namespace", "labelled", "xsched.dev/allow-latency=true")
	_, _ = c.TryKubectl("", "create", "namespace", chartSpace) // may be there, from another test
	helmMust(t, "install", "xsched", chart, "--no-hooks", "--set", "virtual.enabled=true,priorityClassQuota=30",
		"--set", "deviceClasses.gpu-latency.namespaces={listed},deviceClasses.gpu-latency.extendedResourceName=xsched.dev/latency",
		"--set-string", `deviceClasses.gpu-latency.namespaceSelector.matchLabels.xsched\.dev/allow-latency=true`)
	t.Cleanup(func() { helmMust(t, "uninstall", "xsched", "--no-hooks") })
	try := func(text string) error {
		_, err := c.TryKubectl(text, "create", "--dry-run=server", "-f", "-")
		return err
	}
	const refused = "may not claim gpu-latency"
	eventually(t, "the class is restricted", func() bool {
		err := try(claimOf("ResourceClaim", "exactly", "gpu-latency", "neither"))
		return err != nil && strings.Contains(err.Error(), refused)
	})
	for _, kind := range []string{"ResourceClaim", "ResourceClaimTemplate"} {
		for _, form := range []string{"exactly", "first"} {
			for _, space := range []string{"listed", "labelled"} {
				if err := try(claimOf(kind, form, "gpu-latency", space)); err != nil {
					t.Errorf("%s (%s) in %s: %v", kind, form, space, err)
				}
			}
			if err := try(claimOf(kind, form, "gpu-latency", "neither")); err == nil || !strings.Contains(err.Error(), refused) {
				t.Errorf("%s (%s) of a restricted class: %v", kind, form, err)
			}
			if err := try(claimOf(kind, form, "gpu-batch", "neither")); err != nil {
				t.Errorf("%s (%s) of another class: %v", kind, form, err)
			}
		}
	}
	class := of[*resourceapi.DeviceClass](chartObjects(t, "--set", "deviceClasses.gpu-latency.extendedResourceName=xsched.dev/latency"))
	if stored := c.Kubectl(t, "get", "deviceclass", "gpu-latency", "-o", "jsonpath={.spec.extendedResourceName}"); stored != "xsched.dev/latency" || len(class) != 2 {
		t.Errorf("the class serves the resource %q of %d classes", stored, len(class))
	}
	if quota := c.Kubectl(t, "-n", chartSpace, "get", "resourcequota", "xsched-priority", "-o", "jsonpath={.spec.hard.pods} {.spec.scopeSelector.matchExpressions[0].values[0]}"); quota != "30 system-node-critical" {
		t.Errorf("quota of the priority class: %q", quota)
	}
}
