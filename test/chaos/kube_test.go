// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"
)

// TestAPIServer: it keeps what is published, counts its GPUs, ends a watch after a change, and answers
// late on demand.
func TestAPIServer(t *testing.T) {
	a, err := startAPI()
	if err != nil {
		t.Fatal(err)
	}
	defer a.http.Close()
	do := func(ctx context.Context, method, path, body string) (int, string, error) {
		r, err := http.NewRequestWithContext(ctx, method, a.url+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		answer, err := http.DefaultClient.Do(r)
		if err != nil {
			return 0, "", err
		}
		defer answer.Body.Close()
		text, err := io.ReadAll(answer.Body)
		return answer.StatusCode, string(text), err
	}
	const path = "/apis/resource.k8s.io/v1/resourceslices"
	watched := make(chan error, 1)
	go func() {
		_, _, err := do(context.Background(), http.MethodGet, path+"?watch=true", "")
		watched <- err
	}()
	code, text, err := do(context.Background(), http.MethodPost, path, `{"metadata":{"generateName":"w-"},"spec":{"devices":[{},{}]}}`)
	var slice struct {
		Metadata struct{ Name string }
	}
	if err != nil || code != http.StatusCreated || json.Unmarshal([]byte(text), &slice) != nil || a.devices() != 2 {
		t.Fatalf("%d %s %v, %d devices", code, text, err, a.devices())
	}
	for len(watched) == 0 { // a watch that began after the change ends with the next one
		a.mu.Lock()
		a.change()
		a.mu.Unlock()
		time.Sleep(time.Millisecond)
	}
	if err := <-watched; err != nil {
		t.Error(err)
	}
	if _, text, err := do(context.Background(), http.MethodGet, path, ""); err != nil || !strings.Contains(text, slice.Metadata.Name) {
		t.Errorf("%s %v", text, err)
	}
	a.setDelay(time.Minute)
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
	defer cancel()
	if _, _, err := do(ctx, http.MethodGet, path, ""); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a late server answered: %v", err)
	}
	a.setDelay(0)
	if code, _, err := do(context.Background(), http.MethodDelete, path+"/"+slice.Metadata.Name, ""); err != nil || code != http.StatusOK || a.devices() != 0 {
		t.Errorf("%d %v, %d devices are left", code, err, a.devices())
	}
}
