package manifests_test

import (
	"fmt"
	"path"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kubeveil/kubeveil/internal/filetest"
	"github.com/kubeveil/kubeveil/pkg/abi"
)

// keyFile returns the sections of a drop-in, with the strictest reading that NetworkManager and
// systemd share: a section before the first key, a key once, no blank around "=", whole lines as
// comments.
func keyFile(text string) (map[string]map[string]string, error) {
	sections := map[string]map[string]string{}
	var section map[string]string
	n := 0
	for line := range strings.Lines(text) {
		n++
		line = strings.TrimSuffix(line, "\n")
		if line == "" || line[0] == '#' {
			continue
		}
		if name, ok := strings.CutPrefix(line, "["); ok {
			name, ok = strings.CutSuffix(name, "]")
			if !ok || name == "" || strings.ContainsAny(name, "[]") || sections[name] != nil {
				return nil, fmt.Errorf("line %d is no new section: %q", n, line)
			}
			section = map[string]string{}
			sections[name] = section
			continue
		}

		key, value, ok := strings.Cut(line, "=")
		if !ok || section == nil || key == "" || strings.ContainsAny(key, " \t#") ||
			value != strings.TrimSpace(value) || section[key] != "" {
			return nil, fmt.Errorf("line %d is no new key of a section: %q", n, line)
		}
		section[key] = value
	}
	return sections, nil
}

func readKeyFile(t *testing.T, name string) map[string]map[string]string {
	t.Helper()
	text := filetest.Read(t, name)
	sections, err := keyFile(string(text))
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return sections
}

// NetworkManager leaves alone the links that Kubeveil makes, by their names in pkg/abi, and those
// alone.
func TestNetworkManagerLeavesLinksAlone(t *testing.T) {
	got := readKeyFile(t, "systemd/NetworkManager-kubeveil.conf")
	specs := got["keyfile"]["unmanaged-devices"]
	if len(got) != 1 || len(got["keyfile"]) != 1 || specs == "" {
		t.Fatalf("got %q, want unmanaged-devices of keyfile alone", got)
	}

	unmanaged := func(link string) bool {
		for spec := range strings.SplitSeq(specs, ";") {
			glob, ok := strings.CutPrefix(spec, "interface-name:")
			if !ok || strings.HasPrefix(glob, "=") || strings.HasPrefix(glob, "~") {
				t.Fatalf("%q matches no link by a glob of its name", spec)
			}
			if ok, err := path.Match(glob, link); err != nil {
				t.Fatalf("%q: %v", glob, err)
			} else if ok {
				return true
			}
		}
		return false
	}

	for link, want := range map[string]bool{
		abi.TunnelDevicePrefix + "0":             true,
		abi.TunnelDevicePrefix + "12":            true,
		abi.PodLinkPrefix + "0123456789a":        true,
		"eth0":                                   false,
		"vpn0":                                   false,
		"veth0":                                  false,
		"br-" + abi.TunnelDevicePrefix:           false,
		strings.ToUpper(abi.PodLinkPrefix) + "0": false,
	} {
		if unmanaged(link) != want {
			t.Errorf("%s unmanaged: %t, want %t", link, !want, want)
		}
	}
}

// systemd-networkd deletes neither routes nor policy rules that it did not make.
func TestNetworkdKeepsRoutes(t *testing.T) {
	want := map[string]map[string]string{"Network": {
		"ManageForeignRoutes": "no", "ManageForeignRoutingPolicyRules": "no"}}
	got := readKeyFile(t, "systemd/networkd-kubeveil.conf")
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestKeyFileIsReadStrictly(t *testing.T) {
	for _, text := range []string{
		"key=value\n", "[a\nk=v\n", "[]\nk=v\n", "[a]\nk\n", "[a]\n k=v\n", "[a]\nk =v\n",
		"[a]\nk= v\n", "[a]\nk=v\nk=w\n", "[a]\nk=v\n[a]\nk=w\n", "[a] # why\nk=v\n",
	} {
		if got, err := keyFile(text); err == nil {
			t.Errorf("%q was read as %q", text, got)
		}
	}
}
