// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"maps"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/scheme"
)

// chartObjects renders the chart, and returns its objects with those that its job creates.
func chartObjects(t *testing.T, args ...string) (all []runtime.Object) {
	t.Helper()
	text := helmMust(t, append([]string{"template", "xsched", chart}, args...)...)
	_, cleanup, found := strings.Cut(text, "cleanup.yaml: |\n")
	if !found {
		t.Fatalf("no DaemonSet of the uninstall in\n%s", text)
	}
	cleanup, _, _ = strings.Cut(cleanup, "\n---")
	text += "\n---\n" + strings.ReplaceAll("\n"+cleanup, "\n    ", "\n")
	for document := range strings.SplitSeq(text, "\n---") {
		if !strings.Contains(document, "\nkind: ") {
			continue
		}
		object, _, err := scheme.Codecs.UniversalDeserializer().Decode([]byte(document), nil, nil)
		if err != nil {
			t.Fatalf("%v in\n%s", err, document)
		}
		all = append(all, object)
	}
	return all
}

// of returns the objects of one kind.
func of[T runtime.Object](all []runtime.Object) (out []T) {
	for _, object := range all {
		if o, ok := object.(T); ok {
			out = append(out, o)
		}
	}
	return out
}

// TestChartPrivileges checks what each container of the chart may do on its node: no more than
// docs/kubernetes/install.md says.
func TestChartPrivileges(t *testing.T) {
	const daemon, guardian = "SYS_PTRACE SYS_NICE KILL DAC_READ_SEARCH DAC_OVERRIDE", "SYS_PTRACE KILL DAC_READ_SEARCH DAC_OVERRIDE"
	for _, c := range []struct {
		name, set  string
		privileged bool
	}{
		{"virtual", "virtual.enabled=true", false},
		{"privileged", "daemon.deviceAccess=privileged", true},
		{"runtime class", "daemon.deviceAccess=runtimeClass,daemon.runtimeClassName=nvidia", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			have := map[string]string{}
			check := func(name string, pod *corev1.PodSpec) {
				checkPod(t, name, pod)
				for _, container := range slices.Concat(pod.InitContainers, pod.Containers) {
					have[name+"/"+container.Name] = privileges(t, name, &container)
				}
			}
			all := chartObjects(t, "--set", c.set+",eviction.enabled=true")
			for _, d := range of[*appsv1.DaemonSet](all) {
				check(d.Name, &d.Spec.Template.Spec)
			}
			for _, d := range of[*appsv1.Deployment](all) {
				check(d.Name, &d.Spec.Template.Spec)
			}
			for _, j := range of[*batchv1.Job](all) {
				check(j.Name, &j.Spec.Template.Spec)
			}
			want := map[string]string{
				"xsched/daemon": daemon, "xsched/guardian": guardian, "xsched/node": "",
				"xsched-eviction/eviction": "", "xsched-uninstall/uninstall": "", "xsched-cleanup/cleanup": "DAC_OVERRIDE", "xsched-cleanup/done": "", "xsched-cleanup/none": "",
			}
			if c.privileged {
				want["xsched/daemon"], want["xsched/guardian"] = "privileged", "privileged"
			}
			if !maps.Equal(have, want) {
				t.Errorf("containers have %q; want %q", have, want)
			}
		})
	}
}

// checkPod checks what a pod shares with its node. Only the DaemonSet needs the host's PIDs.
func checkPod(t *testing.T, name string, pod *corev1.PodSpec) {
	t.Helper()
	if pod.HostNetwork || pod.HostIPC || pod.HostPID != (name == "xsched") {
		t.Errorf("%s: host network %t, IPC %t, PIDs %t", name, pod.HostNetwork, pod.HostIPC, pod.HostPID)
	}
	if pod.AutomountServiceAccountToken == nil || *pod.AutomountServiceAccountToken {
		t.Errorf("%s: every container gets a token", name)
	}
	for _, container := range slices.Concat(pod.InitContainers, pod.Containers) {
		for _, mount := range container.VolumeMounts {
			if mount.Name == "token" && !slices.Contains([]string{"node", "eviction", "uninstall"}, container.Name) {
				t.Errorf("%s/%s has a token", name, container.Name)
			}
			if mount.MountPropagation != nil {
				t.Errorf("%s/%s: mounts on %s reach the host: %s", name, container.Name, mount.MountPath, *mount.MountPropagation)
			}
		}
	}
	// Sockets of the container runtime would be the node itself.
	allowed := []string{"/run/xsched", "/var/lib/xsched", "/var/lib/kubelet/plugins/gpu.xsched.dev", "/var/lib/kubelet/plugins_registry", "/var/run/cdi", "/etc/cdi", "/var/run/nri", "/dev"}
	for _, volume := range pod.Volumes {
		if volume.HostPath != nil && name == "xsched" && !slices.Contains(allowed, volume.HostPath.Path) {
			t.Errorf("%s has %s of the host", name, volume.HostPath.Path)
		}
	}
}

// privileges returns what a container has beyond a restricted one: capabilities, or all.
func privileges(t *testing.T, pod string, c *corev1.Container) string {
	t.Helper()
	s := c.SecurityContext
	if s == nil || s.ReadOnlyRootFilesystem == nil || !*s.ReadOnlyRootFilesystem {
		t.Errorf("%s/%s may write to its root: %+v", pod, c.Name, s)
		return "?"
	}
	if s.Privileged != nil && *s.Privileged {
		return "privileged"
	}
	if s.AllowPrivilegeEscalation == nil || *s.AllowPrivilegeEscalation || s.SeccompProfile == nil || s.SeccompProfile.Type != corev1.SeccompProfileTypeRuntimeDefault ||
		s.Capabilities == nil || !slices.Equal(s.Capabilities.Drop, []corev1.Capability{"ALL"}) {
		t.Errorf("%s/%s: %+v", pod, c.Name, s)
		return "?"
	}
	var added []string
	for _, capability := range s.Capabilities.Add {
		added = append(added, string(capability))
	}
	return strings.Join(added, " ")
}

// TestChartRoles checks the rights in the API server, each as "verbs resource".
func TestChartRoles(t *testing.T) {
	got := map[string][]string{}
	all := chartObjects(t)
	add := func(name string, rules []rbacv1.PolicyRule) {
		for _, r := range rules {
			if len(r.NonResourceURLs) > 0 {
				t.Errorf("%s may reach %v", name, r.NonResourceURLs)
			}
			for _, group := range r.APIGroups {
				for _, resource := range r.Resources {
					if len(r.ResourceNames) > 0 {
						resource += " " + strings.Join(r.ResourceNames, ",")
					}
					got[name] = append(got[name], strings.Join(r.Verbs, ",")+" "+strings.TrimPrefix(group+"/", "/")+resource)
				}
			}
		}
		slices.Sort(got[name])
	}
	for _, r := range of[*rbacv1.ClusterRole](all) {
		add("cluster "+r.Name, r.Rules)
	}
	for _, r := range of[*rbacv1.Role](all) {
		add(r.Namespace+" "+r.Name, r.Rules)
	}
	want := map[string][]string{
		"cluster xsched-node": {
			"create,patch events", "create,patch events.k8s.io/events", "get namespaces", "get nodes", "get resource.k8s.io/resourceclaims",
			"get,list,watch pods", "get,list,watch,create,update,patch,delete resource.k8s.io/resourceslices",
		},
		"cluster xsched-viewer":       {"list pods"},
		"cluster xsched-nodeviews":    {"get xsched.dev/nodeviews"},
		"cluster xsched-reviews":      {"create authentication.k8s.io/tokenreviews", "create authorization.k8s.io/subjectaccessreviews"},
		"cluster xsched-uninstall":    {"list resource.k8s.io/resourceclaims", "list,delete resource.k8s.io/resourceslices"},
		chartSpace + " xsched-node":   {"list,watch,create,update,delete coordination.k8s.io/leases"},
		chartSpace + " xsched-viewer": {"create serviceaccounts/token xsched-viewer", "get,create pods/portforward", "get,list pods"},
		chartSpace + " xsched-uninstall": {
			"create apps/daemonsets", "get configmaps xsched-uninstall", "get,delete apps/daemonsets xsched,xsched-cleanup", "list pods",
			"list,delete coordination.k8s.io/leases",
		},
	}
	if !maps.EqualFunc(got, want, slices.Equal[[]string]) {
		t.Errorf("roles of the chart:\n%q\nwant\n%q", got, want)
	}
	// Eviction is off by default, and then nobody may evict.
	on := chartObjects(t, "--set", "eviction.enabled=true")
	if a, b := len(of[*appsv1.Deployment](all)), len(of[*appsv1.Deployment](on)); a != 0 || b != 1 {
		t.Errorf("%d Deployments, and %d with eviction.enabled", a, b)
	}
	for _, r := range of[*rbacv1.ClusterRole](on) {
		if r.Name == "xsched-eviction" {
			add("eviction", r.Rules)
		}
	}
	evicts := []string{
		"create pods/eviction", "create,patch events", "create,patch events.k8s.io/events", "get nodes", "get,list pods", "list resource.k8s.io/deviceclasses",
		"list resource.k8s.io/resourceclaims", "list resource.k8s.io/resourceslices",
	}
	if !slices.Equal(got["eviction"], evicts) {
		t.Errorf("eviction.enabled gives %q, want %q", got["eviction"], evicts)
	}
	// Exec is in a role of its own, which is not there unless somebody asks for it, and then nobody has it.
	withRoot := chartObjects(t, "--set", "nodeRoot.create=true")
	if n := len(of[*rbacv1.Role](withRoot)) - len(of[*rbacv1.Role](all)); n != 1 {
		t.Errorf("nodeRoot.create adds %d roles", n)
	}
	for _, r := range of[*rbacv1.Role](withRoot) {
		for _, rule := range r.Rules {
			if r.Name != "xsched-node-root" && slices.Contains(rule.Resources, "pods/exec") {
				t.Errorf("role %s allows exec", r.Name)
			}
		}
	}
	for _, b := range of[*rbacv1.RoleBinding](withRoot) {
		if b.RoleRef.Name == "xsched-node-root" {
			t.Errorf("the chart gives %s to %+v", b.RoleRef.Name, b.Subjects)
		}
	}
	if off := helmMust(t, "template", "xsched", chart, "--set", "viewer.create=false"); strings.Contains(off, "--view-port") || strings.Contains(off, "tokenreviews") || strings.Contains(off, "xsched-viewer") {
		t.Error("viewing is on without viewer.create")
	}
	// Nobody else than the chart's own accounts gets a role.
	for _, b := range of[*rbacv1.ClusterRoleBinding](on) {
		checkSubjects(t, b.Name, b.Subjects)
	}
	for _, b := range of[*rbacv1.RoleBinding](all) {
		checkSubjects(t, b.Name, b.Subjects)
	}
}

// checkSubjects checks that a binding is for one service account of the chart.
func checkSubjects(t *testing.T, binding string, subjects []rbacv1.Subject) {
	t.Helper()
	account := map[string]string{
		"xsched-node": "xsched", "xsched-reviews": "xsched", "xsched-nodeviews": "xsched-viewer", "xsched-uninstall": "xsched-uninstall", "xsched-eviction": "xsched-eviction",
	}[binding]
	if want := (rbacv1.Subject{Kind: rbacv1.ServiceAccountKind, Name: account, Namespace: chartSpace}); !slices.Equal(subjects, []rbacv1.Subject{want}) {
		t.Errorf("binding %s is for %+v", binding, subjects)
	}
}
