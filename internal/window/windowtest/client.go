// SPDX-License-Identifier: Apache-2.0

package windowtest

import (
	"encoding/binary"
	"io"
	"testing"
	"time"

	"github.com/jezek/xgb"
	"github.com/jezek/xgb/xproto"
)

// Client is an X client of the test itself.
type Client struct {
	t    testing.TB
	conn *xgb.Conn
	root xproto.Window
}

// Connect connects to a display until the test ends.
func Connect(t testing.TB, display string) *Client {
	t.Helper()
	xgb.Logger.SetOutput(io.Discard)
	conn, err := xgb.NewConnDisplay(display)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conn.Close)
	return &Client{t, conn, xproto.Setup(conn).DefaultScreen(conn).Root}
}

func (c *Client) atom(name string) xproto.Atom {
	c.t.Helper()
	reply, err := xproto.InternAtom(c.conn, false, uint16(len(name)), name).Reply()
	if err != nil {
		c.t.Fatal(err)
	}
	return reply.Atom
}

// Window creates a visible window.
func (c *Client) Window(title string) uint32 {
	c.t.Helper()
	w, err := createWindow(c.conn, title)
	if err != nil {
		c.t.Fatal(err)
	}
	return w
}

func newWindow(conn *xgb.Conn) (xproto.Window, error) {
	w, err := xproto.NewWindowId(conn)
	if err != nil {
		return 0, err
	}
	screen := xproto.Setup(conn).DefaultScreen(conn)
	return w, xproto.CreateWindowChecked(conn, 0, w, screen.Root, 10, 10, 200, 100, 0, xproto.WindowClassInputOutput, screen.RootVisual, 0, nil).Check()
}

func createWindow(conn *xgb.Conn, title string) (uint32, error) {
	w, err := newWindow(conn)
	if err != nil {
		return 0, err
	}
	if err := xproto.ChangePropertyChecked(conn, xproto.PropModeReplace, w, xproto.AtomWmName, xproto.AtomString, 8, uint32(len(title)), []byte(title)).Check(); err != nil {
		return 0, err
	}
	return uint32(w), xproto.MapWindowChecked(conn, w).Check()
}

// SetNumbers sets a property to 32-bit values. The type is the name of an atom.
func (c *Client) SetNumbers(w uint32, name, kind string, values ...uint32) {
	c.t.Helper()
	var data []byte
	for _, v := range values {
		data = binary.LittleEndian.AppendUint32(data, v)
	}
	c.check(xproto.ChangePropertyChecked(c.conn, xproto.PropModeReplace, xproto.Window(w), c.atom(name), c.atom(kind), 32, uint32(len(values)), data).Check())
}

// SetAtom sets a property to an atom.
func (c *Client) SetAtom(w uint32, name, value string) {
	c.t.Helper()
	c.SetNumbers(w, name, "ATOM", uint32(c.atom(value)))
}

// SetText sets a property to a string.
func (c *Client) SetText(w uint32, name, text string) {
	c.t.Helper()
	c.check(xproto.ChangePropertyChecked(c.conn, xproto.PropModeReplace, xproto.Window(w), c.atom(name), xproto.AtomString, 8, uint32(len(text)), []byte(text)).Check())
}

// lists reports whether a property of the root window lists a window.
func (c *Client) lists(name string, w uint32) bool {
	reply, err := xproto.GetProperty(c.conn, false, c.root, c.atom(name), xproto.GetPropertyTypeAny, 0, 1024).Reply()
	if err != nil {
		return false
	}
	for value := reply.Value; len(value) >= 4; value = value[4:] {
		if xgb.Get32(value) == w {
			return true
		}
	}
	return false
}

// Activate asks the window manager to activate a window, as a taskbar does, until a condition holds. The
// window manager may prefer a window that it has just found, or ignore a message while it starts.
func (c *Client) Activate(w uint32, what string, holds func() bool) {
	c.t.Helper()
	const fromPager = 2
	event := xproto.ClientMessageEvent{
		Format: 32, Window: xproto.Window(w), Type: c.atom("_NET_ACTIVE_WINDOW"),
		Data: xproto.ClientMessageDataUnionData32New([]uint32{fromPager, 0, 0, 0, 0}),
	}
	mask := uint32(xproto.EventMaskSubstructureNotify | xproto.EventMaskSubstructureRedirect)
	var asked time.Time
	Eventually(c.t, what, func() bool {
		if time.Since(asked) > time.Second {
			asked = time.Now()
			c.check(xproto.SendEventChecked(c.conn, false, c.root, mask, string(event.Bytes())).Check())
		}
		return holds()
	})
}

// Claim names a window as the active one in place of the window manager.
func (c *Client) Claim(w uint32) {
	c.t.Helper()
	c.SetNumbers(uint32(c.root), "_NET_ACTIVE_WINDOW", "WINDOW", w)
}

// Hidden creates a window that no window manager manages.
func (c *Client) Hidden() uint32 {
	c.t.Helper()
	w, err := newWindow(c.conn)
	c.check(err)
	return uint32(w)
}

// Focus gives the keyboard to a window; 0 takes it from all, 1 lets it follow the pointer.
func (c *Client) Focus(w uint32) {
	c.t.Helper()
	c.check(xproto.SetInputFocusChecked(c.conn, xproto.InputFocusPointerRoot, xproto.Window(w), xproto.TimeCurrentTime).Check())
}

// Destroy destroys a window.
func (c *Client) Destroy(w uint32) {
	c.t.Helper()
	c.check(xproto.DestroyWindowChecked(c.conn, xproto.Window(w)).Check())
}

func (c *Client) check(err error) {
	c.t.Helper()
	if err != nil {
		c.t.Fatal(err)
	}
}
