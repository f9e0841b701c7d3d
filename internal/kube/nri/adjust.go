// SPDX-License-Identifier: Apache-2.0

package nri

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/containerd/nri/pkg/api"
	corev1 "k8s.io/api/core/v1"

	"xsched/internal/kube/edits"
)

const (
	preloadVariable = "LD_PRELOAD"
	disableVariable = "XSCHED_DISABLE"
)

// getenv returns the value that counts of a variable: the last one.
func getenv(env []string, name string) string {
	for _, e := range slices.Backward(env) {
		if key, value, _ := strings.Cut(e, "="); key == name {
			return value
		}
	}
	return ""
}

func hasEnv(env []string, name string) bool {
	return slices.ContainsFunc(env, func(e string) bool { return strings.HasPrefix(e, name+"=") })
}

// adjustment returns the edits for a container that has none of them; nil: it has them all already.
func adjustment(e edits.Edits, c *api.Container) (*api.ContainerAdjustment, error) {
	out := &api.ContainerAdjustment{}
	for _, m := range e.Mounts {
		switch present := mountAt(c, m.Container); {
		case present == nil:
			out.AddMount(&api.Mount{Source: m.Host, Destination: m.Container, Type: "bind", Options: slices.Clone(m.Options)})
		case present.Source != m.Host:
			return nil, fmt.Errorf("the container mounts %s at %s, where the scheduler's files belong; mount it elsewhere", present.Source, m.Container)
		}
	}
	for _, variable := range e.Env {
		key, value, _ := strings.Cut(variable, "=")
		if !hasEnv(c.Env, key) { // the pod's own values count
			out.AddEnv(key, value)
		}
	}
	addPreload(out, c, getenv(c.Env, preloadVariable), e.Preload)
	if len(out.Mounts)+len(out.Env) == 0 {
		return nil, nil
	}
	return out, nil
}

// bindVariables returns the edit that lists exactly the GPUs of a container's claims; nil: none is needed. The
// CDI edits of several claims replace each other's variables.
func bindVariables(variables map[string]string, c *api.Container) *api.ContainerAdjustment {
	var out *api.ContainerAdjustment
	for _, name := range slices.Sorted(maps.Keys(variables)) {
		if getenv(c.Env, name) == variables[name] {
			continue
		}
		if out == nil {
			out = &api.ContainerAdjustment{}
		}
		if hasEnv(c.Env, name) {
			out.RemoveEnv(name)
		}
		out.AddEnv(name, variables[name])
	}
	return out
}

// keepPreload adds the edit for a container with a claim, whose CDI edits replaced the LD_PRELOAD of the
// pod's specification. nil: no edit is needed.
func keepPreload(out *api.ContainerAdjustment, e edits.Edits, pod *corev1.Pod, c *api.Container) *api.ContainerAdjustment {
	own := variable(pod, c.GetName(), preloadVariable)
	if own == "" || getenv(c.Env, preloadVariable) != e.Preload {
		return out
	}
	if out == nil {
		out = &api.ContainerAdjustment{}
	}
	addPreload(out, c, own, e.Preload)
	if len(out.Env) == 0 {
		return nil
	}
	return out
}

// addPreload appends the shim to the libraries that a container preloads.
func addPreload(out *api.ContainerAdjustment, c *api.Container, present, shim string) {
	if present == getenv(c.Env, preloadVariable) && !slices.ContainsFunc(libraries(shim), func(l string) bool { return !slices.Contains(libraries(present), l) }) {
		return
	}
	value := shim
	if present != "" {
		value = present + ":" + shim
	}
	if hasEnv(c.Env, preloadVariable) {
		// Another plugin may have set it. Changing its variable is a conflict that fails the
		// container, unless the variable is removed first.
		out.RemoveEnv(preloadVariable)
	}
	out.AddEnv(preloadVariable, value)
}

// libraries splits a list as the loader does.
func libraries(list string) []string {
	return strings.FieldsFunc(list, func(r rune) bool { return r == ':' || r == ' ' })
}

func mountAt(c *api.Container, destination string) *api.Mount {
	for _, m := range c.GetMounts() {
		if strings.TrimRight(m.GetDestination(), "/") == destination {
			return m
		}
	}
	return nil
}
