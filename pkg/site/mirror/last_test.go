package mirror_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/nettest"
	"github.com/kubeveil/kubeveil/pkg/site/mirror"
	"github.com/kubeveil/kubeveil/pkg/site/record"
)

// lastOf returns the endpoints of an import that terminate and serve, sorted. All others are ready.
func lastOf(t *testing.T, m *mirror.Import) (last []string) {
	t.Helper()
	for _, s := range m.EndpointSlices(web) {
		for _, e := range s.Endpoints {
			switch c := e.Conditions; {
			case !*c.Ready && *c.Serving && *c.Terminating:
				last = append(last, e.Addresses...)
			case !*c.Ready || *c.Terminating:
				t.Errorf("endpoint %+v", e)
			}
		}
	}
	slices.Sort(last)
	return last
}

// Endpoints on nodes that do not answer come last in each family in which another endpoint is
// ready, in whichever cluster. Prefixes outside of the site do not count.
func TestEndpointsOnDeadNodesComeLast(t *testing.T) {
	for name, c := range map[string]struct {
		dead   []string
		theirs []string
		own    []string
		last   []string
		noted  bool
	}{
		"all answer": {nil, []string{"10.245.1.5"}, []string{"10.244.0.5"}, nil, false},
		"ready here": {[]string{"10.245.1.0/24"}, []string{"10.245.1.5"},
			[]string{"10.244.0.5"}, []string{"10.245.1.5"}, true},
		"ready there": {[]string{"10.245.1.0/24"}, []string{"10.245.1.5", "10.245.2.5"}, nil,
			[]string{"10.245.1.5"}, true},
		"another family": {[]string{"10.245.1.0/24"}, []string{"10.245.1.5"},
			[]string{"fd00::5"}, nil, true},
		"no other one": {[]string{"10.245.0.0/16"}, []string{"10.245.1.5", "10.245.2.5"}, nil,
			nil, true},
		"IPv6": {[]string{"fd01::/80"}, []string{"fd01::5", "10.245.1.5"},
			[]string{"fd00::5"}, []string{"fd01::5"}, true},
		"outside of the site": {[]string{"10.244.0.0/24"}, []string{"10.245.1.5"},
			[]string{"10.244.0.5"}, nil, false},
	} {
		t.Run(name, func(t *testing.T) {
			in := input()
			in.Sites[0].PodRanges = nettest.Prefixes("10.245.0.0/16", "fd01::/64")
			in.Sites[0].Services[web] = service(c.theirs...)
			in.Own = map[record.Key]mirror.Own{web: {Service: service(c.own...)}}
			in.Dead = nettest.Prefixes(c.dead...)
			out := mirror.Plan(in)
			if last := lastOf(t, out.Imports[web]); !slices.Equal(last, c.last) {
				t.Errorf("last are %q, want %q", last, c.last)
			}
			problems := out.Reports["b"].Problems
			noted := strings.Contains(strings.Join(problems, "\n"), "do not answer")
			if noted != c.noted {
				t.Errorf("problems %q", problems)
			}
		})
	}
}

// Endpoints of other clusters come last in each family in which this cluster has a ready endpoint,
// if the import prefers them. The annotation stays.
func TestLocalEndpointsComeFirst(t *testing.T) {
	for name, c := range map[string]struct {
		prefer bool
		own    []string // endpoints of this cluster, ready
		last   []string
	}{
		"preferred, one family": {true, []string{"10.244.0.5"}, []string{"10.245.1.5"}},
		"preferred, both":       {true, []string{"10.244.0.5", "fd00::5"}, []string{"10.245.1.5", "fd01::5"}},
		"none here":             {true, nil, nil},
		"not preferred":         {false, []string{"10.244.0.5"}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			in := input()
			in.Sites[0].PodRanges = nettest.Prefixes("10.245.0.0/16", "fd01::/64")
			in.Sites[0].Services[web] = service("10.245.1.5", "fd01::5")
			in.Own = map[record.Key]mirror.Own{web: {Service: service(c.own...)}}
			in.Existing = map[record.Key]mirror.Existing{web: {PreferLocal: c.prefer}}
			m := mirror.Plan(in).Imports[web]

			if last := lastOf(t, m); !slices.Equal(last, c.last) {
				t.Errorf("last are %q, want %q", last, c.last)
			}
			i, err := m.ServiceImport(web, nil)
			errtest.Must(t, err)
			if (i.Annotations[mirror.PreferAnnotation] == mirror.PreferLocal) != c.prefer {
				t.Errorf("annotations %q", i.Annotations)
			}
		})
	}
}

// A veil-site that starts, and does not know yet which nodes answer, moves no connection back to
// endpoints that came last.
func TestEndpointsThatCameLastStayLastUntilNodesAreProbed(t *testing.T) {
	in := input()
	in.Own = map[record.Key]mirror.Own{web: {Service: service("10.244.1.5")}}
	in.Dead = nettest.Prefixes("10.245.1.0/24")
	for _, s := range mirror.Plan(in).Imports[web].EndpointSlices(web) {
		if s.Labels["multicluster.kubernetes.io/source-cluster"] == "b" {
			in.Existing = map[record.Key]mirror.Existing{web: {
				Slices: map[string][]record.Slice{"b": {mirror.SliceOf(*s)}}}}
		}
	}

	in.Dead = nil
	for before, want := range map[bool][]string{true: {"10.245.1.5"}, false: nil} {
		in.DeadBefore = before
		if last := lastOf(t, mirror.Plan(in).Imports[web]); !slices.Equal(last, want) {
			t.Errorf("not known yet: %t: last are %q, want %q", before, last, want)
		}
	}
}
