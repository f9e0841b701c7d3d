// SPDX-License-Identifier: Apache-2.0

package gangs

import (
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/util/validation"

	"xsched/internal/kube/gang"
)

// TestLease checks that leases of different groups are apart, and that a lease which is not about its group
// is not believed.
func TestLease(t *testing.T) {
	keys := []gang.Key{{Namespace: "a", Group: "b-c"}, {Namespace: "a-b", Group: "c"}, {Namespace: "b", Group: "b-c"}, {Namespace: "a", Group: "Job 1/x"}}
	names := map[string]bool{}
	for _, k := range keys {
		if name := Name(k); names[name] || len(validation.IsDNS1123Subdomain(name)) > 0 {
			t.Errorf("%s: %s", k, name)
		} else {
			names[name] = true
		}
	}
	want := gang.Default().Suspend(gang.Record{Version: "7"}, time.Now().UnixNano(), time.Minute)
	l, err := lease(keys[0], "n", want)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := read(keys[0], l); err != nil || got.Version != "7" || got.Since != want.Since || len(got.Asks) != 1 || got.Asks[0] != want.Asks[0] {
		t.Errorf("%+v, %v", got, err)
	}
	if *l.Spec.HolderIdentity != "n" || *l.Spec.LeaseDurationSeconds < 60 || l.Labels[Label] == "" {
		t.Errorf("%+v", l)
	}
	for text, cause := range map[string]string{
		`{"namespace":"b","group":"b-c"}`: "is about b/b-c instead of a/b-c",
		`{`:                               "no record of a gang",
		strings.Repeat(" ", maxRecord+1):  "bytes",
	} {
		l.Annotations[Annotation] = text
		if _, err := read(keys[0], l); err == nil || !strings.Contains(err.Error(), cause) {
			t.Errorf("%.20q: %v", text, err)
		}
	}
}
