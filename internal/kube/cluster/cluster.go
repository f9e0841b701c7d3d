// SPDX-License-Identifier: Apache-2.0

// Package cluster connects to the API server and has the names that XSched uses in a cluster.
package cluster

import (
	"cmp"
	"fmt"
	"os"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// Names in the cluster.
const (
	Driver    = "gpu.xsched.dev" // DRA driver and vendor of CDI devices
	DaemonSet = "xsched"
	// PriorityClassLabel on a pod, as label or annotation, asks for a class without a claim.
	PriorityClassLabel = "xsched.dev/priority-class"
	GroupLabel         = "xsched.dev/group"
)

// Names of the view: what the node plugins show to viewers.
const (
	// ViewAccount is the service account of viewers, in the namespace of the release. Whoever may create its
	// tokens may view.
	ViewAccount = "xsched-viewer"
	// ViewAudience is the audience of such a token: the API server itself refuses it.
	ViewAudience = "view.xsched.dev"
	// ViewGroup and ViewResource are what a viewer needs the verb get for, by the name of the node. The API
	// server has no such resource; it only answers who may get it.
	ViewGroup    = "xsched.dev"
	ViewResource = "nodeviews"
	// ViewPort is on the loopback interface of the node plugin's pod.
	ViewPort = 9401
)

// NamespaceVariable names the namespace of the release where it is not the usual one. The chart sets it.
const NamespaceVariable = "XSCHED_NAMESPACE"

// Namespace is that of the release: the given one, else that of the environment, else the usual one.
func Namespace(given string) string {
	return cmp.Or(given, os.Getenv(NamespaceVariable), "xsched-system")
}

// Config finds the API server: by kubeconfig if given, else by the usual rules of kubectl
// ($KUBECONFIG, ~/.kube/config), else as a pod.
func Config(kubeconfig string) (*rest.Config, error) { return ConfigOf(kubeconfig, "") }

// ConfigOf is Config with a context of the file other than its current one.
func ConfigOf(kubeconfig, context string) (*rest.Config, error) {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = kubeconfig
	c, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, &clientcmd.ConfigOverrides{CurrentContext: context}).ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("no API server known: %w; run in a pod or give --kubeconfig", err)
	}
	// The library's limit of 5 requests a second would delay a node with many claims by minutes after a start.
	c.QPS, c.Burst = 50, 100
	return c, nil
}

// Connect returns a client for a configuration.
func Connect(c *rest.Config) (kubernetes.Interface, error) {
	client, err := kubernetes.NewForConfig(c)
	if err != nil {
		return nil, fmt.Errorf("connect to the API server at %s: %w", c.Host, err)
	}
	return client, nil
}
