package session

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/pkg/leak"
	"github.com/kubeveil/kubeveil/pkg/remote"
)

// newRun returns a setup for a cluster with the given number of workers and without machines.
func newRun(t *testing.T, workers int) (Setup, *bytes.Buffer) {
	client := fake.NewClientset()
	for i := range workers {
		_, err := client.CoreV1().Nodes().Create(t.Context(), &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("node-%d", i+1),
				Labels: map[string]string{corev1.LabelOSStable: "linux"}},
		}, metav1.CreateOptions{})
		errtest.Must(t, err)
	}
	var out bytes.Buffer
	cluster := &remote.Cluster{Client: client,
		ConnectConfig: remote.ConnectConfig{Log: slog.New(slog.DiscardHandler)}}
	return Setup{Cluster: cluster, Dir: t.TempDir(), Out: &out}, &out
}

func passes(context.Context, *Session) error { return nil }

func TestRunSelectsAndCounts(t *testing.T) {
	o, out := newRun(t, 2)
	fails := errors.New("as it should")
	cases := []Case{
		{Name: "good", Limit: time.Minute, Run: passes},
		{Name: "bad", Limit: time.Minute,
			Run: func(context.Context, *Session) error { return fails }},
		{Name: "cannot", Limit: time.Minute,
			Run: func(context.Context, *Session) error { return Skip("no %s here", "moon") }},
		{Name: "slow", Limit: time.Nanosecond,
			Run: func(ctx context.Context, _ *Session) error { <-ctx.Done(); return ctx.Err() }},
		{Name: "long", Limit: time.Minute, Long: "it takes hours", Run: passes},
		{Name: "far", Limit: time.Minute, Needs: []Need{Machines}, Run: passes},
		{Name: "wide", Limit: time.Minute, Needs: []Need{TwoWorkers}, Run: passes},
	}

	r, err := Run(t.Context(), cases, o)
	errtest.Must(t, err)
	if got := r.Summary(); got != "2 passed, 2 failed, 3 skipped" {
		t.Errorf("summary %q in\n%s", got, out)
	}

	tests := r.Tests()
	for i, want := range []string{"no moon here", "left to the full run: it takes hours",
		"needs the machines beneath the cluster"} {
		if tests.Skipped[i].Reason != want {
			t.Errorf("%s skipped because %q: want %q", tests.Skipped[i].Name,
				tests.Skipped[i].Reason, want)
		}
	}

	if !strings.Contains(tests.Failures[1].Reason, "limit of 1ns is over") ||
		tests.Failures[0].Reason != fails.Error() {
		t.Errorf("failures: %+v", tests.Failures)
	}
}

func TestSelection(t *testing.T) {
	cases := []Case{
		{Name: "ground", Limit: time.Minute, Always: true, Breaks: true, Run: passes},
		{Name: "one", Limit: time.Minute, Run: passes},
		{Name: "two-long", Limit: time.Minute, Long: "it waits", Beyond: "it waits", Run: passes},
		{Name: "three", Limit: time.Minute, Beyond: "it reboots", Run: passes},
	}

	broken := []Case{{Name: "ground", Limit: time.Minute, Breaks: true,
		Run: func(context.Context, *Session) error { return errors.New("no ground") }}, cases[1]}
	for _, c := range []struct {
		name, match string
		core, full  bool
		cases       []Case
		want        string
	}{
		{"core", "", true, false, cases, "2 passed, 0 failed, 2 skipped"},
		{"neither core nor full", "", false, false, cases, "3 passed, 0 failed, 1 skipped"},
		{"full", "", false, true, cases, "4 passed, 0 failed, 0 skipped"},
		{"by name, long too, with what others build on", "two", false, false, cases,
			"2 passed, 0 failed, 0 skipped"},
		{"by name, beyond the core", "three", true, false, cases, "2 passed, 0 failed, 0 skipped"},
		{"after what others build on has failed", "", false, false, broken,
			"0 passed, 1 failed, 1 skipped"},
	} {
		t.Run(c.name, func(t *testing.T) {
			o, _ := newRun(t, 2)
			o.Core, o.Full = c.core, c.full
			if c.match != "" {
				o.Match = regexp.MustCompile(c.match)
			}
			r, err := Run(t.Context(), c.cases, o)
			errtest.Must(t, err)
			if r.Summary() != c.want {
				t.Errorf("%s, want %s", r.Summary(), c.want)
			}
		})
	}
}

// An interrupt ends the run. The remaining cases are listed as skipped because of the interrupt.
func TestInterrupted(t *testing.T) {
	o, _ := newRun(t, 1)
	ctx, cancel := context.WithCancelCause(t.Context())
	r, err := Run(ctx, []Case{
		{Name: "before", Limit: time.Minute, Run: passes},
		{Name: "interrupted", Limit: time.Minute, Run: func(ctx context.Context, _ *Session) error {
			cancel(errors.New("interrupt"))
			<-ctx.Done()
			return ctx.Err()
		}},
		{Name: "rest", Limit: time.Minute, Run: passes},
	}, o)
	errtest.Must(t, err)
	if got := r.Summary(); got != "1 passed, 0 failed, 2 skipped" {
		t.Error(got)
	}
	for _, s := range r.Tests().Skipped {
		if !strings.Contains(s.Reason, "interrupt") {
			t.Errorf("%s skipped because %q", s.Name, s.Reason)
		}
	}
}

func TestJudge(t *testing.T) {
	clean := leak.Result{Frames: 10, Kinds: map[leak.Kind]uint64{leak.Tunnel: 10}}
	leaky := leak.Result{Frames: 10, Plaintext: 1,
		Kinds: map[leak.Kind]uint64{leak.Tunnel: 9, leak.LeakCanary: 1}}
	for _, c := range []struct {
		name string
		p    parts
		rest leak.Result
		want string
	}{
		{"clean, and the oracle sees", parts{before: clean, control: leaky, ran: true}, clean,
			"2 passed, 0 failed, 0 skipped"},
		{"a leak before the control run", parts{before: leaky, control: leaky, ran: true}, clean,
			"1 passed, 1 failed, 0 skipped"},
		{"a leak after it", parts{before: clean, control: leaky, ran: true}, leaky,
			"1 passed, 1 failed, 0 skipped"},
		{"a blind oracle", parts{before: clean, control: clean, ran: true}, clean,
			"1 passed, 1 failed, 0 skipped"},
		{"no control run", parts{}, clean, "1 passed, 0 failed, 1 skipped"},
		{"frames were lost", parts{before: clean, control: leaky, ran: true},
			leak.Result{Frames: 1, Dropped: 1}, "1 passed, 1 failed, 0 skipped"},
		{"no tunnel at all", parts{control: leaky, ran: true},
			leak.Result{Frames: 1, Kinds: map[leak.Kind]uint64{leak.Control: 1}},
			"1 passed, 1 failed, 0 skipped"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := &Report{parts: c.p}
			r.Judge(c.rest)
			if got := r.Summary(); got != c.want {
				t.Errorf("%s, want %s", got, c.want)
			}

			if want := c.p.before.Plaintext + c.rest.Plaintext; r.Leaks.Plaintext != want ||
				r.Leaks.ControlPlaintext != c.p.control.Plaintext {
				t.Errorf("leaks: %+v", r.Leaks)
			}
		})
	}
}

func TestDifference(t *testing.T) {
	before := newInventory("route -4 default\nlink eth0\nlink eth0\nsetting " +
		"/proc/sys/net/ipv4/conf/all/forwarding:0\n")
	after := newInventory("link eth0\nlink   veil0 \nroute -4 default\nfile /run/wireguard\n\n")
	if got := strings.Join(Difference(before, after), "\n"); got != "+ link veil0\n- link eth0" {
		t.Errorf("difference:\n%s", got)
	}
	if got := newInventory("program sd_devices\nprogram guard_egress\n"); !slices.Equal(got,
		Inventory{"program guard_egress"}) {
		t.Errorf("programs: %q", got)
	}
	if got := Difference(before, before); len(got) != 0 {
		t.Errorf("difference of an inventory to itself: %v", got)
	}
}

// An inventory must see an installation. Otherwise it could not prove that nothing of the
// installation was left.
func TestTraces(t *testing.T) {
	installed := []string{"+ file /sys/fs/bpf/kubeveil/maps", "+ link veil0",
		"+ nft table inet kubeveil_guard {", "+ nft table inet kubeveil_pods {", "+ route -4 x",
		"+ rule -6 y"}
	if missing := Traces(installed, false); len(missing) > 0 {
		t.Errorf("%q are missing", missing)
	}
	if missing := Traces(installed, true); !slices.Equal(missing,
		[]string{"program guard_egress"}) {
		t.Errorf("%q are missing, want the programs", missing)
	}
	if missing := Traces([]string{"- link veil0"}, true); len(missing) != 7 {
		t.Errorf("%q are missing, want all", missing)
	}
}

func TestBothFamilies(t *testing.T) {
	four, six := netip.MustParseAddr("198.18.0.1"), netip.MustParseAddr("fd42::1")
	lab, cluster := &Session{Setup: Setup{Lab: struct{ Lab }{}}}, &Session{}
	for name, addrs := range map[string][]netip.Addr{"one": {four}, "twice the same": {six, six},
		"none": nil} {
		if lab.BothFamilies(addrs) == nil {
			t.Errorf("%s: no error in the lab", name)
		}
		if err := cluster.BothFamilies(addrs); err != nil {
			t.Errorf("%s: a cluster of one family is refused: %v", name, err)
		}
	}
	if err := lab.BothFamilies([]netip.Addr{four, six}); err != nil {
		t.Error(err)
	}
	if got := append(By("6", "b"), By("", "b")...); !slices.Equal(got,
		[]string{"tcp6/b:7000", "udp6/b:7000", "tcp/b:7000", "udp/b:7000"}) {
		t.Errorf("targets %q", got)
	}
}

// Rules that other programs change at any time are not a difference. Kubeveil's table, a chain
// beside other programs' chains, and an empty table are differences.
func TestInventoryOfRules(t *testing.T) {
	kubelet := "nft table ip6 filter {\nnft \tchain KUBE-KUBELET-CANARY {\nnft \t}\nnft }\n"
	for _, tt := range []struct {
		name, text string
		want       []string
	}{
		{"nothing but the kubelet's", kubelet, nil},
		{"kube-proxy's and portmap's", "nft table ip kube-proxy {\nnft \tmap m {\nnft \t}\nnft " +
			"}\nnft table ip nat {\nnft \tchain CNI-HOSTPORT-DNAT {\nnft \t}\nnft }\n", nil},
		{"a chain beside the kubelet's",
			"nft table ip filter {\nnft \tchain KUBE-FIREWALL {\nnft " +
				"\t\tdrop\nnft \t}\nnft \tchain INPUT {\nnft \t\tjump KUBE-FIREWALL\nnft " +
				"\t\tdrop\nnft \t}\nnft }\n",
			[]string{"nft chain INPUT {", "nft drop", "nft table ip filter {", "nft }", "nft }"}},
		{"an empty table after them", kubelet + "nft \nnft table inet kubeveil {\nnft }\n",
			[]string{"nft table inet kubeveil {", "nft }"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := newInventory(tt.text); !slices.Equal(got, tt.want) {
				t.Errorf("listed %q, want %q", got, tt.want)
			}
		})
	}
}

// The kernels in a result are the workers' kernels. A node without a kubelet does not count.
func TestKernelsOfWorkers(t *testing.T) {
	node := func(release, os string) remote.Node {
		var n remote.Node
		n.Object.Labels = map[string]string{corev1.LabelOSStable: os}
		n.Object.Status.NodeInfo.KernelVersion = release
		return n
	}
	all := []remote.Node{node("6.18.1", ""), node("6.12.3", "linux"), node("6.12.3", "linux")}
	if got := kernels(all); got != "6.12.3" {
		t.Errorf("kernels %q, want 6.12.3", got)
	}
	if got := kernels(append(all, node("6.1.4", "linux"))); got != "6.12.3, 6.1.4" {
		t.Errorf("kernels %q, want both", got)
	}
}
