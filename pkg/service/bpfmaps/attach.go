package bpfmaps

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/internal/bpfobj"
	"github.com/kubeveil/kubeveil/pkg/service/probe"
)

// socketHook is a program and its hook.
type socketHook struct {
	program string
	at      ebpf.AttachType
}

// socketHooks are in the order of attaching: the programs that translate replies come before those
// that translate requests.
var socketHooks = []socketHook{
	{"service_recvmsg4", ebpf.AttachCGroupUDP4Recvmsg},
	{"service_recvmsg6", ebpf.AttachCGroupUDP6Recvmsg},
	{"service_getpeername4", ebpf.AttachCgroupInet4GetPeername},
	{"service_getpeername6", ebpf.AttachCgroupInet6GetPeername},
	{"service_connect4", ebpf.AttachCGroupInet4Connect},
	{"service_connect6", ebpf.AttachCGroupInet6Connect},
	{"service_sendmsg4", ebpf.AttachCGroupUDP4Sendmsg},
	{"service_sendmsg6", ebpf.AttachCGroupUDP6Sendmsg},
}

// connectHooks are the hooks of Config.ConnectOnly.
var connectHooks = socketHooks[2:6]

// AttachSockets attaches the programs at sockets to the cgroup at path, pins the links, and returns
// what it changed. A program of another version, or one that reads the maps of an earlier table, is
// replaced within its link. A link to another cgroup is replaced by a link to this cgroup, which is
// attached before the other is removed. After an error the remaining hooks are unchanged, and
// another call continues. Errors match probe.ErrNoCgroup, bpfobj.ErrNotPermitted or
// bpfobj.ErrNotSupported.
func (t *Table) AttachSockets(path string) ([]string, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := t.copyFor(AtSockets); err != nil {
		return nil, fmt.Errorf("attach to sockets: %w", err)
	}
	group, err := openCgroup(path)
	if err != nil {
		return nil, fmt.Errorf("attach to sockets: %w", err)
	}
	defer group.Close()
	var changed []string
	for _, h := range t.hooks {
		did, err := t.attachSocket(group, h)
		if err != nil {
			return changed, probe.Explain(fmt.Errorf("attach %s to %s: %w", h.program, path, err))
		}
		if did != "" {
			t.log.Info("program at sockets changed", "program", h.program, "change", did)
			changed = append(changed, did+" "+h.program)
		}
	}
	return changed, t.Replaced(AtSockets)
}

func openCgroup(path string) (*os.File, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(path, &st); err != nil {
		return nil, fmt.Errorf("%w: %s: %w", probe.ErrNoCgroup, path, err)
	}
	if st.Type != unix.CGROUP2_SUPER_MAGIC {
		return nil, fmt.Errorf("%w: %s is on another file system", probe.ErrNoCgroup, path)
	}
	return os.Open(path)
}

// attachSocket attaches one program and returns what it changed; "" if it changed nothing.
func (t *Table) attachSocket(group *os.File, h socketHook) (string, error) {
	old, err := link.LoadPinnedLink(t.Pin(h.program), nil)
	if errors.Is(err, fs.ErrNotExist) {
		return "attached", t.newLink(group, h)
	}
	if err != nil {
		return "", fmt.Errorf("open pin: %w", err)
	}
	defer old.Close()
	info, err := old.Info()
	if err != nil {
		return "", fmt.Errorf("read link: %w", err)
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(group.Fd()), &st); err != nil {
		return "", err
	}
	// A cgroup has the inode number of its directory. A link whose cgroup is gone has number 0.
	if at := info.Cgroup(); at == nil || at.CgroupId != st.Ino ||
		ebpf.AttachType(at.AttachType) != h.at {
		return "attached elsewhere", t.newLink(group, h)
	}
	return t.updateLink(old, info.Program, t.progs[h.program])
}

func (t *Table) newLink(group *os.File, h socketHook) error {
	l, err := link.AttachRawLink(link.RawLinkOptions{Target: int(group.Fd()),
		Program: t.progs[h.program], Attach: h.at})
	if err != nil {
		return err
	}
	defer l.Close()
	return bpfobj.Repin(l, t.Pin(h.program))
}

// updateLink replaces the program with this number by prog, unless they are the same.
func (t *Table) updateLink(l link.Link, id ebpf.ProgramID, prog *ebpf.Program) (string, error) {
	old, err := ebpf.NewProgramFromID(id)
	if err != nil {
		return "", fmt.Errorf("open program %d: %w", id, err)
	}
	defer old.Close()
	if same, err := bpfobj.Same(old, prog); err != nil || same {
		return "", err
	}
	if err := t.TakeOver(old); err != nil {
		return "", err
	}
	if err := l.Update(prog); err != nil {
		return "", fmt.Errorf("update link: %w", err)
	}
	return "replaced", nil
}
