package services_test

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubeveil/kubeveil/e2e/lab"
	"github.com/kubeveil/kubeveil/e2e/lab/traffic"
	"github.com/kubeveil/kubeveil/e2e/node/nodetest"
	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/pkg/cluster"
	"github.com/kubeveil/kubeveil/pkg/site/mirror"
	"github.com/kubeveil/kubeveil/pkg/site/record"
	"github.com/kubeveil/kubeveil/pkg/site/witness"
)

// letReadServices lets the node's veild read Services. Labs with Options.Sites have no service
// proxy of ours otherwise.
func letReadServices(ctx context.Context, t *testing.T, l *lab.Lab) {
	t.Helper()
	roles := l.Control.Client.RbacV1().ClusterRoles()
	role, err := roles.Get(ctx, "kubeveil-veild", metav1.GetOptions{})
	errtest.Must(t, err)
	role.Rules = append(role.Rules, rbacv1.PolicyRule{APIGroups: []string{""},
		Resources: []string{"services"}, Verbs: []string{"list", "watch"}})
	_, err = roles.Update(ctx, role, metav1.UpdateOptions{})
	errtest.Must(t, err)
}

var webKey = record.Key{Namespace: "default", Name: "web"}

// webRecord returns the exported service default/web with these pods. ready reports whether they
// are.
func webRecord(ready bool, backends ...*lab.Pod) *record.Service {
	r := &record.Service{V4: true, V6: true}
	var slice record.Slice
	for _, p := range []string{"TCP", "UDP"} {
		port := record.Port{Name: map[string]string{"TCP": "tcp", "UDP": "udp"}[p], Protocol: p,
			Port: servicePort}
		r.Ports = append(r.Ports, port)
		port.Port = traffic.NamePort
		slice.Ports = append(slice.Ports, port)
	}
	for _, b := range backends {
		for _, a := range b.Addrs {
			slice.Endpoints = append(slice.Endpoints,
				record.Endpoint{Address: a, Ready: ready, Serving: ready})
		}
	}
	r.Slices = []record.Slice{slice}
	return r
}

// webInput returns what veil-site knows where a site exports default/web with these pods.
func webInput(site cluster.Site, backends ...*lab.Pod) mirror.Input {
	site.Imports = []string{cluster.AllNamespaces}
	return mirror.Input{Cluster: "a", Namespaces: map[string]bool{webKey.Namespace: true},
		Now: time.Now(), Own: map[record.Key]mirror.Own{}, Sites: []mirror.Site{{Site: site,
			Head: &record.Head{Open: true}, Services: map[record.Key]*record.Service{
				webKey: webRecord(true, backends...)}}}}
}

// putWeb calls lab.PutImport for the import default/web.
func putWeb(ctx context.Context, t *testing.T, l *lab.Lab, in mirror.Input) *corev1.Service {
	t.Helper()
	s, err := l.PutImport(ctx, in, webKey)
	errtest.Must(t, err)
	return s
}

// importers are settings of a node that serves imports, by the program that does.
var importers = map[string]map[string]any{
	"kube-proxy, nftables": nil,
	"serviceProxy ebpf": {"serviceProxy": "ebpf", "linkLocalOutside": []string{},
		"services": map[string]any{"cgroup": "/sys/fs/cgroup"}},
}

// importer makes a lab whose first node serves imports of the second, its site. It returns that
// site.
func importer(t *testing.T, proxy map[string]any) (context.Context, *lab.Lab, cluster.Site) {
	t.Helper()
	ctx, l := nodetest.NewLab(t, lab.Options{Sites: true})
	n := l.Nodes()[0]
	sites := l.SitesOf(n)
	sites[0].Reach, sites[0].Imports = "", []string{cluster.AllNamespaces}
	settings := map[string]any{"sites": sites}
	maps.Copy(settings, proxy)
	if proxy == nil {
		settings["metricsAddress"] = "" // veil-site does not need it
		nodetest.KubeProxy(ctx, t, l, "nftables", n)
	} else {
		letReadServices(ctx, t, l)
	}
	nodetest.Reconfigure(ctx, t, n, settings)
	nodetest.WaitReady(ctx, t, n)
	return ctx, l, sites[0]
}

// askWeb waits until requests to the import's cluster IPs are answered by these servers.
func askWeb(ctx context.Context, t *testing.T, client *lab.Pod, s *corev1.Service,
	names ...string) {
	t.Helper()
	if len(s.Spec.ClusterIPs) != 2 {
		t.Fatalf("cluster IPs %q", s.Spec.ClusterIPs)
	}
	for _, ip := range s.Spec.ClusterIPs {
		for _, proto := range []string{"tcp", "udp"} {
			answers(ctx, t, client, traffic.Question{Proto: proto, Count: 12,
				Timeout: 500 * time.Millisecond,
				To:      netip.AddrPortFrom(netip.MustParseAddr(ip), servicePort)}, everyone(names...))
		}
	}
}

// An import is a Service like others to the program that translates: packets of a pod to its
// cluster IPs arrive at the pod of the other cluster, over TCP and UDP and in both families.
func TestImportIsServed(t *testing.T) {
	for name, proxy := range importers {
		t.Run(name, func(t *testing.T) {
			ctx, l, site := importer(t, proxy)
			client, backends := namedPods(ctx, t, l, 1, "near", "far")
			askWeb(ctx, t, client, putWeb(ctx, t, l, webInput(site, backends[1])), "far")
			nodetest.NoLeaks(t, l)
		})
	}
}

// An import that prefers endpoints of this cluster uses others only while none here is ready.
func TestImportPrefersLocalEndpoints(t *testing.T) {
	for name, proxy := range importers {
		t.Run(name, func(t *testing.T) {
			ctx, l, site := importer(t, proxy)
			client, backends := namedPods(ctx, t, l, 1, "near", "far")
			in := webInput(site, backends[1])
			in.Own[webKey] = mirror.Own{Service: webRecord(true, backends[0])}
			s := putWeb(ctx, t, l, in)
			askWeb(ctx, t, client, s, "near", "far")

			in.Existing = map[record.Key]mirror.Existing{webKey: {PreferLocal: true}}
			putWeb(ctx, t, l, in)
			askWeb(ctx, t, client, s, "near")
			in.Own[webKey] = mirror.Own{Service: webRecord(false, backends[0])}
			putWeb(ctx, t, l, in)
			askWeb(ctx, t, client, s, "far")
			nodetest.NoLeaks(t, l)
		})
	}
}

// Beside kube-proxy, the veild of a node finds that a node of a site lost its power, and what
// veil-site then writes moves new connections to an endpoint here. Without one, the endpoint stays.
func TestDeadSiteBesideKubeProxy(t *testing.T) {
	ctx, l, site := importer(t, nil)
	a, b := l.Nodes()[0], l.Nodes()[1]
	client, backends := namedPods(ctx, t, l, 1, "near", "far")
	in := webInput(site, backends[1])
	in.Own[webKey] = mirror.Own{Service: webRecord(true, backends[0])}
	s := putWeb(ctx, t, l, in)
	askWeb(ctx, t, client, s, "near", "far")

	w := witness.NewWatcher(slog.New(slog.NewTextHandler(t.Output(), nil)))
	w.Dial = func(ctx context.Context) (c net.Conn, err error) {
		err = a.Do(func() error {
			c, err = witness.Dial(ctx, witness.Socket)
			return err
		})
		return c, err
	}
	watching, stop := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() { defer close(done); w.Run(watching) }()
	defer func() { stop(); <-done }()
	nodetest.KillProgram(ctx, t, b, "veild") // Its kernel answers.
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end); {
		if askWeb(ctx, t, client, s, "near", "far"); len(w.Dead()) > 0 {
			t.Fatalf("a node whose kernel answers is dead: %v", w.Dead())
		}
	}

	errtest.Must(t, b.Crash())
	began := time.Now()
	errtest.Must(t, lab.Until(ctx, 20*time.Second, func() error {
		if in.Dead = w.Dead(); len(in.Dead) == 0 {
			return errors.New("no node is dead")
		}
		return nil
	}))
	putWeb(ctx, t, l, in)
	askWeb(ctx, t, client, s, "near")
	t.Logf("new connections went elsewhere after %s", time.Since(began).Round(time.Millisecond))
	if len(in.Dead) != len(site.PodRanges) {
		t.Errorf("dead are %v, want %v", in.Dead, site.PodRanges)
	}

	delete(in.Own, webKey)
	for _, slice := range mirror.Plan(in).Imports[webKey].EndpointSlices(webKey) {
		if !*slice.Endpoints[0].Conditions.Ready {
			t.Errorf("the only endpoints are not ready: %+v", slice.Endpoints)
		}
	}
	nodetest.NoLeaks(t, l)
}
