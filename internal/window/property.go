// SPDX-License-Identifier: Apache-2.0

package window

import (
	"github.com/jezek/xgb"
	"github.com/jezek/xgb/xproto"
)

// maxProperty bounds a property, in units of four bytes: 16,384 windows.
const maxProperty = 1 << 14

// pending is a property that the server was asked for.
type pending struct{ cookie xproto.GetPropertyCookie }

func (d *Display) property(w xproto.Window, atom xproto.Atom) pending {
	return pending{xproto.GetProperty(d.conn, false, w, atom, xproto.GetPropertyTypeAny, 0, maxProperty)}
}

// take returns the value; nil if the property or the window does not exist.
func (p pending) take() []byte {
	if p.cookie.Cookie == nil {
		return nil
	}
	reply, err := p.cookie.Reply()
	if err != nil || reply == nil {
		return nil
	}
	return reply.Value
}

// numbers splits a property of 32-bit values.
func numbers(value []byte) (list []uint32) {
	for ; len(value) >= 4; value = value[4:] {
		list = append(list, xgb.Get32(value))
	}
	return list
}

// clientList returns the windows that the window manager manages, and whether it lists them.
func (d *Display) clientList() (list []xproto.Window, listed bool) {
	reply, err := d.property(d.root, d.atoms["_NET_CLIENT_LIST"]).cookie.Reply()
	if err != nil || reply.Format != 32 {
		return nil, false
	}
	for _, n := range numbers(reply.Value) {
		list = append(list, xproto.Window(n))
	}
	return list, true
}

// windows returns a property that lists windows.
func (d *Display) windows(w xproto.Window, name string) []xproto.Window {
	return d.windowsOf(w, d.atoms[name])
}

func (d *Display) windowsOf(w xproto.Window, atom xproto.Atom) (list []xproto.Window) {
	for _, n := range numbers(d.property(w, atom).take()) {
		list = append(list, xproto.Window(n))
	}
	return list
}
