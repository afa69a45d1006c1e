package link

import (
	"strings"
	"testing"

	"github.com/kubeveil/kubeveil/pkg/cluster"
	"github.com/kubeveil/kubeveil/pkg/site/inventory"
	"github.com/kubeveil/kubeveil/pkg/site/mirror"
	"github.com/kubeveil/kubeveil/pkg/site/publish"
)

// A site whose services are imported shows why it is not known which of its nodes answer.
func TestUnknownNodesAreAProblem(t *testing.T) {
	l := &Linker{Config: Config{DeadUnknown: func() string { return "no veild answers" }}}
	for _, tt := range []struct {
		site cluster.Site
		want bool
	}{
		{cluster.Site{Name: "b", Imports: []string{"shop"}}, true},
		{cluster.Site{Name: "c"}, false},
		{cluster.Site{Name: "d", Imports: []string{"shop"}, Reach: cluster.ReachNone}, false},
	} {
		s := l.linkStatus(inventory.State{}, tt.site, &mirror.Report{}, publish.Stated{}, nil, nil)
		if got := strings.Join(s.Problems, "\n"); strings.Contains(got, "no veild answers") != tt.want {
			t.Errorf("site %s: problems %q", tt.site.Name, got)
		}
	}
}
