// Package podtest prepares a namespace as veild leaves a node: the pins, the nft tables, the rules,
// the closed ranges and the marker. There is no daemon, and the pinned BPF programs let every
// packet pass. Only tests import it.
package podtest

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/google/nftables"
	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/internal/nft"
	"github.com/kubeveil/kubeveil/internal/nl"
	"github.com/kubeveil/kubeveil/pkg/abi"
	"github.com/kubeveil/kubeveil/pkg/cluster"
)

// Ready prepares the calling thread's network and mount namespace, so that pods can be attached.
// ranges are the cluster ranges. bpfDir must be on a bpffs.
func Ready(bpfDir, readyFile string, ranges ...netip.Prefix) error {
	for _, step := range []func() error{
		func() error { return Pin(bpfDir) },
		Guard,
		func() error { return Routes(ranges...) },
		func() error { return Mark(readyFile, ranges...) },
	} {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

// Pin pins the guard's programs, which let every packet pass, in dir.
func Pin(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	for _, name := range []string{abi.PinGuardIngress, abi.PinGuardEgress} {
		if err := PinProgram(filepath.Join(dir, name), name); err != nil {
			return err
		}
	}
	return nil
}

// PinProgram pins a program called name, which lets every packet pass, at path.
func PinProgram(path, name string) error {
	const next = -1 // TCX_NEXT, TC_ACT_UNSPEC
	prog, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Name: name, Type: ebpf.SchedCLS, License: "GPL",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, next), asm.Return()},
	})
	if err != nil {
		return fmt.Errorf("load program %s: %w", name, err)
	}
	defer prog.Close()
	return prog.Pin(path)
}

// Guard makes the guard's nft table without content, and the table of pods with its chain and sets
// but without rules.
func Guard() error {
	return errors.Join((&nft.Table{Name: abi.NFTGuardTable}).Replace(), pods(nftables.TypeIFName, 0))
}

// Full replaces the table of pods by one whose sets can hold only one element.
func Full() error { return pods(nftables.TypeIFName, 1) }

// Foreign replaces the table of pods by one whose sets have another key type.
func Foreign() error { return pods(nftables.TypeIPAddr, 0) }

// pods replaces the table of pods. The keys of its sets consist of a value of type first and an
// address. size bounds the number of elements; 0 means no limit.
func pods(first nftables.SetDatatype, size uint32) error {
	t := &nft.Table{Name: abi.NFTPodTable, Chains: []nft.Chain{nft.Base(abi.NFTPodChain,
		nftables.ChainTypeFilter, nftables.ChainHookPrerouting, *nftables.ChainPriorityRaw)}}
	for name, addr := range map[string]nftables.SetDatatype{abi.NFTPodSet4: nftables.TypeIPAddr,
		abi.NFTPodSet6: nftables.TypeIP6Addr} {
		t.Sets = append(t.Sets, nft.Set{Set: nftables.Set{Name: name, Concatenation: true,
			KeyType: nftables.MustConcatSetType(first, addr), Size: size}})
	}
	return t.Replace()
}

// Unguard deletes the nft table of pods.
func Unguard() error {
	_, err := nft.Delete(abi.NFTPodTable)
	return err
}

// Routes adds the rules of both families and the closed ranges.
func Routes(ranges ...netip.Prefix) error {
	h, err := nl.Open()
	if err != nil {
		return err
	}
	defer h.Close()
	for _, family := range []int{nl.FamilyV4, nl.FamilyV6} {
		for _, r := range Rules(family) {
			if err := h.RuleAdd(r); err != nil {
				return fmt.Errorf("add rule %d: %w", r.Priority, err)
			}
		}
	}
	for _, p := range ranges {
		if err := h.RouteAdd(Closed(p)); err != nil {
			return fmt.Errorf("close range %s: %w", p, err)
		}
	}
	return nil
}

// Rules returns the rules of a family that the gate checks.
func Rules(family int) []*nl.Rule {
	var rules []*nl.Rule
	for _, w := range []struct {
		pref, table int
		mark        uint32
	}{{abi.RulePrefTunnel, unix.RT_TABLE_MAIN, abi.TunnelMark},
		{abi.RulePrefPod, abi.TablePod, abi.PodMark}} {
		r := nl.NewRule()
		r.Family, r.Priority, r.Table, r.Mark, r.Mask = family, w.pref, w.table, w.mark, &w.mark
		rules = append(rules, r)
	}
	return rules
}

// Closed returns the unreachable route of a cluster range.
func Closed(p netip.Prefix) *nl.Route {
	return &nl.Route{
		Dst:   nl.IPNet(p),
		Table: abi.TablePod, Protocol: abi.RouteProtoNode, Type: unix.RTN_UNREACHABLE,
		Priority: abi.MetricRange,
	}
}

// Mark writes veild's marker to path, for the families of the ranges.
func Mark(path string, ranges ...netip.Prefix) error {
	boot, err := abi.BootID()
	if err != nil {
		return err
	}
	var families cluster.Families
	for _, p := range ranges {
		families.V4 = families.V4 || p.Addr().Is4()
		families.V6 = families.V6 || p.Addr().Is6()
	}
	return abi.WriteMarker(path, abi.Marker{BootID: boot, Families: families})
}
