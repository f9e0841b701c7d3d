// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"testing"
	"time"

	"xsched/internal/control"
	"xsched/internal/kube/edits"
)

// testClassChanged changes the class of a working pod: by its label, and by the setting of the chart.
func testClassChanged(t *testing.T, s site) {
	const space = "serving"
	s.c.Namespace(t, "serving", "xsched.dev/allow-latency", "true")
	s.c.Apply(t, labelledProgram("worker", "namespace: serving, labels: {xsched.dev/priority-class: batch}"))
	before := s.c.WaitPod(t, space, "worker", "is ready", Running)
	s.c.Exec(t, space, "worker", "sh", "-c", "echo loop >/tmp/in")
	pid := 0
	has := func(class string, priority int32) {
		t.Helper()
		eventually(t, fmt.Sprintf("the working pod has class %s and priority %d", class, priority), func() bool {
			p := s.process(space, "worker")
			if p == nil || p.Class != class || p.Priority != priority {
				return false
			}
			if pid == 0 {
				pid = p.PID
			}
			if p.PID != pid {
				t.Fatalf("another process %d works, not %d", p.PID, pid)
			}
			return true
		})
		n := s.kernelsOf(pid)
		eventually(t, "the pod goes on with class "+class, func() bool { return s.kernelsOf(pid) > n+10 })
	}
	has("batch", -10)
	s.c.Kubectl(t, "label", "--overwrite", "-n", space, "pod", "worker", "xsched.dev/priority-class=latency")
	has("latency", 10)
	s.c.Kubectl(t, "label", "--overwrite", "-n", space, "pod", "worker", "xsched.dev/priority-class=batch")
	has("batch", -10)
	same := func() {
		t.Helper()
		after := s.c.WaitPod(t, space, "worker", "is ready", Running)
		if was, is := before.Status.ContainerStatuses[0], after.Status.ContainerStatuses[0]; was.ContainerID != is.ContainerID || is.RestartCount != 0 {
			t.Errorf("the container %s is %s, with %d restarts", was.ContainerID, is.ContainerID, is.RestartCount)
		}
	}
	same()

	// The administrator changes the class itself: only a ConfigMap, and no pod of the DaemonSet restarts.
	name, _ := s.daemonPod()
	helmMust(t, append(append([]string{"upgrade", "xsched", chart}, settings...), "--set", "nri.classes.batch.priority=-15")...)
	t.Cleanup(func() { helmMust(t, append([]string{"upgrade", "xsched", chart}, settings...)...) })
	has("batch", -15)
	if now, _ := s.daemonPod(); now != name {
		t.Errorf("the pod %s of the DaemonSet is %s", name, now)
	}
	same()
}

// labelledProgram is a pod with a program and without a claim. more is what its metadata have beside the name.
func labelledProgram(name, more string) string {
	pod := strings.Replace(claimPod(name, programImage, tenantScript(name, "--kernel-us 2000"), "resourceClaimName: none"),
		"{name: "+name+"}", "{name: "+name+", "+more+"}", 1)
	pod, _, _ = strings.Cut(pod, "    resources:")
	return pod
}

// testGroup suspends and resumes a working pod that is in a group by its label.
func testGroup(t *testing.T, s site) {
	s.c.Apply(t, labelledProgram("rank", "labels: {xsched.dev/priority-class: batch, xsched.dev/group: job}"))
	s.c.WaitPod(t, "default", "rank", "is ready", Running)
	tenant{t, s.c, "rank"}.tell("loop")
	pid := 0
	is := func(held bool) {
		t.Helper()
		eventually(t, fmt.Sprintf("the daemon has the pod in its group: held=%t", held), func() bool {
			p := s.process("default", "rank")
			if p == nil || p.Group != "job" || p.GroupHeld != held {
				return false
			}
			pid = p.PID
			return true
		})
	}
	runs := func() {
		t.Helper()
		n := s.kernelsOf(pid)
		eventually(t, "the pod runs", func() bool { return s.kernelsOf(pid) > n+10 })
	}
	is(false)
	runs()
	kubectlXSched(t)
	s.c.Kubectl(t, "xsched", "suspend", "job", "-n", "default", "--for", "5m")
	is(true)
	eventually(t, "the GPU executes none of its kernels", func() bool {
		n := s.kernelsOf(pid)
		time.Sleep(time.Second)
		return s.kernelsOf(pid) == n
	})
	s.c.Kubectl(t, "xsched", "resume", "job", "-n", "default")
	is(false)
	runs()
	tenant{t, s.c, "rank"}.finish()
}

// testClassPatched changes the device class of the working batch pod. Its claim keeps what it was allocated
// with, so both pods go on as before, and a later claim has the change.
func testClassPatched(t *testing.T, l load) {
	patch := func(priority int) {
		t.Helper()
		l.c.Kubectl(t, "patch", "deviceclass", "gpu-batch", "--type=json", "-p",
			fmt.Sprintf(`[{"op":"replace","path":"/spec/config/0/opaque/parameters/priority","value":%d}]`, priority))
	}
	patch(-20)
	t.Cleanup(func() { patch(-10) })
	eventually(t, "a later claim has the changed class", func() bool {
		l.c.Apply(t, claim("late", "batch", "")+"---"+programPod("late", "--kernel-us 2000"))
		l.c.WaitPod(t, "default", "late", "is ready", Running)
		if g := l.grants()["late"]; g.Priority != nil && *g.Priority == -20 {
			return true
		}
		l.c.Kubectl(t, "delete", "pod/late", "resourceclaim/late") // the scheduler had the old class still
		return false
	})
	eventually(t, "the later pod's program has the changed class", func() bool {
		p := l.process("default", "late")
		return p != nil && p.Priority == -20 && p.Class == "gpu-batch"
	})
	l.goesOn("a change of the device class")
	l.same("a change of the device class")
}

// kernelsOf returns how many kernels of a process the virtual GPU has executed.
func (s site) kernelsOf(pid int) uint64 {
	s.t.Helper()
	stats, err := s.gpu.Stats()
	if err != nil {
		s.t.Fatal(err)
	}
	for _, account := range stats.Clients {
		if account.PID == pid {
			return account.Kernels
		}
	}
	return 0
}

// testSecurity lets a pod with a claim, as root of its container, and a pod without one try what they may
// not.
func testSecurity(t *testing.T, s site) {
	const secret = "top-secret"
	s.c.Apply(t, claim("victim", "batch", "")+"---"+strings.Replace(programPod("victim", "--kernel-us 2000"), "--name victim", "--name "+secret, 1))
	s.c.Apply(t, claim("intruder", "latency", "")+"---"+programPod("intruder", "--kernel-us 2000"))
	s.c.Apply(t, busyboxPod("outsider", untilEnd))
	for _, pod := range []string{"victim", "intruder", "outsider"} {
		s.c.WaitPod(t, "default", pod, "is ready", Running)
	}
	for _, pod := range []string{"victim", "intruder"} {
		eventually(t, "the daemon has pod "+pod, func() bool { return s.process("default", pod) != nil })
	}
	in := func(pod, script string) string {
		t.Helper()
		return s.c.Exec(t, "default", pod, "sh", "-c", script)
	}
	if got := in("outsider", "ls -d /run/xsched /usr/lib/xsched 2>/dev/null; env | grep -e XSCHED -e PRELOAD; find / -xdev -type s; grep xsched /proc/net/unix; true"); got != "" {
		t.Errorf("a pod without a claim has %q", got)
	}
	// What remains is to mount the folder, which the baseline of Pod Security forbids.
	s.c.Namespace(t, "guarded", "pod-security.kubernetes.io/enforce", "baseline")
	mounts := `{apiVersion: v1, kind: Pod, metadata: {name: mounts, namespace: guarded}, spec: {containers: [{name: main, image: none}], volumes: [{name: v, hostPath: {path: /run/xsched/client}}]}}`
	if _, err := s.c.TryKubectl(mounts, "create", "--dry-run=server", "-f", "-"); err == nil || !strings.Contains(err.Error(), "hostPath") {
		t.Errorf("a pod with a folder of the host in a namespace with Pod Security: %v", err)
	}

	victim, policy := s.process("default", "victim"), s.policy()
	if !strings.Contains(victim.Command, secret) {
		t.Fatalf("root of the host does not see the command line: %q", victim.Command)
	}
	if list := in("intruder", "xsched list --json; xsched list; xsched status; xsched logs; cat /proc/[0-9]*/cmdline; true"); !strings.Contains(list, "intruder") || strings.Contains(list, secret) || strings.Contains(list, "victim") {
		t.Errorf("a pod sees of another: %s", list)
	}
	for _, command := range []string{
		"hint " + strconv.Itoa(victim.PID) + " --priority -50", "suspend " + strconv.Itoa(victim.PID), "detach " + strconv.Itoa(victim.PID),
		"queues " + strconv.Itoa(victim.PID), "policy fifo", "mode off", "config reload", "hint self --priority 50",
	} {
		if got := in("intruder", "id -u; xsched "+command+" && echo DONE; true"); strings.Contains(got, "DONE") {
			t.Errorf("root of a container may: xsched %s: %s", command, got)
		}
	}
	testRequests(t, s, in, victim.PID)
	if now := s.process("default", "victim"); now == nil || now.Priority != -10 || now.Held || now.PID != victim.PID {
		t.Errorf("the other pod's program is %+v", now)
	}
	if now := s.process("default", "intruder"); now == nil || now.Priority > 10 {
		t.Errorf("the pod's own program is %+v", now)
	}
	if now := s.policy(); now != policy {
		t.Errorf("policy %s, was %s", now, policy)
	}
}

// policy returns the daemon's policy.
func (s site) policy() string {
	s.t.Helper()
	reply, err := s.client.Policy(context.Background())
	if err != nil {
		s.t.Fatal(err)
	}
	return reply.Name
}

// testRequests lets a pod send the requests of the node's plugin, and those about another pod's program, past
// the command line: the daemon itself must refuse them.
func testRequests(t *testing.T, s site, in func(pod, script string) string, victim int) {
	t.Helper()
	reply, err := s.client.Grants(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	uid := s.c.Kubectl(t, "get", "pod", "intruder", "-o", "jsonpath={.metadata.uid}")
	raise := fmt.Sprintf(`{"grants":[{"id":"x","namespace":"default","pod":"intruder","pod_uid":%q,"priority":200}]}`, uid)
	about := fmt.Sprintf(`{"pid":%d}`, victim)
	for _, r := range []struct{ method, path, body, want string }{
		{"GET", "/version", "", "200"}, // it reaches the daemon
		{"GET", "/grants", "", "403"},
		{"PUT", "/grants/dra", raise, "403"},
		{"PUT", "/grants/nri", raise, "403"},
		{"PUT", "/grants/mine", raise, "403"},
		{"PUT", "/grants/dra", `{"grants":[]}`, "403"},
		{"GET", "/holds", "", "403"},
		{"PUT", "/holds/gang", `{"holds":[]}`, "403"},
		{"GET", "/config", "", "403"},
		{"POST", "/suspend", about, "403"}, // in its PID namespace there is no such process
		{"POST", "/resume", about, "403"},
		{"POST", "/queues", about, "403"},
		{"POST", "/hint", fmt.Sprintf(`{"pid":%d,"priority":-50}`, victim), "403"},
	} {
		script := fmt.Sprintf("echo '%s' | %s=%s ask %s %s", r.body, stageVariable, stageAsk, r.method, control.Prefix+r.path)
		if got := in("intruder", script); !strings.HasPrefix(got, r.want+" ") {
			t.Errorf("root of a container sends %s %s %s: %.300s; want %s", r.method, r.path, r.body, got, r.want)
		}
	}
	after, err := s.client.Grants(context.Background())
	if err != nil || !reflect.DeepEqual(after.Grants, reply.Grants) {
		t.Errorf("the grants were %+v and are %+v, %v", reply.Grants, after.Grants, err)
	}
}

// runAsk sends a request to the daemon's socket for containers: method and path are arguments, the body is
// standard input. It prints the status and the answer.
func runAsk() int {
	var dialer net.Dialer
	client := http.Client{Timeout: soon, Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return dialer.DialContext(ctx, "unix", filepath.Join(edits.Client, control.ControlSocket))
	}}}
	if len(os.Args) != 3 {
		return complain(errors.New("use ask METHOD PATH"))
	}
	request, err := http.NewRequestWithContext(context.Background(), os.Args[1], "http://xsched"+os.Args[2], os.Stdin)
	if err != nil {
		return complain(err)
	}
	request.Header.Set("Content-Type", "application/json")
	response, err := client.Do(request)
	if err != nil {
		return complain(err)
	}
	defer func() { _ = response.Body.Close() }()
	text, err := io.ReadAll(response.Body)
	fmt.Printf("%d %s\n", response.StatusCode, text)
	if err != nil {
		return complain(err)
	}
	return 0
}
