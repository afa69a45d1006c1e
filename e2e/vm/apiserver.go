package vm

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/kubeveil/kubeveil/e2e/lab"
	"github.com/kubeveil/kubeveil/e2e/vm/hostnode"
	"github.com/kubeveil/kubeveil/pkg/leak"
)

const (
	etcdPort = 2379
	// etcdLocal is the URL at which the first API server reaches etcd.
	etcdLocal = "http://127.0.0.1:2379"

	// secondHost is the host of the second API server, and secondByte the last byte of its
	// addresses on the underlay.
	secondHost      = "control-2"
	secondByte byte = lab.ControlByte + 1
)

// startEtcd starts etcd. API servers on other hosts reach it by TLS, with kubeadm's certificates,
// because objects contain the canary, which must not be seen on the underlay.
func (c *Cluster) startEtcd(ctx context.Context) error {
	_, err := c.Control.Start(ctx, filepath.Join(c.root, "out/tools/etcd"), "--data-dir=/run/etcd",
		"--listen-client-urls="+etcdLocal+","+c.etcdRemote(), "--advertise-client-urls="+etcdLocal,
		"--cert-file="+pki+"etcd/server.crt", "--key-file="+pki+"etcd/server.key",
		"--trusted-ca-file="+pki+"etcd/ca.crt", "--client-cert-auth",
		"--listen-peer-urls=http://127.0.0.1:2380", "--logger=zap", "--log-level=warn")
	return err
}

// etcdRemote returns the URL at which API servers on other hosts reach etcd.
func (c *Cluster) etcdRemote() string {
	return "https://" + netip.AddrPortFrom(c.apiAddr(), etcdPort).String()
}

// serverArguments returns the arguments of an API server that advertises addr: the arguments that
// kubeadm uses, followed by more.
func (c *Cluster) serverArguments(addr netip.Addr, more ...string) []string {
	return append([]string{
		"--bind-address=::", fmt.Sprintf("--secure-port=%d", lab.APIPort),
		"--advertise-address=" + addr.String(),
		"--service-cluster-ip-range=" + commas(c.Lab.Family().ServiceRanges()),
		"--allow-privileged=true", "--authorization-mode=Node,RBAC",
		"--enable-admission-plugins=NodeRestriction",
		"--enable-bootstrap-token-auth=true",
		"--client-ca-file=" + pki + "ca.crt", "--tls-cert-file=" + pki + "apiserver.crt",
		"--tls-private-key-file=" + pki + "apiserver.key",
		"--kubelet-client-certificate=" + pki + "apiserver-kubelet-client.crt",
		"--kubelet-client-key=" + pki + "apiserver-kubelet-client.key",
		"--kubelet-preferred-address-types=InternalIP",
		"--proxy-client-cert-file=" + pki + "front-proxy-client.crt",
		"--proxy-client-key-file=" + pki + "front-proxy-client.key",
		"--requestheader-client-ca-file=" + pki + "front-proxy-ca.crt",
		"--requestheader-allowed-names=front-proxy-client",
		"--requestheader-extra-headers-prefix=X-Remote-Extra-",
		"--requestheader-group-headers=X-Remote-Group",
		"--requestheader-username-headers=X-Remote-User",
		"--service-account-issuer=https://kubernetes.default.svc.cluster.local",
		"--service-account-key-file=" + pki + "sa.pub",
		"--service-account-signing-key-file=" + pki + "sa.key",
		"--profiling=false",
	}, more...)
}

// waitAPI waits until the API server reports that it is ready.
func (c *Cluster) waitAPI(ctx context.Context) error {
	err := lab.Until(ctx, 2*time.Minute, func() error {
		if !c.api.Running() {
			return lab.Stop(errors.New("it has ended, see its log"))
		}
		_, err := c.Kubectl(ctx, "get", "--raw=/readyz")
		return err
	})
	if err != nil {
		return fmt.Errorf("wait for the API server: %w", err)
	}
	return nil
}

// StopAPI kills the API server. Its data are kept.
func (c *Cluster) StopAPI(ctx context.Context) error { return c.api.Kill(ctx) }

// StartAPI starts the API server after StopAPI and waits until it is ready.
func (c *Cluster) StartAPI(ctx context.Context) error {
	p, err := c.api.Restart(ctx)
	if err != nil {
		return err
	}
	c.api = p
	return c.waitAPI(ctx)
}

// APIServer is the second API server, on a host of its own that is not a node. It runs as it would
// on another control plane node of kubeadm, but uses the etcd of the first API server.
type APIServer struct {
	cluster *Cluster
	host    *lab.Host
	process *lab.Process
}

// SecondAPI starts the second API server, with the certificates and the etcd of the first. It
// returns when the server is ready and is an endpoint of the service kubernetes. Calls must not
// overlap. After End, a call starts the server again.
func (c *Cluster) SecondAPI(ctx context.Context) (*APIServer, error) {
	if c.second == nil {
		s, err := c.newSecond(ctx)
		if err != nil {
			return nil, fmt.Errorf("host %s: %w", secondHost, err)
		}
		c.second = s
	}
	if err := c.second.start(ctx); err != nil {
		return nil, fmt.Errorf("second API server: %w (its log is in %s)", err, c.second.host.Dir)
	}
	c.step("second API server is ready")
	return c.second, nil
}

// newSecond makes the host of the second API server.
func (c *Cluster) newSecond(ctx context.Context) (*APIServer, error) {
	c.Lab.Oracle.Update(func(r *leak.Rules) {
		for _, a := range c.secondAddrs() {
			r.Flows = append(r.Flows, leak.Flow{Name: "kube-apiserver", Proto: leak.TCP, Addr: a,
				Port: lab.APIPort})
		}
		r.Flows = append(r.Flows, leak.Flow{Name: "etcd", Proto: leak.TCP, Addr: c.apiAddr(),
			Port: etcdPort})
	})
	host, err := c.Lab.AddHost(ctx, secondHost, secondByte)
	if err != nil {
		return nil, err
	}

	// The certificates that kubeadm's documentation copies by hand to another control plane node,
	// and the certificate of etcd's client.
	from := filepath.Join(c.Control.Disk(), pki)
	to := filepath.Join(host.Disk(), filepath.Dir(filepath.Clean(pki)))
	for _, words := range [][]string{{"mkdir", "-p", to}, {"cp", "-a", from, to}} {
		out, err := exec.CommandContext(ctx, words[0], words[1:]...).CombinedOutput()
		if err != nil {
			return nil, fmt.Errorf("copy certificates: %w: %s", err, out)
		}
	}
	return &APIServer{cluster: c, host: host}, nil
}

func (c *Cluster) secondAddrs() []netip.Addr {
	var addrs []netip.Addr
	for _, p := range c.Lab.Family().Underlay(secondByte) {
		addrs = append(addrs, p.Addr())
	}
	return addrs
}

// secondNames returns the addresses of the second API server as the elements of a YAML list. The
// certificate that both API servers use names these addresses.
func (c *Cluster) secondNames() string {
	var names []string
	for _, a := range c.secondAddrs() {
		names = append(names, fmt.Sprintf("%q", a))
	}
	return strings.Join(names, ", ")
}

// start starts the process if it does not run. It waits until the server is ready and is an
// endpoint of the service kubernetes.
func (s *APIServer) start(ctx context.Context) (err error) {
	c := s.cluster
	if s.process == nil || !s.process.Running() {
		s.process, err = s.host.Start(ctx, c.program("kube-apiserver"), c.serverArguments(
			s.Addr().Addr(), "--etcd-servers="+c.etcdRemote(), "--etcd-cafile="+pki+"etcd/ca.crt",
			"--etcd-certfile="+pki+"apiserver-etcd-client.crt",
			"--etcd-keyfile="+pki+"apiserver-etcd-client.key", "--goaway-chance=0.001")...)
		if err != nil {
			return err
		}
	}

	return lab.Until(ctx, 2*time.Minute, func() error {
		if !s.process.Running() {
			return lab.Stop(errors.New("it has ended"))
		}
		if _, err := c.Kubectl(ctx, "get", "--raw=/readyz",
			"--server=https://"+s.Addr().String()); err != nil {
			return err
		}
		out, err := c.Kubectl(ctx, "get", "endpointslices", "--namespace=default",
			"--selector=kubernetes.io/service-name=kubernetes",
			"-o", "jsonpath={.items[*].endpoints[*].addresses[*]}")
		if err != nil {
			return err
		}
		for word := range strings.FieldsSeq(string(out)) {
			if word == s.Addr().Addr().String() {
				return nil
			}
		}
		return fmt.Errorf("the service kubernetes only has the endpoints %q", out)
	})
}

// Addr returns the server's address and port. The certificate of the API servers names the address.
func (s *APIServer) Addr() netip.AddrPort {
	return netip.AddrPortFrom(s.cluster.secondAddrs()[0], lab.APIPort)
}

// Unplug disconnects the host from the network if out is set, as a loss of power would. Otherwise
// it reconnects the host.
func (s *APIServer) Unplug(ctx context.Context, out bool) error { return s.host.Unplug(ctx, out) }

// Freeze suspends the process if stop is set. The host's kernel still acknowledges TCP segments.
// Otherwise it resumes the process.
func (s *APIServer) Freeze(stop bool) error {
	if stop {
		return s.process.Signal(syscall.SIGSTOP)
	}
	return s.process.Signal(syscall.SIGCONT)
}

// End ends the API server, which may be unplugged or frozen. It sends SIGTERM first, as a kubelet
// would, so that the server removes itself from the service kubernetes.
func (s *APIServer) End(ctx context.Context) error {
	err := errors.Join(s.Unplug(ctx, false), s.Freeze(false), s.process.Signal(syscall.SIGTERM))
	bounded, cancel := context.WithTimeout(ctx, hostnode.TermPatience)
	defer cancel()
	// The exit status does not matter.
	_ = s.process.Wait(bounded)
	return errors.Join(err, s.process.Kill(ctx))
}
