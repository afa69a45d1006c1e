package vm

import (
	"context"
	"log/slog"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/kubeveil/kubeveil/e2e/lab"
	"github.com/kubeveil/kubeveil/e2e/lab/buildtree"
	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/nettest"
)

// The test uses two API servers of one cluster, without machines. The second serves everything that
// the first serves, and can be stopped and started again. Objects are not visible on the way to
// etcd.
func TestSecondAPIServer(t *testing.T) {
	nettest.NeedRoot(t)
	if os.Getenv("KUBEVEIL_VM") == "" {
		nettest.Skip(t, nettest.Short, "set KUBEVEIL_VM=1 to start control planes")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 6*time.Minute)
	t.Cleanup(cancel)
	c := controlOnly(ctx, t)
	second, err := c.SecondAPI(ctx)
	errtest.Must(t, err)
	at := func(words ...string) ([]byte, error) {
		return c.Kubectl(ctx, append(words, "--server=https://"+second.Addr().String(),
			"--request-timeout=5s")...)
	}

	literal := "--from-literal=text=" + c.Lab.Canary
	errtest.Must(t, errtest.Of(at("create", "configmap", "canary", literal)))
	out, err := c.Kubectl(ctx, "get", "configmap", "canary", "-o", "jsonpath={.data.text}")
	if err != nil || string(out) != c.Lab.Canary {
		t.Errorf("the first API server has %q, %v", out, err)
	}

	for name, fault := range map[string]func(bool) error{
		"unplugged": func(out bool) error { return second.Unplug(ctx, out) },
		"frozen":    second.Freeze,
	} {
		errtest.Must(t, fault(true))
		if out, err := at("get", "--raw=/readyz"); err == nil {
			t.Errorf("%s: it answers %q", name, out)
		}
		if _, err := c.Kubectl(ctx, "get", "--raw=/readyz"); err != nil {
			t.Errorf("%s: the first API server: %v", name, err)
		}
		errtest.Must(t, fault(false))
		if err := lab.Until(ctx, time.Minute, func() error {
			_, err := at("get", "--raw=/readyz")
			return err
		}); err != nil {
			t.Errorf("%s, and back: %v", name, err)
		}
	}

	errtest.Check(t, second.End(ctx))
	out, err = c.Kubectl(ctx, "get", "endpointslices", "--namespace=default", "-o", "yaml")
	if err != nil || strings.Contains(string(out), second.Addr().Addr().String()) {
		t.Errorf("the service kubernetes still has the server that ended: %v\n%s", err, out)
	}
	if _, err := c.SecondAPI(ctx); err != nil {
		t.Errorf("a second time: %v", err)
	}

	result, err := c.Close()
	if err != nil {
		t.Error(err)
	}
	if err := result.Err(); err != nil || result.Frames == 0 {
		t.Errorf("%d frames on the wire: %v", result.Frames, err)
	}
}

// controlOnly returns a cluster that only has a control plane.
func controlOnly(ctx context.Context, t *testing.T) *Cluster {
	t.Helper()
	root, err := buildtree.Root()
	errtest.Must(t, err)
	c := &Cluster{opts: ClusterConfig{UnderlayMTU: 1500}, root: root, Dir: t.TempDir(),
		start: time.Now(), log: slog.New(slog.NewTextHandler(t.Output(), nil)), dnsTag: "v1.0.0"}
	t.Cleanup(func() { _, _ = c.Close() })
	errtest.Must(t, c.makeNetwork(ctx))
	version, err := c.Control.Exec(ctx, c.program("kubeadm"), "version", "-o", "short")
	errtest.Must(t, err)
	c.version = strings.TrimSpace(string(version))
	errtest.Must(t, c.makeControl(ctx))
	return c
}
