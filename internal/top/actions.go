// SPDX-License-Identifier: Apache-2.0

package top

import (
	"context"
	"fmt"

	"xsched/internal/control"
	"xsched/internal/control/client"
)

// SetPriority changes the priority of a process.
func (d *Daemon) SetPriority(ctx context.Context, pid int, priority int32) (string, error) {
	c, err := d.connection(ctx)
	if err != nil {
		return "", err
	}
	reply, err := c.Hint(ctx, control.HintRequest{PID: pid, Priority: &priority})
	return fmt.Sprintf("process %d has priority %d", pid, reply.Priority), err
}

// Suspend suspends the GPU work of a process.
func (d *Daemon) Suspend(ctx context.Context, pid int) (string, error) {
	return d.process(ctx, pid, "suspended", (*client.Client).Suspend)
}

// Resume resumes a suspended process.
func (d *Daemon) Resume(ctx context.Context, pid int) (string, error) {
	return d.process(ctx, pid, "resumed", (*client.Client).Resume)
}

func (d *Daemon) process(ctx context.Context, pid int, done string, call func(*client.Client, context.Context, int) (control.ProcessReply, error)) (string, error) {
	c, err := d.connection(ctx)
	if err != nil {
		return "", err
	}
	reply, err := call(c, ctx, pid)
	if reply.Message != "" {
		return reply.Message, err
	}
	return fmt.Sprintf("process %d is %s", pid, done), err
}

// SetPolicy sets the policy of all GPUs without one of their own.
func (d *Daemon) SetPolicy(ctx context.Context, name string) (string, error) {
	c, err := d.connection(ctx)
	if err != nil {
		return "", err
	}
	reply, err := c.SetPolicy(ctx, control.PolicyRequest{Name: name})
	return "policy is " + reply.Name, err
}
