package baretunnel

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/kubeveil/kubeveil/e2e/lab"
	"github.com/kubeveil/kubeveil/pkg/abi"
	"github.com/kubeveil/kubeveil/pkg/bench"
)

// OursDevice and BareDevice are the devices of Kubeveil's tunnel and of the second tunnel.
const (
	OursDevice = abi.TunnelDevicePrefix + "0"
	BareDevice = "bare0"
)

const barePort = abi.TunnelPort + 79

// Tunnel is the second tunnel between two nodes. The routes between the nodes point at either
// Kubeveil's device or the second one (Use).
type Tunnel struct {
	nodes  []*lab.Node
	procs  []*lab.Process
	routes map[*lab.Node][]tableRoute
}

// tableRoute is a route into Kubeveil's tunnel: its table, and its text as ip(8) prints it, without
// the device.
type tableRoute struct{ table, text string }

// Build builds wireguard-go's own program from the module's source into the folder bin, which must
// be two levels below the root of the tree.
func Build(ctx context.Context, bin string) error {
	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-o",
		filepath.Join(bin, "wireguard-go"), "golang.zx2c4.com/wireguard")
	cmd.Dir = filepath.Dir(filepath.Dir(bin))
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build wireguard-go: %w: %s", err, out)
	}
	return nil
}

// Start makes the second tunnel between two nodes, with the program that Build left in bin. It
// stops veild on both nodes until Close, so that veild does not restore its routes. The caller must
// close the Tunnel also after an error.
func Start(ctx context.Context, bin string, nodes []*lab.Node) (*Tunnel, error) {
	b := &Tunnel{nodes: nodes, routes: map[*lab.Node][]tableRoute{}}
	public := map[*lab.Node]string{}
	for _, n := range nodes {
		if err := n.Program("veild").Signal(syscall.SIGSTOP); err != nil {
			return b, err
		}
		key, err := b.device(ctx, n, filepath.Join(bin, "wireguard-go"))
		if err != nil {
			return b, fmt.Errorf("%s on %s: %w", BareDevice, n.Name, err)
		}
		public[n] = key
	}

	for i, n := range nodes {
		peer := nodes[1-i]
		allowed := fmt.Sprintf("%s,%s/32", peer.PodPrefixes[0], peer.Addrs[0])
		_, err := n.Exec(ctx, "wg", "set", BareDevice, "private-key", "/run/bare.key",
			"listen-port", fmt.Sprint(barePort),
			"peer", public[peer], "allowed-ips", allowed, "endpoint",
			fmt.Sprintf("%s:%d", peer.Addrs[0], barePort))
		if err != nil {
			return b, err
		}
		if err := b.readRoutes(ctx, n); err != nil {
			return b, err
		}
	}

	return b, nil
}

// device starts wireguard-go on a node and generates a key for it. It gives the device the MTU,
// queue length, group and loose source checks of Kubeveil's device. It returns the public key.
func (b *Tunnel) device(ctx context.Context, n *lab.Node, program string) (string, error) {
	p, err := n.Start(ctx, program, "-f", BareDevice)
	if err != nil {
		return "", err
	}

	b.procs = append(b.procs, p)
	like, err := ReadLink(ctx, n, OursDevice)
	if err != nil {
		return "", err
	}

	err = lab.Until(ctx, 5*time.Second, func() error {
		_, err := ReadLink(ctx, n, BareDevice)
		return err
	})
	if err != nil {
		return "", err
	}

	err = errors.Join(
		n.IP(ctx, fmt.Sprintf("link set %s group %d mtu %d txqueuelen %d up", BareDevice,
			abi.TunnelGroup, like.MTU, like.Queue)),
		n.Sysctl("net/ipv4/conf/"+BareDevice+"/rp_filter", "2"))
	if err != nil {
		return "", err
	}

	private, err := n.Exec(ctx, "wg", "genkey")
	if err != nil {
		return "", err
	}
	if err := os.WriteFile(n.Path("/run/bare.key"), private, 0o600); err != nil {
		return "", err
	}

	public, err := n.Exec(ctx, "sh", "-c", "wg pubkey </run/bare.key")
	return strings.TrimSpace(string(public)), err
}

// readRoutes reads the routes into Kubeveil's device.
func (b *Tunnel) readRoutes(ctx context.Context, n *lab.Node) error {
	for _, table := range []string{"main", fmt.Sprint(abi.TablePod)} {
		out, err := n.Exec(ctx, "ip", "-4", "-o", "route", "show", "table", table, "dev",
			OursDevice)
		if err != nil {
			return err
		}
		for line := range strings.Lines(string(out)) {
			b.routes[n] = append(b.routes[n], tableRoute{table, strings.TrimSpace(line)})
		}
	}
	if len(b.routes[n]) == 0 {
		return fmt.Errorf("%s: no route into %s", n.Name, OursDevice)
	}
	return nil
}

// Use points the routes on both nodes at a device.
func (b *Tunnel) Use(ctx context.Context, device string) error {
	for _, n := range b.nodes {
		var lines []string
		for _, r := range b.routes[n] {
			lines = append(lines, fmt.Sprintf("route replace %s dev %s table %s", r.text, device,
				r.table))
		}
		if err := n.IP(ctx, lines...); err != nil {
			return err
		}
	}
	return nil
}

// Close restores the routes, ends wireguard-go and resumes veild.
func (b *Tunnel) Close(ctx context.Context) error {
	var errs []error
	errs = append(errs, b.Use(ctx, OursDevice))
	for _, p := range b.procs {
		errs = append(errs, p.Kill(ctx))
	}
	for _, n := range b.nodes {
		errs = append(errs, resume(n.Program("veild")))
	}
	return errors.Join(errs...)
}

// strayBytes is the number of bytes that the other device may send during a measurement, such as
// handshakes and keepalives.
const strayBytes = 100_000

// Over returns a measure that points the routes at device and runs m. It returns an error unless
// device carried the traffic and other did not.
func (b *Tunnel) Over(device, other string, m bench.Measure) bench.Measure {
	return func(ctx context.Context) (bench.Sample, error) {
		if err := b.Use(ctx, device); err != nil {
			return bench.Sample{}, err
		}

		var before, after [2]uint64
		count := func(into *[2]uint64) error {
			for i, name := range []string{device, other} {
				l, err := ReadLink(ctx, b.nodes[0], name)
				if err != nil {
					return err
				}
				into[i] = l.Stats.TX.Bytes
			}
			return nil
		}
		if err := count(&before); err != nil {
			return bench.Sample{}, err
		}

		sample, err := m(ctx)
		if err != nil {
			return sample, err
		}
		if err := count(&after); err != nil {
			return sample, err
		}
		carried, stray := after[0]-before[0], after[1]-before[1]
		if carried < 1_000_000 || stray > strayBytes {
			return sample, fmt.Errorf("%s carried %d bytes and %s %d: the traffic did not "+
				"follow the routes", device, carried, other, stray)
		}

		return sample, nil
	}
}

// resume continues a stopped program. It signals the process group, because nsenter(1), which waits
// for the program in the same group, stopped itself too.
func resume(p *lab.Process) error {
	group, err := syscall.Getpgid(p.PID())
	if err != nil {
		return fmt.Errorf("process group of %s: %w", p.Name, err)
	}
	return syscall.Kill(-group, syscall.SIGCONT)
}

// Link is the part of ip(8)'s JSON output for a link that the benchmarks need.
type Link struct {
	MTU   int `json:"mtu"`
	Queue int `json:"txqlen"`
	Stats struct {
		TX struct {
			Bytes uint64 `json:"bytes"`
		} `json:"tx"`
	} `json:"stats64"`
}

// ReadLink reads a link of a node or a pod.
func ReadLink(ctx context.Context, at interface {
	Exec(ctx context.Context, name string, args ...string) ([]byte, error)
}, name string) (Link, error) {
	out, err := at.Exec(ctx, "ip", "-s", "-j", "link", "show", name)
	if err != nil {
		return Link{}, err
	}
	var links []Link
	if err := json.Unmarshal(out, &links); err != nil || len(links) != 1 {
		return Link{}, fmt.Errorf("read link %s: %d links: %w", name, len(links), err)
	}
	return links[0], nil
}
