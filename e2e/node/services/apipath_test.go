package services_test

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubeveil/kubeveil/e2e/lab"
	"github.com/kubeveil/kubeveil/e2e/lab/traffic"
	"github.com/kubeveil/kubeveil/e2e/node/nodetest"
	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/pkg/config"
	"github.com/kubeveil/kubeveil/pkg/telemetry"
)

// cgroupRoot is the path of a node's own tree of cgroups.
const cgroupRoot = "/sys/fs/cgroup"

// pathSettings returns the settings of a veild that translates only the service of these API
// servers, beside another proxy. Without a server, the API path is off.
func pathSettings(servers ...string) map[string]any {
	return map[string]any{"serviceProxy": config.ServiceProxyNone,
		"services": map[string]any{"cgroup": cgroupRoot, "apiServers": servers}}
}

// kubernetesService returns the address of the API servers' own service, and the server.
func kubernetesService(ctx context.Context, t *testing.T, l *lab.Lab) (service,
	server netip.AddrPort) {
	t.Helper()
	s, err := l.Control.Client.CoreV1().Services("default").Get(ctx, "kubernetes",
		metav1.GetOptions{})
	errtest.Must(t, err)
	return netip.AddrPortFrom(netip.MustParseAddr(s.Spec.ClusterIP), uint16(s.Spec.Ports[0].Port)),
		l.Control.ServerAddr(0)
}

// leads waits until veild translates the service of the API servers to all servers, beside another
// proxy.
func leads(ctx context.Context, t *testing.T, n *lab.Node) {
	t.Helper()
	nodetest.WaitStatus(ctx, t, n, 20*time.Second, func(s telemetry.Status) error {
		if s.Services == nil || !s.Services.APIOnly || !s.Services.Listed ||
			len(s.Services.APIServers) == 0 || !s.Services.APIServers[0].Up {
			return fmt.Errorf("services %+v, problems %q", s.Services, s.Problems)
		}
		return nil
	})
}

// chosen returns the number of connections for which veild's programs selected a server.
func chosen(ctx context.Context, t *testing.T, n *lab.Node) (count uint64) {
	t.Helper()
	for _, c := range nodetest.NodeStatus(ctx, t, n).Services.Chosen {
		count += c.Count
	}
	return count
}

// connects reports whether a connection is made within two seconds.
func connects(ctx context.Context, from traffic.Place, to netip.AddrPort) bool {
	return from.Command(ctx, "timeout", "2", "bash", "-c", fmt.Sprintf("exec 3<>/dev/tcp/%s/%d",
		to.Addr(), to.Port())).Run() == nil
}

// TestAPIPathIsJudgedAsKubeProxy checks that NetworkPolicies and the guard treat a connection to an
// API server alike, whether kube-proxy's DNAT or veild's program translated it.
func TestAPIPathIsJudgedAsKubeProxy(t *testing.T) {
	for _, f := range []lab.Family{lab.Dual, lab.IPv6} {
		t.Run(string(f), func(t *testing.T) { judgeAPIPath(t, f) })
	}
}

func judgeAPIPath(t *testing.T, family lab.Family) {
	ctx, l := nodetest.NewLab(t, lab.Options{Family: family, Nodes: 1, VeildConfig: map[string]any{
		"policy":   config.PolicyKubernetes,
		"services": map[string]any{"apiServers": []string{}}}})
	errtest.Must(t, l.Control.AddNamespace(ctx, nodetest.Shop))

	n := l.Nodes()[0]
	service, server := kubernetesService(ctx, t, l)
	nodetest.KubeProxy(ctx, t, l, "nftables", n)
	want := map[string]bool{"open": true, "server": true}
	// Check the allowed pods first: a failed connection only proves something if others succeed.
	order := []string{"open", "server", "service", "closed"}
	allowEgress(ctx, t, l, "closed")
	allowEgress(ctx, t, l, "server", server.Addr())
	allowEgress(ctx, t, l, "service", service.Addr())
	pods := map[string]*lab.Pod{}
	for _, name := range order {
		pods[name] = nodetest.StartPod(ctx, t, n, name)
	}
	nodetest.WaitMembers(ctx, t, n, len(pods))

	expect := func(when string, want map[string]bool) {
		t.Helper()
		for _, name := range order {
			// An allowed connection may have to wait for the first write of kube-proxy or of the
			// policies.
			err := lab.Until(ctx, 20*time.Second, func() error {
				if got := connects(ctx, pods[name], service); got != want[name] {
					return fmt.Errorf("pod %s connects: %t", name, got)
				}
				return nil
			})
			if err != nil {
				t.Errorf("%s: %v", when, err)
			}
		}
	}

	var networks []netip.Prefix
	for _, p := range family.Underlay(lab.ControlByte) {
		networks = append(networks, p.Masked())
	}
	closed := map[string]any{"outside": []string{}, "nodeRanges": networks}
	expect("by kube-proxy", want)
	nodetest.Reconfigure(ctx, t, n, closed)
	nodetest.WaitMembers(ctx, t, n, len(pods))
	expect("by kube-proxy, the server's network is closed to pods", nil)

	settings := pathSettings(server.String())
	nodetest.Reconfigure(ctx, t, n, settings)
	leads(ctx, t, n)
	nodetest.WaitMembers(ctx, t, n, len(pods))
	expect("by veild, the server's network is closed to pods", nil)
	settings["outside"] = networks
	nodetest.Reconfigure(ctx, t, n, settings)
	leads(ctx, t, n)
	nodetest.WaitMembers(ctx, t, n, len(pods))
	before := chosen(ctx, t, n)
	expect("by veild", want)
	if after := chosen(ctx, t, n); after < before+uint64(len(pods)) {
		t.Errorf("veild led %d connections of %d pods", after-before, len(pods))
	}
	nodetest.NoLeaks(t, l)
}

// allowEgress lets the pods of an app send to addresses only.
func allowEgress(ctx context.Context, t *testing.T, l *lab.Lab, app string, to ...netip.Addr) {
	t.Helper()
	p := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Name: app},
		Spec: networkingv1.NetworkPolicySpec{
			PodSelector: metav1.LabelSelector{MatchLabels: map[string]string{"app": app}},
			PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeEgress}}}
	for _, a := range to {
		p.Spec.Egress = append(p.Spec.Egress, networkingv1.NetworkPolicyEgressRule{
			To: []networkingv1.NetworkPolicyPeer{{IPBlock: &networkingv1.IPBlock{
				CIDR: netip.PrefixFrom(a, a.BitLen()).String()}}}})
	}
	if _, err := l.Control.Client.NetworkingV1().NetworkPolicies(nodetest.Shop).Create(ctx, p,
		metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// heldAlong is the number of connections that are held while the API path is turned on and off.
const heldAlong = 4

// TestAPIPathComesAndGoes changes veild's table of services beside a running kube-proxy: to entry 0
// only, to all services, to no table, and back. No connection to the API server ends, no new
// connection fails, and no state is left.
func TestAPIPathComesAndGoes(t *testing.T) {
	ctx, l := nodetest.NewLab(t, lab.Options{Nodes: 1, VeildConfig: map[string]any{
		"serviceProxy": config.ServiceProxyEBPF, "services": map[string]any{
			"limits": map[string]any{"backendSlots": 1 << 16}, "apiServers": []string{}}}})
	n := l.Nodes()[0]
	service, server := kubernetesService(ctx, t, l)
	nodetest.KubeProxy(ctx, t, l, "nftables", n)
	waitKubeProxy(ctx, t, n, service)
	pod := nodetest.AddPod(ctx, t, n, "client")
	nodetest.WaitStatus(ctx, t, n, 20*time.Second, all)
	procs := map[string]*lab.Process{}
	for what, from := range map[string]traffic.Place{"a pod": pod, "a process of the host": n} {
		var err error
		if procs[what], err = traffic.KeepAPI(ctx, from, service, heldAlong); err != nil {
			t.Fatalf("%s: %v", what, err)
		}
	}

	every := map[string]any{"serviceProxy": config.ServiceProxyEBPF, "services": map[string]any{
		"cgroup": cgroupRoot, "limits": map[string]any{"backendSlots": 1 << 16}}}
	with, without := pathSettings(server.String()), pathSettings([]string{}...)
	broken := pathSettings(server.String())
	broken["services"].(map[string]any)["cgroup"] = "/proc"
	steps := []struct {
		what     string
		settings map[string]any
		wait     func(context.Context, *testing.T, *lab.Node)
		programs int
	}{
		{"entry 0 alone", with, leads, 4},
		{"all services", every, nil, 8},
		{"entry 0 alone again", with, leads, 4},
		{"no table", without, goes, 0},
		{"entry 0 alone from nothing", with, leads, 4},
		{"no cgroup", broken, complains, 0},
		{"entry 0 alone at last", with, leads, 4},
	}
	for _, step := range steps {
		nodetest.Reconfigure(ctx, t, n, step.settings)
		if step.wait == nil {
			nodetest.WaitStatus(ctx, t, n, 20*time.Second, all)
		} else {
			step.wait(ctx, t, n)
		}
		programs, tables := servicePins(ctx, t, n)
		if len(programs) != step.programs || step.programs == 0 && len(tables) > 0 {
			t.Errorf("%s: pinned are programs %v and maps %v", step.what, programs, tables)
		}
		if !connects(ctx, pod, service) || !connects(ctx, n, service) {
			t.Errorf("%s: the API server is not reached", step.what)
		}
	}

	for what, p := range procs {
		var r traffic.KeptAPI
		if err := p.Result(ctx, &r); err != nil || r.Opened != heldAlong || len(r.Closed) > 0 ||
			len(r.Failed) > 0 || r.Asked < len(steps) {
			t.Errorf("%s: %+v, %v", what, r, err)
		}
	}

	nodetest.KillProgram(ctx, t, n, "veild")
	nodetest.Run(ctx, t, n, l.Program("veild"), "cleanup", "--config", lab.ConfigFile)
	if programs, tables := servicePins(ctx, t, n); len(programs)+len(tables) > 0 {
		t.Errorf("cleanup left programs %v and maps %v", programs, tables)
	}
	nodetest.NoLeaks(t, l)
}

// waitKubeProxy waits until kube-proxy translates the API servers' service on a node.
func waitKubeProxy(ctx context.Context, t *testing.T, n *lab.Node, service netip.AddrPort) {
	t.Helper()
	err := lab.Until(ctx, 20*time.Second, func() error {
		out, err := n.Exec(ctx, "nft", "list", "ruleset")
		if err == nil && !strings.Contains(string(out), service.Addr().String()+" . tcp . ") {
			err = fmt.Errorf("it does not translate %s yet, in %d bytes of rules", service, len(out))
		}
		return err
	})
	if err != nil {
		t.Fatalf("kube-proxy: %v", err)
	}
}

// all requires that veild translates all services.
func all(s telemetry.Status) error {
	if s.Services == nil || s.Services.APIOnly || !s.Services.Listed {
		return fmt.Errorf("services %+v, problems %q", s.Services, s.Problems)
	}
	return nil
}

// goes waits until veild has no table of services.
func goes(ctx context.Context, t *testing.T, n *lab.Node) {
	t.Helper()
	nodetest.WaitStatus(ctx, t, n, 20*time.Second, func(s telemetry.Status) error {
		if s.Services != nil || !s.Ready {
			return fmt.Errorf("services %+v, ready: %t", s.Services, s.Ready)
		}
		return nil
	})
}

// complains waits until veild works without the API path and reports why.
func complains(ctx context.Context, t *testing.T, n *lab.Node) {
	t.Helper()
	goes(ctx, t, n)
	problems := nodetest.NodeStatus(ctx, t, n).Problems
	if !slices.ContainsFunc(problems, func(p string) bool {
		return strings.Contains(p, "have no effect on this node") &&
			strings.Contains(p, "/proc is on another file system")
	}) {
		t.Errorf("problems are %q", problems)
	}
}

// servicePins returns the pinned programs and maps of the table of services on a node.
func servicePins(ctx context.Context, t *testing.T, n *lab.Node) (programs, tables []string) {
	t.Helper()
	for name := range strings.FieldsSeq(nodetest.Run(ctx, t, n, "find", "/sys/fs/bpf",
		"-name", "service_*", "-printf", "%f ")) {
		switch {
		case strings.HasSuffix(name, "4") || strings.HasSuffix(name, "6"):
			programs = append(programs, name)
		default:
			tables = append(tables, name)
		}
	}
	return programs, tables
}
