package testnetwork

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"path/filepath"
	"time"

	"github.com/kubeveil/kubeveil/e2e/cluster/network/session"
	"github.com/kubeveil/kubeveil/e2e/lab"
	"github.com/kubeveil/kubeveil/e2e/lab/traffic"
	"github.com/kubeveil/kubeveil/e2e/vm"
	"github.com/kubeveil/kubeveil/pkg/remote"
)

// userspace is the number of the machine on which the kernel's WireGuard is kept from loading: the
// one that joins later. The control plane's host has a tunnel in userspace, too, and the others
// have tunnels in the kernel.
const userspace = 3

// machines is the lab that a run makes for itself.
type machines struct{ *vm.Cluster }

var _ session.Lab = machines{}

// onMachines makes a cluster of virtual machines, runs the suite from before its first boot to
// after the last case, and removes it in any case.
func onMachines(ctx context.Context, a arguments, root string, o session.Setup,
	log *slog.Logger) (report *session.Report, platform string, err error) {
	began := time.Now()
	fmt.Fprintln(o.Out, "starting virtual machines …")
	var images []string
	if a.releases != "" {
		for _, release := range []string{"last", "this"} {
			images = append(images, filepath.Join(a.releases, release, "kubeveil.tar"))
		}
	}
	c, err := vm.New(ctx, vm.ClusterConfig{NoVeil: true, Userspace: []int{userspace},
		Images: images, Dir: filepath.Join(a.out, "cluster"), Log: log})
	if err != nil {
		return nil, "", err
	}
	platform = c.Platform()
	fmt.Fprintf(o.Out, "%d machines have joined after %s (%s)\n", len(c.Machines),
		time.Since(began).Round(time.Second), platform)
	report, err = machines{c}.run(ctx, a, root, o, log)
	// The oracle sees all until here.
	result, end := c.Close()
	if report != nil {
		report.Judge(result)
	}
	return report, platform, errors.Join(err, end)
}

func (m machines) run(ctx context.Context, a arguments, root string, o session.Setup,
	log *slog.Logger) (*session.Report, error) {
	for _, host := range []*lab.Host{m.Lab.Outside, m.Control} {
		if _, err := traffic.Echo(ctx, host); err != nil {
			return nil, err
		}
	}
	cluster, err := remote.Connect(ctx, remote.Access{Kubeconfig: m.Kubeconfig()},
		remote.ConnectConfig{Image: a.image, Canary: m.Lab.Canary, Log: log})
	if err != nil {
		return nil, err
	}
	o.Cluster, o.Lab, o.Kubeconfig = cluster, m, m.Kubeconfig()
	o.Kubectl = []string{kubectl(root), "--kubeconfig=" + o.Kubeconfig}
	return session.Run(ctx, a.cases(), o)
}

// Clear implements session.Lab, as do the other methods.
func (m machines) Clear(ctx context.Context) error { return m.InstallClear(ctx) }

// Unclear takes the reference network away.
func (m machines) Unclear(ctx context.Context) error { return m.RemoveClear(ctx) }

// SecondAPI starts another API server.
func (m machines) SecondAPI(ctx context.Context) (session.APIServer, error) {
	return m.Cluster.SecondAPI(ctx)
}

// OutsideAddrs returns the addresses of the lab's host outside.
func (m machines) OutsideAddrs() []netip.Addr { return m.Lab.OutsideAddrs() }

// ControlAddrs returns the addresses of the control plane's host.
func (m machines) ControlAddrs() []netip.Addr {
	var addrs []netip.Addr
	for _, p := range m.Lab.Family().Underlay(lab.ControlByte) {
		addrs = append(addrs, p.Addr())
	}
	return addrs
}

// OutsideCanary may be seen on the way to and from outside.
func (m machines) OutsideCanary() string { return m.Lab.EgressCanary }

// OutsideSend sends from the host outside.
func (m machines) OutsideSend(ctx context.Context, proto string, to netip.AddrPort) error {
	_, err := traffic.Send(ctx, m.Lab.Outside,
		traffic.Exchange{Proto: proto, To: to.Addr(), Port: int(to.Port()), Egress: true})
	return err
}
