package vm_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/kubeveil/kubeveil/e2e/vm"
	"github.com/kubeveil/kubeveil/e2e/vm/vmtest"
	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/pkg/abi"
	"github.com/kubeveil/kubeveil/pkg/leak"
)

// linkLimit bounds a link with a path that loses everything, on emulated machines.
const linkLimit = 8 * time.Minute

// linker is two clusters of a machine each. Each command links a with b again.
type linker struct {
	*vm.Pair
	from, to *vm.Machine
}

// The path check of `veilctl site link` on kubelets. Expected, and written before the first run:
//
//   - The largest packets of the machines arrive both ways, also where the node has a taint with
//     the effect NoExecute.
//   - Where only smaller packets pass one way, it finds their size.
//   - Where nothing passes one way, the link is refused, names the port and both nodes, and changes
//     no credentials.
//   - No pod is left, also after SIGINT. The next link ignores a pod of a link that was killed, and
//     `veilctl site unlink` removes it, with all else of the link in both clusters.
//   - The oracle sees no frame that is not of a tunnel.
func TestPathCheckOfALink(t *testing.T) {
	vmtest.Need(t)
	ctx, cancel := context.WithTimeout(t.Context(), 80*time.Minute)
	defer cancel()
	p, err := vm.NewPair(ctx, vm.ClusterConfig{Nodes: 1,
		Log: slog.New(slog.NewTextHandler(t.Output(), nil))})
	errtest.Must(t, err)
	l := &linker{Pair: p, from: p.A.Machines[0], to: p.B.Machines[0]}
	for _, step := range []struct {
		name string
		run  func(context.Context, *testing.T)
	}{{"taint", l.tainted}, {"narrow", l.narrow}, {"blocked", l.blocked},
		{"interrupted", l.interrupted}, {"unlink", l.unlink}} {
		if !t.Run(step.name, func(t *testing.T) { step.run(ctx, t) }) {
			break
		}
	}

	result, err := p.Close()
	errtest.Check(t, err)
	t.Logf("%d frames, %d plaintext: %v", result.Frames, result.Plaintext, result.Kinds)
	errtest.Check(t, result.Err())
	if result.Kinds[leak.Tunnel] == 0 {
		t.Error("the oracle saw no tunnel packet")
	}
}

// run runs a verb of `veilctl site` in a. before are words before the command line.
func (l *linker) run(ctx context.Context, t *testing.T, before []string,
	args ...string) (string, error) {
	t.Helper()
	line, err := l.A.SiteCommand(l.B, args...)
	errtest.Must(t, err)
	line = append(before, line...)
	out, err := l.A.Control.Exec(ctx, line[0], line[1:]...)
	t.Logf("%s: %v\n%s", strings.Join(line, " "), err, out)
	return string(out), err
}

// link links a with b, and returns the largest sizes that arrive both ways.
func (l *linker) link(ctx context.Context, t *testing.T) (sizes []int) {
	t.Helper()
	out, err := l.run(ctx, t, nil, "link", "--nodes="+l.from.Name+","+l.to.Name, "-o", "json",
		"--timeout="+linkLimit.String())
	errtest.Must(t, err)
	var r struct {
		Paths    []struct{ Arrived []int }
		Warnings []string
	}
	errtest.Must(t, json.Unmarshal([]byte(out), &r))
	if len(r.Paths) != 2 {
		t.Fatalf("%d paths", len(r.Paths))
	}
	for _, path := range r.Paths {
		sizes = append(sizes, path.Arrived[0])
	}
	return sizes
}

// objects returns the names of objects of a kind in both clusters.
func (l *linker) objects(ctx context.Context, t *testing.T, args ...string) (names []string) {
	t.Helper()
	for _, c := range []*vm.Cluster{l.A, l.B} {
		out, err := c.Kubectl(ctx, append([]string{"get", "--output=name"}, args...)...)
		errtest.Must(t, err)
		names = append(names, strings.Fields(string(out))...)
	}
	return names
}

// pods returns the pods of checks in both clusters.
func (l *linker) pods(ctx context.Context, t *testing.T) []string {
	t.Helper()
	return l.objects(ctx, t, "pods", "--all-namespaces", "--selector=kubeveil.io/suite=site-path")
}

// drop drops datagrams that leave a's machine for a tunnel and match a rule, until the test ends.
func (l *linker) drop(ctx context.Context, t *testing.T, rule string) {
	t.Helper()
	shell(ctx, t, l.from, fmt.Sprintf("nft 'table inet test { chain output { type filter hook "+
		"output priority 0; udp dport %d %s drop; }; }'", abi.TunnelPort, rule))
	t.Cleanup(func() { shell(ctx, t, l.from, "nft delete table inet test") })
}

func (l *linker) tainted(ctx context.Context, t *testing.T) {
	taint := func(text string) {
		errtest.Must(t, errtest.Of(l.B.Kubectl(ctx, "taint", "node", l.to.Name, text)))
	}
	taint("kubeveil-test=x:NoExecute")
	if sizes := l.link(ctx, t); sizes[0] != 1500 || sizes[1] != 1500 {
		t.Errorf("packets of %d bytes arrive", sizes)
	}
	taint("kubeveil-test-")
	if pods := l.pods(ctx, t); len(pods) > 0 {
		t.Errorf("pods %q are left", pods)
	}
}

func (l *linker) narrow(ctx context.Context, t *testing.T) {
	l.drop(ctx, t, "meta length > 1400")
	if sizes := l.link(ctx, t); sizes[0] != 1400 || sizes[1] != 1500 {
		t.Errorf("packets of %d bytes arrive", sizes)
	}
}

// secret returns the version of veil-site's Secret in a.
func (l *linker) secret(ctx context.Context, t *testing.T) string {
	t.Helper()
	out, err := l.A.Kubectl(ctx, "--namespace=kube-system", "get", "secret", "veil-site",
		"--output=jsonpath={.metadata.resourceVersion}")
	errtest.Must(t, err)
	return string(out)
}

func (l *linker) blocked(ctx context.Context, t *testing.T) {
	l.drop(ctx, t, "")
	before := l.secret(ctx, t)
	_, err := l.run(ctx, t, nil, "link", "--timeout="+linkLimit.String())
	if want := fmt.Sprintf("no datagram from node %s arrives at node %s: permit UDP", l.from.Name,
		l.to.Name); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("%v, want %q", err, want)
	}
	if after := l.secret(ctx, t); after != before {
		t.Error("a link that was refused wrote credentials")
	}
	if pods := l.pods(ctx, t); len(pods) > 0 {
		t.Errorf("pods %q are left", pods)
	}
}

func (l *linker) interrupted(ctx context.Context, t *testing.T) {
	l.drop(ctx, t, "") // so that the check does not end before the signal
	for _, signal := range []string{"INT", "KILL"} {
		ended := make(chan error, 1)
		const pid = "/run/lab/link.pid" // on the host of the control plane
		go func() {
			_, err := l.run(ctx, t, []string{"sh", "-c", "echo $$ >" + pid + `; exec "$@"`, "sh"},
				"link", "--timeout="+linkLimit.String())
			ended <- err
		}()
		until(ctx, t, linkLimit, "two pods of a check", func() error {
			if pods := l.pods(ctx, t); len(pods) != 2 {
				return fmt.Errorf("pods %q", pods)
			}
			return nil
		})
		errtest.Must(t, errtest.Of(l.A.Control.Exec(ctx, "sh", "-c", "kill -"+signal+
			" $(cat "+pid+")")))
		if err := <-ended; err == nil {
			t.Errorf("a link continues after SIG%s", signal)
		}
		want := map[string]int{"INT": 0, "KILL": 2}[signal]
		if pods := l.pods(ctx, t); len(pods) != want {
			t.Errorf("after SIG%s: pods %q", signal, pods)
		}
	}
}

func (l *linker) unlink(ctx context.Context, t *testing.T) {
	l.link(ctx, t)
	for _, c := range []*vm.Cluster{l.A, l.B} {
		text, err := c.Kubectl(ctx, "--namespace=kube-system", "get", "configmap", "kubeveil",
			`--output=jsonpath={.data.veild\.yaml}`)
		errtest.Must(t, err)
		closed := strings.ReplaceAll(string(text), "reach: exports", "reach: none")
		if closed == string(text) {
			t.Fatalf("the configuration keeps no site open: %s", text)
		}
		patch, err := json.Marshal(map[string]any{"data": map[string]string{"veild.yaml": closed}})
		errtest.Must(t, err)
		errtest.Must(t, errtest.Of(c.Kubectl(ctx, "--namespace=kube-system", "patch", "configmap",
			"kubeveil", "--type=merge", "--patch="+string(patch))))
	}
	_, err := l.run(ctx, t, nil, "unlink", "b", "--wait="+linkLimit.String())
	errtest.Must(t, err)

	left := l.pods(ctx, t)
	for _, kind := range []string{"sitenodes", "siterecords", "serviceimports", "namespaces",
		"secrets"} {
		for _, name := range l.objects(ctx, t, kind, "--all-namespaces") {
			if kind != "namespaces" && kind != "secrets" || strings.Contains(name, "site-") ||
				strings.HasSuffix(name, "/veil-site") {
				left = append(left, name)
			}
		}
	}
	if len(left) > 0 {
		t.Errorf("left are %q", left)
	}
}
