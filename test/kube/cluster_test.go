// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// The node as pods and drivers see it. The paths are those of an ordinary node.
const (
	NodeName       = "node1"
	PluginDir      = kubeletDir + "/plugins"
	PluginRegistry = kubeletDir + "/plugins_registry"
	CDIDir         = "/etc/cdi"
	NRISocket      = "/run/nri/nri.sock"
)

const (
	nodeAddress    = "10.89.0.1"
	serviceAddress = "10.96.0.1" // the first of the range of services: the API server's
	podRange       = "10.88.0.0/24"

	kubeletDir       = "/var/lib/kubelet"
	containerdDir    = "/var/lib/containerd"
	containerdSocket = "/run/containerd/containerd.sock"
	baseDir          = "/run/kube" // keys, configuration and logs of the cluster
)

// Limits are for a machine under load; a wait ends as soon as its state is reached.
const (
	soon = 2 * time.Minute
	poll = 50 * time.Millisecond
)

// root of the repository, from this package's folder.
const root = "../.."

// Cluster is the one Kubernetes of this test binary. Tests share it and remove what they add.
type Cluster struct {
	Client *kubernetes.Clientset
	Config *rest.Config

	mu      sync.Mutex
	api     bool // etcd and the API server run
	control bool // controller manager and scheduler, too
	node    bool // the other parts, too
	// Parts by their names, running or stopped.
	parts map[string]*part
}

var shared = &Cluster{parts: map[string]*part{}}

// Start returns the cluster with a node that is ready. It starts what does not run yet.
func Start(t testing.TB) *Cluster {
	t.Helper()
	c := StartControl(t)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.node {
		return c
	}
	if err := c.startNode(t); err != nil {
		t.Fatalf("start the node: %v", err)
	}
	c.node = true
	return c
}

// StartControl returns the cluster with controller manager and scheduler at least: pods get a node, but
// none runs, unless another test called Start.
func StartControl(t testing.TB) *Cluster {
	t.Helper()
	c := StartAPI(t)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.control {
		return c
	}
	if err := c.startControl(); err != nil {
		t.Fatalf("start the controllers: %v", err)
	}
	c.control = true
	return c
}

// StartAPI returns the cluster with etcd and the API server at least: no pod runs, unless another test
// called Start.
func StartAPI(t testing.TB) *Cluster {
	t.Helper()
	c := shared
	t.Cleanup(func() { c.explain(t) })
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.api {
		return c
	}
	if err := c.startAPI(t); err != nil {
		t.Fatalf("start the API server: %v", err)
	}
	c.api = true
	return c
}

// path of a file of the cluster itself.
func path(elements ...string) string { return filepath.Join(append([]string{baseDir}, elements...)...) }

func (c *Cluster) startAPI(t testing.TB) error {
	began := time.Now()
	for _, name := range []string{"etcd", "kube-apiserver", "kubectl"} {
		if _, err := os.Stat(program(name)); err != nil {
			return fmt.Errorf("%w; run tools/kube", err)
		}
	}
	if err := errors.Join(writeKeys(), writeNodeFiles()); err != nil {
		return err
	}
	config, err := clientcmd.BuildConfigFromFlags("", userConfig("admin"))
	if err != nil {
		return err
	}
	config.QPS, config.Burst = 500, 1000
	c.Config = config
	if c.Client, err = kubernetes.NewForConfig(config); err != nil {
		return err
	}
	const etcd = "http://127.0.0.1:2379"
	if err := c.startPart("etcd", "--data-dir", path("etcd"), "--listen-client-urls", etcd, "--advertise-client-urls", etcd,
		"--unsafe-no-fsync"); err != nil {
		return err
	}
	if err := c.startPart("kube-apiserver", "--etcd-servers="+etcd, "--cert-dir="+path("pki"),
		"--bind-address=0.0.0.0", "--advertise-address="+nodeAddress, "--secure-port=443",
		"--token-auth-file="+path("pki", "tokens.csv"), "--authorization-mode=Node,RBAC", "--service-cluster-ip-range=10.96.0.0/16",
		"--service-account-issuer=https://kubernetes.default.svc",
		"--service-account-signing-key-file="+path("pki", "sa.key"), "--service-account-key-file="+path("pki", "sa.key"),
		"--kubelet-preferred-address-types=InternalIP"); err != nil {
		return err
	}
	if err := c.waitAPI(); err != nil {
		return err
	}
	t.Logf("API server ready after %.1f s", time.Since(began).Seconds())
	return nil
}

// waitAPI waits until the API server answers that it is ready.
func (c *Cluster) waitAPI() error {
	return c.until("the API server is ready", func(ctx context.Context) error {
		_, err := c.Client.Discovery().RESTClient().Get().AbsPath("/readyz").DoRaw(ctx)
		return err
	}, "etcd", "kube-apiserver")
}

func (c *Cluster) startControl() error {
	limits := []string{"--leader-elect=false", "--bind-address=127.0.0.1", "--kube-api-qps=500", "--kube-api-burst=1000"}
	manager, scheduler := userConfig("manager"), userConfig("scheduler")
	if err := c.startPart("kube-controller-manager", append(limits, "--kubeconfig="+manager, "--cert-dir="+path("pki", "manager"),
		"--use-service-account-credentials", "--service-account-private-key-file="+path("pki", "sa.key"),
		"--root-ca-file="+path("pki", "apiserver.crt"), "--flex-volume-plugin-dir="+kubeletDir+"/volume-plugins")...); err != nil {
		return err
	}
	if err := c.startPart("kube-scheduler", append(limits, "--kubeconfig="+scheduler, "--cert-dir="+path("pki", "scheduler"),
		"--authentication-kubeconfig="+scheduler, "--authorization-kubeconfig="+scheduler)...); err != nil {
		return err
	}
	// Pods can't be made before their service account exists.
	return c.until("the default service account exists", func(ctx context.Context) error {
		_, err := c.Client.CoreV1().ServiceAccounts("default").Get(ctx, "default", metav1.GetOptions{})
		return err
	}, "kube-controller-manager", "kube-scheduler")
}

func (c *Cluster) startNode(t testing.TB) error {
	began := time.Now()
	if err := c.startPart("containerd", "-c", path("containerd.toml")); err != nil {
		return err
	}
	if err := c.waitContainerd(); err != nil {
		return err
	}
	if err := importBase(); err != nil {
		return err
	}
	if err := c.startPart("kubelet", "--config="+path("kubelet.json"), "--kubeconfig="+userConfig("node"), "--root-dir="+kubeletDir,
		"--cert-dir="+path("pki", "kubelet"), "--hostname-override="+NodeName, "--node-ip="+nodeAddress); err != nil {
		return err
	}
	if err := c.until("the node is ready", func(ctx context.Context) error {
		node, err := c.Client.CoreV1().Nodes().Get(ctx, NodeName, metav1.GetOptions{})
		if err == nil && !nodeReady(node) {
			err = errors.New("NotReady")
		}
		return err
	}, "kube-controller-manager", "kube-scheduler", "containerd", "kubelet"); err != nil {
		return err
	}
	t.Logf("node ready after %.1f s", time.Since(began).Seconds())
	return nil
}

func (c *Cluster) waitContainerd() error {
	return c.until("containerd answers", func(ctx context.Context) error {
		_, err := output(ctx, "", "ctr", "-a", containerdSocket, "version")
		return err
	}, "containerd")
}

func nodeReady(node *corev1.Node) bool {
	for _, condition := range node.Status.Conditions {
		if condition.Type == corev1.NodeReady {
			return condition.Status == corev1.ConditionTrue
		}
	}
	return false
}

// until repeats check until it succeeds. It gives up after a limit, or if one of the parts ends.
func (c *Cluster) until(what string, check func(ctx context.Context) error, parts ...string) error {
	ctx, cancel := context.WithTimeout(context.Background(), soon)
	defer cancel()
	for {
		once, done := context.WithTimeout(ctx, 10*time.Second)
		err := check(once)
		done()
		if err == nil {
			return nil
		}
		for _, name := range parts {
			if ended := c.parts[name].ended(); ended != nil {
				return fmt.Errorf("%s: %w", what, ended)
			}
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s: not within %v: %w", what, soon, err)
		case <-time.After(poll):
		}
	}
}

// StopAPIServer kills the API server. etcd, the node and its pods go on.
func (c *Cluster) StopAPIServer(t testing.TB) {
	t.Helper()
	t.Cleanup(func() {
		if c.parts["kube-apiserver"].ended() != nil {
			c.StartAPIServer(t)
		}
	})
	c.parts["kube-apiserver"].kill()
}

// StartAPIServer starts the stopped API server and waits until it is ready.
func (c *Cluster) StartAPIServer(t testing.TB) {
	t.Helper()
	c.again(t, "kube-apiserver", c.waitAPI)
}

// RestartKubelet kills the kubelet, starts it and waits until it answers.
func (c *Cluster) RestartKubelet(t testing.TB) {
	t.Helper()
	c.parts["kubelet"].kill()
	c.again(t, "kubelet", func() error {
		return c.until("the kubelet answers", func(ctx context.Context) error {
			_, err := c.Client.CoreV1().RESTClient().Get().AbsPath("/api/v1/nodes/" + NodeName + "/proxy/healthz").DoRaw(ctx)
			return err
		}, "kubelet")
	})
}

// RestartContainerd kills containerd, starts it and waits until it answers. Its containers run on.
func (c *Cluster) RestartContainerd(t testing.TB) {
	t.Helper()
	c.parts["containerd"].kill()
	c.again(t, "containerd", c.waitContainerd)
}

// again starts a part that has ended.
func (c *Cluster) again(t testing.TB, name string, ready func() error) {
	t.Helper()
	if err := c.parts[name].start(); err != nil {
		t.Fatal(err)
	}
	if err := ready(); err != nil {
		t.Fatal(err)
	}
}

// end keeps the logs in out/kube if a test failed. The processes end with the PID namespace.
func (c *Cluster) end(failed bool) {
	if !failed {
		return
	}
	kept, err := filepath.Abs(filepath.Join(root, "out", "kube"))
	if err == nil {
		err = os.RemoveAll(kept)
	}
	if err == nil {
		err = os.CopyFS(kept, os.DirFS(path("log")))
	}
	switch {
	case err == nil:
		fmt.Println("test/kube: the logs of the cluster are in", kept)
	case !errors.Is(err, fs.ErrNotExist): // nothing started
		complain(err)
	}
}
