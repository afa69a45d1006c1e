package lab_test

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

	"github.com/kubeveil/kubeveil/e2e/lab"
)

// asks is how often a distribution is asked for: of three servers each answers thirty times, give or take twenty-two.
const asks = 90

// What is asked of a node's port reaches all backends by both protocols and families, whoever asks and whichever node: on the same node, and on another
// through the tunnel. The canaries of what comes from outside and of what is inside differ, so that the oracle tells the hops apart.
func TestServicesOfNodes(t *testing.T) {
	ctx, l := serviceLab(t)
	client, pods := namedPods(ctx, t, l, 1, "a", "b", "c")
	web := publish(ctx, t, l, "web", corev1.ServiceSpec{Type: corev1.ServiceTypeNodePort}, pods...)
	none := publish(ctx, t, l, "none", corev1.ServiceSpec{Type: corev1.ServiceTypeNodePort})
	each(func(six bool, proto string) {
		for i, n := range l.Nodes() {
			to := nodePort(t, web, n, proto, six)
			t.Run(fmt.Sprintf("%s %s by node %d", family(six), proto, i+1), func(t *testing.T) {
				answers(ctx, t, l.Outside, lab.Question{Proto: proto, To: to, Count: asks, Egress: true}, spread("a", "b", "c"))
				answers(ctx, t, client, lab.Question{Proto: proto, To: to, Count: asks}, spread("a", "b", "c"))
			})
		}
		t.Run(fmt.Sprintf("%s %s, no endpoints", family(six), proto), func(t *testing.T) {
			answers(ctx, t, client, lab.Question{Proto: proto, To: clusterIP(t, none, six), Count: 3}, refusedAtOnce)
			answers(ctx, t, client, lab.Question{Proto: proto, To: nodePort(t, none, l.Nodes()[0], proto, six), Count: 3}, refusedAtOnce)
			answers(ctx, t, l.Outside, lab.Question{Proto: proto, To: nodePort(t, none, l.Nodes()[0], proto, six), Count: 3, Egress: true}, refusedAtOnce)
		})
		t.Run(fmt.Sprintf("%s %s to itself", family(six), proto), func(t *testing.T) {
			// Of the backends one is who asks, so it must answer itself now and then.
			answers(ctx, t, pods[0], lab.Question{Proto: proto, To: clusterIP(t, web, six), Count: asks}, spread("a", "b", "c"))
		})
	})
	noLeaks(t, l)
}

// each calls fn for both families and protocols.
func each(fn func(six bool, proto string)) {
	for _, six := range []bool{false, true} {
		for _, proto := range []string{"tcp", "udp"} {
			fn(six, proto)
		}
	}
}

func family(six bool) string {
	if six {
		return "IPv6"
	}
	return "IPv4"
}

// Addresses of balancers, and the ports on which they ask whether a node has endpoints.
var balancers = []netip.Addr{netip.MustParseAddr("198.18.64.1"), netip.MustParseAddr("fd42:64::1")}

// With externalTrafficPolicy Local a node serves outside by its own backends only, who see the client's address; without one it drops, and says so to
// the balancer's health check. From inside all backends are reached.
func TestServicesOfLocalEndpoints(t *testing.T) {
	ctx, l := serviceLab(t)
	client, pods := namedPods(ctx, t, l, 1, "a", "b", "c")
	web := publish(ctx, t, l, "web", corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer, ExternalTrafficPolicy: corev1.ServiceExternalTrafficPolicyLocal}, pods[1:]...)
	without, with := l.Nodes()[0], l.Nodes()[1]
	balance(ctx, t, l, web, with, balancers...)
	each(func(six bool, proto string) {
		t.Run(family(six)+" "+proto, func(t *testing.T) {
			for _, to := range []netip.AddrPort{nodePort(t, web, with, proto, six), netip.AddrPortFrom(balancerOf(six), servicePort)} {
				c := answers(ctx, t, l.Outside, lab.Question{Proto: proto, To: to, Count: asks, Egress: true}, spread("b", "c"))
				if client := l.OutsideAddrs(); c.Sources[client[0].String()]+c.Sources[client[1].String()] != asks {
					t.Errorf("backends were asked by %v, want %v alone", c.Sources, client)
				}
			}
			answers(ctx, t, l.Outside, lab.Question{Proto: proto, To: nodePort(t, web, without, proto, six), Count: 2, Timeout: 300 * time.Millisecond, Egress: true}, nobody)
			answers(ctx, t, client, lab.Question{Proto: proto, To: clusterIP(t, web, six), Count: asks}, spread("b", "c"))
		})
	})
	t.Run("health checks", func(t *testing.T) {
		healthy(ctx, t, l, web, with, http.StatusOK, 4) // two pods of two addresses
		healthy(ctx, t, l, web, without, http.StatusServiceUnavailable, 0)
		putBackends(ctx, t, l, web.Name, ready(pods[0]), 1)
		healthy(ctx, t, l, web, with, http.StatusServiceUnavailable, 0)
		healthy(ctx, t, l, web, without, http.StatusOK, 2)
	})
	noLeaks(t, l)
}

func balancerOf(six bool) netip.Addr {
	if six {
		return balancers[1]
	}
	return balancers[0]
}

// healthy asks a node as a balancer does until the answer is as wanted.
func healthy(ctx context.Context, t *testing.T, l *lab.Lab, s *corev1.Service, n *lab.Node, status, endpoints int) {
	t.Helper()
	transport := &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, network, addr string) (conn net.Conn, err error) {
		err = l.Outside.Do(func() error {
			conn, err = (&net.Dialer{}).DialContext(ctx, network, addr)
			return err
		})
		return conn, err
	}}
	url := fmt.Sprintf("http://%s/healthz", netip.AddrPortFrom(n.Addrs[0], uint16(s.Spec.HealthCheckNodePort)))
	err := lab.Until(ctx, 15*time.Second, func() error {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		if err != nil {
			return lab.Stop(err)
		}
		resp, err := (&http.Client{Transport: transport, Timeout: 2 * time.Second}).Do(req)
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		var a struct{ LocalEndpoints int }
		if err := json.NewDecoder(resp.Body).Decode(&a); err != nil {
			return err
		}
		if resp.StatusCode != status || a.LocalEndpoints != endpoints {
			return fmt.Errorf("status %d with %d endpoints, want %d with %d", resp.StatusCode, a.LocalEndpoints, status, endpoints)
		}
		return nil
	})
	if err != nil {
		t.Errorf("health check of %s: %v", n.Name, err)
	}
}
