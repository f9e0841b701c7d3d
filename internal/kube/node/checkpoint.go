// SPDX-License-Identifier: Apache-2.0

package node

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"

	"xsched/internal/control"
	"xsched/internal/kube/params"
)

// checkpointVersion is that of the file's format.
const checkpointVersion = 1

// checkpoint has the claims that are prepared or about to be. It is written before a claim takes
// effect and after its effects are gone, so that a restart can repair whatever lies between.
type checkpoint struct {
	Version int                       `json:"version"`
	Claims  map[types.UID]claimRecord `json:"claims"`
}

// claimRecord is a prepared claim.
type claimRecord struct {
	Namespace string         `json:"namespace"`
	Name      string         `json:"name"`
	Pods      []podRecord    `json:"pods"`
	Devices   []deviceRecord `json:"devices"`
	// Own claims belong to one pod. The others may get pods later, of which the kubelet tells nothing.
	Own bool `json:"own,omitempty"`
	// Version is the claim's resourceVersion when its pods were read.
	Version string `json:"resource_version,omitempty"`
}

// podRecord is a pod that uses a claim.
type podRecord struct {
	Name string    `json:"name"`
	UID  types.UID `json:"uid"`
}

// deviceRecord is an allocated share of a GPU.
type deviceRecord struct {
	Request    string          `json:"request"`
	Pool       string          `json:"pool"`
	Device     string          `json:"device"`
	ShareID    *types.UID      `json:"share_id,omitempty"`
	Class      string          `json:"class,omitempty"`
	Reserved   int             `json:"reserved,omitempty"` // consumed capacity "share"
	Memory     int64           `json:"memory,omitempty"`   // consumed capacity "memory", if the claim requests it
	Parameters params.Resolved `json:"parameters"`
	// Access is what a container needs for the GPU, as of the last preparation or repair.
	Access control.DeviceAccess `json:"access,omitzero"`
}

func resultRecord(r *resourceapi.DeviceRequestAllocationResult) deviceRecord {
	return deviceRecord{Request: r.Request, Pool: r.Pool, Device: r.Device, ShareID: r.ShareID}
}

// loadCheckpoint reads a file; a missing one is empty.
func loadCheckpoint(file string) (checkpoint, error) {
	empty := checkpoint{Version: checkpointVersion, Claims: map[types.UID]claimRecord{}}
	text, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return empty, nil
	}
	if err != nil {
		return empty, fmt.Errorf("read the checkpoint: %w", err)
	}
	var c checkpoint
	// Starting without it would take the hints from running pods, so an operator has to decide.
	if err := json.Unmarshal(text, &c); err != nil {
		return empty, fmt.Errorf("the checkpoint %s is damaged: %w; drain the node and remove the file", file, err)
	}
	if c.Version != checkpointVersion {
		return empty, fmt.Errorf("the checkpoint %s has version %d, this program knows %d; install the release that wrote it, or drain the node and remove the file", file, c.Version, checkpointVersion)
	}
	if c.Claims == nil {
		c.Claims = empty.Claims
	}
	return c, nil
}

// save replaces the file and survives a loss of power.
func (c *checkpoint) save(file string) error {
	text, err := json.Marshal(c)
	if err != nil {
		return fmt.Errorf("write the checkpoint: %w", err)
	}
	fail := func(err error) error {
		return fmt.Errorf("write the checkpoint: %w; check the disk that has %s", err, filepath.Dir(file))
	}
	temporary := file + ".new"
	f, err := os.OpenFile(temporary, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return fail(err)
	}
	_, err = f.Write(text)
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return fail(err)
	}
	if err := os.Rename(temporary, file); err != nil {
		return fail(err)
	}
	dir, err := os.Open(filepath.Dir(file))
	if err != nil {
		return fail(err)
	}
	if err := errors.Join(dir.Sync(), dir.Close()); err != nil {
		return fail(err)
	}
	return nil
}
