// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"xsched/internal/control"
	"xsched/internal/kube/cdi"
	"xsched/internal/kube/edits"
)

// surroundings are what the containers of claims get on this node now.
type surroundings struct {
	edits edits.Edits // to be scheduled
	// gpus is what a container needs for each GPU and no other, by name of the device.
	gpus map[string]control.DeviceAccess
}

// surroundings asks the daemon, and looks for the vendors' CDI specifications.
func (n *Node) surroundings(ctx context.Context) (surroundings, error) {
	ctx, cancel := context.WithTimeout(ctx, answerLimit)
	defer cancel()
	e, err := n.edits(ctx)
	if err != nil {
		return surroundings{}, err
	}
	list, err := n.daemon.Devices(ctx)
	if err != nil {
		return surroundings{}, fmt.Errorf("the daemon of this node does not list its GPUs: %w; see the log of container daemon", err)
	}
	return surroundings{e, accesses(list.Devices, cdi.Find(n.options.CDI, n.options.StaticCDI))}, nil
}

// accesses returns what a container needs for each GPU. A CDI device of the vendor's tools replaces the
// rest: it has the same device files, and the vendor's libraries. A divided GPU is left out: only its instances
// run programs, and a claim has none.
func accesses(devices []control.Device, vendors map[string]bool) map[string]control.DeviceAccess {
	out := map[string]control.DeviceAccess{}
	for i := range devices {
		d := &devices[i]
		if d.Access == nil || d.MIG {
			continue
		}
		out[DeviceName(d.ID)] = control.DeviceAccess{Nodes: d.Access.Nodes, Variables: d.Access.Variables}
		for _, name := range d.Access.CDI {
			if vendors[name] {
				out[DeviceName(d.ID)] = control.DeviceAccess{CDI: []string{name}}
				break
			}
		}
	}
	return out
}

// bind sets what the containers of a claim need for its GPUs.
func (r *claimRecord) bind(gpus map[string]control.DeviceAccess) error {
	devices := slices.Clone(r.Devices)
	for i := range devices {
		access, ok := gpus[devices[i].Device]
		if !ok {
			return fmt.Errorf("%s is gone, or divided into instances; delete the pod and its claim, so that another GPU is allocated", devices[i].Device)
		}
		devices[i].Access = access
	}
	r.Devices = devices
	return nil
}

// spec returns the CDI specification of a claim. Device files add up in a container, and variables replace
// each other. Each device therefore lists the GPUs of the whole claim in them.
func (r *claimRecord) spec(uid string, e edits.Edits) cdi.Spec {
	s := cdi.Spec{Version: cdi.Version, Kind: cdiKind}
	variables := joined(r.Devices)
	for i := range r.Devices {
		own := e
		own.Nodes = r.Devices[i].Access.Nodes
		if memory := r.memory(); memory > 0 { // from the first allocation on; the grant follows when the program has joined
			own.Env = append(slices.Clone(e.Env), "XSCHED_MEMORY="+strconv.FormatInt(memory, 10))
		}
		if len(r.Devices[i].Access.Variables) > 0 {
			own.Env = slices.Clone(own.Env)
			for _, name := range slices.Sorted(maps.Keys(variables)) {
				own.Env = append(own.Env, name+"="+variables[name])
			}
		}
		s.Devices = append(s.Devices, cdi.Device{Name: deviceName(uid, i), Edits: cdi.FromEdits(own)})
	}
	return s
}

// memory returns the least memory that the claim requests of a GPU; 0: it requests none.
func (r *claimRecord) memory() (least int64) {
	for i := range r.Devices {
		if m := r.Devices[i].Memory; m > 0 && (least == 0 || m < least) {
			least = m
		}
	}
	return least
}

// joined returns the variables of several GPUs together.
func joined(devices []deviceRecord) map[string]string {
	lists := map[string][]string{}
	for i := range devices {
		for name, value := range devices[i].Access.Variables {
			if !slices.Contains(lists[name], value) {
				lists[name] = append(lists[name], value)
			}
		}
	}
	out := map[string]string{}
	for name, values := range lists {
		slices.Sort(values)
		out[name] = strings.Join(values, ",")
	}
	return out
}

// ClaimVariables returns the variables of a container with these CDI devices of claims: exactly their GPUs.
// Claims of other namespaces do not count: a pod can name the CDI device of any claim in an annotation.
func (n *Node) ClaimVariables(namespace string, devices []string) map[string]string {
	var all []deviceRecord
	for _, name := range devices {
		if d, of, ok := n.store.device(name); ok && of == namespace {
			all = append(all, d)
		}
	}
	return joined(all)
}

// address returns the PCI address in the name of a device; empty: it has none.
func address(device string) string {
	parts := strings.Split(strings.TrimPrefix(device, "gpu-"), "-")
	if len(parts) != 4 || !strings.HasPrefix(device, "gpu-") {
		return ""
	}
	id := parts[0] + ":" + parts[1] + ":" + parts[2] + "." + parts[3]
	if DeviceName(id) != device {
		return ""
	}
	return id
}

// cdiIDs are the CDI devices of an allocation: ours, and that of the vendor's tools.
func (d *deviceRecord) cdiIDs(claim string, index int) []string {
	return append([]string{cdiKind + "=" + deviceName(claim, index)}, d.Access.CDI...)
}
