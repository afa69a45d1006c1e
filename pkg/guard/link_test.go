package guard

import (
	"net"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"

	"github.com/kubeveil/kubeveil/internal/nl"
	"github.com/kubeveil/kubeveil/pkg/abi"
)

// foreign loads a program that stands in for a program of another owner. It returns the value of r0
// after insns.
func foreign(name string, insns ...asm.Instruction) (*ebpf.Program, error) {
	return ebpf.NewProgram(&ebpf.ProgramSpec{
		Name: name, Type: ebpf.SchedCLS, License: "GPL", Instructions: append(insns, asm.Return()),
	})
}

// attachTCX attaches at the head of a hook.
func attachTCX(index int, hook Hook, prog *ebpf.Program) error {
	return link.RawAttachProgram(link.RawAttachProgramOptions{Target: index, Program: prog,
		Attach: hook.TCX(), Anchor: link.Head()})
}

// redirect redirects every packet that arrives on the link from to the link to. It puts from into
// the group of pods' links, which the guard skips.
func redirect(hk hooks, from, to string) error {
	b, err := net.InterfaceByName(to)
	if err != nil {
		return err
	}
	if err := setGroup(from, abi.PodGroup); err != nil {
		return err
	}
	prog, err := foreign("redirect", asm.Mov.Imm(asm.R1, int32(b.Index)), asm.Mov.Imm(asm.R2, 0),
		asm.FnRedirect.Call())
	if err != nil {
		return err
	}
	defer prog.Close()
	return nl.OnLink(from, func(h *nl.Handle, a nl.Link) error {
		return hk.Attach(h, a.Attrs().Index, Ingress, "redirect", prog)
	})
}

func setGroup(name string, group uint32) error {
	return nl.OnLink(name, func(h *nl.Handle, l nl.Link) error {
		return h.LinkSetGroup(l, int(group))
	})
}

func setMTU(name string, mtu int) error {
	return nl.OnLink(name, func(h *nl.Handle, l nl.Link) error { return h.LinkSetMTU(l, mtu) })
}

// refuseOnePiece drops packets that leave by a link and have their IP header in the linear part of
// the skb. If a packet still arrives, its header was in a fragment of the skb.
func refuseOnePiece(name string) error {
	ifi, err := net.InterfaceByName(name)
	if err != nil {
		return err
	}
	const data, dataEnd = 76, 80 // in struct __sk_buff
	prog, err := foreign("refuse",
		asm.Mov.Imm(asm.R0, -1),
		asm.LoadMem(asm.R2, asm.R1, data, asm.Word), asm.LoadMem(asm.R3, asm.R1, dataEnd, asm.Word),
		asm.Add.Imm(asm.R2, 14+20), asm.JGT.Reg(asm.R2, asm.R3, "end"),
		asm.Mov.Imm(asm.R0, 2), asm.Mov.Imm(asm.R4, 0).WithSymbol("end"))
	if err != nil {
		return err
	}
	defer prog.Close()
	return attachTCX(ifi.Index, Egress, prog)
}
