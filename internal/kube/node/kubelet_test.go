// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	resourceapi "k8s.io/api/resource/v1"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	drapb "k8s.io/kubelet/pkg/apis/dra/v1"

	"xsched/internal/kube/cluster"
)

// kubelet talks to the plugin over its socket, as the kubelet does.
func kubelet(t *testing.T, n *Node, events Events) drapb.DRAPluginClient {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	n.plugin.events = events
	helper, err := kubeletplugin.Start(ctx, n.plugin, kubeletplugin.DriverName(cluster.Driver), kubeletplugin.NodeName("worker"), kubeletplugin.KubeClient(n.client),
		kubeletplugin.PluginDataDirectoryPath(n.options.Data), kubeletplugin.RegistrationService(false), kubeletplugin.Serialize(false))
	if err != nil {
		t.Fatal(err)
	}
	conn, err := grpc.NewClient("unix://"+filepath.Join(n.options.Data, "dra.sock"), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(); cancel(); helper.Stop() })
	return drapb.NewDRAPluginClient(conn)
}

// claimServer is an API server that has claims.
func claimServer(t *testing.T, claims map[string]*resourceapi.ResourceClaim) http.HandlerFunc {
	t.Helper()
	return func(w http.ResponseWriter, r *http.Request) {
		claim, ok := claims[strings.TrimPrefix(r.URL.Path, "/apis/resource.k8s.io/v1/namespaces/team/resourceclaims/")]
		if !ok {
			http.NotFound(w, r)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(claim)
	}
}

// shortFolders are in a folder whose sockets fit into an address.
func shortFolders(t *testing.T) *folders {
	t.Helper()
	f := newFolders(t)
	dir, err := os.MkdirTemp("", "dra")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	f.data = dir
	return f
}

// TestManyClaims prepares 200 claims of 200 pods at once and gives them back.
func TestManyClaims(t *testing.T) {
	const pods = 200
	claims := map[string]*resourceapi.ResourceClaim{}
	var numbers []int
	for i := range pods {
		c := allocated(i, []string{gpu0}, 0, class(fmt.Sprintf(`"priority":%d`, i)))
		claims[c.Name] = c
		numbers = append(numbers, i)
	}
	f := shortFolders(t)
	n := newNode(t, f, apiServer(t, claimServer(t, claims)))
	client := kubelet(t, n, &notes{})
	each := func(call func(claim *drapb.Claim) error) {
		var wait sync.WaitGroup
		for _, c := range claims {
			wait.Go(func() {
				if err := call(&drapb.Claim{Namespace: c.Namespace, Name: c.Name, Uid: string(c.UID)}); err != nil {
					t.Errorf("%s: %v", c.Name, err)
				}
			})
		}
		wait.Wait()
	}
	each(func(c *drapb.Claim) error {
		reply, err := client.NodePrepareResources(t.Context(), &drapb.NodePrepareResourcesRequest{Claims: []*drapb.Claim{c}})
		if err != nil {
			return err
		}
		one := reply.Claims[c.Uid]
		if one.GetError() != "" || len(one.GetDevices()) != 1 || !slices.Equal(one.GetDevices()[0].GetCdiDeviceIds(), []string{"gpu.xsched.dev/claim=" + c.Uid + "-0"}) ||
			one.GetDevices()[0].GetShareId() != "share" {
			return fmt.Errorf("reply %v", one)
		}
		return nil
	})
	f.consistent(t, n.store, numbers...)
	each(func(c *drapb.Claim) error {
		reply, err := client.NodeUnprepareResources(t.Context(), &drapb.NodeUnprepareResourcesRequest{Claims: []*drapb.Claim{c}})
		if err != nil {
			return err
		}
		if text := reply.Claims[c.Uid].GetError(); text != "" {
			return fmt.Errorf("reply %s", text)
		}
		return nil
	})
	f.consistent(t, n.store)
}

// TestBadParameters: the pod does not start, and claim and pod have one event, however often the kubelet tries.
func TestBadParameters(t *testing.T) {
	bad := allocated(1, []string{gpu0}, 0, class(`"priority":10`), own(`"priority":200`))
	f, events := shortFolders(t), &notes{}
	n := newNode(t, f, apiServer(t, claimServer(t, map[string]*resourceapi.ResourceClaim{bad.Name: bad})))
	if err := n.store.repair(t.Context()); err != nil {
		t.Fatal(err)
	}
	client := kubelet(t, n, events)
	for range 3 {
		reply, err := client.NodePrepareResources(t.Context(), &drapb.NodePrepareResourcesRequest{Claims: []*drapb.Claim{{Namespace: "team", Name: bad.Name, Uid: string(bad.UID)}}})
		if err != nil {
			t.Fatal(err)
		}
		if text := reply.Claims[string(bad.UID)].GetError(); text != "priority 200 of the claim is above the 10 of its device class; lower it, or ask for another device class" {
			t.Errorf("error %q", text)
		}
	}
	if len(events.lines) != 2 || !strings.HasPrefix(events.lines[0], "ResourceClaim Warning BadGpuParameters: priority 200") || !strings.HasPrefix(events.lines[1], "Pod Warning BadGpuParameters: claim claim-1: priority 200") {
		t.Errorf("events %q", events.lines)
	}
	f.consistent(t, n.store)
}
