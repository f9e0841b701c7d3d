// SPDX-License-Identifier: Apache-2.0

package client

import (
	"errors"
	"fmt"
	"strings"
	"testing"
)

func TestReadEvents(t *testing.T) {
	text := ": comment\n\nid: 1\nevent: a\ndata: {\"x\":1}\n\nevent: b\ndata: 1\ndata:2\n\nevent: none\n\ndata\n\nevent: cut\ndata: off\n"
	var got []string
	err := readEvents(strings.NewReader(text), func(name string, data []byte) error {
		got = append(got, fmt.Sprintf("%s=%s", name, data))
		return nil
	})
	if want := "[a={\"x\":1} b=1\n2 =]"; fmt.Sprint(got) != want || !errors.Is(err, ErrStreamEnded) {
		t.Errorf("%q, %v, want %s", got, err, want)
	}
	stop := errors.New("stop")
	if err := readEvents(strings.NewReader(text), func(string, []byte) error { return stop }); !errors.Is(err, stop) {
		t.Errorf("%v", err)
	}
}

// FuzzEvents reads arbitrary streams: events are no larger than the input, and every one ends.
func FuzzEvents(f *testing.F) {
	f.Add([]byte("event: a\ndata: b\n\n"))
	f.Add([]byte("data\r\n\n:\n\ndata:\x00\ndata\n\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		total := 0
		err := readEvents(strings.NewReader(string(b)), func(name string, data []byte) error {
			total += len(name) + len(data)
			return nil
		})
		if err == nil || total > len(b) {
			t.Fatalf("%d bytes of %d, %v", total, len(b), err)
		}
	})
}
