package nodes

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubeveil/kubeveil/e2e/cluster/network/session"
	"github.com/kubeveil/kubeveil/pkg/remote"
)

// Reboot cuts the power of a node while its pods talk. The pods must come back by themselves and
// talk again. No traffic may be in clear while the node boots, although its disk still has the CNI
// configuration.
func Reboot(ctx context.Context, s *session.Session) error {
	_, b, err := s.TwoPods(ctx)
	if err != nil {
		return err
	}
	old, err := keyOf(ctx, s, b.Node)
	if err != nil {
		return err
	}

	// Packets to the node while it is away or boots must not be in clear either.
	if _, err := s.Load(ctx); err != nil {
		return err
	}

	began := time.Now()
	if err := s.Lab.Reboot(ctx, b.Node); err != nil {
		return err
	}

	s.Note("%s answers after %.0f s", b.Node, time.Since(began).Seconds())
	// The API server still shows the node as Ready, so wait for the key that the new boot
	// publishes.
	if _, err := newKey(ctx, s, b.Node, old, session.Returning); err != nil {
		return err
	}

	if err := s.WaitNodesReady(ctx, session.Returning, b.Node); err != nil {
		return err
	}

	// The API server shows old states of pods until the kubelet has reported new ones.
	err = remote.Until(ctx, "pods talk again", session.Returning, func(ctx context.Context) error {
		a, b, err := s.TwoPods(ctx)
		if err != nil {
			return err
		}
		return session.TalkBoth(ctx, a, b, "--timeout=10s")
	})
	if err != nil {
		return err
	}

	s.Note("its pods talk after %.0f s", time.Since(began).Seconds())
	return nil
}

// keyOf returns the newest public key that a node has published.
func keyOf(ctx context.Context, s *session.Session, node string) (string, error) {
	claims, err := s.Claims("")
	if err != nil {
		return "", err
	}
	o, err := claims.Get(ctx, node, metav1.GetOptions{})
	if err != nil {
		return "", fmt.Errorf("VeilNode %s: %w", node, err)
	}
	return publishedKey(o.Object)
}

// publishedKey returns the last key of spec.keys in a VeilNode.
func publishedKey(object map[string]any) (string, error) {
	spec, _ := object["spec"].(map[string]any)
	keys, _ := spec["keys"].([]any)
	if len(keys) == 0 {
		return "", errors.New("the VeilNode has no key")
	}
	last, _ := keys[len(keys)-1].(map[string]any)
	key, _ := last["publicKey"].(string)
	if key == "" {
		return "", errors.New("the VeilNode has an empty key")
	}
	return key, nil
}

// newKey waits until a node has published another key than old, and returns it.
func newKey(ctx context.Context, s *session.Session, node, old string,
	patience time.Duration) (key string, err error) {
	err = remote.Until(ctx, "another key of "+node, patience, func(ctx context.Context) error {
		if key, err = keyOf(ctx, s, node); err == nil && key == old {
			err = errors.New("it is still the old key")
		}
		return err
	})
	return key, err
}

// gapOfKey is how long flows may be without an answer while a node's key is replaced: its veild
// ends and starts, and the other nodes learn its key.
const gapOfKey = 30 * time.Second

// lossOfKey is how long UDP records may be lost on usual machines while a node's key is replaced.
// Records are lost after the node uses its new key and before its peer knows it, but not while
// veild restarts.
const lossOfKey = 10 * time.Second

// KeyReplaced replaces a node's key as in docs/operations.md: it removes the key file and restarts
// veild. Peers must use the new key, and connections must survive.
func KeyReplaced(ctx context.Context, s *session.Session) error {
	a, b, err := s.TwoPods(ctx)
	if err != nil {
		return err
	}
	all, err := s.Load(ctx)
	if err != nil {
		return err
	}
	old, err := keyOf(ctx, s, b.Node)
	if err != nil {
		return err
	}

	if _, err := s.Lab.Exec(ctx, b.Node, "rm /run/kubeveil/key"); err != nil {
		return err
	}
	pod, err := s.Daemon(ctx, session.VeildSet, b.Node)
	if err != nil {
		return err
	}
	if err := s.Client.CoreV1().Pods(metav1.NamespaceSystem).Delete(ctx, pod.Name,
		metav1.DeleteOptions{}); err != nil {
		return err
	}
	key, err := newKey(ctx, s, b.Node, old, session.Rolling)
	if err != nil {
		return err
	}

	err = remote.Until(ctx, "the new key at "+a.Node, session.Meeting,
		func(ctx context.Context) error {
			out, err := s.Lab.Exec(ctx, a.Node, "wg show veil0 peers")
			if err != nil {
				return err
			}
			if peers := strings.Fields(string(out)); !slices.Contains(peers, key) ||
				slices.Contains(peers, old) {
				return fmt.Errorf("its peers are %v, want %s and not %s", peers, key, old)
			}
			return nil
		})
	if err != nil {
		return err
	}

	errs := []error{s.Held(ctx, all, gapOfKey)}
	for _, f := range all {
		for _, flow := range f.Last() {
			errs = append(errs, flow.LostAtMost(remote.Patience(ctx, lossOfKey)))
		}
	}
	return errors.Join(errs...)
}

// youngSession is an age at which WireGuard does not renew a session yet (Rekey-After-Time is 120
// s).
const youngSession = 110 * time.Second

// workerRolled replaces the pods of veil-wg, which serves the tunnel of c's node, during flows
// between c's and a's nodes. The flows must survive, in the same WireGuard session.
func workerRolled(ctx context.Context, s *session.Session, a, c *remote.Pod) error {
	old, err := s.PodsOf(ctx, session.WorkerSet)
	if err != nil {
		return err
	}
	var all []*session.Flows
	for name, way := range map[string]struct{ from, to *remote.Pod }{
		"flows-of-worker": {c, a}, "flows-to-worker": {a, c}} {
		var to []netip.AddrPort
		for _, addr := range way.to.Addrs {
			to = append(to, netip.AddrPortFrom(addr, remote.EchoPort))
		}
		f, err := s.StartFlows(ctx, name, way.from.Node, to...)
		if err != nil {
			return err
		}
		all = append(all, f)
	}

	key, err := keyOf(ctx, s, c.Node)
	if err != nil {
		return err
	}
	before, age, err := handshake(ctx, s, a.Node, key)
	if err != nil {
		return err
	}
	began := time.Now()
	if err := s.Restart(ctx, session.WorkerSet); err != nil {
		return err
	}
	took := time.Since(began)
	s.Note("%d pods of veil-wg replaced in %s", len(old), took.Round(time.Second))

	after, err := s.PodsOf(ctx, session.WorkerSet)
	errs := []error{s.Held(ctx, all, session.GapUndisturbed), err,
		session.Replaced(session.WorkerSet, old, after),
		tookOver(ctx, s, c.Node)}
	now, _, err := handshake(ctx, s, a.Node, key)
	switch {
	case err != nil:
		errs = append(errs, err)
	case now == before:
		s.Note("the session of %s went on", c.Node)
	case age+took < youngSession:
		errs = append(errs, fmt.Errorf("%s began a new session %s after the last", c.Node,
			age+took))
	default:
		s.Note("the session of %s was due: it was renewed", c.Node)
	}
	return errors.Join(errs...)
}

// tookOver returns an error unless the pod of veil-wg on a node logged that it took the device over
// from the earlier pod. It notes for how long the device stopped.
func tookOver(ctx context.Context, s *session.Session, node string) error {
	pod, err := s.Daemon(ctx, session.WorkerSet, node)
	if err != nil {
		return err
	}
	log, err := s.Client.CoreV1().Pods(pod.Namespace).GetLogs(pod.Name,
		&corev1.PodLogOptions{}).DoRaw(ctx)
	if err != nil {
		return fmt.Errorf("log of %s: %w", pod.Name, err)
	}
	if !bytes.Contains(log, []byte("device taken over with its sessions")) {
		return fmt.Errorf("veil-wg of %s did not take its device over:\n%s", node, log)
	}
	for line := range strings.Lines(string(log)) {
		if _, stood, ok := strings.Cut(line, "stood_still="); ok {
			s.Note("veil0 of %s was taken over and stood still for %s", node,
				strings.TrimSpace(stood))
		}
	}
	return nil
}

// handshake returns the time of the last handshake of a node's kernel with a peer, and its age,
// both by the node's clock.
func handshake(ctx context.Context, s *session.Session, node, key string) (at string,
	age time.Duration, err error) {
	out, err := s.Lab.Exec(ctx, node, "wg show veil0 latest-handshakes; date +%s")
	if err != nil {
		return "", 0, err
	}
	fields := strings.Fields(string(out))
	i := slices.Index(fields, key)
	if i < 0 || i+1 >= len(fields) {
		return "", 0, fmt.Errorf("%s has no peer %s", node, key)
	}
	at = fields[i+1]
	then, err := strconv.ParseInt(at, 10, 64)
	if err != nil {
		return "", 0, fmt.Errorf("handshake %q: %w", at, err)
	}
	now, err := strconv.ParseInt(fields[len(fields)-1], 10, 64)
	if err != nil {
		return "", 0, fmt.Errorf("date of %s: %w", node, err)
	}
	return at, time.Duration(now-then) * time.Second, nil
}

// JoinAndLeave adds a node, checks that its pods talk with others, and removes the node. Nothing of
// it may be left on other nodes.
func JoinAndLeave(ctx context.Context, s *session.Session) error {
	a, _, err := s.TwoPods(ctx)
	if err != nil {
		return err
	}

	began := time.Now()
	name, err := s.Lab.Join(ctx)
	if err != nil {
		return err
	}
	if err := s.WaitNodesReady(ctx, session.Returning, name); err != nil {
		return err
	}

	s.Note("%s is Ready after %.0f s", name, time.Since(began).Seconds())
	n, err := s.OwnNamespace(ctx)
	if err != nil {
		return err
	}
	c := &remote.Pod{Name: "c", Node: name}
	if err := n.Run(ctx, c); err != nil {
		return err
	}
	if err := session.TalkBoth(ctx, a, c); err != nil {
		return err
	}

	if s.Lab != nil {
		// The lab's third machine has no module wireguard.
		if err := tunnelOf(ctx, s, name, false); err != nil {
			return err
		}
		s.Note("its tunnel is in userspace")
		if err := workerRolled(ctx, s, a, c); err != nil {
			return err
		}
	}

	key, err := keyOf(ctx, s, name)
	if err != nil {
		return err
	}
	if err := s.Lab.Leave(ctx, name); err != nil {
		return err
	}

	return remote.Until(ctx, name+" is forgotten", session.Meeting,
		func(ctx context.Context) error {
			return forgotten(ctx, s, a.Node, name, key, c)
		})
}

// forgotten returns an error if a node that left still has a VeilNode, or if the node at still has
// it as a peer or has a route to its pod.
func forgotten(ctx context.Context, s *session.Session, at, name, key string,
	pod *remote.Pod) error {
	if _, err := keyOf(ctx, s, name); !apierrors.IsNotFound(err) {
		return errors.Join(fmt.Errorf("VeilNode %s is still there", name), err)
	}
	out, err := s.Lab.Exec(ctx, at, "wg show veil0 peers")
	if err != nil {
		return err
	}
	if slices.Contains(strings.Fields(string(out)), key) {
		return fmt.Errorf("%s still has it as a peer", at)
	}
	// Prefixes of the cluster without a node are unreachable, so ip route get must fail.
	if out, err := s.Lab.Exec(ctx, at, "ip route get "+pod.Addrs[0].String()); err == nil {
		return fmt.Errorf("%s routes its pod: %s", at, out)
	}
	return nil
}
