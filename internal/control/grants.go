// SPDX-License-Identifier: Apache-2.0

package control

import (
	"cmp"
	"regexp"
	"slices"
	"strings"

	"xsched/internal/identity"
	"xsched/internal/model"
)

// Bounds of grants.
const (
	MaxGrants       = 1024 // of all sources together
	MaxGrantSources = 8
	maxGrantDevices = 64 // of one grant; Kubernetes allocates at most 32 devices to a claim
)

// Grant names a Kubernetes pod, or one container of it, and sets hints for its programs as an
// administrator does. The pod's programs can't raise themselves above them.
type Grant struct {
	// ID identifies the grant in its source.
	ID        string `json:"id"`
	Namespace string `json:"namespace"`
	Pod       string `json:"pod"`
	PodUID    string `json:"pod_uid"`
	// Container and ContainerID narrow the grant to one container. A container id goes before a pod.
	Container   string `json:"container,omitempty"`
	ContainerID string `json:"container_id,omitempty"`
	// Class is the device class or priority class that the hints come from. It only informs.
	Class string `json:"class,omitempty"`
	// Devices are the PCI addresses of the GPUs that the programs may use; empty: all. On others they are
	// best effort, whatever the hints say.
	Devices []string `json:"devices,omitempty"`

	// Priority is the priority of the programs and the highest that they can set.
	Priority *int32 `json:"priority,omitempty"`
	// Utilization is the share of the programs in percent, which all of them have together.
	Utilization *int `json:"utilization,omitempty"`
	// Pool names those who have Utilization together: the programs of all grants with the same pool; empty:
	// those of the pod.
	Pool            string `json:"pool,omitempty"`
	LatencyTargetUS *int64 `json:"latency_target_us,omitempty"`
	// Memory is the number of bytes that each program may allocate on each GPU.
	Memory *int64 `json:"memory,omitempty"`
	Level  *int   `json:"level,omitempty"`
	// Group is the gang of the programs. Pods of one namespace with equal groups run together.
	Group string `json:"group,omitempty"`
}

// Strictest joins two grants of one pod or container into the lowest of both. Hints hold for a whole
// program, on all of its GPUs: otherwise a grant for one GPU would raise its pod on another.
func Strictest(a, b Grant) Grant {
	if priorityOf(b) < priorityOf(a) {
		a, b = b, a
	}
	if a.Priority == nil && b.Priority != nil { // a limit of either one stays a limit
		a.Priority = new(priorityOf(a))
	}
	if b.Utilization != nil && (a.Utilization == nil || *b.Utilization < *a.Utilization) {
		a.Utilization, a.Pool = b.Utilization, b.Pool
	}
	if a.Level != nil && (b.Level == nil || *b.Level > *a.Level) {
		a.Level = b.Level // none is the highest, and a higher level is easier to preempt
	}
	if a.LatencyTargetUS != nil && (b.LatencyTargetUS == nil || *b.LatencyTargetUS > *a.LatencyTargetUS) {
		a.LatencyTargetUS = b.LatencyTargetUS
	}
	if b.Memory != nil && (a.Memory == nil || *b.Memory < *a.Memory) {
		a.Memory = b.Memory
	}
	a.Group = cmp.Or(a.Group, b.Group)
	a.Devices = slices.Concat(a.Devices, b.Devices) // each claim adds GPUs
	slices.Sort(a.Devices)
	a.Devices = slices.Compact(a.Devices)
	return a
}

func priorityOf(g Grant) int32 {
	if g.Priority == nil {
		return int32(model.PriorityDefault)
	}
	return *g.Priority
}

// GrantsRequest replaces all grants of a source; an empty source only reads.
type GrantsRequest struct {
	Source string  `json:"-"` // part of the path
	Grants []Grant `json:"grants"`
}

// GrantEntry is a grant in force.
type GrantEntry struct {
	Source string `json:"source"`
	Grant
	PIDs []int `json:"pids,omitempty"` // of the programs that have it now
}

// GrantsReply has the grants in force, of the source of the request or of all, and the numbers of
// those that the request changed.
type GrantsReply struct {
	Grants  []GrantEntry `json:"grants"`
	Added   int          `json:"added"`
	Changed int          `json:"changed"`
	Removed int          `json:"removed"`
}

// Names in grants appear in labels, logs and terminals, so they are those that Kubernetes allows.
var (
	grantSource = regexp.MustCompile(`^[a-z][a-z0-9-]{0,31}$`)
	grantText   = regexp.MustCompile(`^[!-~]{1,256}$`)
	dnsLabel    = regexp.MustCompile(`^[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?$`)
	dnsName     = regexp.MustCompile(`^[a-z0-9](?:[a-z0-9.-]{0,251}[a-z0-9])?$`)
	grantClass  = regexp.MustCompile(`^[A-Za-z0-9](?:[A-Za-z0-9._-]{0,251}[A-Za-z0-9])?$`)
)

// Check returns why the request is refused. Nothing of a refused request is applied.
func (r *GrantsRequest) Check() error {
	if !grantSource.MatchString(r.Source) {
		return Errorf(ErrInvalid, "use lower-case letters, digits and -, at most 32", "%q is not the name of a source", r.Source)
	}
	if len(r.Grants) > MaxGrants {
		return Errorf(ErrInvalid, "", "%d grants are too many: at most %d are possible", len(r.Grants), MaxGrants)
	}
	ids := make(map[string]bool, len(r.Grants))
	for i := range r.Grants {
		g := &r.Grants[i]
		if err := g.Check(); err != nil {
			return err
		}
		if ids[g.ID] {
			return Errorf(ErrInvalid, "give each grant its own id", "two grants have the id %s", g.ID)
		}
		ids[g.ID] = true
	}
	return nil
}

// Check returns why a grant is refused.
func (g *Grant) Check() error {
	if !grantText.MatchString(g.ID) {
		return Errorf(ErrInvalid, "use 1 to 256 printable characters without spaces", "%.64q is not the id of a grant", g.ID)
	}
	for _, f := range []struct {
		what, text, remedy string
		form               *regexp.Regexp
		must               bool
	}{
		{"namespace", g.Namespace, "use the name of a namespace", dnsLabel, true},
		{"pod", g.Pod, "use the name of a pod", dnsName, true},
		{"container", g.Container, "use the name of a container", dnsLabel, false},
		{"class", g.Class, "use letters, digits, -, _ and .", grantClass, false},
		{"pool", g.Pool, "use 1 to 256 printable characters without spaces", grantText, false},
	} {
		if (f.must || f.text != "") && !f.form.MatchString(f.text) {
			return g.refuse(f.remedy, "%.64q is not a %s", f.text, f.what)
		}
	}
	if len(g.Devices) > maxGrantDevices {
		return g.refuse("list each once", "%d devices are too many: at most %d are possible", len(g.Devices), maxGrantDevices)
	}
	for _, name := range g.Devices {
		if id, err := model.ParseDeviceID(name); err != nil || id == 0 || id.String() != name {
			return g.refuse("use such as 0000:01:00.0", "%.64q is not the PCI address of a device", name)
		}
	}
	if identity.PodUID(g.PodUID) == "" {
		return g.refuse("use the UID of the pod", "%.64q is not a pod UID", g.PodUID)
	}
	if g.ContainerID != "" && !identity.IsContainerID(g.ContainerID) {
		return g.refuse("use 64 hexadecimal digits", "%.80q is not a container id", g.ContainerID)
	}
	if g.Container != "" && g.ContainerID == "" {
		return g.refuse("add its container_id, or omit its name", "container %s has no id, so the grant would bind the whole pod", g.Container)
	}
	if _, err := g.Hints(); err != nil {
		return err
	}
	return nil
}

func (g *Grant) refuse(remedy, format string, args ...any) error {
	e := Errorf(ErrInvalid, remedy, format, args...)
	e.Cause = "grant " + g.ID + ": " + e.Cause
	return e
}

// Hints returns the hints of a grant.
func (g *Grant) Hints() (model.HintChange, error) {
	r := HintRequest{Priority: g.Priority, Utilization: g.Utilization, Level: g.Level, SLOUS: g.LatencyTargetUS, Memory: g.Memory}
	if g.Group != "" {
		r.Gang = &g.Group
	}
	change, err := r.Change()
	if e, ok := err.(*Error); ok { //nolint:errorlint // Change returns it unwrapped
		return change, g.refuse(e.Remedy, "%s", e.Cause)
	}
	return change, err
}

// PodName returns "namespace/pod" or "namespace/pod/container" of a program; empty: not in a known pod.
func PodName(namespace, pod, container string) string {
	if pod == "" {
		return ""
	}
	return strings.TrimSuffix(namespace+"/"+pod+"/"+container, "/")
}
