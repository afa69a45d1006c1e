package lab

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/kubeveil/kubeveil/e2e/lab/cni"
	"github.com/kubeveil/kubeveil/e2e/lab/labhost"
	"github.com/kubeveil/kubeveil/e2e/lab/traffic"
)

// Pod is a network namespace on a node that CNI plugins connect.
type Pod struct {
	// Name is unique on its node.
	Name string
	// ID is the container id that CNI was called with.
	ID string
	// Node is the node on which the pod runs.
	Node *Node
	// Addrs are the pod's addresses in the result of ADD, IPv4 first.
	Addrs []netip.Addr
	// MTU is the MTU of the pod's interface in the result of ADD, or 0 if the result has none.
	MTU int
	// Added is the duration of the ADD of the plugin chain.
	Added time.Duration

	caps string
	// cniArgs names the pod to the plugins, in the form of CNI_ARGS; "" without an Object.
	cniArgs string
}

// PodOptions configures AddPod.
type PodOptions struct {
	// Ports are host ports that the plugin portmap opens.
	Ports []PortMapping
	// Bandwidth is the pod's limit. Nil means no limit.
	Bandwidth *Bandwidth
	// Object is the pod's object in the API server. Nil means that there is none; CNI_ARGS then do
	// not name the pod.
	Object *corev1.Pod
	// Begin, if not nil, is called after the network namespace is made and before ADD.
	Begin func(*Pod) error
	// NoCNI makes only the network namespace and does not call ADD.
	NoCNI bool
}

// PortMapping, Bandwidth and CNIError are types of package cni.
type (
	PortMapping = cni.PortMapping
	Bandwidth   = cni.Bandwidth
	CNIError    = cni.Error
)

// AddPod makes a pod. If ADD fails, it removes the namespace, and the error matches *CNIError.
func (n *Node) AddPod(ctx context.Context, name string, opts PodOptions) (*Pod, error) {
	n.mu.Lock()
	n.numbers++
	// The id has a number, because a later pod with the same name is another container.
	id := fmt.Sprintf("%s-%s-%d", n.Name, name, n.numbers)
	n.mu.Unlock()
	caps, err := cni.Capabilities(opts.Ports, opts.Bandwidth)
	if err != nil {
		return nil, err
	}
	p := &Pod{Name: name, ID: id, Node: n, caps: caps, cniArgs: cni.Args(opts.Object)}

	if _, err := n.Exec(ctx, "ip", "netns", "add", id); err != nil {
		return nil, err
	}
	_, err = p.Exec(ctx, "ip", "link", "set", "lo", "up")
	if err == nil && opts.Begin != nil {
		err = opts.Begin(p)
	}
	if err == nil && !opts.NoCNI {
		err = p.add(ctx)
	}
	if err != nil {
		return nil, errors.Join(err, p.removeNS(ctx))
	}

	n.mu.Lock()
	n.pods[id] = p
	n.mu.Unlock()
	return p, nil
}

// netnsPath returns the path of the pod's network namespace on the node.
func (p *Pod) netnsPath() string { return "/run/netns/" + p.ID }

// NetNS returns the path of the pod's network namespace on the machine. It is valid until the pod
// or its node is removed.
func (p *Pod) NetNS() string { return p.Node.Path(p.netnsPath()) }

func (p *Pod) removeNS(ctx context.Context) error {
	_, err := p.Node.Exec(ctx, "ip", "netns", "del", p.ID)
	return err
}

// cni calls one CNI verb on the node, with the CNI library that container runtimes use.
func (n *Node) cni(ctx context.Context, verb string, args ...string) (cni.Answer, error) {
	all := append([]string{"cni-call", "--verb", verb, "--path", n.programs(), "--cache",
		filepath.Join(n.Disk(), "cni-cache")}, args...)
	a, err := cni.Call(n.Command(ctx, n.lab.Program("veil-tools"), all...), verb)
	if err != nil {
		return a, fmt.Errorf("%s: %w", n.Name, err)
	}
	return a, nil
}

func (p *Pod) args() []string {
	return []string{"--id", p.ID, "--netns", p.netnsPath(), "--caps", p.caps, "--args", p.cniArgs}
}

// add calls ADD and sets the fields that its result has.
func (p *Pod) add(ctx context.Context) error {
	a, err := p.Node.cni(ctx, "add", p.args()...)
	if err != nil {
		return err
	}

	p.Added = a.Took
	if p.Addrs, p.MTU, err = a.Addrs(); err != nil {
		return fmt.Errorf("%s: %w", p.ID, err)
	}
	return nil
}

// Check calls CHECK.
func (p *Pod) Check(ctx context.Context) error {
	_, err := p.Node.cni(ctx, "check", p.args()...)
	return err
}

// CallDel calls DEL and does not remove the namespace.
func (p *Pod) CallDel(ctx context.Context) error {
	_, err := p.Node.cni(ctx, "del", p.args()...)
	return err
}

// Del calls DEL and then removes the namespace, like a container runtime.
func (p *Pod) Del(ctx context.Context) error {
	if err := p.CallDel(ctx); err != nil {
		return err
	}
	if err := p.removeNS(ctx); err != nil {
		return err
	}
	p.Node.mu.Lock()
	delete(p.Node.pods, p.ID)
	p.Node.mu.Unlock()
	return nil
}

// Forget removes the namespace without DEL, as after a crash of the container runtime. GC has to
// remove the rest.
func (p *Pod) Forget(ctx context.Context) error {
	p.Node.mu.Lock()
	delete(p.Node.pods, p.ID)
	p.Node.mu.Unlock()
	return p.removeNS(ctx)
}

// GC calls GC with the node's pods as valid attachments.
func (n *Node) GC(ctx context.Context) error {
	var valid []string
	n.mu.Lock()
	for id := range n.pods {
		valid = append(valid, id+"/eth0")
	}
	n.mu.Unlock()
	_, err := n.cni(ctx, "gc", "--valid", strings.Join(valid, ","))
	return err
}

// Status calls STATUS.
func (n *Node) Status(ctx context.Context) error {
	_, err := n.cni(ctx, "status")
	return err
}

// Command prepares a program that will run in the pod's network namespace and the other
// namespaces of its node.
func (p *Pod) Command(ctx context.Context, name string, args ...string) *exec.Cmd {
	return p.Node.CommandIn(ctx, p.NetNS(), name, args...)
}

// Exec runs a program in the pod and returns its standard output.
func (p *Pod) Exec(ctx context.Context, name string, args ...string) ([]byte, error) {
	return labhost.Output(p.Command(ctx, name, args...))
}

// Start starts a program in the pod. It runs until it ends by itself or by a signal.
func (p *Pod) Start(_ context.Context, name string, args ...string) (*Process, error) {
	proc, err := p.Node.StartIn(p.NetNS, filepath.Join(p.Node.Dir, "log", p.ID), name, args...)
	if err != nil {
		return nil, fmt.Errorf("pod %s: %w", p.ID, err)
	}
	return proc, nil
}

// Kit returns the paths and canaries that tools in the pod need.
func (p *Pod) Kit() traffic.Kit { return p.Node.Kit() }

// String returns the names of the node and the pod, as node/pod.
func (p *Pod) String() string { return p.Node.Name + "/" + p.Name }

// Addr returns the pod's IPv6 address if six is set, otherwise its IPv4 address. It returns the
// zero Addr if the pod has none.
func (p *Pod) Addr(six bool) netip.Addr {
	for _, a := range p.Addrs {
		if a.Is6() == six {
			return a
		}
	}
	return netip.Addr{}
}
