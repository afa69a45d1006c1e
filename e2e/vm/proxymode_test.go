package vm

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/kubeveil/kubeveil/e2e/vm/image"
	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/nettest"
	"github.com/kubeveil/kubeveil/pkg/config"
)

func TestProxyModes(t *testing.T) {
	for name, tt := range map[string]struct{ mode, proxy, refused string }{
		"the default":           {},
		"the default, for ebpf": {proxy: config.ServiceProxyEBPF},
		"iptables":              {mode: ProxyIPTables, proxy: config.ServiceProxyNone},
		"ipvs":                  {mode: ProxyIPVS},
		"no mode":               {mode: "userspace", refused: "write nftables, iptables or ipvs"},
		"no kube-proxy": {mode: ProxyNFTables, proxy: config.ServiceProxyEBPF,
			refused: "there is no kube-proxy"},
	} {
		t.Run(name, func(t *testing.T) {
			err := CheckProxyMode(tt.mode, tt.proxy)
			if (err == nil) != (tt.refused == "") ||
				err != nil && !strings.Contains(err.Error(), tt.refused) {
				t.Errorf("error %v, want %q", err, tt.refused)
			}
		})
	}

	for want, o := range map[string]ClusterConfig{
		`kube-proxy in mode "bpf": write nftables`:                {ProxyMode: "bpf"},
		`host routing by "bpf": write kernel, ebpf or auto`:       {HostRouting: "bpf"},
		`host routing by "ebpf": it needs the service proxy ebpf`: {HostRouting: "ebpf"},
		`policies of "calico": write none or kubernetes`:          {Policy: "calico"},
	} {
		if _, err := New(t.Context(), o); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %s", err, want)
		}
	}
}

// Without a kind, the kernel brings packets to pods, with any proxy.
func TestHostRoutingIsTheKernelsByDefault(t *testing.T) {
	for _, proxy := range []string{"", config.ServiceProxyNone, config.ServiceProxyEBPF} {
		if err := CheckHostRouting("", proxy); err != nil {
			t.Errorf("proxy %q: %v", proxy, err)
		}
	}
}

// The image only has the programs that kube-proxy runs in its mode.
func TestProgramsOfKubeProxyByMode(t *testing.T) {
	standInIPSet(t)
	const extension = "usr/lib/x86_64-linux-gnu/xtables/libxt_statistic.so"
	const itsLibrary = "lib/x86_64-linux-gnu/libm.so.6" // of the extensions only
	for mode, tt := range map[string]struct{ has, lacks []string }{
		"": {[]string{"usr/sbin/nft"}, []string{"usr/sbin/iptables", "usr/sbin/ipset", extension}},
		ProxyIPTables: {[]string{"usr/sbin/nft", "usr/sbin/iptables-restore",
			"usr/sbin/ip6tables-save", extension, itsLibrary}, []string{"usr/sbin/ipset"}},
		ProxyIPVS: {[]string{"usr/sbin/nft", "usr/sbin/ip6tables", "usr/sbin/ipset", extension},
			nil},
	} {
		t.Run(mode, func(t *testing.T) {
			files, err := image.KubeProxy(t.Context(), "kube-proxy",
				ClusterConfig{ProxyMode: mode}.proxyMode())
			errtest.Must(t, err)
			for _, path := range slices.Concat(tt.has, tt.lacks) {
				if _, found := files[path]; found != slices.Contains(tt.has, path) {
					t.Errorf("%s: %v", path, found)
				}
			}
		})
	}
}

// standInIPSet replaces ipset with another program, because only the VM lab installs ipset.
func standInIPSet(t *testing.T) {
	t.Helper()
	nft := nettest.NeedProgram(t, "nft")
	dir := t.TempDir()
	errtest.Must(t, os.Symlink(nft, filepath.Join(dir, "ipset")))
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
}
