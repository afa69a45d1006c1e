package site

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	"github.com/kubeveil/kubeveil/e2e/bench/service/endpoint"
	"github.com/kubeveil/kubeveil/e2e/bench/service/openloop"
	"github.com/kubeveil/kubeveil/e2e/bench/tlspair"
	"github.com/kubeveil/kubeveil/e2e/lab"
	"github.com/kubeveil/kubeveil/e2e/lab/labhost"
	"github.com/kubeveil/kubeveil/pkg/bench"
	"github.com/kubeveil/kubeveil/pkg/bench/suite"
	"github.com/kubeveil/kubeveil/pkg/cluster"
	"github.com/kubeveil/kubeveil/pkg/site/mirror"
	"github.com/kubeveil/kubeveil/pkg/site/record"
)

// Names of lanes.
const (
	laneClear   = "clear"
	laneEngine  = "engine"
	laneHAProxy = "haproxy"
	laneGo      = "go"
)

// laneNames lists all lanes, laneTitles their titles.
var (
	laneNames  = []string{laneClear, laneEngine, laneHAProxy, laneGo}
	laneTitles = map[string]string{laneClear: "clear", laneEngine: "Kubeveil",
		laneHAProxy: "haproxy pair", laneGo: "pair in Go", sidePair: "best pair"}
)

// lane is a path from a client to a server.
type lane struct {
	name   string
	client *lab.Pod
	// at returns the address by which the client reaches a port of the server.
	at func(port uint16) netip.AddrPort
}

// ports are the ports of the server that clients use.
var ports = []uint16{endpoint.PortEcho, portHTTP2, portPostgres}

// Offsets from a port of the server to the ports of proxies: on node a, and on node b.
const (
	nearHAProxy, farHAProxy = 10_000, 20_000
	nearGo, farGo           = 30_000, 40_000
)

// network is a lab with a client pod on its first node and a server pod on its second.
type network struct {
	*lab.Lab
	client, server *lab.Pod
}

// world has the labs and the lanes.
type world struct {
	self        suite.Self
	haproxyPath string
	clear, veil network
	lanes       []lane
	// proxies holds the processes of the pairs, keyed by the name of the lane.
	proxies map[string][]*lab.Process
	// dir is the folder of files of tools. Other users may enter it.
	dir string
}

// newWorld makes the labs and starts the servers and proxies. Call close also after an error.
func newWorld(ctx context.Context, haproxy string) (*world, error) {
	w := &world{haproxyPath: haproxy, proxies: map[string][]*lab.Process{}}
	var err error
	if w.dir, err = own.Folder(); err != nil {
		return w, err
	}
	if err := os.Chmod(w.dir, 0o711); err != nil {
		return w, err
	}
	if w.self, err = suite.NewSelf(Suite); err != nil {
		return w, err
	}
	if err := w.network(ctx, &w.clear, lab.Options{Network: lab.Clear}); err != nil {
		return w, err
	}
	if err := w.network(ctx, &w.veil, lab.Options{Sites: true, ExportsOnly: true,
		VeildConfig: map[string]any{"serviceProxy": "ebpf", "services": map[string]any{
			"limits": map[string]any{"backendSlots": 1 << 16}}}}); err != nil {
		return w, err
	}
	virtual, err := w.importService(ctx)
	if err != nil {
		return w, err
	}
	if err := w.startProxies(ctx); err != nil {
		return w, err
	}

	to := func(a netip.Addr, offset uint16) func(uint16) netip.AddrPort {
		return func(port uint16) netip.AddrPort { return netip.AddrPortFrom(a, port+offset) }
	}
	near := w.clear.Nodes()[0].Addrs[0]
	w.lanes = []lane{
		{laneClear, w.clear.client, to(w.clear.server.Addr(false), 0)},
		{laneEngine, w.veil.client, to(virtual, 0)},
		{laneHAProxy, w.clear.client, to(near, nearHAProxy)},
		{laneGo, w.clear.client, to(near, nearGo)},
	}
	return w, nil
}

// network makes a lab with its pods, and starts the server.
func (w *world) network(ctx context.Context, n *network, o lab.Options) (err error) {
	o.Family, o.Offloads = lab.IPv4, true
	if n.Lab, err = lab.New(ctx, o); err != nil {
		return err
	}
	if n.client, err = n.Nodes()[0].AddPod(ctx, "client", lab.PodOptions{}); err != nil {
		return err
	}
	if n.server, err = n.Nodes()[1].AddPod(ctx, "server", lab.PodOptions{}); err != nil {
		return err
	}
	argv := w.self.Argv("serve")
	_, err = n.server.Start(ctx, argv[0], argv[1:]...)
	return err
}

// importService writes what veil-site of the first cluster writes for an export of the second, and
// returns the ClusterIP.
func (w *world) importService(ctx context.Context) (netip.Addr, error) {
	key := record.Key{Namespace: "default", Name: "server"}
	exported := &record.Service{V4: true}
	slice := record.Slice{Endpoints: []record.Endpoint{{Address: w.veil.server.Addr(false),
		Ready: true, Serving: true}}}
	for _, p := range ports {
		exported.Ports = append(exported.Ports, record.Port{Name: fmt.Sprintf("p%d", p),
			Protocol: "TCP", Port: int32(p)})
	}
	slice.Ports = exported.Ports
	exported.Slices = []record.Slice{slice}

	site := w.veil.SitesOf(w.veil.Nodes()[0])[0]
	site.Imports = []string{cluster.AllNamespaces}
	s, err := w.veil.PutImport(ctx, mirror.Input{Cluster: "a", Now: time.Now(),
		Namespaces: map[string]bool{key.Namespace: true}, Own: map[record.Key]mirror.Own{},
		Sites: []mirror.Site{{Site: site, Head: &record.Head{Open: true},
			Services: map[record.Key]*record.Service{key: exported}}}}, key)
	if err != nil {
		return netip.Addr{}, err
	}
	return netip.ParseAddr(s.Spec.ClusterIP)
}

// startProxies starts both pairs on the nodes of the clear lab.
func (w *world) startProxies(ctx context.Context) error {
	nodes := w.clear.Nodes()
	a, b, dir := nodes[0].Addrs[0], nodes[1].Addrs[0], filepath.Join(w.clear.Dir, "pairs")
	if err := tlspair.Prepare(dir, b); err != nil {
		return fmt.Errorf("make certificates: %w", err)
	}

	for i, end := range []tlspair.End{tlspair.Near, tlspair.Far} {
		ways := func(near, far uint16) (all []tlspair.Forward) {
			for _, p := range ports {
				wire := netip.AddrPortFrom(b, p+far)
				if end == tlspair.Near {
					all = append(all, tlspair.Forward{From: netip.AddrPortFrom(a, p+near), To: wire})
				} else {
					all = append(all, tlspair.Forward{From: wire,
						To: netip.AddrPortFrom(w.clear.server.Addr(false), p)})
				}
			}
			return all
		}
		config := filepath.Join(dir, string(end)+".cfg")
		if err := os.WriteFile(config, []byte(tlspair.HAProxy(dir, end, 0,
			ways(nearHAProxy, farHAProxy)...)), 0o600); err != nil {
			return err
		}
		goWays, err := json.Marshal(ways(nearGo, farGo))
		if err != nil {
			return err
		}
		for name, argv := range map[string][]string{
			laneHAProxy: {w.haproxyPath, "-db", "-f", config},
			laneGo:      w.self.Argv("proxy", dir, string(end), string(goWays))} {
			p, err := nodes[i].Start(ctx, argv[0], argv[1:]...)
			if err != nil {
				return err
			}
			w.proxies[name] = append(w.proxies[name], p)
		}
	}
	return nil
}

// tries is the number of loads without an answered operation after which a measurement fails. On a
// busy machine, the client may not run before its time is over.
const tries = 10

// load runs an open or closed loop against the echo server through a lane. Operations that do not
// end in time do not count as errors, because their waiting time counts.
func (w *world) load(ctx context.Context, l lane, o openloop.Load) (r openloop.Result, err error) {
	o.To = []netip.AddrPort{l.at(endpoint.PortEcho)}
	for range tries {
		r, err = o.RunBy(func(text string) ([]byte, error) {
			argv := w.self.Argv("load", text)
			return labhost.Output(l.client.Command(ctx, argv[0], argv[1:]...))
		})
		if err == nil && r.Failed > 0 {
			err = fmt.Errorf("%d of %d operations failed, the first: %s", r.Failed,
				r.Failed+r.Done, r.Error)
		}
		if err != nil {
			return r, fmt.Errorf("lane %s: %w", l.name, err)
		}
		if r.Done > 0 {
			return r, nil
		}
	}
	return r, fmt.Errorf("lane %s: no operation ended in %d tries", l.name, tries)
}

// prove waits until each lane answers. It then ends the leak oracles, because they use CPU, and
// returns their counts. It returns an error if the link of Kubeveil carried anything in clear, or if
// the other lab's oracle saw nothing.
func (w *world) prove(ctx context.Context) (*bench.Leaks, error) {
	for _, l := range w.lanes {
		if err := lab.Until(ctx, 30*time.Second, func() error {
			_, err := w.load(ctx, l, openloop.Load{Kind: openloop.Connect, Rate: 50, Slots: 4,
				Duration: 100 * time.Millisecond})
			return err
		}); err != nil {
			return nil, err
		}
	}

	control, err := w.clear.Oracle.Stop()
	if err != nil {
		return nil, err
	}
	seen, err := w.veil.Oracle.Stop()
	if err == nil {
		err = seen.Err()
	}
	if err == nil && control.Plaintext == 0 {
		err = errors.New("the leak oracle of the clear lab saw no plaintext")
	}
	return &bench.Leaks{Frames: seen.Frames, Plaintext: seen.Plaintext,
		ControlPlaintext: control.Plaintext}, err
}

// close removes the labs and the folder.
func (w *world) close() error {
	var errs []error
	for _, n := range []network{w.clear, w.veil} {
		if n.Lab != nil {
			errs = append(errs, n.Close())
		}
	}
	return errors.Join(append(errs, os.RemoveAll(w.dir))...)
}
