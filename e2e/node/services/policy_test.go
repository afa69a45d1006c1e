package services_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubeveil/kubeveil/e2e/lab"
	"github.com/kubeveil/kubeveil/e2e/lab/traffic"
	"github.com/kubeveil/kubeveil/internal/errtest"
)

// Addresses of balancers, and the ports at which they check whether a node has endpoints.
var balancers = []netip.Addr{netip.MustParseAddr("198.18.64.1"), netip.MustParseAddr("fd42:64::1")}

// servicesOfPolicies: the traffic policies, source ranges and addresses of a service hold for
// clients outside and inside.
func servicesOfPolicies(ctx context.Context, t *testing.T, l *lab.Lab, client *lab.Pod,
	pods []*lab.Pod) {
	t.Run("externalTrafficPolicy Local",
		func(t *testing.T) { localOutside(ctx, t, l, client, pods) })
	t.Run("externalTrafficPolicy Local, between nodes",
		func(t *testing.T) { localBetween(ctx, t, l, client, pods) })
	t.Run("internalTrafficPolicy Local",
		func(t *testing.T) { localInside(ctx, t, l, client, pods) })
	t.Run("loadBalancerSourceRanges", func(t *testing.T) { sourceRanges(ctx, t, l, client, pods) })
	t.Run("externalIPs", func(t *testing.T) { externalIPs(ctx, t, l, client, pods) })
	t.Run("a type that changes", func(t *testing.T) { changingType(ctx, t, l, client, pods) })
}

// localOutside: a node serves clients outside by its own backends only, which see the client's
// address. A node without a backend drops, and fails the balancer's health check. From inside, the
// addresses of the service and of the balancer reach all backends.
func localOutside(ctx context.Context, t *testing.T, l *lab.Lab, client *lab.Pod, pods []*lab.Pod) {
	web := publish(ctx, t, l, "local", corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer,
		ExternalTrafficPolicy: corev1.ServiceExternalTrafficPolicyLocal}, pods[1:]...)
	without, with := l.Nodes()[0], l.Nodes()[1]
	balance(ctx, t, l, web, with, balancers...)
	each(func(six bool, proto string) {
		t.Run(family(six)+" "+proto, func(t *testing.T) {
			for _, to := range []netip.AddrPort{nodePort(t, web, with, proto, six),
				netip.AddrPortFrom(balancerOf(six), servicePort)} {
				c := answers(ctx, t, l.Outside, traffic.Question{Proto: proto, To: to, Count: asks,
					Egress: true}, spread("b", "c"))
				if client := l.OutsideAddrs(); c.Sources[client[0].String()]+
					c.Sources[client[1].String()] != asks {
					t.Errorf("backends were asked by %v, want %v alone", c.Sources, client)
				}
			}

			answers(ctx, t, l.Outside, traffic.Question{Proto: proto,
				To: nodePort(t, web, without, proto, six), Count: 2,
				Timeout: 300 * time.Millisecond, Egress: true}, noAnswer)
			answers(ctx, t, client, traffic.Question{Proto: proto, To: clusterIP(t, web, six),
				Count: asks}, spread("b", "c"))
			answers(ctx, t, client, traffic.Question{Proto: proto,
				To: netip.AddrPortFrom(balancerOf(six), servicePort), Count: asks},
				spread("b", "c"))
		})
	})

	t.Run("health checks", func(t *testing.T) {
		healthy(ctx, t, l, web, with, http.StatusOK, 4) // two pods of two addresses
		healthy(ctx, t, l, web, without, http.StatusServiceUnavailable, 0)
		putBackends(ctx, t, l, web.Name, ready(pods[0]), 1)
		healthy(ctx, t, l, web, with, http.StatusServiceUnavailable, 0)
		healthy(ctx, t, l, web, without, http.StatusOK, 2)
	})
}

// localBetween: a connection from a pod to a port of another node goes to that node's own backends,
// which see the pod's address, or is refused at once. The ports of its own node reach all backends.
func localBetween(ctx context.Context, t *testing.T, l *lab.Lab, client *lab.Pod, pods []*lab.Pod) {
	spec := corev1.ServiceSpec{Type: corev1.ServiceTypeNodePort,
		ExternalTrafficPolicy: corev1.ServiceExternalTrafficPolicyLocal}
	web := publish(ctx, t, l, "between", spec, pods[1:]...)
	sticky := affine(corev1.ServiceTypeNodePort, time.Hour)
	sticky.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
	remembering := publish(ctx, t, l, "between-remembering", sticky, pods...)
	first, second := l.Nodes()[0], l.Nodes()[1]
	each(func(six bool, proto string) {
		t.Run(family(six)+" "+proto, func(t *testing.T) {
			ask := func(from *lab.Pod, s *corev1.Service, at *lab.Node, count int,
				wanted func(traffic.Census) error) traffic.Census {
				t.Helper()
				return answers(ctx, t, from, traffic.Question{Proto: proto,
					To: nodePort(t, s, at, proto, six), Count: count}, wanted)
			}
			if c := ask(client, web, second, asks,
				spread("b", "c")); c.Sources[client.Addr(six).String()] != asks {
				t.Errorf("backends were asked by %v, want %v alone", c.Sources, client.Addr(six))
			}
			ask(pods[1], web, first, 3, refusedAtOnce)
			ask(client, web, first, asks, spread("b", "c"))
			// Backend a is on the first node. The second node does not use the affinity of the
			// first.
			ask(pods[1], remembering, first, 12, everyone("a"))
			if c := ask(client, remembering, second, 12, one); c.Names["a"] > 0 {
				t.Error("another node's backend answered")
			}
		})
	})

	t.Run("terminating endpoints", func(t *testing.T) {
		end := func(p *lab.Pod) endpoint { return endpoint{p, false, true, true} }
		ask := func(from *lab.Pod, at *lab.Node, wanted func(traffic.Census) error) {
			t.Helper()
			each(func(six bool, proto string) {
				answers(ctx, t, from, traffic.Question{Proto: proto,
					To: nodePort(t, web, at, proto, six), Count: 12}, wanted)
			})
		}
		putBackends(ctx, t, l, web.Name, []endpoint{end(pods[1])}, 1)
		ask(client, second, everyone("b"))
		ask(pods[2], second, everyone("b"))
		ask(pods[2], first, refusedAtOnce)
		// The ready endpoint is on another node.
		putBackends(ctx, t, l, web.Name, append(ready(pods[0]), end(pods[1])), 1)
		ask(client, second, everyone("b"))
		ask(pods[2], first, everyone("a"))
		putBackends(ctx, t, l, web.Name, append(ready(pods[2]), end(pods[1])), 1)
		ask(client, second, everyone("c"))
	})
}

func balancerOf(six bool) netip.Addr {
	if six {
		return balancers[1]
	}
	return balancers[0]
}

// healthy checks a node as a balancer does until the answer is as wanted.
func healthy(ctx context.Context, t *testing.T, l *lab.Lab, s *corev1.Service, n *lab.Node,
	status, endpoints int) {
	t.Helper()
	err := lab.Until(ctx, 15*time.Second, func() error {
		var a struct{ LocalEndpoints int }
		got, err := health(ctx, l, netip.AddrPortFrom(n.Addrs[0],
			uint16(s.Spec.HealthCheckNodePort)), "healthz", &a)
		if err != nil {
			return err
		}
		if got != status || a.LocalEndpoints != endpoints {
			return fmt.Errorf("status %d with %d endpoints, want %d with %d", got, a.LocalEndpoints,
				status, endpoints)
		}
		return nil
	})
	if err != nil {
		t.Errorf("health check of %s: %v", n.Name, err)
	}
}

// servesAsKubeProxy: balancers without a health check port of the service check each node at
// kube-proxy's port.
func servesAsKubeProxy(ctx context.Context, t *testing.T, l *lab.Lab) {
	for _, n := range l.Nodes() {
		for _, addr := range n.Addrs {
			for _, path := range []string{"healthz", "livez"} {
				err := lab.Until(ctx, 5*time.Second, func() error {
					var a struct{ LastUpdated, CurrentTime time.Time }
					status, err := health(ctx, l, netip.AddrPortFrom(addr, 10256), path, &a)
					if err == nil && (status != http.StatusOK || a.CurrentTime.IsZero() ||
						a.LastUpdated.After(a.CurrentTime)) {
						err = fmt.Errorf("status %d, %+v", status, a)
					}
					return err
				})
				if err != nil {
					t.Errorf("%s of %s: %v", path, addr, err)
				}
			}
		}
	}
}

// health sends a check from outside and returns the status. It decodes the answer into into.
func health(ctx context.Context, l *lab.Lab, at netip.AddrPort, path string,
	into any) (int, error) {
	transport := &http.Transport{DisableKeepAlives: true,
		DialContext: func(ctx context.Context, network, addr string) (conn net.Conn, err error) {
			err = l.Outside.Do(func() error {
				conn, err = (&net.Dialer{}).DialContext(ctx, network, addr)
				return err
			})
			return conn, err
		}}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet,
		fmt.Sprintf("http://%s/%s", at, path), nil)
	if err != nil {
		return 0, lab.Stop(err)
	}
	resp, err := (&http.Client{Transport: transport, Timeout: 2 * time.Second}).Do(req)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	return resp.StatusCode, json.NewDecoder(resp.Body).Decode(into)
}

// localInside: pods reach the backends of their own node. A node without a backend refuses them,
// even if others have one.
func localInside(ctx context.Context, t *testing.T, l *lab.Lab, client *lab.Pod, pods []*lab.Pod) {
	local := corev1.ServiceInternalTrafficPolicyLocal
	near := publish(ctx, t, l, "near", corev1.ServiceSpec{InternalTrafficPolicy: &local}, pods...)
	far := publish(ctx, t, l, "far", corev1.ServiceSpec{InternalTrafficPolicy: &local}, pods[1:]...)
	each(func(six bool, proto string) {
		answers(ctx, t, client, traffic.Question{Proto: proto, To: clusterIP(t, near, six)},
			everyone("a"))
		answers(ctx, t, pods[1], traffic.Question{Proto: proto, To: clusterIP(t, near, six),
			Count: asks}, spread("b", "c"))
		answers(ctx, t, client, traffic.Question{Proto: proto, To: clusterIP(t, far, six),
			Count: 3}, refusedAtOnce)
	})
}

// sourceRanges: clients outside are served if their address is in the ranges and dropped otherwise;
// pods are served.
func sourceRanges(ctx context.Context, t *testing.T, l *lab.Lab, client *lab.Pod, pods []*lab.Pod) {
	ranged := publish(ctx, t, l, "ranged", corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer,
		LoadBalancerSourceRanges: []string{"198.18.0.128/25", "fd42::/120"}}, pods...)
	addrs := []netip.Addr{netip.MustParseAddr("198.18.64.2"), netip.MustParseAddr("fd42:64::2")}
	balance(ctx, t, l, ranged, l.Nodes()[0], addrs...)
	ask := func(count int, wanted func(traffic.Census) error) {
		t.Helper()
		for _, a := range addrs {
			answers(ctx, t, l.Outside, traffic.Question{To: netip.AddrPortFrom(a, servicePort),
				Count: count, Timeout: 300 * time.Millisecond, Egress: true}, wanted)
		}
	}
	ask(asks, spread(three...))
	changeService(ctx, t, l, ranged.Name, func(s *corev1.Service) {
		s.Spec.LoadBalancerSourceRanges = []string{"198.18.0.0/25", "fd42::/124"}
	})
	ask(2, noAnswer)
	for _, a := range addrs {
		answers(ctx, t, client, traffic.Question{To: netip.AddrPortFrom(a, servicePort),
			Count: asks}, spread(three...))
	}
}

// externalIPs: addresses that the network routes to a node.
func externalIPs(ctx context.Context, t *testing.T, l *lab.Lab, client *lab.Pod, pods []*lab.Pod) {
	addrs := []netip.Addr{netip.MustParseAddr("198.18.66.1"), netip.MustParseAddr("fd42:66::1")}
	publish(ctx, t, l, "external", corev1.ServiceSpec{ExternalIPs: []string{addrs[0].String(),
		addrs[1].String()}}, pods...)
	routeVia(ctx, t, l, l.Nodes()[0], addrs...)
	each(func(six bool, proto string) {
		to := netip.AddrPortFrom(addrs[0], servicePort)
		if six {
			to = netip.AddrPortFrom(addrs[1], servicePort)
		}
		answers(ctx, t, l.Outside, traffic.Question{Proto: proto, To: to, Count: asks,
			Egress: true}, spread(three...))
		answers(ctx, t, client, traffic.Question{Proto: proto, To: to, Count: asks},
			spread(three...))
	})
}

// changingType: a port on nodes comes and goes with the type of its service, whose own address
// stays.
func changingType(ctx context.Context, t *testing.T, l *lab.Lab, client *lab.Pod, pods []*lab.Pod) {
	s := publish(ctx, t, l, "changing", corev1.ServiceSpec{}, pods...)
	inside := traffic.Question{To: clusterIP(t, s, false), Count: asks}
	answers(ctx, t, client, inside, spread(three...))
	s = changeService(ctx, t, l, s.Name,
		func(s *corev1.Service) { s.Spec.Type = corev1.ServiceTypeNodePort })
	outside := traffic.Question{To: nodePort(t, s, l.Nodes()[0], "tcp", false), Count: asks,
		Egress: true}
	answers(ctx, t, l.Outside, outside, spread(three...))
	changeService(ctx, t, l, s.Name, func(s *corev1.Service) {
		s.Spec.Type = corev1.ServiceTypeClusterIP
	})
	outside.Count = 3
	answers(ctx, t, l.Outside, outside, refusedAtOnce)
	answers(ctx, t, client, inside, spread(three...))
}

// changeService changes a service and returns the new object.
func changeService(ctx context.Context, t *testing.T, l *lab.Lab, name string,
	change func(*corev1.Service)) *corev1.Service {
	t.Helper()
	services := l.Control.Client.CoreV1().Services("default")
	s, err := services.Get(ctx, name, metav1.GetOptions{})
	errtest.Must(t, err)
	change(s)
	if s, err = services.Update(ctx, s, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	return s
}
