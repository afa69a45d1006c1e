package main

import (
	"encoding/json"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
	current "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/types/create"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/nettest"
	"github.com/kubeveil/kubeveil/internal/nl"
	"github.com/kubeveil/kubeveil/pkg/abi"
	"github.com/kubeveil/kubeveil/pkg/pod"
)

// specs lists what each version of the specification has.
var specs = []struct {
	version                       string
	check, status, mtus, ipFamily bool
}{
	{version: "0.3.1", ipFamily: true},
	{version: "0.4.0", check: true, ipFamily: true},
	{version: "1.0.0", check: true},
	{version: "1.1.0", check: true, status: true, mtus: true},
}

func TestEveryVerbInEveryVersion(t *testing.T) {
	for _, spec := range specs {
		t.Run(spec.version, func(t *testing.T) {
			n := newNode(t)
			a, _ := newPod(t, "c1")
			c := conf(spec.version, nil)
			out := n.must("ADD", a, c)
			wantResult(t, out, spec.version, a, spec.mtus)
			if got := strings.Contains(string(out), `"version"`); got != spec.ipFamily {
				t.Errorf("result has the family in ips: %v, want %v: %s", got, spec.ipFamily, out)
			}

			with := conf(spec.version, object{"prevResult": raw(out)})
			n.verb("CHECK", spec.check, a, with)
			n.verb("STATUS", spec.status, attachment{}, c)
			n.verb("GC", spec.status, attachment{}, conf(spec.version, object{
				"cni.dev/valid-attachments": []any{object{"containerID": "c1", "ifname": "eth0"}},
			}))
			n.verb("CHECK", spec.check, a, with)
			n.must("DEL", a, with)
			n.wantNothing()
			a.netns = ""

			n.must("DEL", a, c)
		})
	}

	t.Run("VERSION", func(t *testing.T) {
		out := newNode(t).must("VERSION", attachment{}, conf("1.0.0", nil))
		for _, spec := range specs {
			if !strings.Contains(string(out), `"`+spec.version+`"`) {
				t.Errorf("VERSION does not list %s: %s", spec.version, out)
			}
		}
	})

	t.Run("a version that is unknown", func(t *testing.T) {
		n := newNode(t)
		a, _ := newPod(t, "c1")
		for _, version := range []string{"0.2.0", "9.9.9"} {
			_, err := n.try("ADD", a, conf(version, nil))
			wantError(t, err, types.ErrIncompatibleCNIVersion)
		}
	})
}

// verb checks that a verb succeeds if the version of CNI has it, and otherwise fails as
// incompatible.
func (n *node) verb(verb string, has bool, a attachment, conf []byte) {
	n.t.Helper()
	_, err := n.try(verb, a, conf)
	if has && err != nil {
		n.t.Errorf("%s: %v", verb, err)
	}
	if !has {
		wantError(n.t, err, types.ErrIncompatibleCNIVersion)
	}
}

func wantResult(t *testing.T, out []byte, version string, a attachment, mtus bool) {
	t.Helper()
	generic, err := create.CreateFromBytes(out)
	if err != nil {
		t.Fatalf("read result: %v: %s", err, out)
	}
	if generic.Version() != version {
		t.Errorf("result is of %s, want %s", generic.Version(), version)
	}
	r, err := current.NewResultFromResult(generic)
	errtest.Must(t, err)

	host := pod.HostLink(a.id, a.ifName)
	if len(r.Interfaces) != 2 || r.Interfaces[0].Name != host || r.Interfaces[0].Sandbox != "" ||
		r.Interfaces[1].Name != "eth0" || r.Interfaces[1].Sandbox != a.netns {
		t.Errorf("interfaces: %s, want %s and eth0 in %s", out, host, a.netns)
	}

	for _, i := range r.Interfaces {
		if _, err := net.ParseMAC(i.Mac); err != nil {
			t.Errorf("interface %s: %v", i.Name, err)
		}
		if mtus != (i.Mtu == 1420) {
			t.Errorf("interface %s has mtu %d", i.Name, i.Mtu)
		}
	}

	wantIPs(t, r, mtus)
}

func wantIPs(t *testing.T, r *current.Result, mtus bool) {
	t.Helper()
	want := []struct{ addr, gw, dst string }{
		{"198.18.1.2/32", abi.PodGateway4, "0.0.0.0/0"},
		{"fd42:1:0:1::2/128", abi.PodGateway6, "::/0"},
	}
	if len(r.IPs) != len(want) || len(r.Routes) != len(want) {
		t.Fatalf("ips %v, routes %v", r.IPs, r.Routes)
	}
	for i, w := range want {
		ip, route := r.IPs[i], r.Routes[i]
		if ip.Address.String() != w.addr || ip.Gateway.String() != w.gw || ip.Interface == nil ||
			*ip.Interface != 1 {
			t.Errorf("ip %v, want %s via %s on interface 1", ip, w.addr, w.gw)
		}
		if route.Dst.String() != w.dst || route.GW.String() != w.gw || mtus != (route.MTU == 1420) {
			t.Errorf("route %v, want %s via %s", route, w.dst, w.gw)
		}
	}
}

func TestAddIsRefusedUntilReady(t *testing.T) {
	n := newNode(t)
	a, _ := newPod(t, "c1")
	c := conf("1.1.0", nil)
	n.Run(t, func() error { return os.Remove(n.paths.ReadyFile) })
	_, err := n.try("ADD", a, c)
	wantError(t, err, types.ErrTryAgainLater, n.paths.ReadyFile, "veild")
	_, err = n.try("STATUS", attachment{}, c)
	wantError(t, err, types.ErrPluginNotAvailable, n.paths.ReadyFile, "veild")
	n.wantNothing()
}

func TestAddTwiceKeepsTheFirst(t *testing.T) {
	n := newNode(t)
	a, _ := newPod(t, "c1")
	c := conf("1.0.0", nil)
	out := n.must("ADD", a, c)
	_, err := n.try("ADD", a, c)
	wantError(t, err, types.ErrInternal, "already", "DEL")
	n.must("CHECK", a, conf("1.0.0", object{"prevResult": raw(out)}))
}

func TestAddRefusals(t *testing.T) {
	n := newNode(t)
	a, _ := newPod(t, "c1")
	gone, own := a, a
	gone.netns = "/run/netns/gone"
	own.netns = n.Path()
	file := a
	file.netns = abi.ReadyFile

	for _, tt := range []struct {
		name string
		a    attachment
		conf []byte
		code uint
		want []string
	}{
		{"namespace that is gone", gone, conf("1.0.0", nil), types.ErrInvalidNetNS,
			[]string{gone.netns}},
		{"the node's own namespace", own, conf("1.0.0", nil), types.ErrInvalidNetNS,
			[]string{"is the one of the node"}},
		{"a file that is no namespace", file, conf("1.0.0", nil), types.ErrInvalidNetNS,
			[]string{"not a network namespace"}},
		{"after another plugin", a, conf("1.0.0",
			object{"prevResult": object{"cniVersion": "1.0.0"}}), types.ErrInvalidNetworkConfig,
			[]string{"first plugin"}},
		{"unknown key", a, conf("1.0.0", object{"mut": 1}), types.ErrInvalidNetworkConfig,
			[]string{`"mut"`, "mtu"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := n.try("ADD", tt.a, tt.conf)
			wantError(t, err, tt.code, tt.want...)
			n.wantNothing()
		})
	}
}

func TestDelWithoutAnything(t *testing.T) {
	n := newNode(t)
	c := conf("1.0.0", nil)
	a, ns := newPod(t, "c1")
	n.must("DEL", a, c)

	t.Log("the link went with the namespace")
	n.must("ADD", a, c)
	ns.OnLink("eth0", func(h *nl.Handle, l nl.Link) error { return h.LinkDel(l) })
	a.netns = ""
	n.must("DEL", a, c)
	n.wantNothing()

	t.Log("the configuration is wrong elsewhere, the record corrupt and the daemon's state gone")
	b, _ := newPod(t, "c2")
	n.must("ADD", b, c)
	n.Run(t, func() error {
		if err := os.RemoveAll(n.paths.BPFDir); err != nil {
			return err
		}
		return os.WriteFile(filepath.Join(n.paths.PodDir, pod.HostLink("c2", "eth0")+".json"),
			[]byte("{"), 0o600)
	})
	n.must("DEL", b, conf("1.0.0", object{"mtu": 12, "unknown": true}))
	n.wantNothing()
}

func TestDelAfterACrashOfAdd(t *testing.T) {
	n := newNode(t)
	a, _ := newPod(t, "c1")
	c := conf("1.0.0", nil)
	n.must("ADD", a, c)
	// An ADD that is killed early leaves a record without a link.
	n.OnLink(pod.HostLink("c1", "eth0"), func(h *nl.Handle, l nl.Link) error { return h.LinkDel(l) })
	_, err := n.try("ADD", a, c)
	wantError(t, err, types.ErrInternal, "DEL")
	n.must("DEL", a, c)
	n.wantNothing()
	n.must("ADD", a, c)
}

func TestCheckRefusals(t *testing.T) {
	n := newNode(t)
	a, ns := newPod(t, "c1")
	out := n.must("ADD", a, conf("1.0.0", nil))
	change := func(f func(r *current.Result)) []byte {
		r := &current.Result{}
		errtest.Must(t, json.Unmarshal(out, r))
		f(r)
		data, err := json.Marshal(r)
		errtest.Must(t, err)
		return conf("1.0.0", object{"prevResult": raw(data)})
	}

	same := change(func(*current.Result) {})
	n.must("CHECK", a, same)
	_, err := n.try("CHECK", a, conf("1.0.0", nil))
	wantError(t, err, types.ErrInvalidNetworkConfig, "prevResult")
	stranger := a
	stranger.id = "c2"
	_, err = n.try("CHECK", stranger, same)
	wantError(t, err, types.ErrUnknownContainer, "c2")
	_, err = n.try("CHECK", a, change(func(r *current.Result) { r.IPs = r.IPs[:1] }))
	wantError(t, err, types.ErrInternal, "fd42:1:0:1::2/128")

	_, err = n.try("CHECK", a, change(func(r *current.Result) {
		r.Interfaces[1].Mac = "02:00:00:00:00:01"
	}))
	wantError(t, err, types.ErrInternal, "no interface eth0")
	nettest.Sysctl(t, ns, "ipv6/conf/eth0/disable_ipv6", "1")
	_, err = n.try("CHECK", a, same)
	wantError(t, err, types.ErrInternal, "fd42:1:0:1::2")
	n.must("DEL", a, same)
	_, err = n.try("CHECK", a, same)
	wantError(t, err, types.ErrUnknownContainer)
}

func TestCheckSeesALostReservation(t *testing.T) {
	n := newNode(t)
	a, _ := newPod(t, "c1")
	out := n.must("ADD", a, conf("1.0.0", nil))
	n.Run(t, func() error { return os.RemoveAll(abi.IPAMDir) })
	_, err := n.try("CHECK", a, conf("1.0.0", object{"prevResult": raw(out)}))
	wantError(t, err, types.ErrInternal, "check reservation")
}
