// SPDX-License-Identifier: Apache-2.0

package control

// Sources of a value, from the weakest to the strongest.
const (
	SourceDefault = "default"
	SourceFile    = "file"
	SourceFlag    = "flag"
	SourceState   = "state"    // set at run time under a previous daemon
	SourceRunTime = "run time" // set at run time
)

// ConfigReply is the configuration in force.
type ConfigReply struct {
	File   string        `json:"file,omitempty"`  // empty: none
	State  string        `json:"state,omitempty"` // file for run-time settings; empty: they do not survive a restart
	Values []ConfigValue `json:"values"`
	Caps   []ConfigCap   `json:"caps,omitempty"`
	Rules  []ConfigRule  `json:"rules,omitempty"`
}

// ConfigState tells whether the configuration in force is the one in the file.
type ConfigState struct {
	File   string `json:"file,omitempty"` // empty: none
	ReadNS int64  `json:"read_unix_ns,omitempty"`
	// Changed: the file is another one than the daemon has read, or it is gone.
	Changed bool `json:"changed,omitempty"`
	// Restart are the keys whose new value takes effect at the next start.
	Restart []string `json:"restart,omitempty"`
	// RunTime are the keys that operators have set since the file was written.
	RunTime []string `json:"run_time,omitempty"`
}

// ConfigValue is the value of one key.
type ConfigValue struct {
	Key    string `json:"key"`
	Value  string `json:"value"`
	Source string `json:"source"`
	// Pending is a configured value that takes effect at the next start.
	Pending string `json:"pending,omitempty"`
	// Restart: a change takes effect at the next start.
	Restart bool `json:"restart,omitempty"`
}

// ConfigCap is the limit of a user, a group, or of all others.
type ConfigCap struct {
	Whom     string `json:"whom"` // "user alice", "group video", "others"
	Priority int    `json:"priority"`
	Share    int    `json:"share,omitempty"` // 0: no limit
	Source   string `json:"source"`
}

// ConfigRule is a rule and the programs that it applies to now.
type ConfigRule struct {
	Name  string `json:"name"`
	Match string `json:"match"`
	Hints string `json:"hints"`
	PIDs  []int  `json:"pids,omitempty"`
}

// ReloadRequest asks for a reload of the configuration file.
type ReloadRequest struct{}

// ReloadReply is the result of a reload.
type ReloadReply struct {
	File string `json:"file"`
	// Changed are the keys whose value in force has changed.
	Changed []string `json:"changed"`
	// Restart are the keys whose new value takes effect at the next start.
	Restart  []string `json:"restart,omitempty"`
	Warnings []string `json:"warnings,omitempty"`
}
