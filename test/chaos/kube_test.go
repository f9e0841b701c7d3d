// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"
)

// TestAPIServer: it keeps what is published, counts its GPUs, reports changes, and answers late on
// demand.
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
	watched := make(chan string, 8)
	go func() {
		r, err := http.Get(a.url + path + "?watch=true&resourceVersion=1")
		if err != nil {
			return
		}
		defer r.Body.Close()
		for lines := bufio.NewScanner(r.Body); lines.Scan(); {
			watched <- lines.Text()
		}
	}()
	code, text, err := do(context.Background(), http.MethodPost, path, `{"kind":"ResourceSlice","apiVersion":"resource.k8s.io/v1","metadata":{"generateName":"w-"},"spec":{"devices":[{},{}]}}`)
	var slice struct {
		Metadata struct{ Name string }
	}
	if err != nil || code != http.StatusCreated || json.Unmarshal([]byte(text), &slice) != nil || a.devices() != 2 {
		t.Fatalf("%d %s %v, %d devices", code, text, err, a.devices())
	}
	if e := <-watched; !strings.Contains(e, "ADDED") || !strings.Contains(e, slice.Metadata.Name) {
		t.Error(e)
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
	if e := <-watched; !strings.Contains(e, "DELETED") {
		t.Error(e)
	}
}
