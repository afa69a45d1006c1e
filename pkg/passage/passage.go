package passage

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	"github.com/kubeveil/kubeveil/internal/netns"
	"github.com/kubeveil/kubeveil/pkg/abi"
	"github.com/kubeveil/kubeveil/pkg/pod"
)

// ErrDropped matches the error of Probe if a filter drops packets from pods to the tunnel.
var ErrDropped = errors.New("forwarded packets of pods are dropped")

// Way describes what a probe sends in one family.
type Way struct {
	// From is the address of the probe's pod, in a pod prefix of this node. No other pod may have
	// it.
	From netip.Addr
	// To is an address that is routed into a tunnel, such as one in a peer's pod prefix.
	To netip.Addr
}

// Ways returns a way for each family in which both this node and a peer have a pod prefix. Both
// addresses are the network addresses of their prefixes.
func Ways(own, peer []netip.Prefix) (ways []Way) {
	for _, from := range own {
		for _, to := range peer {
			if from.Addr().Is4() == to.Addr().Is4() {
				ways = append(ways, Way{From: from.Masked().Addr(), To: to.Masked().Addr()})
				break
			}
		}
	}
	return ways
}

const (
	// containerID is the container ID of the probe's pod. The name of its link derives from it.
	containerID = "kubeveil-probe"
	ifName      = "eth0"
	// discard is the port of RFC 863. No datagram reaches it.
	discard = "9"
	// patience bounds the wait for one way. A datagram takes well below a millisecond.
	patience = time.Second
	between  = 20 * time.Millisecond
)

// Probe returns nil if a datagram of each way left for a tunnel. runDir must be on tmpfs. During
// the call it contains a directory "probe". The guard must be in force. Only one probe may run at a
// time.
func Probe(ctx context.Context, runDir string, ways []Way) (err error) {
	if len(ways) == 0 {
		return nil
	}
	ns, err := netns.New()
	if err != nil {
		return fmt.Errorf("probe: %w", err)
	}
	defer ns.Close()

	link := pod.HostLink(containerID, ifName)
	if err := writeCounters(link, ways); err != nil {
		return fmt.Errorf("probe: %w", err)
	}
	defer func() { err = errors.Join(err, Remove()) }()

	undo, err := attach(runDir, link, ways, ns)
	defer func() { err = errors.Join(err, undo.Run()) }()
	if err != nil {
		return fmt.Errorf("probe: %w", err)
	}
	var errs []error
	for i, w := range ways {
		errs = append(errs, probe(ctx, ns, i, w))
	}
	return errors.Join(errs...)
}

// attach attaches the probe's pod in the same way as the CNI plugin attaches a pod, but with its
// record and marker in a separate directory. The caller must run the result, also after an error.
func attach(runDir, link string, ways []Way, ns *os.File) (*pod.Undo, error) {
	var undo pod.Undo
	dir := filepath.Join(runDir, "probe")
	undo.Add(func() error { return os.RemoveAll(dir) })
	if err := errors.Join(os.RemoveAll(dir), os.Mkdir(dir, 0o700)); err != nil {
		return &undo, err
	}

	p := pod.Paths{PodDir: filepath.Join(dir, "pods"), BPFDir: abi.BPFDir,
		ReadyFile: filepath.Join(dir, "ready")}
	if err := os.WriteFile(p.ReadyFile, nil, 0o600); err != nil {
		return &undo, err
	}
	r := pod.Record{
		Network: abi.NetworkName, ContainerID: containerID, IfName: ifName, Netns: ns.Name(),
		HostLink: link, MTU: abi.MinPodMTU6,
	}
	for _, w := range ways {
		r.Addrs = append(r.Addrs, w.From)
	}
	return &undo, p.Attach(r, int(ns.Fd()), &undo)
}

// probe sends datagrams of a way until one has left for a tunnel, or until patience has passed.
func probe(ctx context.Context, ns *os.File, way int, w Way) error {
	var conn net.Conn
	err := netns.DoFd(int(ns.Fd()), "of the probe", func() (err error) {
		conn, err = net.Dial("udp", net.JoinHostPort(w.To.String(), discard))
		return err
	})
	if err != nil {
		return fmt.Errorf("probe: %w", err)
	}
	defer conn.Close()

	for deadline := time.Now().Add(patience); ; {
		if _, err := conn.Write([]byte("kubeveil probe")); err != nil {
			return fmt.Errorf("probe: %w", err)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(between):
		}
		entered, left, err := readCounters(way)
		switch {
		case err != nil:
			return fmt.Errorf("probe: %w", err)
		case left > 0:
			return nil
		case time.Now().Before(deadline):
		case entered > 0:
			return fmt.Errorf("%w between the forward hook and the tunnel: %d from %s to %s",
				ErrDropped, entered, w.From, w.To)
		default:
			return fmt.Errorf("probe: nothing from %s to %s came to the forward hook", w.From, w.To)
		}
	}
}
