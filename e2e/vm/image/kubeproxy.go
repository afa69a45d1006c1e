package image

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
)

// Modes of kube-proxy, as its configuration names them.
const (
	ProxyNFTables = "nftables"
	ProxyIPTables = "iptables"
	ProxyIPVS     = "ipvs"
)

// iptablesPrograms lists the programs that kube-proxy runs in the modes that write iptables rules.
var iptablesPrograms = []string{"iptables", "iptables-restore", "iptables-save", "ip6tables",
	"ip6tables-restore", "ip6tables-save"}

// extensions matches the extensions of Debian's iptables. iptables loads them at run time, so ldd
// of its programs lists neither the extensions nor their libraries.
const extensions = "/usr/lib/*/xtables/*.so"

// KubeProxy returns the files of kube-proxy's image: the program at path, and the programs that it
// runs in its mode. The image needs no program that loads kernel modules, because the kernel loads
// them itself: the modules of iptables and ipset by name, and ip_vs when kube-proxy uses its netlink
// family.
func KubeProxy(ctx context.Context, path, mode string) (map[string]string, error) {
	// nft(8) reads the names of protocols from /etc/protocols and otherwise prints numbers.
	// kube-proxy does not recognize its own elements by numbers, and deletes them after a restart.
	files := map[string]string{"usr/local/bin/kube-proxy": path,
		"etc/protocols": "/etc/protocols"}

	// In every mode kube-proxy removes leftovers of its mode nftables.
	programs := []string{"nft"}
	if mode != ProxyNFTables {
		programs = append(programs, iptablesPrograms...)
		if err := addExtensions(ctx, files); err != nil {
			return nil, err
		}
	}

	if mode == ProxyIPVS {
		programs = append(programs, "ipset")
	}
	for _, name := range programs {
		if err := AddProgram(ctx, files, name); err != nil {
			return nil, fmt.Errorf("image of kube-proxy: %w: run hack/vm/deps.sh", err)
		}
	}

	return files, nil
}

// addExtensions adds the extensions of iptables, and their libraries.
func addExtensions(ctx context.Context, files map[string]string) error {
	found, err := filepath.Glob(extensions)
	if err != nil {
		return err
	}
	if len(found) == 0 {
		return fmt.Errorf("no extensions of iptables at %s: run hack/install-deps.sh", extensions)
	}
	for _, path := range found {
		files[strings.TrimPrefix(path, "/")] = path
	}
	return AddLibraries(ctx, files, found...)
}
