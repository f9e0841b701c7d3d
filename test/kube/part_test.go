// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/tools/clientcmd"
)

// folder holds what tools/kube built.
func folder() string { return os.Getenv(folderVariable) }

// program returns the path of a program that tools/kube built.
func program(name string) string { return filepath.Join(folder(), "bin", name) }

// part is a process of the cluster that tests stop and start.
type part struct {
	name string
	as   string // name of its log; empty: that of the part
	file string // the program; empty: one that tools/kube built
	args []string
	cmd  *exec.Cmd
	done chan struct{} // closed when the process has ended
}

// startPart starts a new part. It logs to a file with its name.
func (c *Cluster) startPart(name string, args ...string) error {
	p := &part{name: name, args: args}
	c.parts[name] = p
	return p.start()
}

func (p *part) start() error {
	if err := os.MkdirAll(path("log"), 0o755); err != nil {
		return err
	}
	log, err := os.OpenFile(p.log(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer func() { _ = log.Close() }()
	p.cmd = exec.Command(cmp.Or(p.file, program(p.name)), p.args...)
	p.cmd.Env = environment()
	p.cmd.Stdout, p.cmd.Stderr = log, log
	if err := p.cmd.Start(); err != nil {
		return err
	}
	p.done = make(chan struct{})
	go func(cmd *exec.Cmd, done chan struct{}) {
		_ = cmd.Wait()
		close(done)
	}(p.cmd, p.done)
	return nil
}

func (p *part) log() string { return path("log", cmp.Or(p.as, p.name)+".log") }

// ended returns an error if the process has ended.
func (p *part) ended() error {
	select {
	case <-p.done:
		return fmt.Errorf("%s ended: %v; its log: %s", p.name, p.cmd.ProcessState, lastLines(p.log(), 5))
	default:
		return nil
	}
}

func (p *part) kill() {
	_ = p.cmd.Process.Kill()
	<-p.done
}

// environment finds the cluster's programs and its API server.
func environment() []string {
	return append(os.Environ(), "PATH="+filepath.Join(folder(), "bin")+":"+os.Getenv("PATH"), "KUBECONFIG="+userConfig("admin"))
}

// output runs a program of the cluster with this standard input.
func output(ctx context.Context, input, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, program(name), args...)
	cmd.Env = environment()
	cmd.Stdin = strings.NewReader(input)
	cmd.WaitDelay = 5 * time.Second
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	text, err := cmd.Output()
	if err != nil {
		return string(text), fmt.Errorf("%s %s: %w: %s%s", name, strings.Join(args, " "), err, text, stderr.Bytes())
	}
	return string(text), nil
}

func lastLines(file string, n int) string {
	text, err := os.ReadFile(file)
	if err != nil {
		return err.Error()
	}
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}

// users of the API server: name of the file, user, groups.
var users = [][3]string{
	{"admin", "admin", "system:masters"},
	{"manager", "system:kube-controller-manager", ""},
	{"scheduler", "system:kube-scheduler", ""},
	{"node", "system:node:" + NodeName, "system:nodes"},
	{machineName(1), "system:node:" + machineName(1), "system:nodes"},
	{machineName(2), "system:node:" + machineName(2), "system:nodes"},
	{"viewer", "viewer", ""}, // has no right at first
	{"nobody", "nobody", ""}, // never has one
}

func userConfig(name string) string { return path("pki", name+".json") }

// userToken returns the token of a user.
func userToken(t testing.TB, name string) string {
	t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", userConfig(name))
	if err != nil {
		t.Fatal(err)
	}
	return config.BearerToken
}

// writeKeys writes the key for service accounts, and a token and configuration for each user.
func writeKeys() error {
	if err := os.MkdirAll(path("pki"), 0o700); err != nil {
		return err
	}
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		return err
	}
	block := &pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key)}
	err = os.WriteFile(path("pki", "sa.key"), pem.EncodeToMemory(block), 0o600)
	var tokens strings.Builder
	for _, user := range users {
		name, token := user[0], rand.Text()
		fmt.Fprintf(&tokens, "%s,%s,%s,%q\n", token, user[1], name, user[2])
		err = errors.Join(err, os.WriteFile(userConfig(name), fmt.Appendf(nil, `{"apiVersion":"v1","kind":"Config","current-context":"c",
"contexts":[{"name":"c","context":{"cluster":"c","user":"u"}}],"users":[{"name":"u","user":{"token":%q}}],
"clusters":[{"name":"c","cluster":{"server":"https://%s:443","insecure-skip-tls-verify":true}}]}
`, token, nodeAddress), 0o600))
	}
	return errors.Join(err, os.WriteFile(path("pki", "tokens.csv"), []byte(tokens.String()), 0o600))
}

// writeNodeFiles writes the configuration of containerd, the pods' network and the kubelet.
func writeNodeFiles() error {
	files := map[string]string{
		// restrict_oom_score_adj: root may lack the right to protect itself from the OOM killer.
		path("containerd.toml"): fmt.Sprintf(`version = 3
root = %q
state = "/run/containerd/state"
grpc = {address = %q}
ttrpc = {address = "%s.ttrpc"}
[plugins]
'io.containerd.cri.v1.images' = {pinned_images = {sandbox = %q}}
'io.containerd.nri.v1.nri' = {socket_path = %q}
'io.containerd.internal.v1.opt' = {path = %q}
'io.containerd.cri.v1.runtime' = {cdi_spec_dirs = [%q, "/run/cdi"], restrict_oom_score_adj = true, cni = {bin_dirs = [%q], conf_dir = "/etc/cni/net.d"}}
`, containerdDir, containerdSocket, containerdSocket, pauseImage, NRISocket, path("opt"), CDIDir, filepath.Join(folder(), "cni")),
		"/etc/cni/net.d/10-bridge.conflist": fmt.Sprintf(`{"cniVersion":"1.0.0","name":"bridge","plugins":[{"type":"bridge","bridge":"cni0",
"isGateway":true,"ipam":{"type":"host-local","ranges":[[{"subnet":%q}]],"routes":[{"dst":"0.0.0.0/0"}]}}]}
`, podRange),
		// syncFrequency: when a pod that could not start is tried again.
		path("kubelet.json"): fmt.Sprintf(`{"apiVersion":"kubelet.config.k8s.io/v1beta1","kind":"KubeletConfiguration",
"address":%q,"failCgroupV1":false,"cgroupDriver":"cgroupfs","resolvConf":"","makeIPTablesUtilChains":false,
"syncFrequency":"5s","volumePluginDir":"%s/volume-plugins","containerRuntimeEndpoint":"unix://%s",
"evictionHard":{"memory.available":"50Mi"},"imageGCHighThresholdPercent":100,"localStorageCapacityIsolation":false,
"authorization":{"mode":"AlwaysAllow"},"authentication":{"anonymous":{"enabled":true},"webhook":{"enabled":false}}}
`, nodeAddress, kubeletDir, containerdSocket),
	}
	for name, text := range files {
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(name, []byte(text), 0o644); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
	}
	return os.MkdirAll(CDIDir, 0o755)
}
