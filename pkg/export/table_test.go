package export

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/kubeveil/kubeveil/internal/nettest"
	"github.com/kubeveil/kubeveil/pkg/cluster"
)

const tcp = 6

// web is a slice of the service shop/web with one TCP port.
func web(name string, addrs ...string) Slice {
	return Slice{Service: Name{"shop", "web"}, Name: name, Addrs: nettest.Addrs(addrs...),
		Ports: []Port{{tcp, 80}}}
}

func texts(openings []cluster.Opening) (all []string) {
	for _, o := range openings {
		all = append(all, fmt.Sprintf("%s %d %s", o.Site, o.Protocol, o.Endpoint))
	}
	return all
}

func TestOpeningsBySituation(t *testing.T) {
	pods := []Pod{{"shop", nettest.Addrs("10.0.0.1", "fd42::1")}, {"shop", nettest.Addrs("10.0.0.2")},
		{"bank", nettest.Addrs("10.0.0.9")}}
	exported := Export{Name: Name{"shop", "web"}}
	for name, c := range map[string]struct {
		export  Export
		slices  []Slice
		open    string
		noPods  int
		problem string
	}{
		"not exported": {Export{Name: Name{"shop", "other"}}, []Slice{web("1", "10.0.0.1")}, "", 0, ""},
		"another namespace exports the name": {Export{Name: Name{"bank", "web"}},
			[]Slice{web("1", "10.0.0.1")}, "", 0, ""},
		"to all sites": {exported, []Slice{web("1", "10.0.0.1"), web("2", "fd42::1")},
			"b 6 10.0.0.1:80, c 6 10.0.0.1:80, b 6 [fd42::1]:80, c 6 [fd42::1]:80", 0, ""},
		"to one site": {Export{exported.Name, true, []string{"c"}}, []Slice{web("1", "10.0.0.1")},
			"c 6 10.0.0.1:80", 0, ""},
		"to no site": {Export{exported.Name, true, nil}, []Slice{web("1", "10.0.0.1")}, "", 0, ""},
		"to a site that reaches all": {Export{exported.Name, true, []string{"d"}},
			[]Slice{web("1", "10.0.0.1")}, "", 0, ""},
		"to an unknown site": {Export{exported.Name, true, []string{"b", "x"}},
			[]Slice{web("1", "10.0.0.1")}, "b 6 10.0.0.1:80", 0, `names site "x"`},
		"in two slices": {Export{exported.Name, true, []string{"b"}},
			[]Slice{web("1", "10.0.0.1"), web("2", "10.0.0.1")}, "b 6 10.0.0.1:80", 0, ""},
		"a pod of another namespace": {exported, []Slice{web("1", "10.0.0.9")}, "", 1,
			"10.0.0.9 of ServiceExport shop/web has no pod of its namespace"},
		"a host": {exported, []Slice{web("1", "192.0.2.1")}, "", 1, "stays closed"},
		"several ports": {Export{exported.Name, true, []string{"b"}}, []Slice{{exported.Name, "1",
			nettest.Addrs("10.0.0.2"), []Port{{tcp, 80}, {17, 53}}}},
			"b 17 10.0.0.2:53, b 6 10.0.0.2:80", 0, ""},
	} {
		t.Run(name, func(t *testing.T) {
			var table Exports
			table.PutExport(c.export)
			for _, s := range c.slices {
				table.PutSlice(s)
			}
			d := table.Decide([]string{"b", "c"}, []string{"b", "c", "d"}, pods)

			if got := strings.Join(texts(d.Openings), ", "); got != c.open {
				t.Errorf("open %s, want %s", got, c.open)
			}
			problems := strings.Join(d.Problems, "\n")
			if d.NoPods != c.noPods || d.Excess != 0 || !strings.Contains(problems, c.problem) ||
				c.problem == "" && problems != "" {
				t.Errorf("%d no pods, %d in excess, problems %q", d.NoPods, d.Excess, d.Problems)
			}
		})
	}
}

// A namespace with many endpoints costs itself, and all together stay within the node's bound.
func TestOpeningsAreBounded(t *testing.T) {
	var table Exports
	ports := make([]Port, MaxOfNamespace+5)
	for i := range ports {
		ports[i] = Port{tcp, uint16(i + 1)}
	}
	var pods []Pod
	for i := range 10 {
		n := Name{fmt.Sprintf("ns-%d", i), "web"}
		a := netip.AddrFrom4([4]byte{10, 0, 0, byte(i)})
		pods = append(pods, Pod{n.Namespace, []netip.Addr{a}})
		table.PutExport(Export{Name: n})
		table.PutSlice(Slice{Service: n, Name: "1", Addrs: []netip.Addr{a}, Ports: ports})
	}
	d := table.Decide([]string{"b"}, []string{"b"}, pods)
	if len(d.Openings) != MaxOpenings || d.Excess != 10*len(ports)-MaxOpenings {
		t.Errorf("%d openings, %d in excess", len(d.Openings), d.Excess)
	}
	if len(d.Problems) != 1 || !strings.Contains(d.Problems[0], "stay closed to sites") {
		t.Errorf("problems %q", d.Problems)
	}

	for i := range 8 {
		table.DeleteSlice(Name{fmt.Sprintf("ns-%d", i), "web"}, "1")
	}
	d = table.Decide([]string{"b"}, []string{"b"}, pods)
	if len(d.Openings) != 2*MaxOfNamespace || d.Excess != 10 {
		t.Errorf("%d openings, %d in excess", len(d.Openings), d.Excess)
	}
}

// The order of changes does not matter, and what was deleted leaves nothing.
func TestDecisionDependsOnWhatExists(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var table Exports
		exports, all := map[Name]Export{}, map[string]Slice{}
		for range rapid.IntRange(0, 20).Draw(t, "changes") {
			n := Name{rapid.SampledFrom([]string{"bank", "shop"}).Draw(t, "namespace"), "web"}
			name := rapid.SampledFrom([]string{"1", "2"}).Draw(t, "slice")
			switch rapid.IntRange(0, 3).Draw(t, "change") {
			case 0:
				exports[n] = Export{n, rapid.Bool().Draw(t, "named"), []string{"b"}}
				table.PutExport(exports[n])
			case 1:
				delete(exports, n)
				table.DeleteExport(n)
			case 2:
				s := Slice{n, name, rapid.SliceOf(rapid.SampledFrom(nettest.Addrs("10.0.0.1",
					"10.0.0.9"))).Draw(t, "addrs"), []Port{{tcp, 80}}}
				all[n.String()+name] = s
				table.PutSlice(s)
			case 3:
				delete(all, n.String()+name)
				table.DeleteSlice(n, name)
			}
		}

		pods := []Pod{{"shop", nettest.Addrs("10.0.0.1")}, {"bank", nettest.Addrs("10.0.0.9")}}
		var want []string
		for _, o := range []cluster.Opening{{Site: "b", Protocol: tcp,
			Endpoint: netip.MustParseAddrPort("10.0.0.1:80")}, {Site: "b", Protocol: tcp,
			Endpoint: netip.MustParseAddrPort("10.0.0.9:80")}} {
			owner := Name{map[string]string{"10.0.0.1": "shop",
				"10.0.0.9": "bank"}[o.Endpoint.Addr().String()], "web"}
			_, exported := exports[owner]
			for _, name := range []string{"1", "2"} {
				if exported && slices.Contains(all[owner.String()+name].Addrs, o.Endpoint.Addr()) {
					want = append(want, texts([]cluster.Opening{o})...)
				}
			}
		}
		got := texts(table.Decide([]string{"b"}, []string{"b"}, pods).Openings)
		if !slices.Equal(got, slices.Compact(want)) {
			t.Fatalf("open %q, want %q", got, slices.Compact(want))
		}
	})
}
