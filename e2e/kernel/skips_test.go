package kernel

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/kubeveil/kubeveil/internal/nettest"
)

// options maps the reason of a skip to the option of the kernel's configuration whose absence
// allows it. If the kernel has the option, built in or as a module, the test must run.
var options = map[nettest.Reason]string{
	nettest.NoIOAM6:     "CONFIG_IPV6_IOAM6_LWTUNNEL",
	nettest.NoRPL:       "CONFIG_IPV6_RPL_LWTUNNEL",
	nettest.NoESP:       "CONFIG_INET_ESP",
	nettest.NoFlowtable: "CONFIG_NF_FLOW_TABLE_INET",
	nettest.NoWireGuard: "CONFIG_WIREGUARD",
}

// mayLack returns the sorted reasons for which tests may skip on a kernel with this release and
// this text of its configuration.
func mayLack(release, config string) (reasons []nettest.Reason) {
	for reason, option := range options {
		if !regexp.MustCompile(`(?m)^` + option + `=[ym]$`).MatchString(config) {
			reasons = append(reasons, reason)
		}
	}
	var major, minor int
	if n, _ := fmt.Sscanf(release, "%d.%d", &major, &minor); n == 2 &&
		(major < 6 || major == 6 && minor < 6) {
		reasons = append(reasons, nettest.NoTCX)
	}
	slices.Sort(reasons)
	return reasons
}

// encapsulations lists the tests of encapsulations that many kernels lack.
var encapsulations = []struct{ name, pkg, test string }{
	{"ioam6", "pkg/guard", "TestRoutesThatEncapsulateCarryNothingOut/ioam6"},
	{"rpl", "pkg/guard", "TestRoutesThatEncapsulateCarryNothingOut/rpl"},
	{"XFRM", "pkg/guard", "TestTunnelsOfIPsecCarryNothingOut"},
}

// fate returns the result of a test in the output of go test -v. It is "ran" if at least one of its
// innermost subtests passed or failed, "skipped" if all of them skipped, and "" if the test did not
// begin.
func fate(out, test string) (fate string) {
	results := regexp.MustCompile(`--- (PASS|FAIL|SKIP): `+regexp.QuoteMeta(test)+`(/\S+)? \(`).
		FindAllStringSubmatch(out, -1)
	for _, r := range results {
		parent := slices.ContainsFunc(results, func(other []string) bool {
			return strings.HasPrefix(other[2], r[2]+"/")
		})
		switch {
		case parent:
		case r[1] != "SKIP":
			return "ran"
		default:
			fate = "skipped"
		}
	}
	return fate
}

func TestSkipsFollowTheKernel(t *testing.T) {
	const all = "CONFIG_IPV6_IOAM6_LWTUNNEL=y\nCONFIG_IPV6_RPL_LWTUNNEL=y\nCONFIG_INET_ESP=m\n" +
		"CONFIG_NF_FLOW_TABLE_INET=m\nCONFIG_WIREGUARD=m\n"
	for name, tt := range map[string]struct {
		release, config string
		want            []nettest.Reason
	}{
		"all, new": {"6.12.9+deb-cloud-amd64", all, nil},
		"all, old": {"6.1.0-56-cloud-amd64", all, []nettest.Reason{nettest.NoTCX}},
		"two are not set": {"6.6.1",
			"# CONFIG_IPV6_RPL_LWTUNNEL is not set\n# CONFIG_IPV6_IOAM6_LWTUNNEL is not set\n" +
				"CONFIG_INET_ESP=m\nCONFIG_INET_ESP_OFFLOAD=m\nCONFIG_NF_FLOW_TABLE_INET=m\n" +
				"CONFIG_WIREGUARD=m\n",
			[]nettest.Reason{nettest.NoIOAM6, nettest.NoRPL}},
		"an option with a longer name": {"7.0.0",
			strings.Replace(all, "CONFIG_INET_ESP=m", "CONFIG_INET_ESP_OFFLOAD=m", 1),
			[]nettest.Reason{nettest.NoESP}},
	} {
		if got := mayLack(tt.release, tt.config); !slices.Equal(got, tt.want) {
			t.Errorf("%s: %v, want %v", name, got, tt.want)
		}
	}
}

func TestFateOfATest(t *testing.T) {
	const out = `--- PASS: TestA (0.20s)
    --- PASS: TestA/ioam6 (0.10s)
        --- SKIP: TestA/ioam6/tcx (0.00s)
        --- PASS: TestA/ioam6/clsact (0.10s)
    --- PASS: TestA/rpl (0.00s)
        --- SKIP: TestA/rpl/tcx (0.00s)
        --- SKIP: TestA/rpl/clsact (0.00s)
--- FAIL: TestB (0.00s)
--- SKIP: TestC (0.00s)
`
	for test, want := range map[string]string{"TestA/ioam6": "ran", "TestA/rpl": "skipped",
		"TestA": "ran", "TestB": "ran", "TestC": "skipped", "TestD": "", "Test": ""} {
		if got := fate(out, test); got != want {
			t.Errorf("%s: %q, want %q", test, got, want)
		}
	}
}
