// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"xsched/internal/control"
	"xsched/internal/control/client"
	"xsched/internal/kube/cluster"
	"xsched/internal/kube/gang"
	"xsched/internal/kube/gangs"
)

// gangNode is one of several nodes on this machine: a virtual GPU, a daemon and a node plugin.
type gangNode struct {
	t         *testing.T
	name, dir string
	client    *client.Client
	plugin    *exec.Cmd
	grants    []control.Grant
}

// startGangNode starts a node until the test ends.
func startGangNode(t *testing.T, c *Cluster, name string) *gangNode {
	t.Helper()
	n := &gangNode{t: t, name: name, dir: "/run/" + name}
	n.client = client.New(filepath.Join(n.dir, control.ControlSocket))
	t.Cleanup(func() { n.client.Close(); _ = os.RemoveAll(n.dir) })
	if err := errors.Join(os.MkdirAll(n.dir+"/cdi", 0o755), os.MkdirAll(n.dir+"/kubelet/plugins_registry", 0o755)); err != nil {
		t.Fatal(err)
	}
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if _, err := c.Client.CoreV1().Nodes().Create(context.Background(), node, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Client.CoreV1().Nodes().Delete(context.Background(), name, metav1.DeleteOptions{}) })
	n.start("vgpu", "xsched", "vgpu", "--socket", n.dir+"/vgpu.sock", "--devices", "1")
	eventually(t, "the virtual GPU answers", func() bool { _, err := os.Stat(n.dir + "/vgpu.sock"); return err == nil })
	n.start("serve", "xsched", "serve", "--virtual", "--dir", n.dir, "--no-state")
	eventually(t, "the daemon answers", func() bool { _, err := n.client.Version(context.Background()); return err == nil })
	n.startPlugin()
	return n
}

func (n *gangNode) startPlugin() {
	n.t.Helper()
	n.plugin = n.start("plugin", "xsched-kube", "node", "--node-name", n.name, "--kubeconfig", userConfig("admin"), "--dir", n.dir,
		"--kubelet-dir", n.dir+"/kubelet", "--cdi-dir", n.dir+"/cdi", "--nri-socket", "")
}

// start runs one of our binaries until the test ends.
func (n *gangNode) start(name, binary string, args ...string) *exec.Cmd {
	n.t.Helper()
	log, err := os.OpenFile(path("log", n.name+"-"+name+".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		n.t.Fatal(err)
	}
	defer func() { _ = log.Close() }()
	cmd := exec.Command(product(n.t, "bin/"+binary), args...)
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		_ = cmd.Wait()
	})
	return cmd
}

// gangRank is a program in the cgroup of a pod.
type gangRank struct {
	n   *gangNode
	pod string
	in  io.WriteCloser
	out string // file
}

// run starts a program in a pod with a grant.
func (n *gangNode) run(pod, uid, group string, priority int32) *gangRank {
	n.t.Helper()
	n.grants = append(n.grants, control.Grant{ID: pod, Namespace: "default", Pod: pod, PodUID: uid, Priority: &priority, Group: group})
	if _, err := n.client.SetGrants(context.Background(), control.GrantsRequest{Source: "test", Grants: n.grants}); err != nil {
		n.t.Fatal(err)
	}
	tree := filepath.Join(cgroupDir, "memory")
	if _, err := os.Stat(tree); err != nil { // a unified tree
		tree = cgroupDir
	}
	group = filepath.Join(tree, "kubepods", "pod"+uid, strings.Repeat(uid[:1], 64))
	if err := os.MkdirAll(group, 0o755); err != nil {
		n.t.Fatal(err)
	}
	r := &gangRank{n: n, pod: pod, out: path("log", pod+".log")}
	out, err := os.Create(r.out)
	if err != nil {
		n.t.Fatal(err)
	}
	defer func() { _ = out.Close() }()
	cmd := exec.Command("/bin/sh", "-c", `echo $$ >"$1/cgroup.procs" && LD_PRELOAD="$2:$3" exec "$4" --name rank --kernel-us 2000`, "sh",
		group, product(n.t, "build/libxsched.so"), product(n.t, "build/virtual/libvgpu.so"), product(n.t, "build/virtual/tenant"))
	cmd.Env = append(os.Environ(), "XSCHED_DIR="+n.dir, "XSCHED_VGPU_SOCKET="+n.dir+"/vgpu.sock", "LD_LIBRARY_PATH="+filepath.Dir(product(n.t, "build/virtual/libcuda.so.1")))
	cmd.Stdout, cmd.Stderr = out, out
	if r.in, err = cmd.StdinPipe(); err == nil {
		err = cmd.Start()
	}
	if err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(func() {
		_ = r.in.Close()
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	eventually(n.t, "the daemon has pod "+pod, func() bool { p := r.process(); return p != nil && p.Priority == priority })
	return r
}

func (r *gangRank) tell(command string) {
	r.n.t.Helper()
	if _, err := io.WriteString(r.in, command+"\n"); err != nil {
		r.n.t.Fatal(err)
	}
}

func (r *gangRank) process() *control.Process {
	list, err := r.n.client.List(context.Background())
	if err != nil {
		return nil
	}
	for i := range list.Processes {
		if p := &list.Processes[i]; p.Pod == r.pod {
			return p
		}
	}
	return nil
}

func (r *gangRank) held() bool { p := r.process(); return p != nil && p.GroupHeld }

// ends returns when the program's kernels ended, by the monotonic clock.
func (r *gangRank) ends() (all []time.Duration) {
	text, err := os.ReadFile(r.out)
	if err != nil {
		r.n.t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if f := strings.Fields(line); len(f) == 3 && f[0] == "I" {
			end, _ := strconv.ParseInt(f[2], 10, 64)
			all = append(all, time.Duration(end))
		}
	}
	return all
}

// progress waits until the program has run ten kernels more.
func (r *gangRank) progress() {
	r.n.t.Helper()
	before := len(r.ends())
	eventually(r.n.t, r.pod+" runs", func() bool { return len(r.ends()) >= before+10 })
}

// pause returns the end of the last kernel before the latest long pause after a moment, and of the first
// one after it.
func (r *gangRank) pause(after time.Duration) (stop, resume time.Duration) {
	last := time.Duration(0)
	for _, end := range r.ends() {
		if last > after && end-last > shortestHold {
			stop, resume = last, end
		}
		last = end
	}
	return stop, resume
}

// mostApart bounds the median of what two nodes are apart. One that missed the lead would be late by more.
const mostApart = 250 * time.Millisecond

// shortestHold is what the test holds the ranks for at least.
const shortestHold = 100 * time.Millisecond

func spread(a, b time.Duration) time.Duration { return max(a, b) - min(a, b) }

// report logs how far apart the nodes were. The median is asserted: a stall of this machine can make a single
// node late.
func report(t *testing.T, what string, all []time.Duration) {
	t.Helper()
	if p50 := percentile(all, 50); p50 > mostApart {
		t.Errorf("%s: by %v; want %v at most", what, p50, mostApart)
	}
	t.Logf("%s: P50 %v, P99 %v, max %v of %d rounds", what, percentile(all, 50).Round(10*time.Microsecond),
		percentile(all, 99).Round(10*time.Microsecond), percentile(all, 100).Round(10*time.Microsecond), len(all))
}

// TestGang runs a job with ranks on two nodes. They stop and resume together, by hand and because of a
// program of higher priority on one node, and nobody stays stopped without a plugin or an API server.
func TestGang(t *testing.T) {
	c := StartAPI(t)
	if kubelet := c.parts["kubelet"]; kubelet != nil { // of another test; it kills the programs of pods that it does not know
		kubelet.kill()
		t.Cleanup(func() { c.RestartKubelet(t) })
	}
	ctx := context.Background()
	system := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: cluster.Namespace("")}}
	if _, err := c.Client.CoreV1().Namespaces().Create(ctx, system, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
		t.Fatal(err)
	}
	leases, key := c.Client.CoordinationV1().Leases(cluster.Namespace("")), gang.Key{Namespace: "default", Group: "job"}
	t.Cleanup(func() { _ = leases.Delete(ctx, gangs.Name(key), metav1.DeleteOptions{}) })
	a, b := startGangNode(t, c, "gang-a"), startGangNode(t, c, "gang-b")
	ranks := []*gangRank{
		a.run("rank-0", "aaaaaaaa-0000-4000-8000-000000000001", "job", -10),
		b.run("rank-1", "bbbbbbbb-0000-4000-8000-000000000002", "job", -10),
	}
	other := b.run("other", "cccccccc-0000-4000-8000-000000000003", "another", -10)
	service := a.run("service", "dddddddd-0000-4000-8000-000000000004", "", 10)
	for _, r := range ranks {
		r.tell("loop")
		r.progress()
	}
	held := func(what string, want bool) {
		t.Helper()
		eventually(t, fmt.Sprintf("%s: held=%v", what, want), func() bool { return ranks[0].held() == want && ranks[1].held() == want })
	}
	put := func(change func(gang.Record, int64) gang.Record) {
		t.Helper()
		eventually(t, "the lease is written", func() bool {
			r, err := gangs.Get(ctx, leases, key)
			if err == nil || apierrors.IsNotFound(err) {
				_, err = gangs.Put(ctx, leases, key, gang.Operator, change(r, time.Now().UnixNano()))
			}
			return err == nil
		})
	}
	suspend := func(r gang.Record, now int64) gang.Record { return gang.Default().Suspend(r, now, time.Minute) }
	measure := func(change func(), again func()) (stop, resume time.Duration) {
		t.Helper()
		before := ranks[1].ends()
		change()
		held("stop", true)
		time.Sleep(shortestHold)
		again()
		held("resume", false)
		for _, r := range ranks {
			r.progress()
		}
		stop0, resume0 := ranks[0].pause(before[len(before)-1])
		stop1, resume1 := ranks[1].pause(before[len(before)-1])
		if stop0 == 0 || stop1 == 0 {
			t.Fatalf("a rank ran through a hold; the ranks stopped at %v and %v", stop0, stop1)
		}
		return spread(stop0, stop1), spread(resume0, resume1)
	}

	put(suspend) // each node finds its first rank, and its lease
	held("first", true)
	put(gang.Default().Resume)
	held("first", false)
	var stops, resumes []time.Duration
	for range 50 {
		stop, resume := measure(func() { put(suspend) }, func() { put(gang.Default().Resume) })
		stops, resumes = append(stops, stop), append(resumes, resume)
		if other.held() {
			t.Fatal("another group is held")
		}
	}
	report(t, "two nodes stop apart, by an operator", stops)
	report(t, "two nodes resume apart, by an operator", resumes)

	resumes = nil
	for range 5 {
		_, resume := measure(func() { service.tell("loop") }, func() { service.tell("pause") })
		resumes = append(resumes, resume)
	}
	report(t, "two nodes resume apart, after a program of higher priority on one", resumes)

	t.Run("plugin killed", func(t *testing.T) {
		plugin := filepath.Join(t.TempDir(), "kubectl-xsched")
		if err := os.Symlink(product(t, "bin/xsched-kube"), plugin); err != nil {
			t.Fatal(err)
		}
		kubectl := func(args ...string) {
			t.Helper()
			if text, err := exec.Command(plugin, append(args, "--kubeconfig", userConfig("admin"))...).CombinedOutput(); err != nil {
				t.Fatalf("%v: %s", err, text)
			}
		}
		kubectl("suspend", "job", "--for", "5m")
		held("suspended", true)
		_ = b.plugin.Process.Kill()
		eventually(t, "the node without a plugin resumes", func() bool { return !ranks[1].held() })
		ranks[1].progress()
		if !ranks[0].held() {
			t.Error("the other node resumed, too")
		}
		b.startPlugin()
		held("plugin started again", true)
		kubectl("resume", "job")
		held("resumed", false)
	})
	t.Run("API server down", func(t *testing.T) {
		service.tell("loop")
		held("service runs", true)
		c.StopAPIServer(t)
		held("without a server", false)
		ranks[1].progress()
		c.StartAPIServer(t)
		held("with a server again", true)
		service.tell("pause")
		held("service ended", false)
		for _, r := range ranks {
			r.progress()
		}
	})
}
