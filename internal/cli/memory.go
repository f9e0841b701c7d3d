// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"xsched/internal/control"
	"xsched/internal/control/client"
	"xsched/internal/model"
)

// mover is the command evict or restore.
type mover struct {
	app    *app
	gpu    string
	bytes  bytesFlag
	noWait bool
	asJSON bool
	out    bool
}

func evictCommand(a *app) *cobra.Command {
	m := &mover{app: a, out: true}
	c := &cobra.Command{
		Use:   "evict PID",
		Short: "Move a program's GPU memory to host memory",
		Long: `Move the program's movable memory to host memory until ` + "`xsched restore`" + `, and wait
until it has left. The program's calls wait meanwhile; no work is lost. The program
must have been started with ` + "`xsched run --movable`" + `. ` + "`xsched list`" + ` shows how much of
its memory is movable, and why the rest is not.`,
		Example: `  xsched evict 4711
  xsched evict 4711 --bytes 20GiB --gpu 0000:01:00.0`,
		ValidArgsFunction: a.completePIDs(func(p *control.Process) bool { return movableBytes(p.Memory) > 0 }),
	}
	c.Flags().StringVar(&m.gpu, "gpu", "", "only on the GPU with this PCI `ADDRESS` (default all that the program uses)")
	c.Flags().Var(&m.bytes, "bytes", "how much leaves each GPU, at least (default all that is movable)")
	return m.command(c)
}

func restoreCommand(a *app) *cobra.Command {
	m := &mover{app: a}
	return m.command(&cobra.Command{
		Use:   "restore PID",
		Short: "Bring evicted memory back to the GPU",
		Long: `Bring the program's memory back to its GPUs, and wait until it is there. If others
need the room, the program gets it by its priority, or in turn.`,
		Example:           `  xsched restore 4711`,
		ValidArgsFunction: a.completePIDs(func(p *control.Process) bool { return awayBytes(p.Memory) > 0 }),
	})
}

func (m *mover) command(c *cobra.Command) *cobra.Command {
	c.Args, c.RunE = positional("PID"), m.run
	c.Flags().BoolVar(&m.noWait, "no-wait", false, "return when the order is given")
	jsonFlag(c, &m.asJSON)
	return c
}

// movedReply is the output with --json.
type movedReply struct {
	PID        int              `json:"pid"`
	Memory     []control.Memory `json:"memory"`
	MovedBytes int64            `json:"moved_bytes"`
	DurationNS int64            `json:"duration_ns"` // since the order
}

func (m *mover) run(cmd *cobra.Command, args []string) error {
	pid, err := parsePID(args[0])
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	return m.app.withClient(ctx, func(daemon *client.Client) error {
		began := time.Now()
		var reply control.MemoryReply
		var err error
		if m.out {
			reply, err = daemon.Evict(ctx, control.EvictRequest{PID: pid, Device: m.gpu, Bytes: int64(m.bytes)})
		} else {
			reply, err = daemon.Restore(ctx, pid)
		}
		if err != nil {
			return err
		}
		if m.noWait {
			if m.asJSON {
				return m.app.printJSON(reply)
			}
			fmt.Fprintln(m.app.stdout, printable(reply.Message))
			return nil
		}
		memory, err := m.wait(ctx, daemon, &reply)
		if err != nil {
			return err
		}
		moved := awayBytes(memory) - awayBytes(reply.Memory)
		if !m.out {
			moved = -moved
		}
		out := movedReply{PID: reply.PID, Memory: memory, MovedBytes: max(moved, 0), DurationNS: time.Since(began).Nanoseconds()}
		if m.asJSON {
			return m.app.printJSON(out)
		}
		m.print(&out)
		return nil
	})
}

// movePoll is the time between two looks at a move.
const movePoll = 100 * time.Millisecond

// wait waits until the memory is where it shall be.
func (m *mover) wait(ctx context.Context, daemon *client.Client, reply *control.MemoryReply) ([]control.Memory, error) {
	bar := m.bar()
	defer bar("")
	for {
		list, err := daemon.List(ctx)
		if err != nil {
			if ctx.Err() != nil {
				return nil, errors.New("interrupted; the order stands, see `xsched list`")
			}
			return nil, err
		}
		var memory []control.Memory
		found := false
		for i := range list.Processes {
			if p := &list.Processes[i]; p.PID == reply.PID {
				memory, found = p.Memory, true
			}
		}
		if !found {
			return nil, fmt.Errorf("process %d has ended", reply.PID)
		}
		done := true
		for i := range memory {
			e := &memory[i]
			if m.gpu != "" && e.Device != m.gpu {
				continue
			}
			if m.out && e.EvictFailed != "" {
				return nil, fmt.Errorf("memory of process %d stays on %s: %s", reply.PID, e.Device, e.EvictFailed)
			}
			done = done && m.done(e)
			if text := e.MoveText(); text != "" {
				bar(text)
			}
		}
		if done {
			return memory, nil
		}
		select {
		case <-ctx.Done():
			return nil, errors.New("interrupted; the order stands, see `xsched list`")
		case <-time.After(movePoll):
		}
	}
}

// done reports that an order is carried out on a GPU.
func (m *mover) done(e *control.Memory) bool {
	if !m.out {
		return e.AwayBytes == 0 && e.Residency == control.MemoryResident
	}
	want := e.MovableBytes
	if m.bytes != 0 {
		want = min(want, int64(m.bytes))
	}
	return e.AwayBytes >= want && (e.Residency == control.MemoryAway || want == 0)
}

// bar returns what shows progress on a terminal, in one line that the empty text removes.
func (m *mover) bar() func(text string) {
	f, ok := m.app.stderr.(*os.File)
	if !ok || m.asJSON || !term.IsTerminal(int(f.Fd())) {
		return func(string) {}
	}
	return func(text string) { _, _ = io.WriteString(f, "\r\x1b[K"+printable(text)) }
}

func (m *mover) print(r *movedReply) {
	verb := "returned to the GPU"
	if m.out {
		verb = "left the GPU"
	}
	took := time.Duration(r.DurationNS)
	fmt.Fprintf(m.app.stdout, "%s of process %d %s in %s", model.Bytes(r.MovedBytes).Short(), r.PID, verb, took.Round(10*time.Millisecond))
	for i := range r.Memory {
		if move := r.Memory[i].Move; move != nil && r.MovedBytes > 0 && (m.gpu == "" || m.gpu == r.Memory[i].Device) {
			fmt.Fprintf(m.app.stdout, "; %s: %.1f GB/s", r.Memory[i].Device, move.Rate()/1e9)
		}
	}
	fmt.Fprintln(m.app.stdout)
}

func movableBytes(all []control.Memory) (n int64) {
	for i := range all {
		n += all[i].MovableBytes
	}
	return n
}

func awayBytes(all []control.Memory) (n int64) {
	for i := range all {
		n += all[i].AwayBytes
	}
	return n
}
