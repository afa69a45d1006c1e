package node

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/nftables"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/filetest"
	"github.com/kubeveil/kubeveil/internal/nettest"
	"github.com/kubeveil/kubeveil/pkg/config"
)

// The filter and the storage are real: a chain in a network namespace of the test, and a CNI folder
// in a file system that has no block device. The namespace has no uplink, which is an error of its
// own and hides no note.
func TestNotesWarnOfFiltersAndStorage(t *testing.T) {
	drop := nftables.ChainPolicyDrop
	cfg := config.Default()
	cfg.CNI.ConfDir = "/proc/sys/net"
	filter := "warning: the chain forward in nftables table inet mine drops forwarded packets"
	storage := "warning: the protection of /proc/sys/net cannot be read"

	nettest.NewNS(t).Run(t, func() error {
		warns := func(want string) bool {
			notes, err := Notes(cfg)
			if err == nil {
				t.Error("a node without an uplink is no error")
			}
			return slices.ContainsFunc(notes, func(n string) bool {
				return strings.HasPrefix(n, want)
			})
		}

		if !warns(storage) {
			t.Errorf("nothing begins with %q", storage)
		}
		if warns(filter) {
			t.Error("a filter is named where there is none")
		}

		c, err := nftables.New()
		if err != nil {
			return err
		}
		table := c.AddTable(&nftables.Table{Name: "mine", Family: nftables.TableFamilyINet})
		c.AddChain(&nftables.Chain{Name: "forward", Table: table, Policy: &drop,
			Type: nftables.ChainTypeFilter, Hooknum: nftables.ChainHookForward,
			Priority: nftables.ChainPriorityFilter})
		if err := c.Flush(); err != nil {
			return err
		}

		if !warns(filter) {
			t.Errorf("nothing begins with %q", filter)
		}
		return nil
	})
}

func TestNotesWarnOfIptablesLegacy(t *testing.T) {
	proc := t.TempDir()
	errtest.Must(t, os.Mkdir(filepath.Join(proc, "net"), 0o755))
	filetest.Write(t, filepath.Join(proc, "net/ip_tables_names"), []byte("filter\n"),
		0o644)

	empty := t.TempDir()
	legacy := func(n string) bool { return strings.HasPrefix(n, "warning: iptables-legacy has a") }
	nettest.NewNS(t).Run(t, func() error {
		if notes := firewallNotes(proc); !slices.ContainsFunc(notes, legacy) {
			t.Errorf("iptables-legacy is not named in %q", notes)
		}
		if notes := firewallNotes(empty); len(notes) > 0 {
			t.Errorf("nothing drops anything, but %q", notes)
		}
		return nil
	})
}
