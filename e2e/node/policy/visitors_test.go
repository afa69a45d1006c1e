package policy_test

import (
	"context"
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubeveil/kubeveil/e2e/lab"
	"github.com/kubeveil/kubeveil/e2e/node/nodetest"
	"github.com/kubeveil/kubeveil/internal/errtest"
)

// visitor is a pod that is added and removed. A guest is a visitor that no policy selects.
type visitor struct {
	number int // from 1
	app    string
	node   *lab.Node
	object *corev1.Pod
	to     *lab.Pod
	pod    *lab.Pod
	sender *sender
	// retries is how often a CNI call was repeated. refused is the error that was the reason.
	retries int
	refused error
}

// bind binds visitors to all nodes, half of them guests.
func (w *visits) bind(ctx context.Context, t *testing.T, pods int) []*visitor {
	t.Helper()
	return w.bindTo(ctx, t, nil, pods)
}

// bindTo binds visitors to a node; nil means each node in turn.
func (w *visits) bindTo(ctx context.Context, t *testing.T, to *lab.Node,
	pods int) (list []*visitor) {
	t.Helper()
	for range pods {
		w.numbers++
		v := &visitor{number: w.numbers, app: "visitor", to: w.open, node: to}
		if v.number%2 == 1 {
			v.app, v.to = "guest", w.server
		}
		if nodes := w.l.Nodes(); to == nil {
			v.node = nodes[v.number/2%len(nodes)]
		}
		list = append(list, v)
	}
	w.each(t, list, func(v *visitor) (err error) {
		v.object, err = v.node.BindPod(ctx, nodetest.Shop, nodetest.PodName(v.app),
			map[string]string{"app": v.app, "visits": "true"})
		return err
	})
	return list
}

// forgetPods deletes the objects of all visitors.
func (w *visits) forgetPods(ctx context.Context, t *testing.T) {
	t.Helper()
	now := int64(0)
	errtest.Must(t, w.l.Control.Client.CoreV1().Pods(nodetest.Shop).DeleteCollection(ctx,
		metav1.DeleteOptions{GracePeriodSeconds: &now},
		metav1.ListOptions{LabelSelector: "visits=true"}))
}

// atOnce is the number of visitors that are attached concurrently, as by a kubelet.
const atOnce = 4

// each calls f for all visitors of a list, several at once.
func (w *visits) each(t *testing.T, list []*visitor, f func(*visitor) error) {
	t.Helper()
	next := make(chan *visitor)
	var wait sync.WaitGroup
	for range atOnce {
		wait.Go(func() {
			for v := range next {
				if err := f(v); err != nil {
					t.Errorf("visitor %d, a %s of %s: %v", v.number, v.app, v.node.Name, err)
				}
			}
		})
	}
	for _, v := range list {
		next <- v
	}
	close(next)
	wait.Wait()
	if t.Failed() {
		t.FailNow()
	}
}

// patience bounds the wait for expected events.
const patience = time.Minute

// attach adds a pod that sends forbidden packets. It begins before the pod has a link, and ends
// when a few packets of each family were sent after ADD. It repeats a refused ADD, like a kubelet.
func (w *visits) attach(ctx context.Context, v *visitor) error {
	begin := func(p *lab.Pod) (err error) {
		if v.sender, err = newSender(p, v.number, v.to); err == nil {
			v.sender.insist()
		}
		return err
	}
	err := lab.Until(ctx, patience, func() (err error) {
		v.pod, err = v.node.AddPod(ctx, v.object.Name, lab.PodOptions{Object: v.object,
			Begin: begin})
		if err != nil && v.sender != nil {
			v.sender.close()
		}
		return v.retried(err)
	})
	if err != nil {
		return err
	}
	return v.sender.wait()
}

// allowed sends allowed packets of a visitor until they are received.
func (w *visits) allowed(v *visitor) error { return w.until(v.sender, portAllowed) }

// leave removes the pod. A DEL may lose its race against groups that change all the time; leave
// then repeats it, like a kubelet.
func (v *visitor) leave(ctx context.Context) error {
	v.sender.close()
	return lab.Until(ctx, patience, func() error { return v.retried(v.pod.Del(ctx)) })
}

// retried records an error of CNI after which the call is repeated.
func (v *visitor) retried(err error) error {
	if err != nil {
		v.retries++
		v.refused = err
	}
	return err
}

// wantEarly checks that some packets of the visitors were sent while ADD was under way.
func (w *visits) wantEarly(t *testing.T, list []*visitor) {
	t.Helper()
	early, retries := 0, 0
	var refused error
	for _, v := range list {
		early += v.sender.early
		if retries += v.retries; v.retries > 0 {
			refused = v.refused
		}
	}
	if early == 0 {
		t.Errorf("no packet of %d pods was sent before ADD returned", len(list))
	}
	t.Logf("%d forbidden packets were sent before ADD returned, and at least %d after it; CNI was "+
		"called again %d times, one of them for: %v", early, 2*insistences*len(list), retries, refused)
}

// sender sends as a pod.
type sender struct {
	number int
	to     [2]netip.AddrPort
	conns  [2]*net.UDPConn // IPv4, IPv6
	// early is the number of packets that were sent before ADD returned. Read it after wait.
	early    int
	attached atomic.Bool
	stop     chan struct{}
	once     sync.Once
	ended    sync.WaitGroup
}

// newSender opens the sockets of a pod.
func newSender(p *lab.Pod, number int, to *lab.Pod) (*sender, error) {
	s := &sender{number: number, stop: make(chan struct{})}
	for i, six := range []bool{false, true} {
		c, err := listen(p, 0, six)
		if err != nil {
			s.close()
			return nil, err
		}
		s.conns[i], s.to[i] = c, netip.AddrPortFrom(to.Addr(six), 0)
	}
	return s, nil
}

func (s *sender) close() {
	s.once.Do(func() { close(s.stop) })
	s.ended.Wait()
	for _, c := range s.conns {
		if c != nil {
			c.Close()
		}
	}
}

// send sends a packet to a port. An error means that the pod's network does not take it.
func (s *sender) send(family, port int) error {
	b := binary.BigEndian.AppendUint32(nil, uint32(s.number))
	_, err := s.conns[family].WriteToUDPAddrPort(b,
		netip.AddrPortFrom(s.to[family].Addr(), uint16(port)))
	return err
}

// sendAllowed sends a packet of each family that the pod may send.
func (s *sender) sendAllowed() error {
	return errors.Join(s.send(0, portAllowed), s.send(1, portAllowed))
}

// insistences is how many forbidden packets of each family a pod sends once it is attached.
const insistences = 3

// insist sends forbidden packets until wait returns.
func (s *sender) insist() {
	s.ended.Go(func() {
		for late := [2]int{}; min(late[0], late[1]) < insistences; {
			attached := s.attached.Load()
			for family := range s.conns {
				switch err := s.send(family, portForbidden); {
				case err == nil && attached:
					late[family]++
				case err == nil:
					s.early++
				}
			}
			select {
			case <-s.stop:
				return
			case <-time.After(100 * time.Microsecond):
			}
		}
	})
}

// wait waits until insist has sent enough after ADD.
func (s *sender) wait() error {
	s.attached.Store(true)
	done := make(chan struct{})
	go func() { s.ended.Wait(); close(done) }()
	select {
	case <-done:
		return nil
	case <-time.After(patience):
		s.close()
		return errors.New("forbidden packets cannot be sent")
	}
}
