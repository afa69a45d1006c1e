package check

import (
	"context"
	"crypto/tls"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/kubeveil/kubeveil/cmd/veilctl/internal/preflight"
	"github.com/kubeveil/kubeveil/pkg/config"
	"github.com/kubeveil/kubeveil/pkg/kube/api"
	"github.com/kubeveil/kubeveil/pkg/remote"
)

// handshakeLimit bounds a handshake with an API server.
const handshakeLimit = 3 * time.Second

func (g *gatherer) apiServers(ctx context.Context) error {
	service, err := g.Client.CoreV1().Services("default").Get(ctx, "kubernetes",
		metav1.GetOptions{})
	if err != nil {
		return err
	}
	slice, err := g.Client.DiscoveryV1().EndpointSlices("default").List(ctx,
		metav1.ListOptions{LabelSelector: "kubernetes.io/service-name=kubernetes"})
	if err != nil {
		return err
	}
	g.put(func(f *preflight.Facts) {
		f.ServiceAddrs = addrsIn(service.Spec.ClusterIPs)
		for _, s := range slice.Items {
			for _, e := range s.Endpoints {
				f.APIServers = append(f.APIServers, addrsIn(e.Addresses)...)
				g.servers = append(g.servers, serversIn(s, e)...)
			}
		}
	})
	return nil
}

func addrsIn(texts []string) (out []netip.Addr) {
	for _, text := range texts {
		if a, err := netip.ParseAddr(text); err == nil {
			out = append(out, a.Unmap())
		}
	}
	return out
}

// staticServers reads kube-apiserver's pods by the label that kubeadm sets.
func (g *gatherer) staticServers(ctx context.Context) error {
	list, err := g.Client.CoreV1().Pods(remote.SystemNamespace).List(ctx,
		metav1.ListOptions{LabelSelector: "component=kube-apiserver"})
	if err != nil {
		return err
	}
	var found []preflight.StaticServer
	for _, p := range list.Items {
		s := preflight.StaticServer{Pod: p.Name}
		for _, container := range p.Spec.Containers {
			for _, arg := range append(container.Command, container.Args...) {
				if v, ok := strings.CutPrefix(arg, "--goaway-chance="); ok {
					s.GoAwayChance = v
				}
			}
		}
		found = append(found, s)
	}
	g.put(func(f *preflight.Facts) { f.StaticServers = found })
	return nil
}

// serversIn returns the addresses of an endpoint, each with the slice's port called https.
func serversIn(s discoveryv1.EndpointSlice, e discoveryv1.Endpoint) (out []netip.AddrPort) {
	for _, p := range s.Ports {
		if p.Name == nil || *p.Name != "https" || p.Port == nil {
			continue
		}
		for _, a := range addrsIn(e.Addresses) {
			out = append(out, netip.AddrPortFrom(a, uint16(*p.Port)))
		}
	}
	return out
}

// certificates reads the certificates of the API servers if the configuration has
// services.apiFrontends. It ignores a malformed configuration, which other checks report.
func (g *gatherer) certificates(ctx context.Context) {
	cfg, _ := config.Parse("any", []byte(g.facts.Config), g.facts.Kubeadm)
	if len(cfg.Services.APIFrontends) == 0 {
		return
	}
	access := rest.CopyConfig(g.Config)
	err := rest.LoadTLSFiles(access)
	if err == nil && len(access.CAData) == 0 {
		err = errors.New("the kubeconfig has no CA to verify it by")
	}

	var group errgroup.Group
	group.SetLimit(atOnce)
	slices.SortFunc(g.servers, netip.AddrPort.Compare)
	found := make([]preflight.Certificate, len(g.servers))
	for i, server := range g.servers {
		found[i] = preflight.Certificate{Server: server}
		if err != nil {
			found[i].Err = err.Error()
			continue
		}
		group.Go(func() error {
			names, err := certificateNames(ctx, server, access.CAData)
			if found[i].Names = names; err != nil {
				found[i].Err = err.Error()
			}
			return nil
		})
	}
	_ = group.Wait() // no function of the group returns an error
	g.facts.Certificates = found
}

// certificateNames returns the addresses in the certificate of a server. It returns an error if no
// CA in ca, which is PEM, signed the certificate.
func certificateNames(ctx context.Context, server netip.AddrPort, ca []byte) ([]netip.Addr, error) {
	ctx, cancel := context.WithTimeout(ctx, handshakeLimit)
	defer cancel()
	// api.VerifyChain verifies the certificate below. Its names are not verified, because they are
	// the result of this function.
	d := tls.Dialer{Config: &tls.Config{InsecureSkipVerify: true, MinVersion: tls.VersionTLS12}}
	conn, err := d.DialContext(ctx, "tcp", server.String())
	if err != nil {
		return nil, err
	}
	defer conn.Close()

	chain := conn.(*tls.Conn).ConnectionState().PeerCertificates
	if err := api.VerifyChain(chain, ca); err != nil {
		return nil, err
	}
	var names []netip.Addr
	for _, ip := range chain[0].IPAddresses {
		if a, ok := netip.AddrFromSlice(ip); ok {
			names = append(names, a.Unmap())
		}
	}
	return names, nil
}
