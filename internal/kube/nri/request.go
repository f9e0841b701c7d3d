// SPDX-License-Identifier: Apache-2.0

package nri

import (
	"slices"
	"strings"

	"github.com/containerd/nri/pkg/api"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"

	"xsched/internal/kube/classes"
	"xsched/internal/kube/cluster"
)

// ContainersAnnotation names the containers of a pod that the class applies to, separated by commas.
const ContainersAnnotation = "xsched.dev/containers"

// sandboxPod returns what the runtime knows about a pod: its names, labels and annotations.
func sandboxPod(s *api.PodSandbox) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Namespace: s.GetNamespace(), Name: s.GetName(), UID: types.UID(s.GetUid()),
		Labels: s.GetLabels(), Annotations: s.GetAnnotations(),
	}}
}

// asked returns a pod's label, else its annotation of the same name.
func asked(pod *corev1.Pod, name string) string {
	if v := pod.Labels[name]; v != "" {
		return v
	}
	return pod.Annotations[name]
}

// request reads what a pod asks for.
func request(pod *corev1.Pod) classes.Request {
	return classes.Request{
		Namespace: pod.Namespace, Class: asked(pod, cluster.PriorityClassLabel), PriorityClass: pod.Spec.PriorityClassName,
	}
}

// group returns the name of the pod's gang, which must be possible as the value of a label.
func group(pod *corev1.Pod) string {
	name := asked(pod, cluster.GroupLabel)
	if len(validation.IsValidLabelValue(name)) > 0 {
		return ""
	}
	return name
}

// selected reports whether the pod's class applies to a container. Without an annotation it applies to
// containers with devices. A pod can have access to a GPU without a device in its specification, for
// example if it is privileged. Then a class that the pod asked for applies to all its containers, but a
// default does not: nobody wants a shim in all pods of a PriorityClass.
func selected(pod *corev1.Pod, c *container, o classes.Outcome) bool {
	if names, ok := pod.Annotations[ContainersAnnotation]; ok {
		return slices.ContainsFunc(strings.Split(names, ","), func(n string) bool { return strings.TrimSpace(n) == c.name })
	}
	if hasDevices(pod, c) {
		return true
	}
	return o != classes.Default && !slices.ContainsFunc(resources(pod), func(r named) bool { return devices(r.resources) })
}

// hasDevices reports whether a container has devices: a claim, an extended resource or a CDI device.
func hasDevices(pod *corev1.Pod, c *container) bool {
	return c.devices || slices.ContainsFunc(resources(pod), func(r named) bool { return r.name == c.name && devices(r.resources) })
}

// named has the resources of a container.
type named struct {
	name      string
	resources *corev1.ResourceRequirements
}

func resources(pod *corev1.Pod) []named {
	var out []named
	for i := range pod.Spec.InitContainers {
		out = append(out, named{pod.Spec.InitContainers[i].Name, &pod.Spec.InitContainers[i].Resources})
	}
	for i := range pod.Spec.Containers {
		out = append(out, named{pod.Spec.Containers[i].Name, &pod.Spec.Containers[i].Resources})
	}
	return out
}

func devices(r *corev1.ResourceRequirements) bool {
	if len(r.Claims) > 0 {
		return true
	}
	for name, amount := range r.Limits { // extended resources always have limits
		if extended(string(name)) && !amount.IsZero() {
			return true
		}
	}
	return false
}

// extended reports whether a resource belongs to a device plugin.
func extended(name string) bool {
	domain, _, ok := strings.Cut(name, "/")
	return ok && domain != "kubernetes.io" && !strings.HasSuffix(domain, ".kubernetes.io")
}

// variable returns the literal value of an environment variable in a container's specification.
func variable(pod *corev1.Pod, container, name string) string {
	if v := envVar(pod, container, name); v != nil {
		return v.Value
	}
	return ""
}

// referenced reports whether the value of a container's variable comes from another object.
func referenced(pod *corev1.Pod, container, name string) bool {
	v := envVar(pod, container, name)
	return v != nil && v.ValueFrom != nil
}

// envVar finds a variable in a container's specification; nil: there is none.
func envVar(pod *corev1.Pod, container, name string) *corev1.EnvVar {
	for _, list := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			if list[i].Name != container {
				continue
			}
			for j := range slices.Backward(list[i].Env) {
				if list[i].Env[j].Name == name {
					return &list[i].Env[j]
				}
			}
		}
	}
	return nil
}
