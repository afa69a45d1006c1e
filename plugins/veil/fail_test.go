package main

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/kubeveil/kubeveil/internal/filetest"
	"github.com/kubeveil/kubeveil/internal/nettest"
	"github.com/kubeveil/kubeveil/pkg/abi"
	"github.com/kubeveil/kubeveil/pkg/pod"
	"github.com/kubeveil/kubeveil/pkg/pod/podtest"
)

// TestAddThatFailsAtAnyStepLeavesNothing removes a precondition of each step of ADD. Tests of
// pkg/pod make each step inside pod.Attach fail.
func TestAddThatFailsAtAnyStepLeavesNothing(t *testing.T) {
	empty := t.TempDir()
	for _, tt := range []struct {
		name    string
		prepare func(n *node, ns *nettest.NS) error
		path    string
		subnet  string
		other   bool // whether another pod is there, which must stay
		want    string
	}{
		{name: "no IPAM plugin", path: empty, want: "find IPAM plugin host-local"},
		{name: "no address left", subnet: "198.18.1.0/30", other: true, want: "reserve addresses"},
		{name: "no room for the record", want: "look for record",
			prepare: func(n *node, _ *nettest.NS) error {
				if err := os.RemoveAll(abi.PodDir); err != nil {
					return err
				}
				return os.WriteFile(abi.PodDir, nil, 0o600)
			}},
		{name: "interface exists in the pod", want: "eth0 in the pod",
			prepare: func(_ *node, ns *nettest.NS) error {
				return podtest.AddLink(ns.Fd(), "eth0")
			}},
		{name: "the sets of pods are something else",
			want:    "write nft table inet kubeveil_pods",
			prepare: func(*node, *nettest.NS) error { return podtest.Foreign() }},
		{name: "a set of pods is full", other: true,
			want:    "write nft table inet kubeveil_pods",
			prepare: func(*node, *nettest.NS) error { return podtest.Full() }},
		{name: "IPv6 is off on the node", want: "set neighbour fd42:",
			prepare: func(n *node, _ *nettest.NS) error {
				return os.WriteFile("/proc/sys/net/ipv6/conf/default/disable_ipv6", []byte("1"),
					0o644)
			}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			n := newNode(t)
			subnet := "198.18.1.0/24"
			if tt.subnet != "" {
				subnet = tt.subnet
			}

			c := conf("1.0.0", object{"ipam": ipamOf("fd42:1:0:1::/64", subnet)})
			a, ns := newPod(t, "c1")
			if tt.prepare != nil {
				n.Run(t, func() error { return tt.prepare(n, ns) })
			}

			if tt.other { // takes the last address, or the last place
				other, _ := newPod(t, "other")
				n.must("ADD", other, c)
			}

			before := n.leftovers()
			_, err := n.run(call{verb: "ADD", att: a, conf: c, path: tt.path})
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("ADD = %v, want something with %q", err, tt.want)
			}
			if after := n.leftovers(); !slices.Equal(before, after) {
				t.Errorf("before ADD %q, after it failed %q", before, after)
			}
		})
	}
}

// spy is a script that runs host-local, and at DEL records the pod links that exist.
const spy = `#!/bin/sh
if [ "$CNI_COMMAND" = DEL ]; then
	if grep -q vpod /proc/net/dev; then echo present; else echo gone; fi >> %s
fi
exec %s
`

func TestAddressIsReleasedOnlyAfterTheLinkIsGone(t *testing.T) {
	n := newNode(t)
	dir := t.TempDir()
	notes := filepath.Join(dir, "notes")
	script := fmt.Sprintf(spy, notes, filepath.Join(binDir, "host-local"))
	filetest.Write(t, filepath.Join(dir, "host-local"), []byte(script), 0o755)
	c := conf("1.1.0", nil)
	a, _ := newPod(t, "c1")
	verbs := []struct {
		verb string
		conf []byte
	}{{"DEL", c}, {"GC", conf("1.1.0", object{"cni.dev/valid-attachments": []any{}})}}
	for _, v := range verbs {
		n.must("ADD", a, c)
		if _, err := n.run(call{verb: v.verb, att: a, conf: v.conf, path: dir}); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(notes)
	if err != nil || string(got) != "gone\ngone\n" {
		t.Errorf("links at release: %q, %v; want gone at DEL and at GC", got, err)
	}
	n.wantNothing()
}

func TestAddressOfALinkThatStaysIsKept(t *testing.T) {
	n := newNode(t)
	c := conf("1.0.0", nil)
	a, _ := newPod(t, "c1")
	n.must("ADD", a, c)
	lock := filepath.Join(abi.PodDir,
		".lock-"+pod.HostLink(a.id, a.ifName)[len(abi.PodLinkPrefix):][:2])
	n.Run(t, func() error { return errors.Join(os.Remove(lock), os.Mkdir(lock, 0o700)) })
	if _, err := n.try("DEL", a, c); err == nil || !strings.Contains(err.Error(), "lock of vpod") {
		t.Errorf("DEL with a lock that cannot be opened = %v", err)
	}
	reserved := slices.ContainsFunc(n.leftovers(),
		func(s string) bool { return strings.HasSuffix(s, "/198.18.1.2") })
	if !reserved {
		t.Error("address was released by a DEL that failed")
	}
	n.Run(t, func() error { return os.Remove(lock) })
	n.must("DEL", a, c)
	n.wantNothing()
}

func TestGC(t *testing.T) {
	n := newNode(t)
	c := conf("1.1.0", nil)
	other := conf("1.1.0", object{"name": "another", "ipam": ipamOf("198.18.2.0/24")})
	add := func(id string, conf []byte) attachment {
		a, _ := newPod(t, id)
		n.must("ADD", a, conf)
		return a
	}
	keep := add("keep", c)
	theirs := add("theirs", other)

	add("orphan", c)
	unrecorded := add("unrecorded", c)
	foreign := []string{"foreign0", "vpodforeign"}
	leak := filepath.Join(abi.IPAMDir, "kubeveil", "198.18.1.99")
	n.Run(t, func() error {
		for _, name := range foreign {
			if err := podtest.AddLink(n.Fd(), name); err != nil {
				return err
			}
		}
		if err := os.Remove(filepath.Join(abi.PodDir, pod.HostLink(unrecorded.id, "eth0")+
			".json")); err != nil {
			return err
		}
		return os.WriteFile(leak, []byte("leaked\r\neth0"), 0o600)
	})

	valid := object{"cni.dev/valid-attachments": []any{object{"containerID": keep.id,
		"ifname": "eth0"}}}
	for range 2 {
		n.must("GC", attachment{}, conf("1.1.0", valid))
		n.wantLeft(keep, theirs)
	}

	n.Run(t, func() error {
		for _, name := range foreign {
			if _, err := podtest.LinkIndex(name); err != nil {
				return fmt.Errorf("foreign link: %w", err)
			}
		}
		return nil
	})

	_, err := n.try("GC", attachment{}, c)
	wantError(t, err, 7, "cni.dev/valid-attachments")
	n.wantLeft(keep, theirs)
	n.must("GC", attachment{}, conf("1.1.0", object{"cni.dev/attachments": raw([]byte("null"))}))
	n.wantLeft(theirs)
	n.must("DEL", theirs, other)
	n.wantNothing()
}

// wantLeft fails the test unless exactly these attachments are on the node.
func (n *node) wantLeft(want ...attachment) {
	n.t.Helper()
	var links []string
	reserved := 0
	for _, line := range n.leftovers() {
		if name, ok := strings.CutPrefix(line, "link "); ok {
			links = append(links, name)
		}
		if strings.Contains(line, abi.IPAMDir) {
			reserved++
		}
	}

	var wantLinks []string
	wantReserved := 0
	for _, a := range want {
		wantLinks = append(wantLinks, pod.HostLink(a.id, a.ifName))
		wantReserved += map[bool]int{true: 1, false: 2}[a.id == "theirs"]
	}

	slices.Sort(links)
	slices.Sort(wantLinks)
	if !slices.Equal(links, wantLinks) || reserved != wantReserved {
		n.t.Errorf("links %v and %d reservations, want %v and %d", links, reserved, wantLinks,
			wantReserved)
	}

	var records []pod.Record
	n.Run(n.t, func() (err error) {
		records, err = n.paths.List()
		return err
	})
	if len(records) != len(want) {
		n.t.Errorf("records %v, want those of %v", records, want)
	}
}

// TestIPv6NeedsItsMTU checks that ADD refuses an MTU that is too small for IPv6 before it reserves
// addresses.
func TestIPv6NeedsItsMTU(t *testing.T) {
	n := newNode(t)
	a, _ := newPod(t, "c1")
	_, err := n.try("ADD", a, conf("1.0.0", object{"mtu": 1279}))
	wantError(t, err, 7, "1280", netip.MustParsePrefix("fd42:1:0:1::/64").String())
	n.wantNothing()
	n.must("ADD", a, conf("1.0.0", object{"mtu": 1279, "ipam": ipamOf("198.18.1.0/24")}))
}
