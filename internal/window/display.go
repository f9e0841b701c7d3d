// SPDX-License-Identifier: Apache-2.0

package window

import (
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/jezek/xgb"
	"github.com/jezek/xgb/res"
	"github.com/jezek/xgb/xproto"
)

// ErrClosed reports that the X server has closed the connection.
var ErrClosed = errors.New("the X server has closed the connection")

// Names of the properties that Display reads.
var atomNames = []string{
	"_NET_SUPPORTING_WM_CHECK", "_NET_ACTIVE_WINDOW", "_NET_CLIENT_LIST", "_NET_WM_PID", "_NET_WM_NAME",
	"_NET_WM_WINDOW_TYPE", "_NET_WM_WINDOW_TYPE_DESKTOP", "_NET_WM_WINDOW_TYPE_DOCK", "WM_STATE",
}

// Display is a connection to an X server. Its methods are for one goroutine.
type Display struct {
	name  string
	conn  *xgb.Conn
	root  xproto.Window
	mask  uint32 // bits of an ID that its client chooses
	atoms map[string]xproto.Atom
	pids  bool // the server knows the processes of its clients
	host  string

	changes chan struct{}
}

// Open connects to an X server, with the credentials of the user's Xauthority file.
func Open(name string) (*Display, error) {
	xgb.Logger.SetOutput(io.Discard) // it repeats what the calls return
	conn, err := xgb.NewConnDisplay(name)
	if err != nil {
		return nil, fmt.Errorf("open display %s: %w; check that an X server runs there and that DISPLAY and XAUTHORITY are right", name, err)
	}
	d := &Display{name: DisplayName(name), conn: conn, atoms: map[string]xproto.Atom{}, changes: make(chan struct{}, 1)}
	go d.listen()
	if err := d.prepare(); err != nil {
		d.Close()
		return nil, fmt.Errorf("open display %s: %w", name, err)
	}
	return d, nil
}

func (d *Display) prepare() (err error) {
	setup := xproto.Setup(d.conn)
	if setup == nil || d.conn.DefaultScreen >= len(setup.Roots) {
		return errors.New("no such screen; check the number after the dot")
	}
	d.root, d.mask = setup.Roots[d.conn.DefaultScreen].Root, setup.ResourceIdMask
	if d.host, err = os.Hostname(); err != nil {
		return fmt.Errorf("read the name of this host: %w", err)
	}
	var cookies []xproto.InternAtomCookie
	for _, name := range atomNames {
		cookies = append(cookies, xproto.InternAtom(d.conn, false, uint16(len(name)), name))
	}
	for i, name := range atomNames {
		reply, err := cookies[i].Reply()
		if err != nil {
			return closed(err)
		}
		d.atoms[name] = reply.Atom
	}
	if err := res.Init(d.conn); err == nil {
		version, err := res.QueryVersion(d.conn, 1, 2).Reply()
		d.pids = err == nil && version != nil && (version.ServerMajor > 1 || version.ServerMajor == 1 && version.ServerMinor >= 2)
	}
	return closed(xproto.ChangeWindowAttributesChecked(d.conn, d.root, xproto.CwEventMask, []uint32{xproto.EventMaskPropertyChange}).Check())
}

// closed names the error of a call on a connection that has ended.
func closed(err error) error {
	if errors.Is(err, io.EOF) {
		return ErrClosed
	}
	return err
}

// Name returns the display's name without a screen.
func (d *Display) Name() string { return d.name }

// Close ends the connection.
func (d *Display) Close() { d.conn.Close() }

// Changes signals that State may return something else. The end of the connection closes it.
func (d *Display) Changes() <-chan struct{} { return d.changes }

func (d *Display) listen() {
	defer close(d.changes)
	for {
		event, failure := d.conn.WaitForEvent()
		if event == nil && failure == nil {
			return
		}
		if _, ok := event.(xproto.PropertyNotifyEvent); ok {
			select {
			case d.changes <- struct{}{}:
			default:
			}
		}
	}
}

// State reads what the display shows. Windows may disappear in the meantime; they are left out.
func (d *Display) State(titles bool) (State, error) {
	s := State{Manager: d.managed()}
	clients, active, known := []xproto.Window(nil), xproto.Window(0), false
	if s.Manager {
		var listed bool
		clients, listed = d.clientList()
		if list := d.windows(d.root, "_NET_ACTIVE_WINDOW"); len(list) > 0 {
			active, known = list[0], true
		}
		// A Wayland compositor names a window of its own while a window without X is active.
		if listed && !slices.Contains(clients, active) {
			active = 0
		}
	} else {
		clients = d.unmanaged()
	}
	if !known {
		active = d.focused()
	}
	for w := active; w != 0 && w != d.root && len(s.Active) < maxDialogs && !slices.Contains(s.Active, ID(w)); {
		if !slices.Contains(clients, w) {
			if _, err := xproto.GetWindowAttributes(d.conn, w).Reply(); err != nil {
				break // it has gone
			}
			clients = append(clients, w)
		}
		s.Active = append(s.Active, ID(w))
		parent := xproto.Window(0)
		if list := d.windowsOf(w, xproto.AtomWmTransientFor); len(list) > 0 {
			parent = list[0]
		}
		w = parent
	}
	s.Windows = d.describe(clients, titles)
	// A request on a dead connection has no reply, as one about a window that has gone.
	if _, err := xproto.GetInputFocus(d.conn).Reply(); err != nil {
		return State{}, closed(err)
	}
	return s, nil
}

// maxDialogs bounds a chain of dialogs, which clients can close to a circle.
const maxDialogs = 8

// managed reports whether a window manager maintains the properties of the root window. One that was
// killed leaves them behind; then the window that it named does not exist.
func (d *Display) managed() bool {
	list := d.windows(d.root, "_NET_SUPPORTING_WM_CHECK")
	if len(list) == 0 {
		return false
	}
	again := d.windows(list[0], "_NET_SUPPORTING_WM_CHECK")
	return len(again) > 0 && again[0] == list[0]
}

// focused returns the top-level window that gets the keyboard.
func (d *Display) focused() xproto.Window {
	reply, err := xproto.GetInputFocus(d.conn).Reply()
	if err != nil || reply == nil {
		return 0
	}
	w := reply.Focus
	switch w {
	case xproto.InputFocusNone:
		return 0
	case xproto.InputFocusPointerRoot, d.root:
		pointer, err := xproto.QueryPointer(d.conn, d.root).Reply()
		if err != nil || pointer == nil {
			return 0
		}
		return d.clientIn(pointer.Child, 0)
	}
	for range maxDepth {
		tree, err := xproto.QueryTree(d.conn, w).Reply()
		if err != nil || tree == nil {
			return 0
		}
		if tree.Parent == d.root || tree.Parent == 0 {
			break
		}
		w = tree.Parent
	}
	return d.clientIn(w, 0)
}

// maxDepth bounds the walk from a window to the root, and frameDepth that into the frame which a window
// manager puts around a window.
const maxDepth, frameDepth = 64, 3

// clientIn returns the client's window in a frame: the one with WM_STATE, else the frame itself.
func (d *Display) clientIn(w xproto.Window, depth int) xproto.Window {
	if w == 0 || depth > frameDepth || len(d.property(w, d.atoms["WM_STATE"]).take()) > 0 {
		return w
	}
	tree, err := xproto.QueryTree(d.conn, w).Reply()
	if err != nil || tree == nil {
		return w
	}
	for _, child := range tree.Children {
		if inner := d.clientIn(child, depth+1); inner != child || len(d.property(inner, d.atoms["WM_STATE"]).take()) > 0 {
			return inner
		}
	}
	return w
}

// unmanaged returns the visible top-level windows of a display without a window manager that lists them.
func (d *Display) unmanaged() (list []xproto.Window) {
	tree, err := xproto.QueryTree(d.conn, d.root).Reply()
	if err != nil || tree == nil {
		return nil
	}
	cookies := make([]xproto.GetWindowAttributesCookie, len(tree.Children))
	for i, w := range tree.Children {
		cookies[i] = xproto.GetWindowAttributes(d.conn, w)
	}
	for i, w := range tree.Children {
		reply, err := cookies[i].Reply()
		if err == nil && reply != nil && reply.MapState == xproto.MapStateViewable && !reply.OverrideRedirect && reply.Class == xproto.WindowClassInputOutput {
			list = append(list, d.clientIn(w, 0))
		}
	}
	return list
}

// describe reads the properties of windows, all requests before the first reply.
func (d *Display) describe(windows []xproto.Window, titles bool) []Window {
	type requests struct{ pid, machine, kind, name, oldName pending }
	asked := make([]requests, len(windows))
	for i, w := range windows {
		asked[i] = requests{
			pid: d.property(w, d.atoms["_NET_WM_PID"]), machine: d.property(w, xproto.AtomWmClientMachine),
			kind: d.property(w, d.atoms["_NET_WM_WINDOW_TYPE"]),
		}
		if titles {
			asked[i].name, asked[i].oldName = d.property(w, d.atoms["_NET_WM_NAME"]), d.property(w, xproto.AtomWmName)
		}
	}
	clients := d.clientPIDs(windows)
	out := make([]Window, len(windows))
	for i, w := range windows {
		r := &asked[i]
		out[i] = Window{ID: ID(w)}
		for _, atom := range numbers(r.kind.take()) {
			if kind := xproto.Atom(atom); kind == d.atoms["_NET_WM_WINDOW_TYPE_DESKTOP"] || kind == d.atoms["_NET_WM_WINDOW_TYPE_DOCK"] {
				out[i].Shell = true
			}
		}
		// The server's word first: the property is the client's own, which may be in a container.
		claimed, machine := numbers(r.pid.take()), strings.TrimRight(string(r.machine.take()), "\x00")
		switch pid := clients[uint32(w)&^d.mask]; {
		case pid != 0:
			out[i].PID = pid
		case len(claimed) == 0 || claimed[0] == 0 || claimed[0] > 1<<30:
			out[i].Reason = "the window names no process"
		case !sameHost(machine, d.host):
			out[i].Reason = fmt.Sprintf("its program runs on host %q", machine)
		default:
			out[i].PID = int(claimed[0])
		}
		name, oldName := r.name.take(), r.oldName.take()
		if out[i].Title = string(name); len(name) == 0 {
			out[i].Title = string(oldName)
		}
	}
	return out
}

// clientPIDs asks the server for the processes of the windows' clients, by the part of an ID that
// stands for the client.
func (d *Display) clientPIDs(windows []xproto.Window) map[uint32]int {
	if !d.pids || len(windows) == 0 {
		return nil
	}
	var specs []res.ClientIdSpec
	asked := map[uint32]bool{}
	for _, w := range windows {
		if client := uint32(w) &^ d.mask; !asked[client] {
			asked[client] = true
			specs = append(specs, res.ClientIdSpec{Client: client, Mask: res.ClientIdMaskLocalClientPID})
		}
	}
	reply, err := res.QueryClientIds(d.conn, uint32(len(specs)), specs).Reply()
	if err != nil || reply == nil {
		return nil
	}
	pids := map[uint32]int{}
	for _, id := range reply.Ids {
		if id.Spec.Mask == res.ClientIdMaskLocalClientPID && len(id.Value) > 0 && id.Value[0] < 1<<30 {
			pids[id.Spec.Client&^d.mask] = int(id.Value[0])
		}
	}
	return pids
}

// sameHost compares host names, of which one may lack the domain.
func sameHost(a, b string) bool {
	return a != "" && (a == b || strings.HasPrefix(a, b+".") || strings.HasPrefix(b, a+"."))
}
