package link

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/kubeveil/kubeveil/pkg/cluster"
	"github.com/kubeveil/kubeveil/pkg/site/inventory"
	"github.com/kubeveil/kubeveil/pkg/site/mirror"
	"github.com/kubeveil/kubeveil/pkg/site/publish"
	"github.com/kubeveil/kubeveil/pkg/site/record"
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

// What is wrong with a link is a condition of it, with what to do, and the others stay good.
func TestConditionsOfALink(t *testing.T) {
	b := cluster.Site{Name: "b"}
	home := record.Key{Name: NamespacePrefix + "b"}

	for name, tt := range map[string]struct {
		change func(*remote, inventory.State, *mirror.Report)
		bad    string // conditions that are not as they should be
		remedy string
	}{
		"good": {},
		"a token for 90 days": {change: func(r *remote, _ inventory.State, _ *mirror.Report) {
			r.ends = time.Now().Add(90 * 24 * time.Hour)
		}},
		"a token that ends within a week": {change: func(r *remote, _ inventory.State,
			_ *mirror.Report) {
			r.ends = time.Now().Add(tokenWarning - time.Hour)
		}, bad: conditionToken, remedy: "veilctl site link"},
		"a site that cannot be read": {change: func(r *remote, _ inventory.State,
			_ *mirror.Report) {
			r.failed = errors.New("no answer")
		}, bad: "Ready Readable", remedy: "no answer"},
		"no namespace for what is stated": {change: func(_ *remote, s inventory.State,
			_ *mirror.Report) {
			delete(s.Namespaces, home)
		}, bad: conditionReady, remedy: "create it"},
		"records beyond a bound": {change: func(r *remote, _ inventory.State, _ *mirror.Report) {
			r.view.left, r.view.problem = 3, "the bound"
		}, bad: conditionReady, remedy: "3 records of the site are left out, such as the bound"},
		"ranges that overlap": {change: func(_ *remote, _ inventory.State, m *mirror.Report) {
			m.Overlap = "x of b overlaps y"
		}, bad: "Ready Overlap", remedy: "x of b overlaps y"},
	} {
		t.Run(name, func(t *testing.T) {
			r, m := &remote{site: "b"}, &mirror.Report{}
			state := inventory.State{Namespaces: map[record.Key]inventory.Namespace{home: {}}}
			if tt.change != nil {
				tt.change(r, state, m)
			}
			l := &Linker{remotes: map[string]*remote{"b": r}}
			status := l.linkStatus(state, b, m, publish.Stated{}, nil, nil)
			var bad, messages []string
			for _, c := range status.Conditions {
				good := c.Type == conditionReady || c.Type == conditionReadable
				if (c.Status == "True") != good {
					bad, messages = append(bad, c.Type), append(messages, c.Message)
				}
			}
			if strings.Join(bad, " ") != tt.bad || !strings.Contains(strings.Join(messages, "\n"),
				tt.remedy) {
				t.Errorf("%q: %q, want %q: %s", bad, messages, tt.bad, tt.remedy)
			}
		})
	}
}
