package keeper

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/kubeveil/kubeveil/pkg/policy/suggest"
)

func TestSeenHasBothEndsOfAConnection(t *testing.T) {
	n := newNode(t)
	n.put("client-1", map[string]string{"app": "client", "pod-template-hash": "1"})
	n.put("client-2", map[string]string{"app": "client", "pod-template-hash": "2"})
	n.put("server", map[string]string{"app": "server"})
	n.put("server-canary", map[string]string{"app": "server", "track": "canary"})
	for i, name := range []string{"client-1", "client-2", "server"} {
		n.attach(name, i+1)
	}
	n.listed()
	n.wantTalk("client-1", 3, true)
	n.wantTalk("client-2", 3, true)
	n.connect("client-1", "server", addrsOf(3)[0], 1001)
	n.connect("client-2", "server", addrsOf(3)[1], 1002)

	var seen *suggest.Seen
	n.must(func() (err error) { seen, err = n.known.Seen("shop"); return err })
	var got []string
	for _, r := range seen.Rows {
		if r.Port > 1000 { // wantTalk is 80
			got = append(got, fmt.Sprint(r.Subject.Labels, r.Egress, r.Peer.Pods.Labels, r.Protocol,
				r.Port, r.Connections, r.Subject.Other+r.Peer.Pods.Other))
		}
	}
	slices.Sort(got)
	var want []string
	for port := range 2 {
		want = append(want, fmt.Sprint(map[string]string{"app": "client"}, true,
			map[string]string{"app": "server"}, "TCP", uint16(1001+port), 1, "server-canary"))
	}
	for port := range 2 {
		want = append(want, fmt.Sprint(map[string]string{"app": "server"}, false,
			map[string]string{"app": "client"}, "TCP", uint16(1001+port), 1, "server-canary"))
	}
	if !slices.Equal(got, want) {
		t.Errorf("connections %q, want %q", got, want)
	}

	n.must(func() error {
		if _, err := n.known.Seen("shp"); err == nil || !strings.Contains(err.Error(), "the cluster has shop") {
			t.Errorf("a namespace that does not exist: %v", err)
		}
		return nil
	})
}
