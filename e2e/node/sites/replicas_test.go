package sites_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubeveil/kubeveil/e2e/lab"
	"github.com/kubeveil/kubeveil/e2e/node/nodetest"
	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/pkg/site/link"
	"github.com/kubeveil/kubeveil/pkg/site/record"
)

const veild = `clusterRanges: [10.244.0.0/16]
serviceRanges: [10.96.0.0/12]
nodeRanges: [192.0.2.0/24]
source: {kind: kubernetes, kubeconfig: %s}
sites:
  - {name: b, podRanges: [10.245.0.0/16], nodeRanges: [198.51.100.0/24]}
`

// One of two processes works. After its end the other does: within seconds if it could release the
// lease, and within the time of the lease if it was killed.
func TestReplicas(t *testing.T) {
	ctx, l := nodetest.NewLab(t, lab.Options{Nodes: -1})
	a := newSide(ctx, t, l, "a", "10.244.0.0/16", "192.0.2.0/24")
	namespace := link.NamespacePrefix + "b"
	_, err := l.Control.Client.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{
		ObjectMeta: metav1.ObjectMeta{Name: namespace}}, metav1.CreateOptions{})
	errtest.Must(t, err)

	kubeconfig := filepath.Join(l.Dir, "veil-site.kubeconfig")
	a.writeKubeconfig(ctx, t, kubeconfig, l.Control.Config.Host, "veil-site")
	config := filepath.Join(l.Dir, "veil-site.yaml")
	errtest.Must(t, os.WriteFile(config, fmt.Appendf(nil, veild, kubeconfig), 0o600))

	replicas := map[string]*lab.Process{}
	for _, name := range []string{"one", "two"} {
		p, err := l.Control.Host().Start(ctx, l.Program("veil-site"), "--config="+config,
			"--kubeadm-config=/nonexistent", "--credentials="+l.Dir, "--identity="+name,
			"--socket="+filepath.Join(l.Dir, name+".sock"))
		errtest.Must(t, err)
		replicas[name] = p
	}

	// works waits until a replica other than not has the lease, and writes the head. It returns it.
	works := func(not string, within time.Duration) (leader string) {
		t.Helper()
		records := l.Control.Dynamic.Resource(records).Namespace(namespace)
		err := lab.Until(ctx, within, func() error {
			lease, err := l.Control.Client.CoordinationV1().Leases("kube-system").Get(ctx, "veil-site",
				metav1.GetOptions{})
			if err != nil {
				return err
			}
			leader = ""
			if h := lease.Spec.HolderIdentity; h != nil {
				leader = *h
			}
			if leader == "" || leader == not {
				return fmt.Errorf("%q has the lease", leader)
			}
			_, err = records.Get(ctx, record.NameHead, metav1.GetOptions{})
			return err
		})
		if err != nil {
			t.Fatalf("no replica works: %v", err)
		}
		errtest.Must(t, records.Delete(ctx, record.NameHead, metav1.DeleteOptions{}))
		return leader
	}

	first := works("", 30*time.Second)
	checkProbes(ctx, t, l)
	checkReload(ctx, t, a, config, kubeconfig)
	errtest.Must(t, replicas[first].Kill(ctx))
	second := works(first, 40*time.Second)
	replicas[first], err = replicas[first].Restart(ctx)
	errtest.Must(t, err)
	errtest.Must(t, replicas[second].Term(ctx))
	begin := time.Now()
	if third := works(second, 30*time.Second); third != first {
		t.Errorf("%s works", third)
	}
	t.Logf("a replica that ended was replaced after %v", time.Since(begin))
	errtest.Must(t, replicas[first].Term(ctx))
}

// checkProbes checks that both replicas are alive and ready, also the one that waits.
func checkProbes(ctx context.Context, t *testing.T, l *lab.Lab) {
	t.Helper()
	for _, name := range []string{"one", "two"} {
		for _, what := range []string{"alive", "ready"} {
			err := lab.Until(ctx, within, func() error {
				out, err := exec.CommandContext(ctx, l.Program("veil-site"), "--probe="+what,
					"--socket="+filepath.Join(l.Dir, name+".sock")).CombinedOutput()
				if err != nil {
					err = fmt.Errorf("%w: %s", err, out)
				}
				return err
			})
			if err != nil {
				t.Errorf("replica %s is not %s: %v", name, what, err)
			}
		}
	}
}

// checkReload adds a site to the configuration, and takes it out again. Both are in force without a
// restart.
func checkReload(ctx context.Context, t *testing.T, a *side, config, kubeconfig string) {
	t.Helper()
	good := fmt.Sprintf(veild, kubeconfig)
	for _, step := range []struct {
		text string
		want bool // whether there is a SiteLink c
	}{
		{good + "  - {name: c, podRanges: [10.246.0.0/16], nodeRanges: [203.0.113.0/24]}\n", true},
		{good, false},
	} {
		errtest.Must(t, os.WriteFile(config, []byte(step.text), 0o600))
		until(ctx, t, "the changed configuration is in force", func() error {
			_, err := a.Control.Dynamic.Resource(links).Get(ctx, "c", metav1.GetOptions{})
			if apierrors.IsNotFound(err) == step.want || err != nil && !apierrors.IsNotFound(err) {
				return fmt.Errorf("SiteLink c: %w", err)
			}
			return nil
		})
		_, err := a.Control.Dynamic.Resource(links).Get(ctx, "b", metav1.GetOptions{})
		errtest.Check(t, err)
	}
}
