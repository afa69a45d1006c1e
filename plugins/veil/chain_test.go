package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"testing"
	"time"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/invoke"
	"github.com/containernetworking/cni/pkg/types"
	current "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/version"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/nettest"
	"github.com/kubeveil/kubeveil/pkg/abi"
	"github.com/kubeveil/kubeveil/pkg/pod"
)

// nodeExec lets libcni run plugins in the node's namespaces.
type nodeExec struct {
	*node
	*version.PluginDecoder
}

func (e nodeExec) ExecPlugin(ctx context.Context, plugin string, stdin []byte,
	env []string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, "nsenter", "--net="+e.Path(), "--mount="+e.MountPath(), plugin)
	cmd.Env, cmd.Stdin = env, bytes.NewReader(stdin)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("%s: %w: %s%s", plugin, err, out, stderr.String())
	}
	return out, nil
}

func (e nodeExec) FindInPath(plugin string, paths []string) (string, error) {
	return invoke.FindInPath(plugin, paths)
}

// TestChainWithPortmapAndBandwidth runs the configuration that veild writes as a
// runtime does, and reaches the pod through its host port:
//
//	outside .2 ── 198.18.200.0/24 ── .1 node :8080 ── portmap ── bandwidth ── pod :80
func TestChainWithPortmapAndBandwidth(t *testing.T) {
	nettest.NeedProgram(t, "iptables")
	n := newNode(t)
	build(t, reference+"meta/portmap", reference+"meta/bandwidth")
	outside := nettest.NewNS(t)
	nettest.Veth(t,
		nettest.End{NS: n.NS, Name: "cable0",
			Addrs: []netip.Prefix{netip.MustParsePrefix("198.18.200.1/24")}},
		nettest.End{NS: outside, Name: "cable1",
			Addrs: []netip.Prefix{netip.MustParsePrefix("198.18.200.2/24")}})
	nettest.Sysctl(t, n.NS, "ipv4/ip_forward", "1")

	list := conflistOf(t)
	cni := libcni.NewCNIConfigWithCacheDir([]string{binDir}, t.TempDir(),
		nodeExec{n, &version.PluginDecoder{}})
	a, ns := newPod(t, "c1")
	rt := &libcni.RuntimeConf{
		ContainerID: a.id, NetNS: a.netns, IfName: a.ifName,
		CapabilityArgs: map[string]any{
			"portMappings": []any{object{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}},
			"bandwidth": object{"ingressRate": 8_000_000, "ingressBurst": 8_000_000,
				"egressRate": 8_000_000, "egressBurst": 8_000_000},
		},
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	generic, err := cni.AddNetworkList(ctx, list, rt)
	if err != nil {
		t.Fatalf("ADD: %v", err)
	}
	result, err := current.NewResultFromResult(generic)
	errtest.Must(t, err)
	if len(result.Interfaces) != 3 || len(result.IPs) != 2 {
		t.Errorf("result of the chain: %+v, want our two interfaces and bandwidth's", result)
	}
	var r pod.Record
	n.Run(t, func() (err error) {
		r, err = n.paths.Load(pod.HostLink(a.id, a.ifName))
		return err
	})
	if !slices.Equal(r.HostPorts, []pod.HostPort{{Port: 8080, PodPort: 80}}) {
		t.Errorf("the record has host ports %v", r.HostPorts)
	}
	wantEcho(t, ns, outside)
	if err := cni.CheckNetworkList(ctx, list, rt); err != nil {
		t.Errorf("CHECK: %v", err)
	}
	for range 2 {
		if err := cni.DelNetworkList(ctx, list, rt); err != nil {
			t.Errorf("DEL: %v", err)
		}
	}
	n.wantNothing()
}

func conflistOf(t *testing.T) *libcni.NetworkConfigList {
	t.Helper()
	data, err := abi.Conflist(abi.ConflistParams{
		MTU: 1420,
		PodPrefixes: []netip.Prefix{netip.MustParsePrefix("198.18.1.0/24"),
			netip.MustParsePrefix("fd42:1:0:1::/64")},
		Portmap: true, Bandwidth: true,
	})
	errtest.Must(t, err)
	list, err := libcni.NetworkConfFromBytes(data)
	errtest.Must(t, err)
	return list
}

// wantEcho reaches the pod's port 80 from outside through the node's port 8080.
func wantEcho(t *testing.T, pod, outside *nettest.NS) {
	t.Helper()
	var server net.Listener
	pod.Run(t, func() (err error) {
		server, err = net.Listen("tcp", "198.18.1.2:80")
		return err
	})
	defer server.Close()
	served := make(chan error, 1)
	go func() {
		c, err := server.Accept()
		if err == nil {
			_, err = io.Copy(c, io.LimitReader(c, 4))
			err = errors.Join(err, c.Close())
		}
		served <- err
	}()

	outside.Run(t, func() error {
		c, err := net.DialTimeout("tcp", "198.18.200.1:8080", 10*time.Second)
		if err != nil {
			return err
		}
		defer c.Close()
		_ = c.SetDeadline(time.Now().Add(10 * time.Second))
		if _, err := c.Write([]byte("ping")); err != nil {
			return err
		}
		buf := make([]byte, 4)
		_, err = io.ReadFull(c, buf)
		return err
	})

	if err := <-served; err != nil {
		t.Errorf("serve in the pod: %v", err)
	}
}

// TestChainGC runs GC on the whole chain, like a runtime for CNI 1.1 when it starts.
func TestChainGC(t *testing.T) {
	n := newNode(t)
	build(t, reference+"meta/portmap", reference+"meta/bandwidth")
	list := conflistOf(t)
	list.CNIVersion = "1.1.0"
	cni := libcni.NewCNIConfigWithCacheDir([]string{binDir}, t.TempDir(),
		nodeExec{n, &version.PluginDecoder{}})
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()

	var valid []types.GCAttachment
	for _, id := range []string{"keep", "orphan"} {
		a, _ := newPod(t, id)
		if _, err := cni.AddNetworkList(ctx, list,
			&libcni.RuntimeConf{ContainerID: id, NetNS: a.netns, IfName: a.ifName}); err != nil {
			t.Fatalf("ADD %s: %v", id, err)
		}
		valid = append(valid, types.GCAttachment{ContainerID: id, IfName: a.ifName})
	}

	if err := cni.GetStatusNetworkList(ctx, list); err != nil {
		t.Errorf("STATUS: %v", err)
	}
	if err := cni.GCNetworkList(ctx, list, &libcni.GCArgs{ValidAttachments: valid[:1]}); err !=
		nil {
		t.Errorf("GC: %v", err)
	}

	n.wantLeft(attachment{id: "keep", ifName: "eth0"})
	if err := cni.GCNetworkList(ctx, list, &libcni.GCArgs{}); err != nil {
		t.Errorf("GC of everything: %v", err)
	}

	n.wantNothing()
	if _, err := os.Stat(abi.PodDir); err == nil {
		t.Errorf("%s was made outside of the node", abi.PodDir)
	}
}
