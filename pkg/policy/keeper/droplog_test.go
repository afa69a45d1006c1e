package keeper

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/internal/logtest"
	"github.com/kubeveil/kubeveil/internal/nettest"
	"github.com/kubeveil/kubeveil/pkg/policy"
	"github.com/kubeveil/kubeveil/pkg/policy/keeper/droplog"
	"github.com/kubeveil/kubeveil/pkg/policy/nftables"
)

// The test covers the whole path: packets of pods, the kernel's log, and the logged text.
func TestDropsAreLoggedWithPolicyAndRule(t *testing.T) {
	n := newNode(t)
	n.attach("client", 1)
	n.attach("server", 2)
	n.put("client", map[string]string{"app": "client"})
	n.put("server", map[string]string{"app": "server"})
	n.PutPolicy(denyAll)
	n.listed()

	var j logtest.Buffer
	n.denied = droplog.New(slog.New(slog.NewTextHandler(&j, nil)))
	var l *nftables.DropLog
	n.must(func() (err error) { l, err = nftables.OpenDropLog(); return err })
	n.must(func() error {
		if second, err := nftables.OpenDropLog(); !errors.Is(err, unix.EPERM) {
			t.Errorf("a second listener: %v, %v", second, err)
		}
		return nil
	})
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := n.logDrops(ctx, l); err == nil || ctx.Err() == nil {
			t.Errorf("LogDrops ended with %v", err)
		}
	})
	t.Cleanup(func() { cancel(); wg.Wait() })

	n.wantTalk("client", 2, false)
	nettest.Until(t, 10*time.Second, "lines of both families", func() bool {
		return len(j.Lines("reason=policy_ingress")) == 2
	})
	for _, line := range j.Lines("policy_ingress") {
		for _, want := range []string{"proto=tcp port=80", "direction=ingress pod=shop/server",
			"policies=[shop/deny]", `rule="no rule of these allows it"`} {
			if !strings.Contains(line, want) {
				t.Errorf("no %q in %s", want, line)
			}
		}
	}

	all := policy.Selector{}
	n.PutClusterPolicy(policy.ClusterPolicy{Name: "guests", Rules: [2][]policy.ClusterRule{nil,
		{{Action: policy.Deny, Peers: []policy.Peer{{Namespaces: &all}}}}}})
	n.step()
	n.wantTalk("client", 2, false)
	nettest.Until(t, 10*time.Second, "lines of the Admin tier", func() bool {
		return len(j.Lines("reason=policy_admin")) == 2
	})
	if line := j.Lines("policy_admin")[0]; !strings.Contains(line, "direction=egress pod=shop/client "+
		`policies=[guests] rule="Deny all pods in all namespaces, ports all"`) {
		t.Error(line)
	}

	// A drop by rules that are deleted names no policy.
	n.DeleteClusterPolicy("guests")
	n.step()
	stale := nftables.Dropped{Reason: "policy_admin", Flow: policy.Flow{Src: addrsOf(1)[0],
		Dst: netip.MustParseAddr("192.0.2.1"), Proto: icmp}}
	n.denied.Add(stale, n.explain(stale), policy.Name{})
	if got := j.Lines("192.0.2.1"); len(got) != 1 || strings.Contains(got[0], "policies") ||
		!strings.Contains(got[0], "proto=icmp") {
		t.Errorf("log of a drop by deleted rules: %q", got)
	}
}
