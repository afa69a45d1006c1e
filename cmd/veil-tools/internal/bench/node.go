package bench

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/vishvananda/netlink"

	"github.com/kubeveil/kubeveil/pkg/abi"
	"github.com/kubeveil/kubeveil/pkg/bench/load"
	"github.com/kubeveil/kubeveil/pkg/bench/session"
	"github.com/kubeveil/kubeveil/pkg/leak"
)

// node is the part of a session that watches and changes its node.
type node struct {
	watching *leak.Oracle
	// bare is the namespace of the bare device, or nil without one.
	bare *os.File
}

func (n *node) close() {
	if n.watching != nil {
		_, _ = n.watching.Stop()
	}
	_ = n.dropBare()
}

// daemon is the name of Kubeveil's network daemon.
const daemon = "veild"

func (n *node) count(context.Context, struct{}) (any, error) {
	busy, err := load.Busy()
	if err != nil {
		return nil, err
	}
	c := session.Counters{Busy: busy, Sent: map[string]uint64{}}
	if err := sent(c.Sent); err != nil {
		return nil, err
	}
	if n.bare != nil {
		if err := n.inBare(func() error { return sent(c.Sent) }); err != nil {
			return nil, err
		}
	}
	pid, err := processNamed(daemon)
	if pid == 0 || err != nil {
		return c, err
	}
	if c.DaemonCPU, err = load.ProcessCPU(pid); err != nil {
		return nil, fmt.Errorf("%s: %w", daemon, err)
	}
	if c.DaemonMiB, err = load.ResidentMiB(pid); err != nil {
		return nil, fmt.Errorf("%s: %w", daemon, err)
	}
	return c, nil
}

// sent adds the bytes that each link of this namespace has sent to the entry of its name. Links of
// the bare device's namespace have other names than the node's links, except lo.
func sent(to map[string]uint64) error {
	links, err := netlink.LinkList()
	if err != nil {
		return fmt.Errorf("list links: %w", err)
	}
	for _, l := range links {
		if s := l.Attrs().Statistics; s != nil {
			to[l.Attrs().Name] += s.TxBytes
		}
	}
	return nil
}

// processNamed returns the lowest pid of the processes with that name, or 0 if there is none.
func processNamed(name string) (int, error) {
	paths, err := filepath.Glob("/proc/[0-9]*/comm")
	if err != nil {
		return 0, err
	}
	found := 0
	for _, path := range paths {
		b, err := os.ReadFile(path)
		if err != nil || string(bytes.TrimSpace(b)) != name {
			continue
		}
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(path)))
		if err == nil && (found == 0 || pid < found) {
			found = pid
		}
	}
	return found, nil
}

// watch starts a leak oracle on a link of this node. See judge.
func (n *node) watch(_ context.Context, w session.Watch) (any, error) {
	if n.watching != nil {
		return nil, errors.New("the node is already watched")
	}
	o, err := leak.Start("/proc/self/ns/net", leak.Rules{Inner: w.Ranges, Nodes: w.Nodes,
		TunnelPort: abi.TunnelPort, Canary: []byte(w.Canary)})
	if err != nil {
		return nil, err
	}
	if err := o.Watch(w.Link); err != nil {
		_, end := o.Stop()
		return nil, errors.Join(err, end)
	}
	n.watching = o
	return struct{}{}, nil
}

func (n *node) judge(context.Context, struct{}) (any, error) {
	if n.watching == nil {
		return nil, errors.New("nothing is watched")
	}
	seen, err := n.watching.Stop()
	n.watching = nil
	if err != nil {
		return nil, err
	}
	j := session.Judgement{Frames: seen.Frames, Plaintext: seen.Plaintext, Dropped: seen.Dropped}
	for _, e := range seen.Examples {
		if e.Kind.Leak() {
			j.Examples = append(j.Examples, strings.TrimSpace(e.String()))
		}
	}
	return j, nil
}
