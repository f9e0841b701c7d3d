// SPDX-License-Identifier: Apache-2.0

package control

import (
	"strings"
	"testing"

	"xsched/internal/identity"
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

func TestNameProcesses(t *testing.T) {
	long := "/data/" + strings.Repeat("x", maxArgument)
	cases := map[string]struct {
		list []Process
		want []string
	}{
		"alone":         {[]Process{{PID: 1, Command: "python serve.py --port 80"}, {PID: 2, Command: "train"}}, []string{"serve.py", "train"}},
		"by argument":   {[]Process{{PID: 1, Command: "python s.py --port 80 -v"}, {PID: 2, Command: "python s.py --port 81 -v"}}, []string{"s.py --port 80", "s.py --port 81"}},
		"by a word":     {[]Process{{PID: 1, Command: "job a"}, {PID: 2, Command: "/opt/job b b"}}, []string{"job a", "job b"}},
		"by an option":  {[]Process{{PID: 1, Command: "job --seed=1"}, {PID: 2, Command: "job --seed=2"}}, []string{"job --seed=1", "job --seed=2"}},
		"by PID":        {[]Process{{PID: 1, Command: "job x"}, {PID: 2, Command: "job x"}, {PID: 3, Command: "job y"}}, []string{"job 1", "job 2", "job y"}},
		"one without":   {[]Process{{PID: 1, Command: "job"}, {PID: 2, Command: "job x"}}, []string{"job 1", "job x"}},
		"too long":      {[]Process{{PID: 1, Command: "job " + long}, {PID: 2, Command: "job " + long + "2"}}, []string{"job 1", "job 2"}},
		"code":          {[]Process{{PID: 1, Command: "python3 -c secret"}, {PID: 2, Command: "python3 -c other"}}, []string{"python3 1", "python3 2"}},
		"by pod":        {[]Process{{PID: 1, Command: "job a", Pod: "llm-0"}, {PID: 2, Command: "job b", Pod: "llm-1"}}, []string{"job llm-0", "job llm-1"}},
		"in one pod":    {[]Process{{PID: 1, Command: "job a", Pod: "llm-0"}, {PID: 2, Command: "job b", Pod: "llm-0"}}, []string{"job a", "job b"}},
		"not visible":   {[]Process{{PID: 7}, {PID: 8, Pod: "llm-0"}, {PID: 9, Pod: "llm-1"}, {PID: 10, Pod: "llm-1"}}, []string{"process 7", "llm-0", "llm-1 9", "llm-1 10"}},
		"no plain text": {[]Process{{PID: 1, Command: "job \x1b[1m"}, {PID: 2, Command: "job b"}}, []string{"job _[1m", "job b"}},
		"any language":  {[]Process{{PID: 1, Command: "python 训练\u202e.py"}}, []string{"训练_.py"}},
	}
	for name, c := range cases {
		NameProcesses(c.list)
		for i, p := range c.list {
			if p.Name != c.want[i] {
				t.Errorf("%s: program %d is %q, want %q", name, i, p.Name, c.want[i])
			}
		}
	}
}

func TestNameIsHidden(t *testing.T) {
	p := Process{Command: "job --secret", Name: "job --secret", Owner: identity.OnHost(5)}
	if got := p.For(Caller{User: identity.OnHost(6)}); got.Name != "" || got.Command != "" {
		t.Errorf("another user sees %q, %q", got.Name, got.Command)
	}
}
