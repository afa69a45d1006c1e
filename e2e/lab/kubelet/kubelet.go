package kubelet

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/kubeveil/kubeveil/e2e/lab"
	"github.com/kubeveil/kubeveil/pkg/leak"
)

// Port is the port of the API of kubelets.
const Port = 10250

// ServerFlags are flags of an API server whose cluster has this kubelet.
var ServerFlags = []string{"--kubelet-preferred-address-types=InternalIP"}

// Config configures a Kubelet. All fields are needed.
type Config struct {
	Node *lab.Node
	// Client acts as a cluster administrator.
	Client kubernetes.Interface
	// Images is an archive of images in the format of docker save. Dir is a folder for their
	// content.
	Images, Dir string
	// DNS are the addresses of the DNS servers of pods.
	DNS []netip.Addr
	Log *slog.Logger
}

// Kubelet runs the pods of a node.
type Kubelet struct {
	Config
	images *images
	server *server
	stop   context.CancelFunc
	loop   sync.WaitGroup

	mu   sync.Mutex
	pods map[types.UID]*pod
}

// pod is a pod that runs, or that starts or ends.
type pod struct {
	object    *corev1.Pod
	pod       *lab.Pod
	processes []*lab.Process
	done      chan struct{} // is closed when the pod has started or has failed to
	ending    bool
}

// interval is the time between two looks at the pods of the API server.
const interval = 200 * time.Millisecond

// Start starts a kubelet, which runs until Close. The lab's oracle lets requests of the API server
// to it pass.
func Start(ctx context.Context, l *lab.Lab, c Config) (*Kubelet, error) {
	k := &Kubelet{Config: c, pods: map[types.UID]*pod{},
		images: &images{archive: c.Images, dir: c.Dir, dns: c.DNS, made: map[string]*image{}}}
	l.Oracle.Update(func(r *leak.Rules) {
		for _, a := range c.Node.Addrs {
			r.Flows = append(r.Flows, leak.Flow{Name: "kubelet", Proto: leak.TCP, Addr: a, Port: Port})
		}
	})
	if err := k.serve(); err != nil {
		return nil, fmt.Errorf("kubelet of %s: %w", c.Node, err)
	}
	if err := k.register(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("kubelet of %s: %w", c.Node, err), k.server.close())
	}
	ctx, k.stop = context.WithCancel(context.WithoutCancel(ctx))
	k.loop.Go(func() { k.run(ctx) })
	return k, nil
}

// register writes the port into the status of the Node, and lets pods be bound to it.
func (k *Kubelet) register(ctx context.Context) error {
	nodes := k.Client.CoreV1().Nodes()
	if _, err := nodes.Patch(ctx, k.Node.Name, types.MergePatchType,
		[]byte(`{"spec":{"taints":null}}`), metav1.PatchOptions{}); err != nil {
		return err
	}
	_, err := nodes.Patch(ctx, k.Node.Name, types.MergePatchType, fmt.Appendf(nil,
		`{"status":{"daemonEndpoints":{"kubeletEndpoint":{"Port":%d}}}}`, Port),
		metav1.PatchOptions{}, "status")
	return err
}

// Close ends the kubelet and its pods.
func (k *Kubelet) Close() error {
	k.stop()
	k.loop.Wait()
	err := k.server.close()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	for _, p := range k.pods {
		err = errors.Join(err, k.end(ctx, p))
	}
	return err
}

// run compares the pods of the API server with those that run, until ctx ends.
func (k *Kubelet) run(ctx context.Context) {
	var pods sync.WaitGroup
	defer pods.Wait()
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		if err := k.turn(ctx, &pods); err != nil && ctx.Err() == nil {
			k.Log.Warn("pods were not compared", "node", k.Node.Name, "error", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// turn starts new pods and ends others, in the background.
func (k *Kubelet) turn(ctx context.Context, pods *sync.WaitGroup) error {
	list, err := k.Client.CoreV1().Pods("").List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	exist := map[types.UID]bool{}
	for i := range list.Items {
		o := &list.Items[i]
		if o.Spec.NodeName != "" && o.Spec.NodeName != k.Node.Name || len(o.Spec.Containers) == 0 {
			continue
		}
		p := k.pods[o.UID]
		switch {
		case o.DeletionTimestamp != nil && p == nil:
			pods.Go(func() { k.remove(ctx, o) })
		case o.DeletionTimestamp == nil:
			exist[o.UID] = true
			if p == nil {
				p = &pod{object: o, done: make(chan struct{})}
				k.pods[o.UID] = p
				pods.Go(func() { k.begin(ctx, p) })
			}
		}
	}

	for uid, p := range k.pods {
		if !exist[uid] && !p.ending {
			p.ending = true
			pods.Go(func() { k.finish(ctx, uid, p) })
		}
	}
	return nil
}

// begin starts a pod.
func (k *Kubelet) begin(ctx context.Context, p *pod) {
	defer close(p.done)
	if err := k.start(ctx, p); err != nil && ctx.Err() == nil {
		k.Log.Warn("a pod has not started", "pod", p.object.Namespace+"/"+p.object.Name, "error", err)
	}
}

func (k *Kubelet) start(ctx context.Context, p *pod) error {
	o := p.object
	client := k.Client.CoreV1().Pods(o.Namespace)
	if o.Spec.NodeName == "" {
		err := client.Bind(ctx, &corev1.Binding{ObjectMeta: metav1.ObjectMeta{Name: o.Name,
			UID: o.UID}, Target: corev1.ObjectReference{Kind: "Node", Name: k.Node.Name}},
			metav1.CreateOptions{})
		if err != nil {
			return err
		}
	}
	var err error
	if p.pod, err = k.Node.AddPod(ctx, o.Namespace+"."+o.Name, lab.PodOptions{Object: o}); err != nil {
		return err
	}
	for _, c := range o.Spec.Containers {
		line, err := k.command(p, c)
		if err != nil {
			return err
		}
		process, err := p.pod.Start(ctx, line[0], line[1:]...)
		if err != nil {
			return err
		}
		p.processes = append(p.processes, process)
	}

	now := metav1.Now()
	if o, err = client.Get(ctx, o.Name, metav1.GetOptions{}); err != nil {
		return err
	}
	o.Status = corev1.PodStatus{Phase: corev1.PodRunning, StartTime: &now}
	for _, t := range []corev1.PodConditionType{corev1.PodReady, corev1.ContainersReady} {
		o.Status.Conditions = append(o.Status.Conditions, corev1.PodCondition{Type: t,
			Status: corev1.ConditionTrue, LastTransitionTime: now})
	}
	for _, a := range p.pod.Addrs {
		o.Status.PodIPs = append(o.Status.PodIPs, corev1.PodIP{IP: a.String()})
	}
	o.Status.PodIP = o.Status.PodIPs[0].IP
	_, err = client.UpdateStatus(ctx, o, metav1.UpdateOptions{})
	return err
}

// finish ends a pod, and then removes its object. A pod that cannot be ended is tried again.
func (k *Kubelet) finish(ctx context.Context, uid types.UID, p *pod) {
	<-p.done
	err := k.end(ctx, p)
	k.mu.Lock()
	p.ending = false
	if err == nil {
		delete(k.pods, uid)
	}
	k.mu.Unlock()
	if err == nil {
		k.remove(ctx, p.object)
	} else if ctx.Err() == nil {
		k.Log.Warn("a pod has not ended", "pod", p.object.Namespace+"/"+p.object.Name, "error", err)
	}
}

// end ends the programs of a pod and calls DEL.
func (k *Kubelet) end(ctx context.Context, p *pod) error {
	var errs []error
	for _, process := range p.processes {
		errs = append(errs, process.Kill(ctx))
	}
	p.processes = nil
	if p.pod != nil {
		errs = append(errs, p.pod.Del(ctx))
	}
	return errors.Join(errs...)
}

// remove deletes the object of a pod that has ended.
func (k *Kubelet) remove(ctx context.Context, o *corev1.Pod) {
	at := int64(0)
	err := k.Client.CoreV1().Pods(o.Namespace).Delete(ctx, o.Name, metav1.DeleteOptions{
		GracePeriodSeconds: &at, Preconditions: &metav1.Preconditions{UID: &o.UID}})
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) && ctx.Err() == nil {
		k.Log.Warn("a pod's object is not deleted", "pod", o.Namespace+"/"+o.Name, "error", err)
	}
}

// running returns the pod with a name, or nil.
func (k *Kubelet) running(namespace, name string) *pod {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, p := range k.pods {
		select {
		case <-p.done:
			if p.object.Namespace == namespace && p.object.Name == name && p.pod != nil && !p.ending {
				return p
			}
		default:
		}
	}
	return nil
}
