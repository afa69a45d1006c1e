package services_test

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/kubeveil/kubeveil/e2e/lab"
	"github.com/kubeveil/kubeveil/e2e/lab/traffic"
)

// affine is the part of a service's spec that makes a client stay with its backend.
func affine(t corev1.ServiceType, timeout time.Duration) corev1.ServiceSpec {
	seconds := int32(timeout / time.Second)
	return corev1.ServiceSpec{
		Type: t, SessionAffinity: corev1.ServiceAffinityClientIP,
		SessionAffinityConfig: &corev1.SessionAffinityConfig{
			ClientIP: &corev1.ClientIPConfig{TimeoutSeconds: &seconds}},
	}
}

// servicesRemember: a client stays with its backend where connections are made and in packets.
func servicesRemember(ctx context.Context, t *testing.T, l *lab.Lab, client *lab.Pod,
	pods []*lab.Pod) {
	sticky := publish(ctx, t, l, "sticky", affine(corev1.ServiceTypeNodePort, time.Hour), pods...)
	each(func(six bool, proto string) {
		t.Run(family(six)+" "+proto, func(t *testing.T) {
			answers(ctx, t, client, traffic.Question{Proto: proto, To: clusterIP(t, sticky, six)},
				one)
			answers(ctx, t, l.Outside, traffic.Question{Proto: proto,
				To: nodePort(t, sticky, l.Nodes()[0], proto, six), Egress: true}, one)
		})
	})
}

// servicesForget: after the timeout a client may get another backend. It mostly waits.
func servicesForget(ctx context.Context, t *testing.T, l *lab.Lab, client *lab.Pod,
	pods []*lab.Pod) {
	brief := publish(ctx, t, l, "brief", affine(corev1.ServiceTypeNodePort, time.Second), pods...)
	// All seven by the same of three: once in 700 times, and then tried again.
	inside := traffic.Question{Proto: "tcp", To: clusterIP(t, brief, false), Count: 7,
		Pause: afterTimeout}
	outside := traffic.Question{Proto: "udp", To: nodePort(t, brief, l.Nodes()[0], "udp", true),
		Count: 7, Pause: afterTimeout, Egress: true}
	var both sync.WaitGroup
	both.Go(func() { answers(ctx, t, client, inside, several(three...)) })
	both.Go(func() { answers(ctx, t, l.Outside, outside, several(three...)) })
	both.Wait()
}

// keeper sends requests over one socket for as long as a test lasts.
type keeper struct {
	what string
	from traffic.Place
	q    traffic.Question
	proc *lab.Process
	// taken reports whether the kernel closes its socket when the backend goes.
	taken bool
}

// servicesMoveDatagrams: a terminating backend keeps its connections and receives no new ones. When
// it goes, its UDP flows move, for connected and unconnected sockets and for clients outside. TCP
// connections stay with it, to end with it.
func servicesMoveDatagrams(ctx context.Context, t *testing.T, l *lab.Lab, client *lab.Pod,
	pods []*lab.Pod) {
	b, c := pods[1], pods[2]
	web := publish(ctx, t, l, "moving", corev1.ServiceSpec{Type: corev1.ServiceTypeNodePort}, b)
	n := l.Nodes()[0]

	var keepers []*keeper
	for _, six := range []bool{false, true} {
		inside, outside := clusterIP(t, web, six), nodePort(t, web, n, "udp", six)
		keepers = append(keepers,
			&keeper{what: "a pod's connected socket, " + family(six), from: client,
				q: traffic.Question{Proto: "udp", To: inside}, taken: true},
			&keeper{what: "a pod's unconnected socket, " + family(six), from: client,
				q: traffic.Question{Proto: "udp", To: inside, Unconnected: true}},
			&keeper{what: "a socket outside, " + family(six), from: l.Outside,
				q: traffic.Question{Proto: "udp", To: outside, Egress: true}},
			&keeper{what: "a pod's connection, " + family(six), from: client,
				q: traffic.Question{Proto: "tcp", To: inside}},
			&keeper{what: "a connection from outside, " + family(six), from: l.Outside,
				q: traffic.Question{Proto: "tcp", To: nodePort(t, web, n, "tcp", six),
					Egress: true}},
		)
	}

	for _, k := range keepers {
		answers(ctx, t, k.from, k.q, everyone("b"))
		var err error
		if k.proc, err = traffic.Keep(ctx, k.from, k.q); err != nil {
			t.Fatalf("%s: %v", k.what, err)
		}
	}

	putBackends(ctx, t, l, web.Name, append(ready(c), endpoint{b, false, true, true}), 1)
	for _, k := range keepers {
		answers(ctx, t, k.from, k.q, everyone("c"))
	}

	putBackends(ctx, t, l, web.Name, ready(c), 1)
	for _, k := range keepers {
		if k.q.Proto == "udp" {
			if err := k.proc.WaitLine(ctx, "now c", 15*time.Second); err != nil {
				t.Errorf("%s did not move: %v", k.what, err)
			}
		}
	}

	for _, k := range keepers {
		k.end(ctx, t)
	}
}

// end ends a keeper and reads which servers answered it.
func (k *keeper) end(ctx context.Context, t *testing.T) {
	t.Helper()
	var r traffic.Kept
	if err := k.proc.Result(ctx, &r); err != nil {
		t.Errorf("%s: %v", k.what, err)
		return
	}
	want := []string{"b"}
	if k.q.Proto == "udp" {
		want = append(want, "c")
	}
	if !slices.Equal(r.Names, want) {
		t.Errorf("%s: answers from %v one after the other, want %v", k.what, r.Names, want)
	}
	if k.taken != (r.Aborted > 0) {
		t.Errorf("%s: aborted %d times, want that it is: %v", k.what, r.Aborted, k.taken)
	}
	t.Logf("%s: %+v", k.what, r)
}
