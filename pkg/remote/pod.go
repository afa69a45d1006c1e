package remote

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// EchoPort is the default port of veil-tools's echo server, TCP and UDP.
const EchoPort = 7000

// PodPatience bounds the wait for a pod to become Ready. It is long because emulated machines start
// containers slowly and clusters in clouds must pull the image.
const PodPatience = 3 * time.Minute

// container is the name of the only container of a Pod.
const container = "tool"

// Pod describes a pod that Run starts. If only Name is set, the pod is an echo server on a node
// that the scheduler chooses, and is Ready when the server listens. All capabilities are dropped
// except Capabilities.
type Pod struct {
	Name string
	// Node is the node on which the pod runs, regardless of taints with the effect NoSchedule. ""
	// lets the scheduler choose; Run then sets Node.
	Node string
	// Image is the image of the container. "" means ConnectConfig.Image.
	Image string
	// Command replaces the entry point of the image. If Command and Args are nil, the pod runs
	// "echo-serve". Otherwise it has no readiness probe and is Ready as soon as it runs.
	Command, Args []string
	// Listen is the port of the echo server. 0 means EchoPort.
	Listen int
	Env    map[string]string
	// Labels are added to the label "app", whose value is Name.
	Labels, Annotations map[string]string
	HostNetwork         bool
	// Port is the container port, TCP and UDP. HostPort is the port of the node that leads to it. 0
	// means none, but if HostPort is set, a Port of 0 means EchoPort.
	Port, HostPort int
	Capabilities   []corev1.Capability
	// Token reports whether a token of the service account is mounted. Account is the name of the
	// service account; "" means "default".
	Token   bool
	Account string
	// Change is called with the object before it is created, if it is not nil.
	Change func(*corev1.Pod)

	// Addrs are set by Run, in the cluster's order of families.
	Addrs []netip.Addr
	// Namespace is set by Run.
	Namespace *Namespace
}

// Addr returns the pod's address of a family.
func (p *Pod) Addr(is4 bool) (netip.Addr, bool) { return ofFamily(p.Addrs, is4) }

func (p *Pod) object() *corev1.Pod {
	c := corev1.Container{Name: container, Image: p.Image, Command: p.Command, Args: p.Args,
		ImagePullPolicy: corev1.PullIfNotPresent}
	no := false
	c.SecurityContext = &corev1.SecurityContext{
		AllowPrivilegeEscalation: &no,
		Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"},
			Add: p.Capabilities},
		SeccompProfile: &corev1.SeccompProfile{
			Type: corev1.SeccompProfileTypeRuntimeDefault},
	}
	if p.Command == nil && p.Args == nil {
		listen := EchoPort
		c.Args = []string{"echo-serve"}
		if p.Listen != 0 {
			listen = p.Listen
			c.Args = append(c.Args, "--listen", fmt.Sprintf(":%d", listen))
		}
		c.ReadinessProbe = &corev1.Probe{PeriodSeconds: 2,
			ProbeHandler: corev1.ProbeHandler{
				TCPSocket: &corev1.TCPSocketAction{Port: intstr.FromInt(listen)}}}
	}

	for _, name := range slices.Sorted(maps.Keys(p.Env)) {
		c.Env = append(c.Env, corev1.EnvVar{Name: name, Value: p.Env[name]})
	}

	port := p.Port
	if p.HostPort != 0 && port == 0 {
		port = EchoPort
	}

	if port != 0 {
		for _, proto := range []corev1.Protocol{corev1.ProtocolTCP, corev1.ProtocolUDP} {
			c.Ports = append(c.Ports, corev1.ContainerPort{ContainerPort: int32(port),
				HostPort: int32(p.HostPort), Protocol: proto})
		}
	}

	labels := map[string]string{"app": p.Name}
	maps.Copy(labels, p.Labels)
	grace := int64(1)
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: p.Name, Labels: labels, Annotations: p.Annotations},
		Spec: corev1.PodSpec{
			NodeName: p.Node, HostNetwork: p.HostNetwork, Containers: []corev1.Container{c},
			AutomountServiceAccountToken: &p.Token, ServiceAccountName: p.Account,
			TerminationGracePeriodSeconds: &grace, RestartPolicy: corev1.RestartPolicyAlways,
		},
	}
}

// Run creates the pod and waits until it is Ready. If it does not become Ready, the error holds its
// events and logs. Run must be called only once for each Pod.
func (n *Namespace) Run(ctx context.Context, p *Pod) error {
	if p.Image == "" {
		p.Image = n.Cluster.Image
	}
	object := p.object()
	object.Labels[SuiteLabel] = n.suite
	env := &object.Spec.Containers[0].Env
	if _, set := p.Env[canaryEnv]; !set {
		*env = append(*env, corev1.EnvVar{Name: canaryEnv, Value: n.Cluster.Canary})
	}
	if p.Change != nil {
		p.Change(object)
	}
	p.Namespace = n
	if _, err := n.Cluster.Client.CoreV1().Pods(n.Name).Create(ctx, object,
		metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("create pod %s: %w", p.Name, err)
	}
	n.Cluster.Log.Debug("pod created", "namespace", n.Name, "pod", p.Name, "node", p.Node)
	return p.WaitReady(ctx, PodPatience)
}

// RunAll calls Run for several pods at the same time.
func (n *Namespace) RunAll(ctx context.Context, pods ...*Pod) error {
	var group errgroup.Group
	for _, p := range pods {
		group.Go(func() error { return n.Run(ctx, p) })
	}
	return group.Wait()
}

// WaitReady waits until the pod is Ready and sets Node and Addrs.
func (p *Pod) WaitReady(ctx context.Context, patience time.Duration) error {
	pods := p.Namespace.Cluster.Client.CoreV1().Pods(p.Namespace.Name)
	err := Until(ctx, "pod "+p.Name, patience, func(ctx context.Context) error {
		got, err := pods.Get(ctx, p.Name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if err := readiness(got); err != nil {
			return err
		}
		observe(ctx, got)
		p.Node, p.Addrs = got.Spec.NodeName, nil
		for _, ip := range got.Status.PodIPs {
			addr, err := netip.ParseAddr(ip.IP)
			if err != nil {
				return Stop(fmt.Errorf("address of pod %s: %w", p.Name, err))
			}
			p.Addrs = append(p.Addrs, addr)
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("%w\n%s", err, p.why(context.WithoutCancel(ctx)))
	}
	return nil
}

// readiness returns nil for a pod that is Ready, otherwise the reason why it is not.
func readiness(p *corev1.Pod) error {
	if p.Status.Phase == corev1.PodFailed {
		return Stop(fmt.Errorf("it failed: %s %s", p.Status.Reason, p.Status.Message))
	}
	if p.DeletionTimestamp != nil {
		return Stop(errors.New("it is being deleted"))
	}
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue &&
			len(p.Status.PodIPs) > 0 {
			return nil
		}
	}
	for _, s := range p.Status.ContainerStatuses {
		if w := s.State.Waiting; w != nil {
			// A kubelet that cannot pull the image retries forever, so waiting is useless.
			if w.Reason == "ErrImageNeverPull" || w.Reason == "InvalidImageName" ||
				w.Reason == "ImagePullBackOff" {
				return Stop(fmt.Errorf("image %s: %s %s", s.Image, w.Reason, w.Message))
			}
			return fmt.Errorf("not Ready: %s %s", w.Reason, w.Message)
		}
	}
	return fmt.Errorf("not Ready: phase %s", p.Status.Phase)
}

// whyLimit bounds the requests of why.
const whyLimit = 5 * time.Second

// why returns a text with the events and the last log lines of the pod, as far as they can be read.
func (p *Pod) why(ctx context.Context) string {
	ctx, cancel := context.WithTimeout(ctx, whyLimit)
	defer cancel()
	var b strings.Builder
	core := p.Namespace.Cluster.Client.CoreV1()
	events, err := core.Events(p.Namespace.Name).List(ctx,
		metav1.ListOptions{FieldSelector: "involvedObject.name=" + p.Name})
	if err != nil {
		fmt.Fprintf(&b, "  no events: %v\n", err)
	} else {
		for _, e := range events.Items {
			fmt.Fprintf(&b, "  event: %s %s\n", e.Reason, e.Message)
		}
	}
	if logs, err := p.Logs(ctx, 20); err == nil && logs != "" {
		fmt.Fprintf(&b, "  log: %s\n", strings.ReplaceAll(strings.TrimSpace(logs), "\n",
			"\n  log: "))
	}
	return strings.TrimRight(b.String(), "\n")
}

// Logs returns the last lines of the pod's log.
func (p *Pod) Logs(ctx context.Context, lines int64) (string, error) {
	b, err := p.Namespace.Cluster.Client.CoreV1().Pods(p.Namespace.Name).GetLogs(p.Name,
		&corev1.PodLogOptions{TailLines: &lines}).DoRaw(ctx)
	if err != nil {
		return "", fmt.Errorf("logs of pod %s: %w", p.Name, err)
	}
	return string(b), nil
}

// Delete deletes the pod and waits until it is gone.
func (p *Pod) Delete(ctx context.Context) error {
	pods := p.Namespace.Cluster.Client.CoreV1().Pods(p.Namespace.Name)
	err := pods.Delete(ctx, p.Name, metav1.DeleteOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("delete pod %s: %w", p.Name, err)
	}
	return Until(ctx, "delete pod "+p.Name, deletePatience, func(ctx context.Context) error {
		_, err := pods.Get(ctx, p.Name, metav1.GetOptions{})
		return goneAfter(err)
	})
}
