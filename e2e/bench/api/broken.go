package api

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
	"github.com/kubeveil/kubeveil/pkg/abi"
	"github.com/kubeveil/kubeveil/pkg/bench/suite"
	"github.com/kubeveil/kubeveil/pkg/telemetry"
)

// broken is a lab with a node, a pod, and two API servers. Faults happen to the second one.
type broken struct {
	family lab.Family
	lab    *lab.Lab
	node   *lab.Node
	pod    *lab.Pod
	// service is the address of the API servers' service, dir has credentials of a client.
	service netip.AddrPort
	dir     string
	// audit is the audit log of the second server.
	audit *auditLog
	// holders are the processes of clients, one in the pod and one on the node.
	holders []*lab.Process
}

const (
	// serverCountLab is how many API servers there are. failing is the index of the second one.
	serverCountLab, failing = 2, 1
	// goodWithin is how long a server may need after a fault until veild reports it good again.
	goodWithin = 90 * time.Second
)

// serverFlags are the flags of the API servers. Clients without credentials may GET /readyz, as
// with kubeadm. A server without etcd reports after a second that it is not ready. With the default
// flags its two checks of etcd take four seconds, and veild would take that for hanging handlers.
func serverFlags() []string {
	return []string{"--anonymous-auth=true", "--etcd-healthcheck-timeout=500ms",
		"--etcd-readycheck-timeout=500ms"}
}

// inLab runs a part in a lab of the family. The next part uses the same lab, unless this one fails.
func (s *run) inLab(ctx context.Context, family lab.Family,
	part func(context.Context, *broken) error) error {
	if s.lab != nil && s.lab.family != family {
		if err := s.closeLab(); err != nil {
			return err
		}
	}
	if s.lab == nil {
		b, err := newBroken(ctx, family)
		if err != nil {
			return err
		}
		s.lab = b
	}
	if err := part(ctx, s.lab); err != nil {
		return errors.Join(err, s.closeLab())
	}
	return nil
}

func (s *run) closeLab() error {
	if s.lab == nil {
		return nil
	}
	b := s.lab
	s.lab = nil
	return b.close()
}

func newBroken(ctx context.Context, family lab.Family) (*broken, error) {
	root, err := lab.Root()
	if err != nil {
		return nil, err
	}
	dir, err := lab.NewRun(filepath.Join(root, "out/lab"))
	if err != nil {
		return nil, err
	}
	b := &broken{family: family, dir: filepath.Join(dir, "bench")}
	if err := os.MkdirAll(b.dir, 0o700); err != nil {
		return nil, err
	}
	if b.audit, err = newAuditLog(b.dir); err != nil {
		return nil, err
	}

	first := netip.AddrPortFrom(family.Underlay(lab.ControlByte)[0].Addr(), lab.APIPort)
	b.lab, err = lab.New(ctx, lab.Options{Family: family, APIServers: serverCountLab, Nodes: 1,
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
		return nil, errors.Join(err, b.close())
	}
	return b, nil
}

func (b *broken) prepare(ctx context.Context) (err error) {
	b.node = b.lab.Nodes()[0]
	if b.pod, err = b.node.AddPod(ctx, "client", lab.PodOptions{}); err != nil {
		return err
	}
	api, err := b.lab.Control.Client.CoreV1().Services("default").Get(ctx, "kubernetes",
		metav1.GetOptions{})
	if err != nil {
		return err
	}
	addr, err := netip.ParseAddr(api.Spec.ClusterIP)
	if err != nil {
		return err
	}
	b.service = netip.AddrPortFrom(addr, uint16(api.Spec.Ports[0].Port))

	tls := b.lab.Control.Config.TLSClientConfig
	for name, text := range map[string][]byte{"ca.crt": tls.CAData, "client.crt": tls.CertData,
		"client.key": tls.KeyData} {
		if err := os.WriteFile(filepath.Join(b.dir, name), text, 0o600); err != nil {
			return err
		}
	}
	return nil
}

func (b *broken) close() error {
	var errs []error
	if b.lab != nil {
		errs = append(errs, b.lab.Close())
	}
	return errors.Join(append(errs, b.audit.close())...)
}

// telemetry returns veild's status of the services.
func (b *broken) telemetry(ctx context.Context) (*telemetry.Services, error) {
	st, err := telemetry.Fetch(ctx, b.node.Path(abi.AdminSocket))
	if err != nil {
		return nil, err
	}
	if st.Services == nil {
		return nil, errors.New("veild reports no services yet")
	}
	return st.Services, nil
}

// state returns the state of the second server that veild reports, or "" while the server is not in
// the list.
func (b *broken) state(ctx context.Context) (string, error) {
	st, err := b.telemetry(ctx)
	if err != nil {
		return "", err
	}
	for _, a := range st.APIServers {
		if a.Addr == b.lab.Control.ServerAddr(failing) {
			return a.State, nil
		}
	}
	return "", nil
}

// closed returns how many connections to API servers veild has closed.
func (b *broken) closed(ctx context.Context) (int, error) {
	st, err := b.telemetry(ctx)
	if err != nil {
		return 0, err
	}
	return int(st.APIClosed.Waiting + st.APIClosed.Rest), nil
}

// good waits until veild reports both API servers good.
func (b *broken) good(ctx context.Context) error { return b.wait(ctx, serverCountLab) }

// wait waits until veild reports exactly want of the two API servers good.
func (b *broken) wait(ctx context.Context, want int) error {
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
		if len(st.APIServers) != serverCountLab || got != want {
			return fmt.Errorf("%d of %d API servers are good, want %d: %+v", got,
				len(st.APIServers), want, st.APIServers)
		}
		return nil
	})
}

// start starts a process of clients in the pod and one on the node, and waits until they hold
// connections. It first ends processes that an earlier failure has left.
func (b *broken) start(ctx context.Context, verb string) error {
	for _, p := range b.holders {
		if err := p.Kill(ctx); err != nil {
			return err
		}
	}
	b.holders = nil
	for _, at := range []lab.Place{b.pod, b.node} {
		p, err := b.child(ctx, at, verb, b.dir, b.service.String())
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

// child starts this executable as a process that Child runs.
func (b *broken) child(ctx context.Context, at lab.Place, args ...string) (*lab.Process, error) {
	self, err := suite.NewSelf(Suite)
	if err != nil {
		return nil, err
	}
	argv := self.Argv(args...)
	return at.Start(ctx, argv[0], argv[1:]...)
}

// mark makes the clients count the requests that begin from now on.
func (b *broken) mark() error {
	var errs []error
	for _, p := range b.holders {
		errs = append(errs, p.Signal(syscall.SIGUSR1))
	}
	return errors.Join(errs...)
}

// served waits until all clients had an answer, and ends them. It returns the longest wait of each
// kind of client, in milliseconds since since, and the sum of their tallies.
func (b *broken) served(ctx context.Context, since time.Time) (map[string]float64, client.Tally,
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
			longest[kind] = max(longest[kind], micros(wait)/1000)
		}
	}
	return longest, sum, nil
}

// whileWritten runs fn. Meanwhile it writes the object that the clients watch.
func (b *broken) whileWritten(ctx context.Context, fn func(context.Context) error) error {
	ctx, stop := context.WithCancelCause(ctx)
	ended := make(chan error, 1)
	go func() {
		err := client.Write(ctx, b.lab.Control.Client)
		stop(err)
		ended <- err
	}()

	err := fn(ctx)
	stop(nil)
	return errors.Join(err, <-ended)
}

// spread returns how many connections of the pod lead to each server. It reads the pod's sockets.
func (b *broken) spread(ctx context.Context) (counts [serverCountLab]int, err error) {
	out, err := b.pod.Exec(ctx, "ss", "-Htn", "state", "established")
	if err != nil {
		return counts, err
	}
	peers, err := parsePeers(string(out))
	if err != nil {
		return counts, err
	}
	for i := range counts {
		counts[i] = peers[b.lab.Control.ServerAddr(i)]
	}
	return counts, nil
}

// parsePeers counts the connections in a table of ss(8), by their remote addresses.
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
