// SPDX-License-Identifier: Apache-2.0

package control

import (
	"strings"
	"testing"
)

func TestTenantName(t *testing.T) {
	for command, want := range map[string]string{
		"":                                       "",
		"/opt/app/serve --port 80":               "serve",
		"python3 -u /srv/serve.py --token=s3cr3": "serve.py",
		"/usr/bin/python3.11 -W ignore train.py": "train.py",
		"python -m vllm.entrypoints.api --key x": "vllm.entrypoints.api",
		"python3 -c import_secret":               "python3",
		"python3 -Bc import_secret":              "python3",
		"bash -ec secret":                        "bash",
		"python3":                                "python3",
		"python3 -i":                             "python3",
		"-bash run.sh":                           "run.sh",
		"nginx: worker process":                  "nginx",
		"VLLM::EngineCore":                       "VLLM::EngineCore",
		`/x/a"b\c` + "\x7fd":                     "a_b_c_d",
		"/x/" + strings.Repeat("n", 99):          strings.Repeat("n", 48),
		"/x/größe":                               "gr__e",
		"python-config --x":                      "python-config",
	} {
		if got := TenantName(command); got != want {
			t.Errorf("TenantName(%q) = %q, want %q", command, got, want)
		}
	}
}
