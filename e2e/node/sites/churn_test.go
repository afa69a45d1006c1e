package sites_test

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubeveil/kubeveil/e2e/lab"
	"github.com/kubeveil/kubeveil/e2e/lab/apiobject"
	"github.com/kubeveil/kubeveil/e2e/node/nodetest"
	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/pkg/cluster"
	"github.com/kubeveil/kubeveil/pkg/site/mirror"
	"github.com/kubeveil/kubeveil/pkg/wgkey"
)

// ofSites selects the derived services.
var ofSites = metav1.ListOptions{LabelSelector: mirror.ManagedByLabel + "=" + mirror.ManagedBy}

// churn is a cluster whose exports and nodes change at random.
type churn struct {
	*side
	rand *rand.Rand
	// services holds the addresses of each service, exports the exported names, and nodes the
	// numbers of the nodes.
	services map[string][]string
	exports  map[string]bool
	nodes    map[int]bool
}

// churnEnv names the environment variable with the time for which b changes each second, as 1h.
// Without it, b changes 300 times as fast as it can.
const churnEnv = "KUBEVEIL_LAB_CHURN"

// churnTime returns the value of churnEnv, or 0.
func churnTime(t *testing.T) time.Duration {
	t.Helper()
	text := os.Getenv(churnEnv)
	if text == "" {
		return 0
	}
	long, err := time.ParseDuration(text)
	errtest.Must(t, err)
	return long
}

// While the API server of b is away from a, services, exports, endpoints and nodes of b change and
// are deleted. After its return, a has what b exports, and the same objects as after a fresh start.
func TestChurnWhileTheOtherAPIServerIsAway(t *testing.T) {
	long := churnTime(t)
	t.Parallel()
	ctx, la := nodetest.LongLab(t, lab.Options{Nodes: -1}, 10*time.Minute+long)
	p := pairWith(ctx, t, la)
	p.introduce(ctx, t)
	p.a.start(ctx)
	p.b.start(ctx)
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	c := &churn{side: p.b, rand: rand.New(rand.NewPCG(seed, 0)), services: map[string][]string{},
		exports: map[string]bool{}, nodes: map[int]bool{1: true}}
	for range 60 {
		c.change(ctx, t)
	}
	p.follows(ctx, t, c)

	p.b.gate.Set(true)
	until(ctx, t, "the link is not readable", func() error {
		conditions, err := p.a.conditions(ctx, links, "", "b")
		if err != nil || !strings.HasPrefix(conditions["Readable"], "False") {
			return fmt.Errorf("conditions %q: %w", conditions, err)
		}
		return nil
	})
	kept := p.a.mirrored(ctx, t)
	pace := time.NewTicker(time.Second)
	defer pace.Stop()
	for n, begin := 1, time.Now(); n <= 300 || time.Since(begin) < long; n++ {
		c.change(ctx, t)
		if n%300 == 0 {
			p.a.unchanged(ctx, t, kept)
			t.Logf("%d changes in %.0f s", n, time.Since(begin).Seconds())
		}
		if long > 0 {
			<-pace.C
		}
	}
	for name := range maps.Clone(c.exports) {
		if c.rand.IntN(2) == 0 {
			c.toggleExport(ctx, t, name)
		}
	}
	p.a.unchanged(ctx, t, kept)

	p.b.gate.Set(false)
	p.follows(ctx, t, c)
	after := p.a.mirrored(ctx, t)
	p.a.stop()
	p.a.forget(ctx, t)
	p.a.start(ctx)
	p.follows(ctx, t, c)
	until(ctx, t, "a fresh start has the same objects", func() error {
		if fresh := p.a.mirrored(ctx, t); !maps.Equal(fresh, after) {
			return fmt.Errorf("a fresh start has %v, and it had %v", fresh, after)
		}
		return nil
	})
}

// unchanged checks that s has the same objects as before its site was away.
func (s *side) unchanged(ctx context.Context, t *testing.T, before map[string]string) {
	t.Helper()
	if now := s.mirrored(ctx, t); !maps.Equal(now, before) {
		t.Errorf("objects changed while the API server was away: %v, had %v", now, before)
	}
}

// change changes something at random.
func (c *churn) change(ctx context.Context, t *testing.T) {
	t.Helper()
	name := fmt.Sprintf("s%d", c.rand.IntN(12))
	core := c.Control.Client.CoreV1().Services("shop")
	slices := c.Control.Client.DiscoveryV1().EndpointSlices("shop")
	_, has := c.services[name]

	switch op := c.rand.IntN(10); {
	case op < 2:
		c.toggleExport(ctx, t, name)
	case op < 3:
		c.toggleNode(ctx, t, 2+c.rand.IntN(6))
	case !has || op < 5:
		if has {
			errtest.Must(t, core.Delete(ctx, name, metav1.DeleteOptions{}))
			errtest.Must(t, slices.Delete(ctx, name, metav1.DeleteOptions{}))
			delete(c.services, name)
			return
		}
		c.services[name] = c.someAddrs()
		svc := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Name: "http",
				Port: int32(80 + c.rand.IntN(3))}}}}
		if c.rand.IntN(3) == 0 {
			svc.Spec.ClusterIP = corev1.ClusterIPNone
		}
		_, err := core.Create(ctx, svc, metav1.CreateOptions{})
		errtest.Must(t, err)
		_, err = slices.Create(ctx, c.slice(name), metav1.CreateOptions{})
		errtest.Must(t, err)
	default:
		c.services[name] = c.someAddrs()
		_, err := slices.Update(ctx, c.slice(name), metav1.UpdateOptions{})
		errtest.Must(t, err)
	}
}

// someAddrs returns up to four addresses of pods.
func (c *churn) someAddrs() (addrs []string) {
	for range 1 + c.rand.IntN(4) {
		addrs = append(addrs, fmt.Sprintf("10.245.0.%d", 2+c.rand.IntN(200)))
	}
	slices.Sort(addrs)
	return slices.Compact(addrs)
}

func (c *churn) slice(name string) *discoveryv1.EndpointSlice {
	port, portName := int32(8080), "http"
	s := &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Name: name,
		Labels: map[string]string{discoveryv1.LabelServiceName: name}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: &portName, Port: &port}}}
	for _, a := range c.services[name] {
		s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{Addresses: []string{a}})
	}
	return s
}

func (c *churn) toggleExport(ctx context.Context, t *testing.T, name string) {
	t.Helper()
	if c.exports[name] {
		c.unexport(ctx, t, name)
		delete(c.exports, name)
		return
	}
	c.exportOnly(ctx, t, name)
	c.exports[name] = true
}

func (c *churn) toggleNode(ctx context.Context, t *testing.T, i int) {
	t.Helper()
	client := apiobject.Client{Kubernetes: c.Control.Client, Dynamic: c.Control.Dynamic}
	name := fmt.Sprintf("node-%d", i)
	if c.nodes[i] {
		errtest.Must(t, client.DeleteNode(ctx, name))
		delete(c.nodes, i)
		return
	}
	addr := netip.AddrFrom4([4]byte{198, 51, 100, byte(i)})
	prefix := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 245, byte(i), 0}), 24)
	errtest.Must(t, client.AddNode(ctx, cluster.Node{Name: name, Addresses: []netip.Addr{addr},
		PodPrefixes: []netip.Prefix{prefix}, Claim: &cluster.Claim{
			Keys:        []cluster.Key{{Public: wgkey.Public{30: byte(c.rand.IntN(256)), 31: byte(i)}}},
			Endpoints:   []netip.AddrPort{netip.AddrPortFrom(addr, 51820)},
			PodPrefixes: []netip.Prefix{prefix}}}))
	c.nodes[i] = true
}

// follows waits until a has the nodes of c, and an import with the addresses of each exported
// service, and nothing else.
func (p pair) follows(ctx context.Context, t *testing.T, c *churn) {
	t.Helper()
	err := lab.Until(ctx, restored, func() error {
		nodes, err := p.a.Control.Dynamic.Resource(siteNodes).List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		if len(nodes.Items) != len(c.nodes) {
			return fmt.Errorf("%d nodes, want %v", len(nodes.Items), c.nodes)
		}

		list, err := p.a.Control.Dynamic.Resource(imports).Namespace("shop").List(ctx,
			metav1.ListOptions{})
		if err != nil {
			return err
		}
		want := 0
		for name := range c.exports {
			if c.services[name] == nil {
				continue
			}
			want++
			_, addrs, err := p.a.served(ctx, name)
			if err != nil {
				return err
			}
			if got := slices.Sorted(slices.Values(addrs["b"])); !slices.Equal(got, c.services[name]) {
				return fmt.Errorf("%s has the addresses %q, want %q", name, got, c.services[name])
			}
		}
		derived, err := p.a.Control.Client.CoreV1().Services("shop").List(ctx, ofSites)
		if err != nil {
			return err
		}
		if len(list.Items) != want || len(derived.Items) != want {
			return fmt.Errorf("%d imports and %d services, want %d", len(list.Items),
				len(derived.Items), want)
		}
		return nil
	})
	if err != nil {
		t.Fatalf("cluster a does not follow b: %v", err)
	}
}

// mirrored returns all objects that veil-site of s wrote for other clusters, without what a later
// start chooses again: addresses of services, and when an export was first seen.
func (s *side) mirrored(ctx context.Context, t *testing.T) map[string]string {
	t.Helper()
	all := map[string]string{}
	note := func(kind, name string, content ...any) {
		text, err := json.Marshal(content)
		errtest.Must(t, err)
		all[kind+" "+name] = string(text)
	}
	nodes, err := s.Control.Dynamic.Resource(siteNodes).List(ctx, metav1.ListOptions{})
	errtest.Must(t, err)
	for _, n := range nodes.Items {
		note("node", n.GetName(), n.Object["spec"])
	}
	list, err := s.Control.Dynamic.Resource(imports).Namespace("shop").List(ctx, metav1.ListOptions{})
	errtest.Must(t, err)
	for _, i := range list.Items {
		spec := i.Object["spec"].(map[string]any)
		delete(spec, "ips")
		note("import", i.GetName(), spec, i.GetLabels())
	}

	services, err := s.Control.Client.CoreV1().Services("shop").List(ctx, ofSites)
	errtest.Must(t, err)
	for _, v := range services.Items {
		note("service", v.Name, v.Labels, v.Spec.Ports, v.Spec.ClusterIP == corev1.ClusterIPNone)
	}
	ours := metav1.ListOptions{LabelSelector: discoveryv1.LabelManagedBy + "=" + mirror.ManagedBy}
	parts, err := s.Control.Client.DiscoveryV1().EndpointSlices("shop").List(ctx, ours)
	errtest.Must(t, err)
	for _, v := range parts.Items {
		note("slice", v.Name, v.Labels, v.AddressType, v.Endpoints, v.Ports)
	}
	return all
}

// forget deletes all objects that veil-site of s wrote for other clusters.
func (s *side) forget(ctx context.Context, t *testing.T) {
	t.Helper()
	as := s.as(ctx, t)
	for name := range s.mirrored(ctx, t) {
		kind, name, _ := strings.Cut(name, " ")
		var err error
		switch kind {
		case "node":
			err = as.Resource(siteNodes).Delete(ctx, name, metav1.DeleteOptions{})
		case "import":
			err = as.Resource(imports).Namespace("shop").Delete(ctx, name, metav1.DeleteOptions{})
		case "service":
			err = s.Control.Client.CoreV1().Services("shop").Delete(ctx, name, metav1.DeleteOptions{})
		case "slice":
			err = s.Control.Client.DiscoveryV1().EndpointSlices("shop").Delete(ctx, name,
				metav1.DeleteOptions{})
		}
		if err != nil && !apierrors.IsNotFound(err) {
			t.Fatal(err)
		}
	}
}
