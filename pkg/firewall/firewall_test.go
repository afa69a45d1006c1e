package firewall_test

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/filetest"
	"github.com/kubeveil/kubeveil/internal/nettest"
	"github.com/kubeveil/kubeveil/pkg/firewall"
)

// init locks the main goroutine to the main thread, whose namespaces /proc/self shows. So no test
// can run on that thread and change them.
func init() { runtime.LockOSThread() }

func TestMain(m *testing.M) { os.Exit(nettest.Run(m)) }

func TestForeignFiltersAreFound(t *testing.T) {
	nft := nettest.NeedProgram(t, "nft")
	for name, tt := range map[string]struct {
		ruleset string
		want    []string // family, table, chain and owner of each
		says    string   // a part of the first sentence
	}{
		"nothing": {"", nil, ""},
		"ours and kube-proxy's": {`table inet kubeveil_pods { chain f { type filter hook forward priority 0; policy drop; } }
			table ip kube-proxy { chain f { type filter hook forward priority 0; policy accept; ct state invalid drop; } }`, nil, ""},
		"Docker": {`table ip filter { chain DOCKER-USER { } chain FORWARD { type filter hook forward priority 0; policy drop; jump DOCKER-USER; } }`,
			[]string{"ip filter FORWARD Docker"}, "DOCKER-USER -i LINK"},
		"ufw, both families": {`table ip filter { chain ufw-before-forward { } chain FORWARD { type filter hook forward priority 0; policy drop; } }
			table ip6 filter { chain ufw6-before-forward { } chain FORWARD { type filter hook forward priority 0; policy drop; } }`,
			[]string{"ip filter FORWARD ufw", "ip6 filter FORWARD ufw"}, "ufw route allow"},
		"firewalld": {`table inet firewalld { chain filter_FORWARD { type filter hook forward priority 10; policy accept; ct state established accept; reject with icmpx admin-prohibited; } }`,
			[]string{"inet firewalld filter_FORWARD firewalld"}, "--zone=trusted"},
		"one of the operator": {`table inet mine { chain f { type filter hook forward priority 0; policy accept; ip daddr 192.0.2.1 accept; counter log drop; } }`,
			[]string{"inet mine f "}, "vpod+ and veil+"},
		"one that accepts at its end": {`table inet mine { chain f { type filter hook forward priority 0; policy accept; ip daddr 192.0.2.1 drop; } }`, nil, ""},
		"one at another hook":         {`table inet mine { chain f { type filter hook input priority 0; policy drop; } }`, nil, ""},
	} {
		t.Run(name, func(t *testing.T) {
			ns := nettest.NewNS(t)
			ns.Run(t, func() error {
				rules := strings.NewReplacer("{", "{\n", "}", "\n}\n").Replace(tt.ruleset)
				if err := nettest.Feed(rules, nft, "-f", "-"); err != nil {
					return err
				}
				found, err := firewall.Foreign()
				if err != nil {
					return err
				}

				var got []string
				for _, f := range found {
					got = append(got, fmt.Sprintf("%s %s %s %s", f.Family, f.Table, f.Chain,
						f.Owner))
				}

				if fmt.Sprint(got) != fmt.Sprint(tt.want) {
					t.Errorf("found %q, want %q", got, tt.want)
				}
				if len(found) > 0 && !strings.Contains(found[0].String(), tt.says) {
					t.Errorf("it says %q, want %q in it", found[0], tt.says)
				}

				return nil
			})
		})
	}
}

func TestLegacyTablesAreReported(t *testing.T) {
	for name, tt := range map[string]struct {
		file, text string
		want       bool
	}{
		"none":           {"", "", false},
		"nat alone":      {"ip_tables_names", "nat\n", false},
		"filter of IPv6": {"ip6_tables_names", "mangle\nfilter\n", true},
	} {
		t.Run(name, func(t *testing.T) {
			proc := t.TempDir()
			errtest.Must(t, os.Mkdir(filepath.Join(proc, "net"), 0o755))
			if tt.file != "" {
				filetest.Write(t, filepath.Join(proc, "net", tt.file), []byte(tt.text),
					0o644)
			}
			if got, err := firewall.Legacy(proc); err != nil || got != tt.want {
				t.Errorf("got %t, %v", got, err)
			}
		})
	}
}
