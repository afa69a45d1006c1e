package vm

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"strings"
	"text/template"
	"time"

	"github.com/kubeveil/kubeveil/e2e/lab/traffic"
)

// readyPatience bounds the wait for all nodes. It is long because an emulated machine starts
// containers slowly.
const readyPatience = 10 * time.Minute

// InstallVeil applies the manifests as a user would and waits until every node is Ready. A node
// becomes Ready when its guard is up and the CNI configuration is written.
func (c *Cluster) InstallVeil(ctx context.Context) error {
	if err := c.applyVeil(ctx); err != nil {
		return err
	}
	return c.waitNodes(ctx)
}

func (c *Cluster) applyVeil(ctx context.Context) error {
	dir, err := c.manifests()
	if err != nil {
		return err
	}
	if c.place.linked() {
		if err := c.defineSites(ctx); err != nil {
			return fmt.Errorf("install Kubeveil: %w", err)
		}
	}
	if _, err := c.Kubectl(ctx, "apply", "-k", dir); err != nil {
		return fmt.Errorf("install Kubeveil: %w", err)
	}
	if c.place.linked() {
		return c.resolveImports(ctx)
	}
	return nil
}

// waitNodes waits until every node is Ready.
func (c *Cluster) waitNodes(ctx context.Context) error {
	if _, err := c.Kubectl(ctx, "wait", "--for=condition=Ready", "node", "--all",
		"--timeout="+readyPatience.String()); err != nil {
		logs, _ := c.Kubectl(ctx, "logs", "--namespace=kube-system",
			"--selector=app.kubernetes.io/component=veild", "--all-containers", "--tail=20")
		return fmt.Errorf("wait for nodes: %w: veild logs %s", err, logs)
	}
	c.step("nodes are ready")
	return nil
}

// podPatience bounds the wait for a pod. It suffices for a host that compiles at the same time.
const podPatience = 5 * time.Minute

// Pod is a pod that runs veil-tools.
type Pod struct {
	Name string
	// Node is the machine on which the pod runs.
	Node *Machine
	// Annotations are the annotations of the Pod object.
	Annotations map[string]string
	// Addrs are the pod's addresses, IPv4 first. RunPod sets them.
	Addrs []netip.Addr

	cluster *Cluster
}

// podObject is a pod that runs the echo server. Every payload of veil-tools in it contains the
// canary.
var podObject = template.Must(template.New("pod").Parse(`apiVersion: v1
kind: Pod
metadata:
  name: {{.Name}}
  namespace: default
  labels: {app: {{.Name}}}
  annotations: { {{range $k, $v := .Annotations}}{{$k}}: "{{$v}}", {{end}} }
spec:
  nodeName: {{.Node}}
  terminationGracePeriodSeconds: 1
  containers:
    - name: tool
      image: {{.Image}}
      args: [echo-serve]
      env: [{name: LAB_CANARY, value: "{{.Canary}}"}]
      ports: [{containerPort: {{.Port}}}]
`))

// RunPod creates the pod and waits until it is Ready.
func (c *Cluster) RunPod(ctx context.Context, p *Pod) error {
	var object bytes.Buffer
	err := podObject.Execute(&object, map[string]any{
		"Name": p.Name, "Node": p.Node.Name, "Annotations": p.Annotations, "Image": ToolImage,
		"Canary": c.Lab.Canary,
		"Port":   traffic.EchoPort,
	})
	if err != nil {
		return err
	}
	if err := c.Apply(ctx, object.Bytes()); err != nil {
		return fmt.Errorf("pod %s: %w", p.Name, err)
	}
	if _, err := c.Kubectl(ctx, "wait", "--for=condition=Ready", "pod/"+p.Name,
		"--timeout="+podPatience.String()); err != nil {
		events, _ := c.Kubectl(ctx, "events", "--for=pod/"+p.Name)
		journal, _ := p.Node.Exec(ctx,
			"journalctl --no-pager --output=cat --lines=60 --unit=kubelet --unit=containerd")
		return fmt.Errorf("pod %s: %w: %s: the journal of %s: %s", p.Name, err, events,
			p.Node.Name, journal)
	}
	p.cluster = c
	p.Addrs, err = c.podAddrs(ctx, p.Name)
	return err
}

// podAddrs returns the addresses in the status of a pod in the namespace default, IPv4 first. It
// returns an error if the pod has no address.
func (c *Cluster) podAddrs(ctx context.Context, name string) ([]netip.Addr, error) {
	out, err := c.Kubectl(ctx, "get", "pod", name, "-o", "jsonpath={.status.podIPs[*].ip}")
	if err != nil {
		return nil, fmt.Errorf("pod %s: %w", name, err)
	}
	var addrs []netip.Addr
	for _, word := range strings.Fields(string(out)) {
		addr, err := netip.ParseAddr(word)
		if err != nil {
			return nil, fmt.Errorf("address of pod %s: %w", name, err)
		}
		addrs = append(addrs, addr)
	}
	if len(addrs) == 0 {
		return nil, fmt.Errorf("pod %s has no address", name)
	}
	return addrs, nil
}

// Send sends messages from the pod to an echo server. It returns an error unless every message
// comes back unchanged.
func (p *Pod) Send(ctx context.Context, proto string, to netip.AddrPort,
	count int) (traffic.Sent, error) {
	var sent traffic.Sent
	out, err := p.cluster.Kubectl(ctx, "exec", p.Name, "--", "/veil-tools", "echo-send",
		"--proto", proto, "--to", to.String(),
		"--count", fmt.Sprint(count), "--size", "400", "--timeout", "20s")
	if err != nil {
		return sent, err
	}
	return sent, json.Unmarshal(out, &sent)
}
