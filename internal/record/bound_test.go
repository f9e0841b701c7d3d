// SPDX-License-Identifier: Apache-2.0

package record

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"io"
	"runtime"
	"strings"
	"testing"
	"time"

	"xsched/internal/engine"
)

// packed returns a recording with these lines.
func packed(t *testing.T, lines ...string) []byte {
	t.Helper()
	header, err := json.Marshal(Item{Header: &Header{Version: version, Program: "test", Started: time.Now(), Config: engine.DefaultConfig()}})
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	for _, line := range append([]string{string(header)}, lines...) {
		_, _ = io.WriteString(z, line+"\n")
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// TestDenseRecordings: a small file costs little memory, whatever it expands to, and ends with one line
// that says so.
func TestDenseRecordings(t *testing.T) {
	const most = 64 << 20 // bytes allocated in total; without the bound 15 kB take 1 GB
	for name, text := range map[string][]byte{
		"one checkpoint of nothing": packed(t, `{"state":{"at":1,"items":[`+strings.Repeat("{},", 4_000_000)+"{}]}}"),
		"one decision":              packed(t, `{"kind":"decide","at":1,"changes":[`+strings.Repeat("{},", 4_000_000)+"{}]}"),
		"events":                    packed(t, strings.Repeat(`{"kind":"mark","at":1}`+"\n", 300_000)),
	} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		r, err := NewReader(bytes.NewReader(text))
		for err == nil {
			_, err = r.Next()
		}
		runtime.ReadMemStats(&after)
		used := after.TotalAlloc - before.TotalAlloc
		t.Logf("%s: %d kB take %d MB: %v", name, len(text)>>10, used>>20, err)
		if !errors.Is(err, ErrCorrupt) || strings.Contains(err.Error(), "\n") || used > most {
			t.Errorf("%s: %d kB take %d MB: %v", name, len(text)>>10, used>>20, err)
		}
	}
	// A file of the usual density may have one line with too much in it.
	if err := decode(bytes.Repeat([]byte("{"), maxObjects+1), &Item{}); !errors.Is(err, ErrCorrupt) {
		t.Errorf("too many objects: %v", err)
	}
}
