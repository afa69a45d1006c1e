package demo

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"syscall"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	mcs "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/kubeveil/kubeveil/e2e/demo/capture"
	"github.com/kubeveil/kubeveil/e2e/lab"
	"github.com/kubeveil/kubeveil/e2e/lab/linked"
	"github.com/kubeveil/kubeveil/e2e/lab/traffic"
	"github.com/kubeveil/kubeveil/pkg/bench"
	"github.com/kubeveil/kubeveil/pkg/bench/report"
	"github.com/kubeveil/kubeveil/pkg/worker"
)

// Names of our cluster and of the other one, and of services of the other one.
const (
	ourName, otherName = "a", "b"
	exported, hidden   = "shop", "ledger"
)

// linkFrames is the number of frames of the link between the clusters that the report shows.
const linkFrames = 2

var multicluster = schema.GroupVersion{Group: mcs.GroupName, Version: "v1beta1"}

// ourSettings returns settings of veild in our cluster if there is an API server.
func ourSettings() map[string]any {
	ours, other := lab.Dual.Parts()
	c := linked.Settings(ours, other, otherName, namespace)
	c["serviceProxy"], c["policy"] = "ebpf", "kubernetes"
	// The service table has the size for a small cluster.
	c["services"] = map[string]any{"limits": map[string]any{"backendSlots": 1 << 16}}
	return c
}

// linked links the other cluster with ours, and shows what a pod of ours reaches there. It does
// nothing without an API server.
func (d *demo) linked(ctx context.Context) error {
	if !d.api {
		return nil
	}
	began := time.Now()
	if err := d.making.Wait(); err != nil {
		return err
	}
	if err := linked.Link(ctx, [2]*linked.Cluster{{Lab: d.ours.lab, Name: ourName},
		{Lab: d.other.lab, Name: otherName}}); err != nil {
		return err
	}
	addrs, err := d.imported(ctx)
	if err != nil {
		return err
	}
	d.say("%s: linked by veilctl site link and imported with the addresses %v, in %s", d.other.title,
		addrs, time.Since(began).Round(time.Millisecond))

	if err := d.reachExported(ctx, addrs); err != nil {
		return err
	}
	return d.reachHidden(ctx)
}

// unlink ends the other cluster and the veil-site of ours, so that they use no CPU time while speed
// is measured.
func (d *demo) unlink() error {
	if d.other == nil {
		return nil
	}
	_, err := d.ours.lab.Nodes()[0].Signal("veil-site", syscall.SIGKILL)
	return errors.Join(err, d.other.close())
}

// newOther makes the other cluster on the network of ours: a node with two pods, each of which has a
// service. One of the services is exported.
func (d *demo) newOther(ctx context.Context) (*network, error) {
	ours, other := lab.Dual.Parts()
	n := &network{title: "A service of another cluster"}
	var err error
	if n.lab, err = lab.New(ctx, lab.Options{Beside: d.ours.lab, Engine: worker.EngineKubeveil,
		VeildConfig: linked.Settings(other, ours, ourName, namespace)}); err != nil {
		return nil, err
	}
	if err := d.fillOther(ctx, n); err != nil {
		return nil, errors.Join(err, n.close())
	}
	return n, nil
}

func (d *demo) fillOther(ctx context.Context, n *network) error {
	node, err := n.lab.AddNode(ctx)
	if err != nil {
		return err
	}
	if err := errors.Join(node.WaitReady(ctx), n.lab.Control.InstallSites(ctx),
		d.ours.lab.Control.InstallSites(ctx),
		n.lab.Control.AddNamespace(ctx, namespace)); err != nil {
		return err
	}

	for _, name := range []string{exported, hidden} {
		pod, err := node.RunPod(ctx, namespace, name, nil)
		if err != nil {
			return err
		}
		n.pods = append(n.pods, pod)
		if _, err := traffic.Echo(ctx, pod); err != nil {
			return err
		}
		if _, err := addService(ctx, n.lab, name, traffic.EchoPort, pod); err != nil {
			return err
		}
	}
	_, err = n.lab.Control.Dynamic.Resource(multicluster.WithResource("serviceexports")).Namespace(
		namespace).Create(ctx, &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": multicluster.String(), "kind": mcs.ServiceExportKindName,
		"metadata": map[string]any{"name": exported}}}, metav1.CreateOptions{})
	return err
}

// imported waits until our cluster has imported the exported service, and returns its addresses.
func (d *demo) imported(ctx context.Context) (addrs []netip.Addr, err error) {
	imports := d.ours.lab.Control.Dynamic.Resource(multicluster.WithResource("serviceimports"))
	err = lab.Until(ctx, 30*time.Second, func() error {
		o, err := imports.Namespace(namespace).Get(ctx, exported, metav1.GetOptions{})
		if err != nil {
			return err
		}
		texts, _, err := unstructured.NestedStringSlice(o.Object, "spec", "ips")
		if err != nil || len(texts) != 2 {
			return fmt.Errorf("the import has the addresses %q: %w", texts, err)
		}
		addrs = nil
		for _, text := range texts {
			addr, err := netip.ParseAddr(text)
			if err != nil {
				return lab.Stop(err)
			}
			addrs = append(addrs, addr)
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("import of %s: %w", exported, err)
	}
	return addrs, nil
}

// reachExported makes a pod of ours exchange messages with the addresses of the import, and keeps
// frames of the link between the clusters.
func (d *demo) reachExported(ctx context.Context, addrs []netip.Addr) error {
	pod, canary := d.ours.pods[0], []byte(d.ours.lab.Canary)
	var tunnel, clear int
	s, err := capture.Start(d.other.lab.Nodes()[0].NetNS(), "eth0", func(frame []byte) bool {
		switch {
		case bytes.Contains(frame, canary):
			clear++
			return true
		case inTunnel(frame):
			tunnel++
			return ofMessage(frame)
		}
		return false
	}, linkFrames)
	if err != nil {
		return err
	}
	answered, err := d.messagesTo(ctx, pod, addrs)
	frames := s.Close()
	if err != nil {
		return err
	}

	all := 2 * perAddr * len(addrs)
	c := report.Capture{Title: d.other.title, Leaks: clear > 0, Canary: d.ours.capture.Canary,
		Verdict: fmt.Sprintf("A pod of the first cluster reaches an exported service of another: %d "+
			"of %d messages are answered. The link has only WireGuard, from node to node. There is "+
			"no gateway or proxy.", answered, all)}
	if c.Leaks {
		c.Verdict = "Payloads cross the link between the clusters in clear."
	}
	c.Frames = frames
	d.other.capture = c
	d.say("%s: %d of %d messages answered; on the link %d frames in the tunnel, %d in clear",
		d.other.title, answered, all, tunnel, clear)
	d.result.Gates = append(d.result.Gates,
		bench.Gate{Name: "a service of another cluster: a pod reaches it", Want: "all messages answered",
			Got: fmt.Sprintf("%d of %d messages answered; %d frames in the tunnel on the link",
				answered, all, tunnel),
			OK: answered == all && tunnel >= answered},
		bench.Exactly("a service of another cluster: its link, in clear", clear, 0, "frames"))
	return nil
}

// reachHidden makes a pod of ours send to the pod of the service that is not exported.
func (d *demo) reachHidden(ctx context.Context) error {
	const reason = "site_not_exported"
	node, to := d.other.lab.Nodes()[0], d.other.pods[1]
	before, err := drops(ctx, node, reason)
	if err != nil {
		return err
	}
	arrived := 0
	s, err := capture.Start(to.NetNS(), "eth0", func(frame []byte) bool {
		if p, ok := capture.Parse(frame); ok && p.Src == d.ours.pods[0].Addr(p.Src.Is6()) {
			arrived++
		}
		return false
	}, 0)
	if err != nil {
		return err
	}
	connected, err := d.knock(d.ours.pods[0], to.Addrs)
	if err != nil {
		s.Close()
		return err
	}

	r := report.Refusal{What: "A pod connects to a service of another cluster that is not exported",
		Want: "no import here; dropped by the other cluster's node"}
	var dropped uint64
	err = lab.Until(ctx, 5*time.Second, func() error {
		now, err := drops(ctx, node, reason)
		dropped = now - before
		if err == nil && dropped < 2*knocks {
			err = errors.New("not all are counted")
		}
		return err
	})
	s.Close()
	_, imported := d.ours.lab.Control.Dynamic.Resource(multicluster.WithResource(
		"serviceimports")).Namespace(namespace).Get(ctx, hidden, metav1.GetOptions{})
	r.Got = fmt.Sprintf("%d packets arrived, %d connections are open, %s +%d; %s", arrived, connected,
		reason, dropped, map[bool]string{true: "there is no ServiceImport",
			false: "ServiceImport: " + fmt.Sprint(imported)}[apierrors.IsNotFound(imported)])
	r.OK = err == nil && arrived == 0 && connected == 0 && apierrors.IsNotFound(imported)
	d.note(r)
	return ctx.Err()
}
