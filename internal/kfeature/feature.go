package kfeature

import (
	"errors"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/features"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
)

// Feature is a feature of the kernel.
type Feature struct {
	// What names the feature. Since is the first release of Linux that has it.
	What, Since string

	probe func() error
}

// Has reports whether the kernel has the feature. An error means that the probe failed.
func (f Feature) Has() (bool, error) {
	err := f.probe()
	if errors.Is(err, ebpf.ErrNotSupported) || errors.Is(err, unix.EINVAL) ||
		errors.Is(err, unix.ENOPROTOOPT) {
		return false, nil
	}
	return err == nil, err
}

// The features, in the order of their releases.
var (
	SocketStorage = Feature{"storage of sockets in BPF maps", "5.3",
		func() error { return helper(asm.FnSkStorageGet) }}
	HashBatches = Feature{"batches of hash maps", "5.6",
		func() error { return batch(ebpf.Hash) }}
	Getpeername       = Feature{"programs at getpeername", "5.8", getpeername}
	NetnsCookieHelper = Feature{"cookies of network namespaces", "5.8",
		func() error { return helper(asm.FnGetNetnsCookie) }}
	TrieBatches = Feature{"batches of tries", "5.13",
		func() error { return batch(ebpf.LPMTrie) }}
	NetnsCookieOption = Feature{"SO_NETNS_COOKIE", "5.14", netnsCookie}
	SetRetval         = Feature{"bpf_set_retval", "5.18",
		func() error { return helper(asm.FnSetRetval) }}
	TCX = Feature{"tcx", "6.6", tcx}
)

// helper probes a BPF helper of programs at the socket calls of a cgroup.
func helper(f asm.BuiltinFunc) error {
	return features.HaveProgramHelper(ebpf.CGroupSockAddr, f)
}

// batch probes batch operations of a kind of map: it writes a batch to a map of one entry.
func batch(kind ebpf.MapType) error {
	m, err := ebpf.NewMap(&ebpf.MapSpec{Type: kind, KeySize: 8, ValueSize: 4, MaxEntries: 1,
		Flags: unix.BPF_F_NO_PREALLOC})
	if err != nil {
		return err
	}
	defer m.Close()
	_, err = m.BatchUpdate([]uint64{0}, []uint32{0}, nil)
	return err
}

func getpeername() error {
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Type: ebpf.CGroupSockAddr, AttachType: ebpf.AttachCgroupInet4GetPeername,
		License:      "Dual BSD/GPL",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 1), asm.Return()},
	})
	if err != nil {
		return err
	}
	return p.Close()
}

func netnsCookie() error {
	_, err := NetnsCookie()
	return err
}

// NetnsCookie returns the cookie of the calling thread's network namespace. BPF programs compare it
// with the cookie of a socket.
func NetnsCookie() (uint64, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, err
	}
	defer unix.Close(fd)
	return unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
}

// loIndex is the index of lo in every network namespace (LOOPBACK_IFINDEX, include/net/flow.h).
const loIndex = 1

// tcx probes tcx: it lists the programs of lo.
func tcx() error {
	_, err := link.QueryPrograms(link.QueryOptions{Target: loIndex, Attach: ebpf.AttachTCXIngress})
	return err
}
