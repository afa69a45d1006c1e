package lab

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
)

const (
	oursDevice = abi.TunnelDevicePrefix + "0"
	bareDevice = "bare0"
	barePort   = abi.TunnelPort + 79
)

// bareTunnel is a second tunnel between two nodes, as an administrator would set it up by
// hand: wireguard-go and wg(8). Only one of the two tunnels has the routes at a time.
type bareTunnel struct {
	nodes  []*lab.Node
	procs  []*lab.Process
	routes map[*lab.Node][]tableRoute
}

// tableRoute is a route into the tunnel as ip(8) prints it, without its device.
type tableRoute struct{ table, text string }

// buildBare builds wireguard-go's own program from the module's source.
func (r *run) buildBare(ctx context.Context) error {
	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-o",
		filepath.Join(r.bin, "wireguard-go"), "golang.zx2c4.com/wireguard")
	cmd.Dir = filepath.Dir(filepath.Dir(r.bin))
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build wireguard-go: %w: %s", err, out)
	}
	return nil
}

// startBare makes the second tunnel. veild is stopped on both nodes until close, so
// that it puts nothing back.
func (r *run) startBare(ctx context.Context, nodes []*lab.Node) (*bareTunnel, error) {
	b := &bareTunnel{nodes: nodes, routes: map[*lab.Node][]tableRoute{}}
	public := map[*lab.Node]string{}
	for _, n := range nodes {
		if err := n.Program("veild").Signal(syscall.SIGSTOP); err != nil {
			return b, err
		}
		key, err := b.device(ctx, n, filepath.Join(r.bin, "wireguard-go"))
		if err != nil {
			return b, fmt.Errorf("%s on %s: %w", bareDevice, n.Name, err)
		}
		public[n] = key
	}

	for i, n := range nodes {
		peer := nodes[1-i]
		allowed := fmt.Sprintf("%s,%s/32", peer.PodPrefixes[0], peer.Addrs[0])
		_, err := n.Exec(ctx, "wg", "set", bareDevice, "private-key", "/run/bare.key",
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

// device starts wireguard-go on a node and returns it a key and what our device has: MTU, queue,
// group, loose source checks. It returns the public key.
func (b *bareTunnel) device(ctx context.Context, n *lab.Node, program string) (string, error) {
	p, err := n.Start(ctx, program, "-f", bareDevice)
	if err != nil {
		return "", err
	}

	b.procs = append(b.procs, p)
	like, err := readLink(ctx, n, oursDevice)
	if err != nil {
		return "", err
	}

	err = lab.Until(ctx, 5*time.Second, func() error {
		_, err := readLink(ctx, n, bareDevice)
		return err
	})
	if err != nil {
		return "", err
	}

	err = errors.Join(
		n.IP(ctx, fmt.Sprintf("link set %s group %d mtu %d txqueuelen %d up", bareDevice,
			abi.TunnelGroup, like.MTU, like.Queue)),
		n.Sysctl("net/ipv4/conf/"+bareDevice+"/rp_filter", "2"))
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

// readRoutes notes the routes into our device.
func (b *bareTunnel) readRoutes(ctx context.Context, n *lab.Node) error {
	for _, table := range []string{"main", fmt.Sprint(abi.TablePod)} {
		out, err := n.Exec(ctx, "ip", "-4", "-o", "route", "show", "table", table, "dev",
			oursDevice)
		if err != nil {
			return err
		}
		for line := range strings.Lines(string(out)) {
			b.routes[n] = append(b.routes[n], tableRoute{table, strings.TrimSpace(line)})
		}
	}
	if len(b.routes[n]) == 0 {
		return fmt.Errorf("%s: no route into %s", n.Name, oursDevice)
	}
	return nil
}

// use points the routes at one of the devices.
func (b *bareTunnel) use(ctx context.Context, device string) error {
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

// close restores the routes, ends wireguard-go and lets veild go on.
func (b *bareTunnel) close(ctx context.Context) error {
	var errs []error
	errs = append(errs, b.use(ctx, oursDevice))
	for _, p := range b.procs {
		errs = append(errs, p.Kill(ctx))
	}
	for _, n := range b.nodes {
		errs = append(errs, resume(n.Program("veild")))
	}
	return errors.Join(errs...)
}

// resume lets a stopped program go on, and nsenter(1), which waits for it in the same
// process group and stopped itself with it.
func resume(p *lab.Process) error {
	group, err := syscall.Getpgid(p.PID())
	if err != nil {
		return fmt.Errorf("process group of %s: %w", p.Name, err)
	}
	return syscall.Kill(-group, syscall.SIGCONT)
}

// link is the output of ip(8) for a link.
type link struct {
	MTU   int `json:"mtu"`
	Queue int `json:"txqlen"`
	Stats struct {
		TX struct {
			Bytes uint64 `json:"bytes"`
		} `json:"tx"`
	} `json:"stats64"`
}

func readLink(ctx context.Context, at interface {
	Exec(ctx context.Context, name string, args ...string) ([]byte, error)
}, name string) (link, error) {
	out, err := at.Exec(ctx, "ip", "-s", "-j", "link", "show", name)
	if err != nil {
		return link{}, err
	}
	var links []link
	if err := json.Unmarshal(out, &links); err != nil || len(links) != 1 {
		return link{}, fmt.Errorf("read link %s: %d links: %w", name, len(links), err)
	}
	return links[0], nil
}
