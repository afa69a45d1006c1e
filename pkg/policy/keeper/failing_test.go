package keeper

import (
	"log/slog"
	"strings"
	"testing"

	"github.com/kubeveil/kubeveil/pkg/pod"
	"github.com/kubeveil/kubeveil/pkg/policy"
)

// A pod that is first seen while policies cannot be read gets no group, so it is mute. Known pods,
// pods of other nodes and host-network pods are planned as usual.
func TestNewPodsWaitWhilePoliciesCannotBeRead(t *testing.T) {
	k := New(PolicyConfig{Node: "here", Paths: pod.DefaultPaths(),
		Log: slog.New(slog.DiscardHandler)})
	k.SetPrefixes(prefixes)
	planned := func(name string) bool {
		_, has := k.planner.Plan().Members[policy.Key{Name: policy.Name{Namespace: "shop",
			Name: name}, UID: name}]
		return has
	}
	want := func(what, name string, want bool) {
		t.Helper()
		if got := planned(name); got != want {
			t.Errorf("%s: %s is planned: %t", what, name, got)
		}
	}
	known := claiming("here", "known", "198.18.1.1")
	k.PutPod(known)
	again := claiming("here", "again", "198.18.1.2")
	k.PutPod(again)

	k.SetFailing(true)
	k.PutPod(claiming("here", "new", "198.18.1.3"))
	known.Labels = map[string]string{"app": "web"}
	k.PutPod(known)
	again.UID = "another"
	k.PutPod(again)
	k.PutPod(claiming("there", "far", "198.18.2.1"))
	k.SetPrefixes(nil)
	k.SetPrefixes(prefixes)
	want("failing", "known", true)
	want("failing", "new", false)
	want("failing, with another uid", "again", false)
	if p := strings.Join(k.Problems(), "\n"); !strings.Contains(p, "2 new pods are mute") {
		t.Errorf("problems %q", p)
	}

	k.DeletePod(again.Name)
	k.SetFailing(false)
	want("read again", "known", true)
	want("read again", "new", true)
	want("read again, deleted", "again", false)
	if p := k.Problems(); len(p) != 0 {
		t.Errorf("problems %q", p)
	}
}
