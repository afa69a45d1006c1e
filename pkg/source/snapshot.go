package source

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/netip"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/internal/atomicfile"
	"github.com/kubeveil/kubeveil/pkg/cluster"
	"github.com/kubeveil/kubeveil/pkg/wgkey"
)

// Schema names the format of a snapshot.
const Schema = "kubeveil.io/snapshot/v1"

// MaxSnapshot bounds a snapshot file with its journal, bytes: some 100,000 nodes.
const MaxSnapshot = 64 << 20

// ErrCorrupt matches the errors of snapshots that exist and cannot be used.
var ErrCorrupt = errors.New("snapshot cannot be used")

// document is a snapshot. It begins the file; a journal may follow.
type document struct {
	Schema string         `json:"schema"`
	Table  *cluster.Table `json:"table"`
}

// Encode returns the content of a snapshot file with the table t, without a journal.
func Encode(t cluster.Table) ([]byte, error) {
	b, err := json.Marshal(document{Schema, &t})
	if err != nil {
		return nil, fmt.Errorf("encode snapshot: %w", err)
	}
	return append(b, '\n'), nil
}

// Parse parses the content of a snapshot file, which may be written by hand, and returns the table
// after the last change of its journal. It drops a last record whose end is missing. It ignores
// unknown fields, because a newer version may have written them. Its errors match ErrCorrupt: other
// schemas, bytes behind the document that are not its journal, and values that no table can have.
func Parse(text []byte) (cluster.Table, error) {
	dec := json.NewDecoder(bytes.NewReader(text))
	var d document
	if err := dec.Decode(&d); err != nil {
		return cluster.Table{}, fmt.Errorf("%w: %w", ErrCorrupt, err)
	}
	if d.Schema != Schema {
		return cluster.Table{}, fmt.Errorf("%w: its schema is %q, not %q", ErrCorrupt, d.Schema,
			Schema)
	}
	if d.Table == nil {
		return cluster.Table{}, fmt.Errorf("%w: it has no table", ErrCorrupt)
	}
	if err := check(*d.Table); err != nil {
		return cluster.Table{}, fmt.Errorf("%w: %w", ErrCorrupt, err)
	}

	t, err := replay(*d.Table, dec, text)
	if err == nil {
		err = check(t)
	}
	if err != nil {
		return cluster.Table{}, fmt.Errorf("%w: %w", ErrCorrupt, err)
	}
	return t, nil
}

// check returns an error about values that a table cannot have. It does not check for conflicts
// between nodes, because cluster.Resolve handles them later.
func check(t cluster.Table) error {
	seen := map[string]bool{}
	for _, n := range nodes(t) {
		if n.Name == "" {
			return errors.New("a node has no name")
		}
		if seen[n.Name] {
			return fmt.Errorf("node %s is in it twice", n.Name)
		}
		seen[n.Name] = true
		if err := checkNode(n); err != nil {
			return fmt.Errorf("node %s: %w", n.Name, err)
		}
	}
	return checkAddrs(append(t.NodeAddrs[:len(t.NodeAddrs):len(t.NodeAddrs)], t.APIServers...))
}

func checkNode(n cluster.Node) error {
	if err := checkAddrs(slices.Concat(n.Addresses, n.Contested)); err != nil {
		return err
	}
	prefixes := n.PodPrefixes
	if c := n.Claim; c != nil {
		prefixes = append(prefixes[:len(prefixes):len(prefixes)], c.PodPrefixes...)
		for _, k := range c.Keys {
			if k.Public == (wgkey.Public{}) {
				return fmt.Errorf("the key of epoch %d is zero", k.Epoch)
			}
		}
		for _, e := range c.Endpoints {
			if !e.IsValid() || e.Port() == 0 {
				return fmt.Errorf("the endpoint %s is not an address and a port", e)
			}
		}
	}
	for _, p := range prefixes {
		if !p.IsValid() || p != p.Masked() {
			return fmt.Errorf("the pod prefix %s is malformed", p)
		}
	}
	return nil
}

func checkAddrs(addrs []netip.Addr) error {
	for _, a := range addrs {
		if !a.IsValid() || a.Zone() != "" || a.Is4In6() {
			return fmt.Errorf("the address %q is malformed", a)
		}
	}
	return nil
}

// nodes returns all nodes of t.
func nodes(t cluster.Table) []cluster.Node {
	var all []cluster.Node
	if t.Self != nil {
		all = append(all, *t.Self)
	}
	all = append(all, t.Peers...)
	return append(all, t.Keyless...)
}

// StateOf returns a synced State with the claims in t. Each address in t.NodeAddrs that belongs to
// no node of t becomes a separate node without a key, so that the address stays unreachable. Such a
// node is younger than all others.
func StateOf(t cluster.Table) cluster.State {
	s := cluster.State{Revision: t.Revision, Synced: true, Nodes: nodes(t),
		APIServers: t.APIServers, RangesListed: true}
	for _, r := range t.ServiceRanges {
		s.ServiceRanges = append(s.ServiceRanges, cluster.ServiceRange{Name: "of the snapshot",
			Prefix: r})
	}
	// An address that two nodes contest belongs to no node.
	claims := map[netip.Addr]int{}
	for _, n := range s.Nodes {
		for _, a := range n.Addresses {
			claims[a] += 2
		}
		for _, a := range n.Contested {
			claims[a]++
		}
	}
	for _, a := range t.NodeAddrs {
		if claims[a] < 2 {
			s.Nodes = append(s.Nodes, cluster.Node{Name: "address:" + a.String(), Created: youngest,
				Addresses: []netip.Addr{a}})
		}
	}
	return s
}

// Read reads the snapshot at path. The error matches fs.ErrNotExist if there is no file,
// atomicfile.ErrOnDisk if it is on a disk and trustDisk is false, and ErrCorrupt if its content
// cannot be used. Read never changes the file.
func Read(path string, trustDisk bool) (cluster.Table, error) {
	text, err := readFile(path, trustDisk)
	if err != nil {
		return cluster.Table{}, err
	}
	t, err := Parse(text)
	if err != nil {
		return cluster.Table{}, fmt.Errorf("%s: %w", path, err)
	}
	return t, nil
}

// CorruptSuffix is the suffix of the name of a snapshot that MoveAside moved.
const CorruptSuffix = ".corrupt"

// MoveAside renames the snapshot at path and returns its new name. A new snapshot can then be
// written, and the operator can examine the old one. It replaces a snapshot that was moved before.
func MoveAside(path string) (aside string, err error) {
	aside = path + CorruptSuffix
	if err := os.Rename(path, aside); err != nil {
		return "", fmt.Errorf("move the snapshot aside: %w", err)
	}
	return aside, nil
}

// Check returns an error if veild could not keep a snapshot at path. It changes nothing. It accepts
// a missing file, and also a corrupt file, which veild moves aside.
func Check(path string, trustDisk bool) error {
	_, err := Read(path, trustDisk)
	switch {
	case errors.Is(err, ErrCorrupt):
		return nil
	case !errors.Is(err, fs.ErrNotExist):
		return err
	case trustDisk:
		return nil
	}
	return requireMemory(path)
}

func readFile(path string, trustDisk bool) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if errors.Is(err, unix.ELOOP) {
		return nil, fmt.Errorf("%w: %s is a symbolic link; name the file itself", ErrCorrupt, path)
	}

	if err != nil {
		return nil, fmt.Errorf("snapshot: %w", err)
	}
	defer f.Close()
	if !trustDisk {
		if err := requireMemory(path); err != nil {
			return nil, err
		}
	}

	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return nil, fmt.Errorf("stat snapshot %s: %w", path, err)
	}

	switch {
	case st.Mode&unix.S_IFMT != unix.S_IFREG:
		return nil, fmt.Errorf("%w: %s is not a regular file", ErrCorrupt, path)
	case st.Uid != 0 && int(st.Uid) != os.Geteuid() || st.Mode&0o022 != 0:
		return nil, fmt.Errorf("%w: %s can be written by others (user %d, mode %04o): check it, "+
			"then chown it to this user and chmod 0600",
			ErrCorrupt, path, st.Uid, st.Mode&0o7777)
	case st.Size > MaxSnapshot:
		return nil, fmt.Errorf("%w: %s is larger than %d bytes, more than any snapshot: "+
			"move it away", ErrCorrupt, path, MaxSnapshot)
	}

	// A file that has grown since the check is truncated here, so that Parse refuses it.
	text, err := io.ReadAll(io.LimitReader(f, MaxSnapshot))
	if err != nil {
		return nil, fmt.Errorf("read snapshot %s: %w", path, err)
	}

	return text, nil
}

func requireMemory(path string) error {
	if err := atomicfile.RequireMemory(path); err != nil {
		return fmt.Errorf("snapshot: %w: the disk's owner could choose peers' keys: use a "+
			"tmpfs such as /run, or set trustDisk if it is yours", err)
	}
	return nil
}
