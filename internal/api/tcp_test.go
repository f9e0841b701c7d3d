// SPDX-License-Identifier: Apache-2.0

package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"xsched/internal/budget"
	"xsched/internal/control"
	"xsched/internal/control/upstream"
	"xsched/internal/identity"
)

func portOf(t *testing.T, addr string) int {
	t.Helper()
	_, text, err := net.SplitHostPort(addr)
	if err != nil {
		t.Fatal(err)
	}
	port, err := strconv.Atoi(text)
	if err != nil {
		t.Fatal(err)
	}
	return port
}

// serveTCP offers c on a free port of the loopback.
func serveTCP(t *testing.T, c control.Control, o HTTPOptions) string {
	t.Helper()
	if o.Addr == "" {
		o.Addr = "127.0.0.1:0"
	}
	s, err := ListenHTTP(o)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Serve(ctx, c) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Serve = %v", err)
		}
	})
	return s.Addr()
}

func do1(t *testing.T, method, url, body string, edit func(*http.Request)) (int, string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	if edit != nil {
		edit(r)
	}
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 10 * time.Second}
	answer, err := client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	text, _ := io.ReadAll(answer.Body)
	return answer.StatusCode, string(text)
}

// whoami answers Version with the caller's uid.
type whoami struct{ *world }

func (whoami) Version(_ context.Context, c control.Caller) (control.Version, error) {
	return control.Version{UID: c.User.UID, PID: c.PID}, nil
}

func uidOf(t *testing.T, body string) int {
	t.Helper()
	var v control.Version
	if err := json.Unmarshal([]byte(body), &v); err != nil {
		t.Fatalf("%v in %s", err, body)
	}
	return v.UID
}

func TestCallerIsTheOtherEndsOwner(t *testing.T) {
	for _, host := range []string{"127.0.0.1", "[::1]"} {
		t.Run(host, func(t *testing.T) {
			l, err := net.Listen("tcp", host+":0")
			if err != nil {
				t.Skip(err)
			}
			_ = l.Close()
			addr := serveTCP(t, whoami{newWorld()}, HTTPOptions{Addr: host + ":0"})
			status, body := do1(t, "GET", "http://"+addr+control.Prefix+"/version", "", nil)
			if status != 200 || uidOf(t, body) != os.Getuid() {
				t.Errorf("%d %s, want uid %d", status, body, os.Getuid())
			}
		})
	}
}

// TestInPodNeedsAToken: a forwarded port ends at the loopback interface of a pod as a process of the node's root, so
// that only a token proves anything there.
func TestInPodNeedsAToken(t *testing.T) {
	file := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(file, []byte("0123456789abcdef\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, address := range []string{"127.0.0.1:0", ":0"} {
		addr := serveTCP(t, whoami{newWorld()}, HTTPOptions{Addr: address, InPod: true, TokenFile: file})
		_, port, err := net.SplitHostPort(addr)
		if err != nil {
			t.Fatal(err)
		}
		url := "http://127.0.0.1:" + port + control.Prefix + "/version"
		if status, body := do1(t, "GET", url, "", nil); status != 403 || !strings.Contains(body, "in a pod a request over TCP needs a token") {
			t.Errorf("%s without a token: %d %s", address, status, body)
		}
		if status, body := do1(t, "GET", url, "", func(r *http.Request) { r.Header.Set("Authorization", "Bearer 0123456789abcdef") }); status != 200 {
			t.Errorf("%s with the token: %d %s", address, status, body)
		}
	}
}

// TestTwoUsers runs the client as another user: the test binary with the uid of nobody.
func TestTwoUsers(t *testing.T) {
	if url := os.Getenv("XSCHED_TEST_ASK"); url != "" {
		status, body := do1(t, os.Getenv("XSCHED_TEST_METHOD"), url, "", nil)
		fmt.Printf("ANSWER %d %s\n", status, strings.TrimSpace(body))
		return
	}
	if os.Getuid() != 0 {
		t.Skip("needs root to become another user")
	}
	const nobody = 65534
	addr := serveTCP(t, whoami{newWorld()}, HTTPOptions{})
	// The test binary is in a folder that only root can enter.
	exe, err := os.Open("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	defer exe.Close()
	ask := func(method, path string, as *syscall.SysProcAttr) string {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), "/proc/self/fd/3", "-test.run=^TestTwoUsers$", "-test.v")
		cmd.ExtraFiles = []*os.File{exe}
		cmd.Dir = "/"
		cmd.Env = []string{"XSCHED_TEST_ASK=http://" + addr + path, "XSCHED_TEST_METHOD=" + method}
		cmd.SysProcAttr = as
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Skipf("can't run as another user: %v %s", err, out)
		}
		_, answer, _ := strings.Cut(string(out), "ANSWER ")
		answer, _, _ = strings.Cut(answer, "\n")
		return answer
	}
	other := &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	if got := ask("GET", control.Prefix+"/version", other); !strings.HasPrefix(got, "200 ") || uidOf(t, got[4:]) != nobody {
		t.Errorf("version: %s", got)
	}
	if got := ask("GET", "/xqueues", other); !strings.HasPrefix(got, "200 ") {
		t.Errorf("reading is free: %s", got)
	}
	if got := ask("POST", "/policy?policy=1", other); !strings.HasPrefix(got, "403 ") {
		t.Errorf("policy by another user: %s", got)
	}
	if got := ask("POST", "/config/10000?level=1", other); !strings.HasPrefix(got, "403 ") {
		t.Errorf("config by another user: %s", got)
	}
	if status, body := do1(t, "POST", "http://"+addr+"/policy?policy=1", "", nil); status != 200 {
		t.Errorf("policy by root: %d %s", status, body)
	}
	// Root of a container that shares the host's network.
	container := &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID}
	if got := ask("POST", "/policy?policy=1", container); !strings.HasPrefix(got, "403 ") {
		t.Errorf("policy by root of a container: %s", got)
	}
	for _, path := range []string{"/metrics", control.Prefix + "/events"} {
		if got := ask("GET", path, container); !strings.HasPrefix(got, "403 ") {
			t.Errorf("%s in a container: %s", path, got)
		}
	}
}

func TestWebPagesAreRefused(t *testing.T) {
	addr := serveTCP(t, whoami{newWorld()}, HTTPOptions{})
	port := strconv.Itoa(portOf(t, addr))
	header := func(name, value string) func(*http.Request) {
		return func(r *http.Request) {
			if name == "Host" {
				r.Host = value
				return
			}
			r.Header.Set(name, value)
		}
	}
	for _, test := range []struct {
		name, value string
		want        int
	}{
		{"Host", "127.0.0.1:" + port, 200},
		{"Host", "localhost:" + port, 200},
		{"Host", "LocalHost", 200},
		{"Host", "[::1]:" + port, 200},
		{"Host", "127.8.9.10", 200},
		{"Host", "evil.example:" + port, 403},
		{"Host", "127.0.0.1.evil.example", 403},
		{"Host", "localhost.evil.example", 403},
		{"Host", "192.168.1.1", 403},
		{"Host", "0.0.0.0:" + port, 403},
		{"Origin", "http://" + addr, 200},
		{"Origin", "http://evil.example", 403},
		{"Origin", "null", 403},
		{"Origin", "http://127.0.0.1:1", 403},
		{"Origin", "http://" + addr + ".evil.example", 403},
		{"Sec-Fetch-Site", "same-origin", 200},
		{"Sec-Fetch-Site", "none", 200},
		{"Sec-Fetch-Site", "cross-site", 403},
		{"Sec-Fetch-Site", "same-site", 403},
		{"Authorization", "Bearer guess", 403},
	} {
		for _, path := range []string{control.Prefix + "/version", "/xqueues", "/policy", "/metrics", control.Prefix + "/openapi.json"} {
			if status, body := do1(t, "GET", "http://"+addr+path, "", header(test.name, test.value)); status != test.want {
				t.Errorf("%s with %s: %s is %d, want %d: %.200s", path, test.name, test.value, status, test.want, body)
			}
		}
	}
}

func TestToken(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "token")
	const secret = "0123456789abcdef0123"
	if err := os.WriteFile(file, []byte(secret+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	addr := serveTCP(t, whoami{newWorld()}, HTTPOptions{TokenFile: file})
	url := "http://" + addr + control.Prefix + "/version"
	for header, want := range map[string]int{
		"Bearer " + secret:        200,
		"bearer " + secret:        200,
		"Bearer " + secret + "x":  403,
		"Bearer " + secret[:19]:   403,
		"Basic " + secret:         403,
		"Bearer":                  403,
		"Bearer 0123456789abcdef": 403,
	} {
		status, body := do1(t, "GET", url, "", func(r *http.Request) {
			r.Header.Set("Authorization", header)
			r.Host = "gpu.example:50000" // with the token, any host name is accepted
		})
		if status != want {
			t.Errorf("%q: %d %s", header, status, body)
		}
		if want == 200 && uidOf(t, body) != os.Geteuid() {
			t.Errorf("the token is not the owner's: %s", body)
		}
	}

	// The token of viewers reads as the owner and changes nothing, on any route.
	view := filepath.Join(dir, "view")
	const viewer = "fedcba9876543210"
	if err := os.WriteFile(view, []byte(viewer), 0o600); err != nil {
		t.Fatal(err)
	}
	both := "http://" + serveTCP(t, whoami{newWorld()}, HTTPOptions{TokenFile: file, ViewTokenFile: view})
	as := func(token, method, path string) (int, string) {
		return do1(t, method, both+path, "{}", func(r *http.Request) {
			r.Header.Set("Authorization", "Bearer "+token)
			r.Header.Set("Content-Type", "application/json")
		})
	}
	if status, body := as(viewer, "GET", control.Prefix+"/version"); status != 200 || uidOf(t, body) != os.Geteuid() {
		t.Errorf("a viewer reads %d %s", status, body)
	}
	changes := []string{"POST /policy", "POST /hint", "POST /config/1"} // upstream's
	for _, r := range routes() {
		if r.method != http.MethodGet {
			changes = append(changes, r.method+" "+control.Prefix+r.path)
		}
	}
	for _, change := range changes {
		method, path, _ := strings.Cut(change, " ")
		status, body := as(viewer, method, path)
		if status != 403 || !strings.Contains(body, "only allows reading") || !strings.Contains(body, "--http-token-file") {
			t.Errorf("a viewer's %s: %d %s", change, status, body)
		}
	}
	if _, body := as(secret, "POST", "/hint"); strings.Contains(body, "only allows reading") {
		t.Errorf("the owner's change: %s", body)
	}
	if _, err := ListenHTTP(HTTPOptions{Addr: "127.0.0.1:0", TokenFile: file, ViewTokenFile: file}); err == nil {
		t.Error("viewers may have the token that allows changes")
	}
	if s, err := ListenHTTP(HTTPOptions{Addr: "0.0.0.0:0", ViewTokenFile: view}); err != nil {
		t.Error(err)
	} else {
		_ = s.Close()
	}

	c := upstream.New("127.0.0.1", portOf(t, addr))
	defer c.Close()
	for token, want := range map[string]bool{secret: true, "wrong": false, "": true} { // without a token the uid decides
		c.Token = token
		if _, err := c.List(t.Context()); (err == nil) != want {
			t.Errorf("XClient with token %q: %v", token, err)
		}
	}

	// Without a token only local users have access; a remote connection has no
	// uid.
	g := &guard{}
	r, _ := http.NewRequestWithContext(context.WithValue(t.Context(), peerKey{}, &peer{}), "GET", "/", nil)
	if _, err := g.identify(r); !errors.Is(err, control.ErrNotAllowed) || !strings.Contains(err.Error(), "token") {
		t.Errorf("a stranger without a token: %v", err)
	}
}

// TestTokenIsAnnounced: a client learns whether the daemon has a token, also from a refusal.
func TestTokenIsAnnounced(t *testing.T) {
	file := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(file, []byte("0123456789abcdef"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		options HTTPOptions
		want    string
	}{{HTTPOptions{}, ""}, {HTTPOptions{TokenFile: file}, "Bearer"}, {HTTPOptions{ViewTokenFile: file}, "Bearer"}} {
		addr := serveTCP(t, whoami{newWorld()}, c.options)
		for host, status := range map[string]int{addr: http.StatusOK, "gpu.example": http.StatusForbidden} {
			r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+addr+control.Prefix+"/version", nil)
			if err != nil {
				t.Fatal(err)
			}
			r.Host = host
			answer, err := http.DefaultClient.Do(r)
			if err != nil {
				t.Fatal(err)
			}
			_ = answer.Body.Close()
			if got := answer.Header.Get("WWW-Authenticate"); answer.StatusCode != status || got != c.want {
				t.Errorf("%+v, host %s: status %d, scheme %q, want %d, %q", c.options, host, answer.StatusCode, got, status, c.want)
			}
		}
	}
}

func TestListenErrors(t *testing.T) {
	dir := t.TempDir()
	token := func(name, text string, mode os.FileMode) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), mode); err != nil {
			t.Fatal(err)
		}
		return path
	}
	busy, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer busy.Close()
	port := strconv.Itoa(portOf(t, busy.Addr().String()))
	for _, test := range []struct {
		name string
		o    HTTPOptions
		want []string
	}{
		{"busy", HTTPOptions{Addr: busy.Addr().String()}, []string{"port " + port, "in use", "--http"}},
		{"all addresses", HTTPOptions{Addr: "0.0.0.0:0"}, []string{"other machines", "--http-token-file"}},
		{"no host", HTTPOptions{Addr: ":0"}, []string{"other machines", "--http-token-file"}},
		{"IPv6 all", HTTPOptions{Addr: "[::]:0"}, []string{"--http-token-file"}},
		{"no port", HTTPOptions{Addr: "127.0.0.1"}, []string{"host:port", "--http"}},
		{"bad port", HTTPOptions{Addr: "127.0.0.1:http"}, []string{"host:port"}},
		{"huge port", HTTPOptions{Addr: "127.0.0.1:70000"}, []string{"host:port"}},
		{"no token file", HTTPOptions{Addr: "0.0.0.0:0", TokenFile: dir + "/none"}, []string{"none"}},
		{"open token file", HTTPOptions{Addr: "0.0.0.0:0", TokenFile: token("open", "0123456789abcdef", 0o644)}, []string{"other users can read", "chmod 600"}},
		{"short token", HTTPOptions{Addr: "0.0.0.0:0", TokenFile: token("short", "0123", 0o600)}, []string{"4 characters", "at least"}},
		{"long token", HTTPOptions{Addr: "0.0.0.0:0", TokenFile: token("long", strings.Repeat("x", maxTokenBytes+1), 0o600)}, []string{"characters"}},
	} {
		s, err := ListenHTTP(test.o)
		if err == nil {
			_ = s.Close()
			t.Errorf("%s: no error", test.name)
			continue
		}
		for _, want := range test.want {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %q has no %q", test.name, err, want)
			}
		}
	}
}

func TestTCPConnectionsAreBounded(t *testing.T) {
	fillPlaces(t, "tcp", serveTCP(t, newWorld(), HTTPOptions{}))
}

func TestSocketOwner(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	client, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	server, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	local := server.LocalAddr().(*net.TCPAddr).AddrPort()
	remote := server.RemoteAddr().(*net.TCPAddr).AddrPort()
	ways := map[string]func(src, dst netip.AddrPort) (int, uint64, error){"sock_diag": diagOwner, "proc": procOwner}
	for name, find := range ways {
		uid, _, err := find(remote, local)
		if err != nil && !errors.Is(err, errNoOwner) {
			t.Logf("%s is not to be had here: %v", name, err)
			continue
		}
		if err != nil || uid != os.Getuid() {
			t.Errorf("%s: uid %d, %v", name, uid, err)
		}
		// Neither the listener nor an unused port is the other end of a connection.
		for _, src := range []netip.AddrPort{local, netip.MustParseAddrPort("127.0.0.1:1")} {
			if uid, _, err := find(src, remote); src != local && !errors.Is(err, errNoOwner) {
				t.Errorf("%s of %s: uid %d, %v", name, src, uid, err)
			}
			if uid, _, err := find(src, netip.MustParseAddrPort("127.0.0.1:9")); !errors.Is(err, errNoOwner) {
				t.Errorf("%s of the listener %s: uid %d, %v", name, src, uid, err)
			}
		}
	}
	// A closed socket has no owner, although the kernel reports root.
	_ = client.Close()
	for name, find := range ways {
		if uid, _, err := find(remote, local); err == nil {
			t.Errorf("%s of a closed socket: uid %d", name, uid)
		}
	}
}

// The unit permits the sockets by which the kernel names the owner of a connection. Otherwise the daemon reads
// a list of all connections of the host for each new one.
func TestUnitPermitsSockDiag(t *testing.T) {
	text, err := os.ReadFile("../../deploy/systemd/xsched.service")
	if err != nil {
		t.Fatal(err)
	}
	if !regexp.MustCompile(`(?m)^RestrictAddressFamilies=.*\bAF_NETLINK\b`).Match(text) {
		t.Error("xsched.service forbids netlink sockets")
	}
}

func TestProcTable(t *testing.T) {
	const table = `  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:C350 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 111 1
   1: 0100007F:8235 0100007F:C350 06 00000000:00000000 03:00001770 00000000     0        0 0 3
   2: 0100007F:8236 0100007F:C350 01 00000000:00000000 00:00000000 00000000  1000        0 222 1
   3: 0000000000000000FFFF00000100007F:8237 0000000000000000FFFF00000100007F:C350 01 00000000:00000000 00:00000000 00000000  1001        0 333 1
   4: 0100007F:8238 0100007F:C350 01 00000000:00000000 00:00000000 00000000     0        0 0 1
`
	server := netip.MustParseAddrPort("127.0.0.1:50000")
	for port, want := range map[uint16]int{0x8235: -1, 0x8236: 1000, 0x8237: 1001, 0x8238: -1, 0x8239: -1} {
		uid, _, err := scanOwner(table, netip.AddrPortFrom(server.Addr(), port), server)
		if uid != want || (err == nil) != (want >= 0) {
			t.Errorf("port %x: %d, %v; want %d", port, uid, err, want)
		}
	}
}

func TestSearchIsRepeatedUntilFound(t *testing.T) {
	searches := 0
	find := untilFound(func() (identity.Peer, error) {
		if searches++; searches < 3 {
			return identity.Peer{User: identity.Nobody}, identity.ErrNoHolder
		}
		return identity.Peer{User: identity.OnHost(7)}, nil
	})
	for i, want := range []error{identity.ErrNoHolder, identity.ErrNoHolder, nil, nil} {
		if p, err := find(); !errors.Is(err, want) || err == nil && p.User != identity.OnHost(7) {
			t.Errorf("request %d: %v, %v", i, p.User, err)
		}
	}
	if searches != 3 {
		t.Errorf("%d searches", searches)
	}
}

// TestForeignTokenFile: a token that another user can replace is refused.
func TestForeignTokenFile(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root to give a file away")
	}
	path := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(path, []byte(strings.Repeat("x", 32)), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := readToken(path); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(path, 65534, 65534); err != nil {
		t.Fatal(err)
	}
	if _, err := readToken(path); !errors.Is(err, control.ErrNotAllowed) {
		t.Errorf("another user's token file: %v", err)
	}
}

// slowDoor identifies the first peer slowly.
type slowDoor struct {
	tcpDoor
	first, slow chan struct{}
}

func (d slowDoor) identify(net.Conn) (peer, error) {
	select {
	case <-d.first:
		<-d.slow
	default:
	}
	return peer{Peer: identity.Peer{User: identity.OnHost(0), PIDFD: -1}}, nil
}

// TestSlowPeerDelaysNobody: the search for one client's identity does not delay the next client.
func TestSlowPeerDelaysNobody(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	slow, first := make(chan struct{}), make(chan struct{}, 1)
	first <- struct{}{}
	limited := newLimitListener(slowDoor{tcpDoor{l}, first, slow}, budget.New(), listenerParts{})
	server := &http.Server{Handler: http.NotFoundHandler()}
	go func() { _ = server.Serve(limited) }()
	t.Cleanup(func() { close(slow); _ = server.Close() })
	blocked, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer blocked.Close()
	for len(first) > 0 {
		time.Sleep(time.Millisecond)
	}
	client := &http.Client{Timeout: 5 * time.Second}
	reply, err := client.Get("http://" + l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	_ = reply.Body.Close()
}

// stuckIdentify never identifies a peer of one user.
type stuckIdentify struct {
	tcpDoor
	uid  int
	free chan struct{}
}

func (d stuckIdentify) identify(c net.Conn) (peer, error) {
	local, remote := c.LocalAddr().(*net.TCPAddr), c.RemoteAddr().(*net.TCPAddr)
	if uid, _, err := diagOwner(remote.AddrPort(), local.AddrPort()); err == nil && uid == d.uid {
		<-d.free
	}
	return d.tcpDoor.identify(c)
}

// TestTCPPlacesAreDivided: connections of one user whose identification takes long, or that are opened
// without end, take no place from others.
func TestTCPPlacesAreDivided(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root to give a socket away")
	}
	const stranger = 65534
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	free := make(chan struct{})
	server := &http.Server{Handler: http.NotFoundHandler()}
	go func() {
		_ = server.Serve(newLimitListener(stuckIdentify{tcpDoor{l}, stranger, free}, budget.New(), listenerParts{}))
	}()
	t.Cleanup(func() { close(free); _ = server.Close() })
	foreign := net.Dialer{Control: func(_, _ string, c syscall.RawConn) error {
		var inner error
		err := c.Control(func(fd uintptr) { inner = syscall.Fchown(int(fd), stranger, stranger) })
		return errors.Join(err, inner)
	}}
	for range 2 * maxConnections {
		c, err := foreign.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
	}
	for range 8 {
		client := &http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
		reply, err := client.Get("http://" + l.Addr().String())
		if err != nil {
			t.Fatalf("another user is not served: %v", err)
		}
		_ = reply.Body.Close()
	}
}
