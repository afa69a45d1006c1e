package podtest

import (
	"errors"
	"fmt"
	"runtime"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/nettest"
)

// Sockets counts the nfnetlink sockets that a thread opens. It counts system calls, so it does not
// matter which package opens the sockets.
type Sockets struct{ state *ebpf.Map }

// socketState is the value of Sockets.state.
type socketState struct{ Thread, Opened uint64 }

// CountSockets attaches the counter until the test ends. Call it in the initial mount namespace. It
// skips the test if the kernel cannot trace system calls.
func CountSockets(t testing.TB) *Sockets {
	t.Helper()
	state, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: 16,
		MaxEntries: 1})
	errtest.Must(t, err)
	t.Cleanup(func() { state.Close() })
	code, err := countSocket(state.FD())
	errtest.Must(t, err)
	prog, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.TracePoint, License: "GPL",
		Instructions: code})
	errtest.Must(t, err)
	t.Cleanup(func() { prog.Close() })

	l, err := trace(prog)
	if err != nil {
		nettest.Skip(t, nettest.NoKernelFeature, "trace socket(2): "+err.Error())
	}
	t.Cleanup(func() { l.Close() })
	return &Sockets{state}
}

// trace attaches the program from a new mount namespace in which it mounts tracefs, because not
// every machine has it mounted.
func trace(prog *ebpf.Program) (l link.Link, err error) {
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		runtime.LockOSThread() // The thread ends with the goroutine, and its mounts with it.
		const tracing = "/sys/kernel/tracing"
		if err = unix.Unshare(unix.CLONE_NEWNS); err != nil {
			return
		}
		if err = unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
			return
		}
		if err = unix.Mount("tracefs", tracing, "tracefs", 0, ""); err == nil ||
			errors.Is(err, unix.EBUSY) {
			l, err = link.Tracepoint("syscalls", "sys_enter_socket", prog, nil)
		}
	}()
	<-ended
	return l, err
}

// Of returns the number of sockets that f opens on the calling thread. The caller has called
// runtime.LockOSThread.
func (s *Sockets) Of(f func() error) (int, error) {
	state := socketState{Thread: uint64(unix.Gettid())}
	if err := s.state.Put(uint32(0), state); err != nil {
		return 0, err
	}
	if err := f(); err != nil {
		return 0, err
	}
	err := s.state.Lookup(uint32(0), &state)
	return int(state.Opened), err
}

// countSocket returns the BPF program of the counter. The arguments of the system call begin at
// offset 16 and have 8 bytes each (/sys/kernel/tracing/events/syscalls/sys_enter_socket/format).
func countSocket(stateFD int) (asm.Instructions, error) {
	const family, protocol = 16, 32
	const info = -8 // struct bpf_pidns_info on the stack; its first field is the thread
	var ns unix.Stat_t
	if err := unix.Stat("/proc/self/ns/pid", &ns); err != nil {
		return nil, fmt.Errorf("find the PID namespace: %w", err)
	}
	return asm.Instructions{
		asm.Mov.Reg(asm.R6, asm.R1),
		asm.LoadMapValue(asm.R7, stateFD, 0),

		asm.LoadImm(asm.R1, int64(ns.Dev), asm.DWord),
		asm.LoadImm(asm.R2, int64(ns.Ino), asm.DWord),
		asm.Mov.Reg(asm.R3, asm.RFP),
		asm.Add.Imm(asm.R3, info),
		asm.Mov.Imm(asm.R4, 8),
		asm.FnGetNsCurrentPidTgid.Call(),
		asm.JNE.Imm(asm.R0, 0, "end"),
		asm.LoadMem(asm.R1, asm.RFP, info, asm.Word),
		asm.LoadMem(asm.R2, asm.R7, 0, asm.DWord),
		asm.JNE.Reg(asm.R1, asm.R2, "end"),

		asm.LoadMem(asm.R1, asm.R6, family, asm.DWord),
		asm.JNE.Imm(asm.R1, unix.AF_NETLINK, "end"),
		asm.LoadMem(asm.R1, asm.R6, protocol, asm.DWord),
		asm.JNE.Imm(asm.R1, unix.NETLINK_NETFILTER, "end"),
		asm.Mov.Imm(asm.R1, 1),
		asm.Add.Imm(asm.R7, 8),
		asm.StoreXAdd(asm.R7, asm.R1, asm.DWord),

		asm.Mov.Imm(asm.R0, 0).WithSymbol("end"),
		asm.Return(),
	}, nil
}
