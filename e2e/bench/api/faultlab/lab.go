package faultlab

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubeveil/kubeveil/e2e/bench/api/client"
	"github.com/kubeveil/kubeveil/e2e/lab"
	"github.com/kubeveil/kubeveil/e2e/lab/buildtree"
	"github.com/kubeveil/kubeveil/e2e/lab/labhost"
	"github.com/kubeveil/kubeveil/e2e/lab/traffic"
	"github.com/kubeveil/kubeveil/pkg/abi"
	"github.com/kubeveil/kubeveil/pkg/bench/suite"
	"github.com/kubeveil/kubeveil/pkg/telemetry"
	"github.com/kubeveil/kubeveil/pkg/telemetry/admin"
)

// Lab is a lab with a node, a pod, and two API servers, the second of which fails.
type Lab struct {
	Family  lab.Family
	Cluster *lab.Lab
	Pod     *lab.Pod
	// Service is the address of the API servers' service. Dir is the folder with the credentials of
	// a client.
	Service netip.AddrPort
	Dir     string

	suite string
	node  *lab.Node
	// audit is the audit log of the second server.
	audit *auditLog
	// holders are the processes of clients, one in the pod and one on the node.
	holders []*lab.Process
}

const (
	// serverCount is the number of API servers. failing is the index of the server that fails.
	serverCount, failing = 2, 1
	// goodWithin bounds the wait after a fault until veild reports the state good again.
	goodWithin = 90 * time.Second
)

// serverFlags returns the flags of the API servers. Clients without credentials may GET /readyz, as
// with kubeadm. A server without etcd reports after a second that it is not ready. With the default
// timeouts, the two checks of etcd take four seconds, and veild would report hanging handlers.
func serverFlags() []string {
	return []string{"--anonymous-auth=true", "--etcd-healthcheck-timeout=500ms",
		"--etcd-readycheck-timeout=500ms"}
}

// New makes a lab of an IP family. name is the name of the suite whose Child runs the clients.
func New(ctx context.Context, name string, family lab.Family) (*Lab, error) {
	root, err := buildtree.Root()
	if err != nil {
		return nil, err
	}
	dir, err := labhost.NewRun(filepath.Join(root, "out/lab"))
	if err != nil {
		return nil, err
	}
	b := &Lab{suite: name, Family: family, Dir: filepath.Join(dir, "bench")}
	if err := os.MkdirAll(b.Dir, 0o700); err != nil {
		return nil, err
	}
	if b.audit, err = newAuditLog(b.Dir); err != nil {
		return nil, err
	}

	first := netip.AddrPortFrom(family.Underlay(lab.ControlByte)[0].Addr(), lab.APIPort)
	b.Cluster, err = lab.New(ctx, lab.Options{Family: family, APIServers: serverCount, Nodes: 1,
		Dir: dir,
		APIServerFlags: func(i int) []string {
			if i == failing {
				return append(serverFlags(), b.audit.flags()...)
			}
			return serverFlags()
		},
		VeildConfig: map[string]any{"serviceProxy": "ebpf", "services": map[string]any{
			"limits":     map[string]any{"backendSlots": 1 << 16},
			"apiServers": []string{first.String()}}}})
	if err == nil {
		err = b.prepare(ctx)
	}
	if err != nil {
		return nil, errors.Join(err, b.Close())
	}
	return b, nil
}

func (b *Lab) prepare(ctx context.Context) (err error) {
	b.node = b.Cluster.Nodes()[0]
	if b.Pod, err = b.node.AddPod(ctx, "client", lab.PodOptions{}); err != nil {
		return err
	}
	api, err := b.Cluster.Control.Client.CoreV1().Services("default").Get(ctx, "kubernetes",
		metav1.GetOptions{})
	if err != nil {
		return err
	}
	addr, err := netip.ParseAddr(api.Spec.ClusterIP)
	if err != nil {
		return err
	}
	b.Service = netip.AddrPortFrom(addr, uint16(api.Spec.Ports[0].Port))

	tls := b.Cluster.Control.Config.TLSClientConfig
	for name, text := range map[string][]byte{"ca.crt": tls.CAData, "client.crt": tls.CertData,
		"client.key": tls.KeyData} {
		if err := os.WriteFile(filepath.Join(b.Dir, name), text, 0o600); err != nil {
			return err
		}
	}
	return nil
}

// Close removes the lab.
func (b *Lab) Close() error {
	var errs []error
	if b.Cluster != nil {
		errs = append(errs, b.Cluster.Close())
	}
	return errors.Join(append(errs, b.audit.close())...)
}

// telemetry returns veild's status of the services.
func (b *Lab) telemetry(ctx context.Context) (*telemetry.Services, error) {
	st, err := admin.Fetch(ctx, b.node.Path(abi.AdminSocket))
	if err != nil {
		return nil, err
	}
	if st.Services == nil {
		return nil, errors.New("veild reports no services yet")
	}
	return st.Services, nil
}

// state returns the state of the second server that veild reports, or "" if veild does not list the
// server.
func (b *Lab) state(ctx context.Context) (string, error) {
	st, err := b.telemetry(ctx)
	if err != nil {
		return "", err
	}
	for _, a := range st.APIServers {
		if a.Addr == b.Cluster.Control.ServerAddr(failing) {
			return a.State, nil
		}
	}
	return "", nil
}

// Closed returns how many connections to API servers veild has closed.
func (b *Lab) Closed(ctx context.Context) (int, error) {
	st, err := b.telemetry(ctx)
	if err != nil {
		return 0, err
	}
	return int(st.APIClosed.Waiting + st.APIClosed.Rest), nil
}

// Good waits until veild reports that both API servers are good.
func (b *Lab) Good(ctx context.Context) error { return b.wait(ctx, serverCount) }

// wait waits until veild reports that exactly want of the two API servers are good.
func (b *Lab) wait(ctx context.Context, want int) error {
	return lab.Until(ctx, goodWithin, func() error {
		st, err := b.telemetry(ctx)
		if err != nil {
			return err
		}
		got := 0
		for _, a := range st.APIServers {
			if a.Up && a.State == "good" {
				got++
			}
		}
		if len(st.APIServers) != serverCount || got != want {
			return fmt.Errorf("%d of %d API servers are good, want %d: %+v", got,
				len(st.APIServers), want, st.APIServers)
		}
		return nil
	})
}

// start starts a process of clients in the pod and one on the node, and waits until all clients
// hold connections. verb is "hold" or "fresh". It first kills processes that an earlier error left.
func (b *Lab) start(ctx context.Context, verb string) error {
	for _, p := range b.holders {
		if err := p.Kill(ctx); err != nil {
			return err
		}
	}
	b.holders = nil
	for _, at := range []traffic.Place{b.Pod, b.node} {
		p, err := b.Child(ctx, at, verb, b.Dir, b.Service.String())
		if err != nil {
			return err
		}
		b.holders = append(b.holders, p)
		if err := p.WaitLine(ctx, client.LineHeld, 30*time.Second); err != nil {
			return err
		}
	}
	return nil
}

// Child starts this executable at a place as a child process of the suite.
func (b *Lab) Child(ctx context.Context, at traffic.Place, args ...string) (*lab.Process,
	error) {
	self, err := suite.NewSelf(b.suite)
	if err != nil {
		return nil, err
	}
	argv := self.Argv(args...)
	return at.Start(ctx, argv[0], argv[1:]...)
}

// Hold sets the process of clients to which Mark sends the mark.
func (b *Lab) Hold(p *lab.Process) { b.holders = []*lab.Process{p} }

// Mark sends the mark to the processes of clients. They count only requests that begin later.
func (b *Lab) Mark() error {
	var errs []error
	for _, p := range b.holders {
		errs = append(errs, p.Signal(syscall.SIGUSR1))
	}
	return errors.Join(errs...)
}

// served waits until all clients had an answer since the mark, and ends them. It returns the
// longest wait of each kind of client, in milliseconds since the time since, and the sum of their
// tallies.
func (b *Lab) served(ctx context.Context, since time.Time) (map[string]float64, client.Tally,
	error) {
	longest, sum := map[string]float64{}, client.Tally{}
	for _, p := range b.holders {
		if err := p.WaitLine(ctx, client.LineServed, servedWithin); err != nil {
			return nil, sum, err
		}
		var t client.Tally
		if err := p.Result(ctx, &t); err != nil {
			return nil, sum, err
		}
		sum.Add(t)
		for kind, all := range t.Served {
			wait := time.UnixMilli(slices.Max(all)).Sub(since)
			longest[kind] = max(longest[kind], float64(wait)/float64(time.Millisecond))
		}
	}
	return longest, sum, nil
}

// WhileWritten runs fn, and writes the object that the clients watch until fn returns.
func (b *Lab) WhileWritten(ctx context.Context, fn func(context.Context) error) error {
	ctx, stop := context.WithCancelCause(ctx)
	ended := make(chan error, 1)
	go func() {
		err := client.Write(ctx, b.Cluster.Control.Client)
		stop(err)
		ended <- err
	}()

	err := fn(ctx)
	stop(nil)
	return errors.Join(err, <-ended)
}

// Spread returns the number of connections from the pod to each server, counted in the pod's socket
// table.
func (b *Lab) Spread(ctx context.Context) (counts []int, err error) {
	out, err := b.Pod.Exec(ctx, "ss", "-Htn", "state", "established")
	if err != nil {
		return counts, err
	}
	peers, err := parsePeers(string(out))
	if err != nil {
		return counts, err
	}
	for i := range serverCount {
		counts = append(counts, peers[b.Cluster.Control.ServerAddr(i)])
	}
	return counts, nil
}

// parsePeers returns the number of connections in the output of ss(8), keyed by remote address.
func parsePeers(table string) (map[netip.AddrPort]int, error) {
	peers := map[netip.AddrPort]int{}
	for line := range strings.Lines(table) {
		words := strings.Fields(line)
		if len(words) < 4 {
			return nil, fmt.Errorf("ss: unknown line %q", line)
		}
		peer, err := netip.ParseAddrPort(words[3])
		if err != nil {
			return nil, fmt.Errorf("ss: %w", err)
		}
		peers[netip.AddrPortFrom(peer.Addr().Unmap(), peer.Port())]++
	}
	return peers, nil
}
