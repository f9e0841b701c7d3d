// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"slices"
	"testing"
)

func TestOrder(t *testing.T) {
	for name, c := range map[string]struct{ given, want []Check }{
		"what prevents scheduling comes first": {
			[]Check{{Name: "a", Status: OK}, {Name: "b", Status: Note}, {Name: "c", Status: Limited}, {Name: "d", Status: Missing}},
			[]Check{{Name: "d", Status: Missing}, {Name: "c", Status: Limited}, {Name: "b", Status: Note}, {Name: "a", Status: OK}},
		},
		"the driver before the shim before the kernel": {
			[]Check{{Name: "memfd seals", Status: Missing}, {Name: "shim", Status: Missing}, {Name: "driver", Status: Missing}},
			[]Check{{Name: "driver", Status: Missing}, {Name: "shim", Status: Missing}, {Name: "memfd seals", Status: Missing}},
		},
		"an absent daemon before other limits": {
			[]Check{{Name: "attach", Status: Limited}, {Name: "MPS", Status: Limited}, {Name: "level on x", Status: Limited}, {Name: "daemon", Status: Limited}},
			[]Check{{Name: "daemon", Status: Limited}, {Name: "MPS", Status: Limited}, {Name: "level on x", Status: Limited}, {Name: "attach", Status: Limited}},
		},
		"pidfd is not pidfd_getfd": {
			[]Check{{Name: "pidfd_getfd", Status: Limited}, {Name: "pidfd", Status: Limited}},
			[]Check{{Name: "pidfd", Status: Limited}, {Name: "pidfd_getfd", Status: Limited}},
		},
		"equals keep their order": {
			[]Check{{Name: "MPS", Status: Limited, Detail: "1"}, {Name: "MIG", Status: Limited, Detail: "2"}, {Name: "MPS", Status: Limited, Detail: "3"}},
			[]Check{{Name: "MPS", Status: Limited, Detail: "1"}, {Name: "MIG", Status: Limited, Detail: "2"}, {Name: "MPS", Status: Limited, Detail: "3"}},
		},
	} {
		if byImportance(c.given); !slices.Equal(c.given, c.want) {
			t.Errorf("%s: %v, want %v", name, c.given, c.want)
		}
	}
}
