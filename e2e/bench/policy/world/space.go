package world

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/kubeveil/kubeveil/internal/netns"
	"github.com/kubeveil/kubeveil/pkg/abi"
	"github.com/kubeveil/kubeveil/pkg/pod"
	"github.com/kubeveil/kubeveil/pkg/policy"
	"github.com/kubeveil/kubeveil/pkg/policy/nftables"
)

// Space is a network namespace that ends when its descriptor is closed.
type Space struct{ f *os.File }

// NewSpace makes a network namespace.
func NewSpace() (*Space, error) {
	f, err := netns.New()
	if err != nil {
		return nil, err
	}
	return &Space{f}, nil
}

// Fd returns its descriptor, which the Space owns.
func (s *Space) Fd() int { return int(s.f.Fd()) }

// Do calls fn on a thread in the namespace.
func (s *Space) Do(fn func() error) error {
	return netns.DoFd(int(s.f.Fd()), "of bench-policy", fn)
}

// Close deletes the table of policies and then closes the namespace. Otherwise the kernel would
// free the table in the background, while the next part is measured.
func (s *Space) Close() error { return errors.Join(s.Do(nftables.Delete), s.f.Close()) }

// RecordOf returns the record of p, which is pod i of this node.
func RecordOf(p policy.Pod, i int) pod.Record {
	id := fmt.Sprintf("%064d", i)
	return pod.Record{Network: abi.NetworkName, ContainerID: id, IfName: "eth0",
		Netns: "/proc/self/ns/net", HostLink: pod.HostLink(id, "eth0"), Addrs: Addrs(0,
			i), MTU: 1420,
		Workload: pod.Workload{Namespace: p.Namespace, Name: p.Name.Name, UID: p.UID}}
}

// WriteRecord writes a record to the folder of records.
func WriteRecord(dir string, r pod.Record) error {
	b, err := json.Marshal(r)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, r.HostLink+".json"), b, 0o600)
}
