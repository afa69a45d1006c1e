package network_test

import (
	"context"
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/kubeveil/kubeveil/e2e/lab"
	"github.com/kubeveil/kubeveil/e2e/lab/traffic"
	"github.com/kubeveil/kubeveil/e2e/node/nodetest"
	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/filetest"
	"github.com/kubeveil/kubeveil/internal/nettest"
	"github.com/kubeveil/kubeveil/pkg/abi"
	"github.com/kubeveil/kubeveil/pkg/cluster"
	"github.com/kubeveil/kubeveil/pkg/telemetry"
)

// The underlay's MTU, or the setting, changes while traffic runs. Devices, routes, pods and the CNI
// configuration follow, no packet is fragmented, and no connection hangs.
func TestMTUChangesLive(t *testing.T)     { mtuChanges(t, lab.Dual) }
func TestMTUChangesLiveIPv6(t *testing.T) { mtuChanges(t, lab.IPv6) }

func mtuChanges(t *testing.T, family lab.Family) {
	ctx, l := nodetest.NewLab(t, lab.Options{Family: family, UnderlayMTU: 9000})
	pods := nodetest.EchoPods(ctx, t, l)
	nodetest.Meet(ctx, t, pods[0], pods[1])
	outer6 := family == lab.IPv6
	inner := func(underlay int) int { return underlay - cluster.OuterOverhead(outer6) }
	follows(ctx, t, l, pods, inner(9000))
	held := nodetest.Hold(ctx, t, pods[0], pods[1].Addrs[0])

	for _, underlay := range []int{1500, 1400, 9000} {
		began := time.Now()
		for _, n := range l.Nodes() {
			errtest.Must(t, n.SetUnderlayMTU(ctx, underlay))
		}
		follows(ctx, t, l, pods, inner(underlay))
		t.Logf("underlay %d: all follow, and a large transfer is through, after %v", underlay,
			time.Since(began).Round(time.Millisecond))
	}

	for _, setting := range []int{1450, 0} {
		began := time.Now()
		for _, n := range l.Nodes() {
			setConfig(t, n, "mtu", setting)
		}
		want := inner(setting)
		if setting == 0 {
			want = inner(9000)
		}
		follows(ctx, t, l, pods, want)
		t.Logf("mtu: %d in the configuration: all follow after %v", setting,
			time.Since(began).Round(time.Millisecond))
	}

	tooNarrow(ctx, t, l, pods, outer6)
	var h traffic.Held
	if err := held.Result(ctx, &h); err != nil {
		t.Errorf("a connection through it all: %v", err)
	}

	t.Logf("one connection through it all: %d records, longest gap %.0f ms", h.Records,
		h.MaxGapMillis)
	noSecrets(ctx, t, l, nil)
	nodetest.NoLeaks(t, l)
}

// follows waits until devices, routes, pods and the CNI configuration have the expected MTUs, and
// then transfers much data.
func follows(ctx context.Context, t *testing.T, l *lab.Lab, pods []*lab.Pod, mtu int) {
	t.Helper()
	for i, n := range l.Nodes() {
		nodetest.WaitStatus(ctx, t, n, time.Minute, func(s telemetry.Status) error {
			if s.MTU.Pod != mtu || s.Devices[0].MTU != mtu || !s.Ready || len(s.Problems) > 0 {
				return fmt.Errorf("MTU %d, device %d, want %d; ready %v, problems %v", s.MTU.Pod,
					s.Devices[0].MTU, mtu, s.Ready, s.Problems)
			}
			return podMTU(ctx, t, pods[i], mtu)
		})
		b := filetest.Read(t, filepath.Join(n.Disk(), "etc/cni/net.d", abi.ConflistName))
		if !strings.Contains(strings.ReplaceAll(string(b), " ", ""), fmt.Sprintf(`"mtu":%d`, mtu)) {
			t.Errorf("the CNI configuration of %s has not MTU %d: %s", n.Name, mtu, b)
		}

		fresh := nodetest.AddPod(ctx, t, n, "fresh")
		if fresh.MTU != mtu {
			t.Errorf("a new pod's MTU is %d by the result of ADD, want %d", fresh.MTU, mtu)
		}
		errtest.Check(t, podMTU(ctx, t, fresh, mtu))
		if err := pods[i].Check(ctx); err != nil {
			t.Errorf("CHECK of a pod from before: %v", err)
		}

		errtest.Check(t, fresh.Del(ctx))
	}

	transfer(ctx, t, pods, mtu)
}

// transfer transfers much data by TCP, and full-size packets by UDP, in both directions.
func transfer(ctx context.Context, t *testing.T, pods []*lab.Pod, mtu int) {
	t.Helper()
	for _, pair := range [][2]*lab.Pod{{pods[0], pods[1]}, {pods[1], pods[0]}} {
		for _, to := range pair[1].Addrs {
			if _, err := traffic.Send(ctx, pair[0], traffic.Exchange{To: to, Count: 2,
				Size: 1 << 20, Timeout: 15 * time.Second}); err != nil {
				t.Errorf("2 MiB to %s and back: %v", to, err)
			}
			full := mtu - 28
			if to.Is6() {
				full = mtu - 48
			}
			if _, err := traffic.Send(ctx, pair[0], traffic.Exchange{Proto: "udp", To: to, Count: 3,
				Size: full, Timeout: 5 * time.Second}); err != nil {
				t.Errorf("datagrams of %d bytes to %s: %v", full, to, err)
			}
		}
	}
}

// podMTU returns an error unless a pod's link and its default routes have the MTU.
func podMTU(ctx context.Context, t *testing.T, p *lab.Pod, mtu int) error {
	t.Helper()
	if _, got := nodetest.LinkOf(ctx, t, p, "eth0"); got != mtu {
		return fmt.Errorf("eth0 of %s has MTU %d, want %d", p.ID, got, mtu)
	}
	for _, a := range p.Addrs {
		family := map[bool]string{true: "-4", false: "-6"}[a.Is4()]
		var routes []struct {
			Metrics []struct {
				MTU int `json:"mtu"`
			} `json:"metrics"`
		}
		nodetest.IPJSON(ctx, t, p, &routes, family, "-d", "route", "show", "default")
		if len(routes) != 1 || len(routes[0].Metrics) != 1 || routes[0].Metrics[0].MTU != mtu {
			return fmt.Errorf("default routes of %s, %s: %+v, want MTU %d", p.ID, family, routes,
				mtu)
		}
	}
	return nil
}

// setConfig changes a key of the configuration of veild.
func setConfig(t *testing.T, n *lab.Node, key string, value any) {
	t.Helper()
	path := filepath.Join(n.Disk(), "etc/kubeveil/veild.yaml")
	settings := map[string]any{}
	errtest.Must(t, yaml.Unmarshal(filetest.Read(t, path), &settings))
	settings[key] = value
	text, err := yaml.Marshal(settings)
	errtest.Must(t, err)
	filetest.Write(t, path, text, 0o644)
}

// tooNarrow sets the underlay's MTU to one byte less than IPv6 in pods needs, and then to the
// needed value.
func tooNarrow(ctx context.Context, t *testing.T, l *lab.Lab, pods []*lab.Pod, outer6 bool) {
	least := cluster.MinUnderlayMTU(outer6, cluster.Families{V6: true})
	n1 := l.Nodes()[0]
	errtest.Must(t, n1.SetUnderlayMTU(ctx, least-1))
	s := nodetest.WaitStatus(ctx, t, n1, 15*time.Second, narrowSaid(least))
	t.Logf("underlay %d: ready %v, problems %q", least-1, s.Ready, s.Problems)
	if _, err := n1.AddPod(ctx, "refused", lab.PodOptions{}); err == nil {
		t.Error("a pod was added although its packets would not fit")
	}
	if s.Ready {
		t.Error("veild is ready although packets of pods do not fit")
	}
	for _, n := range l.Nodes() {
		errtest.Must(t, n.SetUnderlayMTU(ctx, least))
	}
	follows(ctx, t, l, pods, cluster.MinMTU6)
}

// narrowSaid returns a check that the status has the problem that names the needed MTU.
func narrowSaid(least int) func(telemetry.Status) error {
	return func(s telemetry.Status) error {
		for _, p := range s.Problems {
			if strings.Contains(p, "IPv6 needs 1280") &&
				strings.Contains(p, fmt.Sprint(least)) {
				return nil
			}
		}
		return fmt.Errorf("problems: %q", s.Problems)
	}
}

// A node whose underlay is too narrow from the beginning never takes a pod, and reports why.
func TestTooNarrowFromTheBeginning(t *testing.T) {
	least := cluster.MinUnderlayMTU(false, cluster.Families{V6: true})
	ctx, l := nodetest.NewLab(t, lab.Options{UnderlayMTU: least - 1, NoBoot: true, Nodes: 1})
	n := l.Nodes()[0]
	for _, name := range []string{"veil-wg", "veild"} {
		nodetest.StartProgram(ctx, t, n, name)
	}
	s := nodetest.WaitStatus(ctx, t, n, 20*time.Second, narrowSaid(least))
	if has, err := n.HasConflist(); has || err != nil || s.Ready {
		t.Errorf("CNI configuration %v (%v), ready %v", has, err, s.Ready)
	}
	if err := n.Status(ctx); err == nil {
		t.Error("STATUS says that the node takes pods")
	}
	errtest.Must(t, n.SetUnderlayMTU(ctx, least))
	errtest.Check(t, n.WaitReady(ctx))
	noSecrets(ctx, t, l, nil)
	nodetest.NoLeaks(t, l)
}

// TestPaddedPacketsFitThePeersUnderlay: without a multiple of 16 as the route's MTU, the largest
// datagrams are padded beyond what the peer's underlay carries, and are lost until the path is
// probed.
func TestPaddedPacketsFitThePeersUnderlay(t *testing.T) {
	ctx, l := nodetest.NewLab(t, lab.Options{})
	const narrow = 1405
	pods := nodetest.EchoPods(ctx, t, l)
	nodetest.Meet(ctx, t, pods[0], pods[1])
	errtest.Must(t, l.Nodes()[1].SetUnderlayMTU(ctx, narrow))
	restartVeild(ctx, t, l.Nodes()[1]) // without a restart the other node takes a minute

	least := (narrow - cluster.OuterOverhead(false)) / cluster.Padding * cluster.Padding
	s := nodetest.WaitStatus(ctx, t, l.Nodes()[0], time.Minute, func(s telemetry.Status) error {
		if s.Peers[0].MTU == 0 {
			return fmt.Errorf("the route to %s has the device's MTU", s.Peers[0].Name)
		}
		return nil
	})
	if s.Peers[0].MTU != least {
		t.Errorf("the route's MTU is %d, want %d", s.Peers[0].MTU, least)
	}
	transfer(ctx, t, pods, s.Peers[0].MTU)
	noSecrets(ctx, t, l, nil)
	nodetest.NoLeaks(t, l)
}

// If the MTU of a path is smaller than the MTU of its links, the probe inside the tunnel finds it.
// ICMP errors about the tunnel's packets change nothing, because any host can forge them. The node
// sends ICMP errors to its pods, so that large transfers of both families work.
func TestNarrowPath(t *testing.T)     { narrowPath(t, lab.Dual, true) }
func TestNarrowPathIPv6(t *testing.T) { narrowPath(t, lab.IPv6, true) }

// As TestNarrowPath, with a veild that is not restarted.
func TestNarrowPathIsFound(t *testing.T) {
	nettest.NeedLong(t, "veild probes each minute")
	narrowPath(t, lab.Dual, false)
}

// narrowPath narrows a path, and restarts veild or waits until its probe finds it.
func narrowPath(t *testing.T, family lab.Family, restart bool) {
	ctx, l := nodetest.NewLab(t, lab.Options{Family: family})
	const path = 1400
	pods := nodetest.EchoPods(ctx, t, l)
	nodetest.Meet(ctx, t, pods[0], pods[1])
	n1 := l.Nodes()[0]
	errtest.Must(t, l.SetPathMTU(ctx, l.Nodes()[1], path))
	tellTooBig(ctx, t, l)

	began := time.Now()
	if restart {
		for _, n := range l.Nodes() {
			restartVeild(ctx, t, n)
		}
	}

	want := path - cluster.OuterOverhead(family == lab.IPv6)
	for _, n := range l.Nodes() {
		s := nodetest.WaitStatus(ctx, t, n, 100*time.Second, func(s telemetry.Status) error {
			// Only paths with traffic are probed.
			if _, err := traffic.Send(ctx, pods[0], traffic.Exchange{Proto: "tcp",
				To: pods[1].Addrs[0], Count: 50, Size: 200, Timeout: 5 * time.Second}); err != nil {
				return err
			}
			// WireGuard pads to 16 bytes, so the probe finds the MTU with this precision.
			if s.Peers[0].MTU == 0 || s.Peers[0].MTU > want || s.Peers[0].MTU <= want-16 {
				return fmt.Errorf("the route's MTU is %d, want at most %d", s.Peers[0].MTU, want)
			}
			return nil
		})
		t.Logf("%s: path of %d bytes found %v after it had narrowed: route MTU %d", n.Name, path,
			time.Since(began).Round(time.Millisecond), s.Peers[0].MTU)
	}

	if !strings.Contains(nodeMetrics(ctx, t, n1), "kubeveil_peers_narrow 1\n") {
		t.Error("the metrics do not count the narrow path")
	}

	found := nodetest.NodeStatus(ctx, t, n1).Peers[0].MTU
	peerRoutes(ctx, t, n1, family, found)
	transfer(ctx, t, pods, found)
	noSecrets(ctx, t, l, nil)
	nodetest.NoLeaks(t, l)
}

// tellTooBig forges reports of a router to each node: packets of its tunnel to the other node are
// too big. As the control it then reports packets of an echo server. The second MTU is larger, so
// the kernel has it only if it did not believe the first.
func tellTooBig(ctx context.Context, t *testing.T, l *lab.Lab) {
	t.Helper()
	const ofTunnel, ofOther = 1285, 1290
	from, _ := nodetest.LinkOf(ctx, t, l.Outside, "eth0")
	for i, n := range l.Nodes() {
		other := l.Nodes()[1-i]
		nodetest.EchoAt(ctx, t, n)
		to, _ := nodetest.LinkOf(ctx, t, n, "eth0")
		for j, router := range l.OutsideAddrs() {
			d := nodetest.Datagram{From: from, To: to, Src: n.Addrs[j], Dst: other.Addrs[j],
				SrcPort: abi.TunnelPort, DstPort: abi.TunnelPort}
			nodetest.Inject(ctx, t, l.Outside, "eth0", d.TooBig(router, ofTunnel))
			d.SrcPort, d.DstPort = traffic.EchoPort, 123
			nodetest.Inject(ctx, t, l.Outside, "eth0", d.TooBig(router, ofOther))
			errtest.Must(t, lab.Until(ctx, 10*time.Second, func() error {
				out := nodetest.Run(ctx, t, n, "ip", "route", "get", other.Addrs[j].String(),
					"mark", fmt.Sprint(abi.TunnelMark))
				if !strings.Contains(out, fmt.Sprint(" mtu ", ofOther)) {
					return fmt.Errorf("%s has the route %q, want MTU %d", n.Name, out, ofOther)
				}
				return nil
			}))
		}
	}
}

// peerRoutes checks that every route of pods into the tunnel has the MTU.
func peerRoutes(ctx context.Context, t *testing.T, n *lab.Node, pods lab.Family, mtu int) {
	t.Helper()
	for _, family := range map[lab.Family][]string{lab.Dual: {"-4", "-6"}, lab.IPv6: {"-6"}}[pods] {
		var routes []struct {
			Dst     string          `json:"dst"`
			Metrics json.RawMessage `json:"metrics"`
		}
		nodetest.IPJSON(ctx, t, n, &routes, family, "-d", "route", "show", "table",
			fmt.Sprint(abi.TablePod), "dev", "veil0")
		for _, r := range routes {
			if !strings.Contains(string(r.Metrics), fmt.Sprintf(`"mtu":%d`, mtu)) {
				t.Errorf("route to %s has the metrics %s, want MTU %d", r.Dst, r.Metrics, mtu)
			}
		}
		if len(routes) == 0 {
			t.Errorf("no route into the tunnel, %s", family)
		}
	}
}
