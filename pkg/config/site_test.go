package config_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/pkg/config"
)

// site returns the entry of a site with ranges of its own.
func site(name string, i int) string {
	return fmt.Sprintf("  - name: %s\n    podRanges: [10.%d.0.0/16]\n    nodeRanges: [198.51.%d.0/24]\n",
		name, 200+i, i)
}

const withNodes = good + "nodeRanges: [192.0.2.0/24, 2001:db8::/64]\n"

func TestRangesOfSitesAreClosed(t *testing.T) {
	c, err := config.Parse("node-1", []byte(withNodes+"outside: [192.0.2.0/25]\nsites:\n"+
		"  - name: b\n    podRanges: [10.245.0.0/16, 'fd42:245::/48']\n"+
		"    nodeRanges: [198.51.100.0/24, '2001:db8:1::/64']\n"+site("c", 1)), nil)
	errtest.Must(t, err)

	if got, want := c.PodRanges(), prefixes("10.244.0.0/16", "fd42:244::/48", "10.245.0.0/16",
		"fd42:245::/48", "10.201.0.0/16"); !slices.Equal(got, want) {
		t.Errorf("ranges of pods %v, want %v", got, want)
	}
	if got, want := c.Closed(), prefixes("192.0.2.128/25", "2001:db8::/64", "198.51.100.0/24",
		"2001:db8:1::/64", "198.51.1.0/24"); !slices.Equal(got, want) {
		t.Errorf("closed to pods %v, want %v", got, want)
	}
	if len(c.ClusterRanges) != 2 || len(c.Rules(nil).Sites) != 2 {
		t.Errorf("cluster ranges %v, %d sites in the rules", c.ClusterRanges,
			len(c.Rules(nil).Sites))
	}
}

// Each mistake about sites is reported with its place and a correction.
func TestSitesAreJudged(t *testing.T) {
	const b = "  - name: b\n    podRanges: [10.245.0.0/16]\n    nodeRanges: [198.51.100.0/24]\n"
	var nine strings.Builder
	for i := range 9 {
		nine.WriteString(site(fmt.Sprint("s", i), i))
	}

	for name, tt := range map[string]struct{ ranges, sites, want string }{
		"one":              {withNodes, b, ""},
		"two":              {withNodes, b + site("c", 1), ""},
		"eight":            {withNodes, strings.TrimSuffix(nine.String(), site("s8", 8)), ""},
		"none":             {withNodes, "  []\n", ""},
		"open":             {withNodes, b + "    reach: all\n", ""},
		"exports":          {withNodes, b + "    reach: exports\n", ""},
		"imports":          {withNodes, b + "    imports: [shop, default]\n", ""},
		"imports into all": {withNodes, b + "    imports: ['*']\n", ""},
		"imports into no namespace": {withNodes, b + "    imports: [shop, shop/web]\n",
			`sites[0].imports[1]: "shop/web" is not the name of a namespace; write names, or ["*"]`},
		"reach of another kind": {withNodes, b + "    reach: some\n",
			`sites[0].reach: "some" is unknown; write one of [none exports all]`},
		"without node ranges here": {good, b, "sites: needs nodeRanges, by which addresses of this " +
			"cluster's nodes"},
		"a site named twice": {withNodes, b + site("b", 1),
			"sites[1].name: sites[0] has the name b, too; write another"},
		"no name":     {withNodes, strings.Replace(b, "b\n", "''\n", 1), `sites[0].name: "" is not`},
		"a long name": {withNodes, site(strings.Repeat("b", 64), 1), "write at most 63"},
		"a name with a dot": {withNodes, site("b.c", 1), `sites[0].name: "b.c" is not the name of ` +
			`a site`},
		"nine": {withNodes, nine.String(), "sites: 9 sites are given; write at most 8"},
		"no pod ranges": {withNodes, "  - {name: b, nodeRanges: [198.51.100.0/24]}\n",
			"sites[0].podRanges: no range is given"},
		"no node ranges": {withNodes, "  - {name: b, podRanges: [10.245.0.0/16]}\n",
			"sites[0].nodeRanges: no range is given"},
		"pods in our pods": {withNodes, strings.Replace(b, "10.245.0.0/16", "10.244.9.0/24", 1),
			"sites[0].podRanges[0]: 10.244.9.0/24 overlaps 10.244.0.0/16 of clusterRanges[0]"},
		"pods in our services": {withNodes, strings.Replace(b, "10.245.0.0/16", "10.100.0.0/16", 1),
			"sites[0].podRanges[0]: 10.100.0.0/16 overlaps 10.96.0.0/12 of serviceRanges[0]"},
		"nodes in our nodes": {withNodes, strings.Replace(b, "198.51.100.0/24", "192.0.2.0/28", 1),
			"sites[0].nodeRanges[0]: 192.0.2.0/28 overlaps 192.0.2.0/24 of nodeRanges[0]"},
		"nodes in our nodes, IPv6": {withNodes, strings.Replace(b, "198.51.100.0/24",
			"'2001:db8::/48'", 1),
			"sites[0].nodeRanges[0]: 2001:db8::/48 overlaps 2001:db8::/64 of nodeRanges[1]"},
		"pods in another site's nodes": {withNodes, b + strings.Replace(site("c", 1),
			"10.201.0.0/16", "198.51.100.0/25", 1), "sites[1].podRanges[0]: 198.51.100.0/25 " +
			"overlaps 198.51.100.0/24 of sites[0].nodeRanges[0]"},
		"host bits": {withNodes, strings.Replace(b, "10.245.0.0/16", "10.245.0.1/16", 1),
			"sites[0].podRanges[0]: 10.245.0.1/16 has bits set beyond its length; write"},
		"loopback": {withNodes, strings.Replace(b, "198.51.100.0/24", "127.0.0.0/8", 1),
			"sites[0].nodeRanges[0]: 127.0.0.0/8 holds addresses"},
		"a family that pods here lack": {"node: a\nclusterRanges: [10.244.0.0/16]\n" +
			"serviceRanges: [10.96.0.0/12]\nnodeRanges: [192.0.2.0/24]\n",
			strings.Replace(b, "10.245.0.0/16", "'fd42:245::/48'", 1),
			"sites[0].podRanges[0]: fd42:245::/48 is of an IP family that clusterRanges lack"},
		"an unknown key": {withNodes, b + "    podRange: [10.246.0.0/16]\n",
			"sites[0].podRange: unknown key; did you mean sites[0].podRanges?"},
		"a name alone": {withNodes, "  - b\n", "sites[0]: is b, write keys and values: name, podRanges"},
		"no list":      {withNodes, "  b: 1\n", "sites: is keys and values, write a list of keys"},
	} {
		t.Run(name, func(t *testing.T) {
			text := tt.ranges + "sites:\n" + tt.sites
			_, err := config.Parse("node-1", []byte(text), nil)
			switch {
			case tt.want == "" && err != nil:
				t.Error(err)
			case tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)):
				t.Errorf("got %v, want %q", err, tt.want)
			}
		})
	}
}
