package network_test

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/kubeveil/kubeveil/e2e/lab"
	"github.com/kubeveil/kubeveil/e2e/lab/buildtree"
	"github.com/kubeveil/kubeveil/e2e/node/nodetest"
	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/manifesttest"
	"github.com/kubeveil/kubeveil/internal/netns"
)

const component = "manifests/components/servicemonitor"

// operatorDefinition returns the operator's own definition of a resource, from its Go module.
func operatorDefinition(ctx context.Context, t *testing.T,
	resource string) *unstructured.Unstructured {
	t.Helper()
	file, err := buildtree.OperatorDefinition(ctx, nodetest.Root(t), resource)
	errtest.Must(t, err)
	return manifesttest.Read(t, file).Object
}

// An API server with the operator's definition accepts the component's objects, and Prometheus
// finds veild's metrics at their targets.
func TestServiceMonitor(t *testing.T) {
	ctx, l := nodetest.NewLab(t, lab.Options{Nodes: 1, NoBoot: true})
	monitor := manifesttest.Read(t, filepath.Join(nodetest.Root(t), component,
		"servicemonitor.yaml")).Object
	service := manifesttest.Read(t, filepath.Join(nodetest.Root(t), component,
		"service.yaml")).Object
	rules := manifesttest.Read(t, filepath.Join(nodetest.Root(t), component,
		"prometheusrule.yaml")).Object
	t.Run("accepted", func(t *testing.T) {
		accepted(ctx, t, l, monitor, "servicemonitors", "selectors")
		accepted(ctx, t, l, rules, "prometheusrules", "group")
	})
	ports, _, _ := unstructured.NestedSlice(service.Object, "spec", "ports")
	if len(ports) != 1 {
		t.Fatalf("ports of the service %v: want one", ports)
	}
	port := fmt.Sprint(ports[0].(map[string]any)["targetPort"])

	n := l.Nodes()[0]
	c := newContainers(ctx, t, l, n)
	c.run(ctx, t, "cni/daemonset-veild.yaml", "install-cni")
	veild := c.startOf(ctx, t, listening(t), "veild")
	for _, p := range []*lab.Process{c.start(ctx, t, "cni/daemonset-veil-wg.yaml", "veil-wg"),
		veild} {
		t.Cleanup(func() { p.Kill(context.WithoutCancel(ctx)) })
	}
	nodetest.WaitReady(ctx, t, n)
	address := net.JoinHostPort(n.Addrs[0].String(), port)
	ready, err := get(ctx, t, n, address, "/readyz")
	if err != nil || ready.StatusCode != http.StatusOK {
		t.Errorf("the readiness probe, which asks at the node's address: %v, %v", ready, err)
	}
	refused, err := get(ctx, t, l.Control.Host(), address, "/metrics")
	if err != nil || refused.StatusCode != http.StatusForbidden {
		t.Errorf("another host, which would get metrics in clear: %v, %v", refused, err)
	}

	pod := nodetest.AddPod(ctx, t, n, "prometheus")
	response, err := get(ctx, t, pod, address, "/metrics")
	errtest.Must(t, err)
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(response.Body)
	errtest.Must(t, err)
	ours := 0
	for name := range families {
		if strings.HasPrefix(name, "kubeveil_") {
			ours++
		}
	}
	if ours < 5 {
		t.Errorf("%d of %d metrics belong to Kubeveil", ours, len(families))
	}
}

// accepted applies the operator's definition of a resource, and then an object without keeping it.
// It checks that an unknown field of spec is refused.
func accepted(ctx context.Context, t *testing.T, l *lab.Lab, object *unstructured.Unstructured,
	resource, unknown string) {
	t.Helper()
	c := l.Control
	definitions := schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1",
		Resource: "customresourcedefinitions"}
	if _, err := c.Dynamic.Resource(definitions).Create(ctx, operatorDefinition(ctx, t, resource),
		metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	err := lab.Until(ctx, 20*time.Second, func() error {
		return nodetest.DryApply(ctx, l, object)
	})
	if err != nil {
		t.Error(err)
	}
	wrong := object.DeepCopy()
	errtest.Must(t, unstructured.SetNestedField(wrong.Object, "x", "spec", unknown))
	if err := nodetest.DryApply(ctx, l, wrong); err == nil {
		t.Error("a field that does not exist is accepted, so nothing was checked")
	}
}

// listening returns veild's DaemonSet with the component's patch.
func listening(t *testing.T) *unstructured.Unstructured {
	t.Helper()
	return manifesttest.Patched(t, filepath.Join(nodetest.Root(t), component, "listen.yaml"),
		daemonSet(t, "cni/daemonset-veild.yaml"))
}

// get requests a path by HTTP from a network namespace.
func get(ctx context.Context, t *testing.T, from interface{ NetNS() string },
	address, path string) (*http.Response, error) {
	t.Helper()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+path, nil)
	if err != nil {
		return nil, err
	}
	request.Close = true
	var conn net.Conn
	err = netns.Do(from.NetNS(), func() (err error) {
		conn, err = net.DialTimeout("tcp", address, 5*time.Second)
		return err
	})
	if err != nil {
		return nil, err
	}
	t.Cleanup(func() { conn.Close() })
	if err := request.Write(conn); err != nil {
		return nil, err
	}
	return http.ReadResponse(bufio.NewReader(conn), request)
}
