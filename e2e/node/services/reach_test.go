package services_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubeveil/kubeveil/e2e/lab"
	"github.com/kubeveil/kubeveil/e2e/lab/traffic"
	"github.com/kubeveil/kubeveil/e2e/node/nodetest"
	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/pkg/telemetry"
)

// asks is the number of requests for a distribution: each of three servers answers thirty of them,
// give or take twenty-two.
const asks = 90

// servicesOfNodes: requests to a node's port reach all backends by both protocols and families,
// from any client and on any node: on the same node, and on another through the tunnel. The
// canaries of requests from outside and from inside differ, so that the oracle distinguishes the
// hops.
func servicesOfNodes(ctx context.Context, t *testing.T, l *lab.Lab, client *lab.Pod,
	pods []*lab.Pod) {
	web := publish(ctx, t, l, "of-nodes", corev1.ServiceSpec{Type: corev1.ServiceTypeNodePort},
		pods...)
	none := publish(ctx, t, l, "of-nobody", corev1.ServiceSpec{Type: corev1.ServiceTypeNodePort})
	each(func(six bool, proto string) {
		for i, n := range l.Nodes() {
			to := nodePort(t, web, n, proto, six)
			t.Run(fmt.Sprintf("%s %s by node %d", family(six), proto, i+1), func(t *testing.T) {
				answers(ctx, t, l.Outside, traffic.Question{Proto: proto, To: to, Count: asks,
					Egress: true}, spread("a", "b", "c"))
				answers(ctx, t, client, traffic.Question{Proto: proto, To: to, Count: asks},
					spread("a", "b", "c"))
			})
		}

		t.Run(fmt.Sprintf("%s %s, no endpoints", family(six), proto), func(t *testing.T) {
			answers(ctx, t, client, traffic.Question{Proto: proto, To: clusterIP(t, none, six),
				Count: 3}, refusedAtOnce)
			answers(ctx, t, client, traffic.Question{Proto: proto,
				To: nodePort(t, none, l.Nodes()[0], proto, six), Count: 3}, refusedAtOnce)
			answers(ctx, t, l.Outside, traffic.Question{Proto: proto,
				To: nodePort(t, none, l.Nodes()[0], proto, six), Count: 3, Egress: true},
				refusedAtOnce)
		})

		t.Run(fmt.Sprintf("%s %s to itself", family(six), proto), func(t *testing.T) {
			// One of the backends is the client itself, so it must answer itself now and then.
			answers(ctx, t, pods[0], traffic.Question{Proto: proto, To: clusterIP(t, web, six),
				Count: asks}, spread("a", "b", "c"))
		})
	})

	t.Run("veilctl", func(t *testing.T) { veilctlOfServices(ctx, t, l, web, none, pods) })
	servicesOfOnePort(ctx, t, l, client, pods)
	connectionsOfOnePort(ctx, t, l, pods)
}

// servicesOfOnePort: a pod sends datagrams to a backend by another node's port. Then it sends from
// the same source port to the backend's own address, to which a ClusterIP is translated too.
func servicesOfOnePort(ctx context.Context, t *testing.T, l *lab.Lab, client *lab.Pod,
	pods []*lab.Pod) {
	web := publish(ctx, t, l, "of-one-port", corev1.ServiceSpec{Type: corev1.ServiceTypeNodePort},
		pods[2])
	for _, six := range []bool{false, true} {
		t.Run(family(six)+" udp from one port", func(t *testing.T) {
			q := traffic.Question{Proto: "udp", To: nodePort(t, web, l.Nodes()[1], "udp", six),
				FromPort: 20000, Count: 1}
			for range 3 {
				answers(ctx, t, client, q, everyone("c"))
				inside := q
				inside.To = clusterIP(t, web, six)
				answers(ctx, t, client, inside, everyone("c"))
			}
		})
	}
}

// connectionsOfOnePort: a client outside whose connection to a service has just ended opens one
// from the same port to another service with the same only backend. Its first SYN is dropped, since
// the replies of both look alike in the node. A SYN that it repeats soon is not dropped.
func connectionsOfOnePort(ctx context.Context, t *testing.T, l *lab.Lab, pods []*lab.Pod) {
	for _, b := range []struct {
		where, name string
		pod         *lab.Pod
	}{{"here", "a", pods[0]}, {"on the other node", "c", pods[2]}} {
		var services []*corev1.Service
		for _, name := range []string{"first", "second"} {
			services = append(services, publish(ctx, t, l,
				fmt.Sprintf("of-one-port-%s-%s", b.name, name),
				corev1.ServiceSpec{Type: corev1.ServiceTypeNodePort}, b.pod))
		}
		for _, six := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s tcp from one port, backend %s", family(six), b.where),
				func(t *testing.T) {
					for _, s := range services {
						c := answers(ctx, t, l.Outside,
							traffic.Question{Proto: "tcp", To: nodePort(t, s, l.Nodes()[0], "tcp",
								six),
								FromPort: 20001, Count: 1, Timeout: 10 * time.Second, Egress: true},
							everyone(b.name))
						t.Logf("%s: answered after %.0f ms", s.Name, c.SlowestMillis)
					}
				})
		}
	}
}

// veilctlOfServices queries a node about a service and about one without endpoints.
func veilctlOfServices(ctx context.Context, t *testing.T, l *lab.Lab, web, none *corev1.Service,
	pods []*lab.Pod) {
	node, name := l.Nodes()[0], func(s *corev1.Service) string { return s.Namespace + "/" + s.Name }
	nodetest.VeilctlSays(ctx, t, l, node, "service list", name(web), name(none))
	for _, six := range []bool{false, true} {
		var backends []string
		for _, p := range pods {
			for _, a := range p.Addrs {
				if a.Is6() == six {
					backends = append(backends, a.String())
				}
			}
		}
		to := clusterIP(t, web, six).String()
		nodetest.VeilctlSays(ctx, t, l, node, "service show "+name(web), append(backends, to)...)
		nodetest.VeilctlSays(ctx, t, l, node, "service trace "+to,
			append(backends, "is the ClusterIP of "+name(web))...)
		nodetest.VeilctlSays(ctx, t, l, node,
			"service trace --outside "+nodePort(t, web, node, "tcp", six).String(),
			append(backends, name(web))...)
		nodetest.VeilctlSays(ctx, t, l, node, "service trace "+clusterIP(t, none, six).String(),
			"is the ClusterIP of "+name(none))
	}
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

// balancerInFront is row 10 of the exceptions: a pod sends to a load balancer of its own cluster
// that no program on a node translates (ipMode Proxy). veilctl flows shows the row.
func balancerInFront(ctx context.Context, t *testing.T, l *lab.Lab, client *lab.Pod) {
	s := publish(ctx, t, l, "behind-a-balancer",
		corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer})
	proxy := corev1.LoadBalancerIPModeProxy
	for _, a := range l.OutsideAddrs() {
		s.Status.LoadBalancer.Ingress = append(s.Status.LoadBalancer.Ingress,
			corev1.LoadBalancerIngress{IP: a.String(), IPMode: &proxy})
	}
	services := l.Control.Client.CoreV1().Services("default")
	_, err := services.UpdateStatus(ctx, s, metav1.UpdateOptions{})
	errtest.Must(t, err)

	for _, to := range l.OutsideAddrs() {
		for _, proto := range []string{"tcp", "udp"} {
			_, err := traffic.Send(ctx, client, traffic.Exchange{Proto: proto, To: to, Egress: true})
			errtest.Must(t, err)
			err = lab.Until(ctx, 10*time.Second, func() error {
				out, err := client.Node.Exec(ctx, l.Program("veilctl"), "flows", "--clear", "-o", "json")
				for line := range bytes.Lines(out) {
					var f telemetry.Flow
					if json.Unmarshal(line, &f) == nil && f.Server == to && f.Protocol == proto &&
						slices.Contains(client.Addrs, f.Client) && f.Row == 10 {
						return nil
					}
				}
				return errors.Join(err, fmt.Errorf("no row 10 to %s by %s in\n%s", to, proto, out))
			})
			if err != nil {
				t.Error(err)
			}
		}
	}
	errtest.Must(t, services.Delete(ctx, s.Name, metav1.DeleteOptions{}))
}
