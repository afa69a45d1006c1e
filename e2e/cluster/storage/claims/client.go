package claims

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/kubeveil/kubeveil/e2e/vm"
	"github.com/kubeveil/kubeveil/internal/poll"
)

// Client works on a cluster as its users do: with kubectl, and with shell commands on nodes.
type Client struct {
	// Cluster is the cluster. Its first machine takes all pods.
	Cluster *vm.Cluster
	// Canary is the text that is written to volumes.
	Canary string
}

// describePatience is the time limit of the queries after a failure.
const describePatience = time.Minute

// Describe writes the state of the cluster after a failed case to out.
func (s Client) Describe(ctx context.Context, out io.Writer) {
	ctx, cancel := context.WithTimeout(ctx, describePatience)
	defer cancel()
	for _, words := range [][]string{
		{"get", "pods,pvc,volumesnapshots,veilvolumes", "-o", "wide"},
		{"get", "events", "--sort-by=.lastTimestamp"},
		{"-n", "kube-system", "logs", "--selector=app.kubernetes.io/component=veil-csi",
			"--all-containers", "--tail=15"},
	} {
		text, err := s.Cluster.Kubectl(ctx, words...)
		fmt.Fprintf(out, "      kubectl %s: %v\n%s\n", strings.Join(words, " "), err, text)
	}
}

// Node calls On for the machine that takes all pods.
func (s Client) Node(ctx context.Context, line string) (string, error) {
	return s.On(ctx, s.Cluster.Machines[0].Name, line)
}

// On runs a shell command on a node and returns its standard output, without surrounding white
// space.
func (s Client) On(ctx context.Context, node, line string) (string, error) {
	out, err := s.Cluster.Exec(ctx, node, line)
	return strings.TrimSpace(string(out)), err
}

// Shell runs a shell script on this host, with kubectl, veilctl and the administrator's kubeconfig,
// and returns its output. It ends at the first command that fails.
func (s Client) Shell(ctx context.Context, script string) (string, error) {
	dir, err := os.MkdirTemp("", "e2e-storage-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(dir)
	cmd := exec.CommandContext(ctx, "sh", "-ec", script)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "KUBECONFIG="+s.Cluster.Kubeconfig(),
		"PATH="+filepath.Dir(s.Cluster.Lab.Program("veilctl"))+":"+os.Getenv("PATH"))
	out, err := cmd.CombinedOutput()
	if err != nil {
		err = fmt.Errorf("%s: %w: %s", script, err, out)
	}
	return string(out), err
}

// Kubectl runs kubectl and returns its output, without surrounding white space.
func (s Client) Kubectl(ctx context.Context, words ...string) (string, error) {
	out, err := s.Cluster.Kubectl(ctx, words...)
	return strings.TrimSpace(string(out)), err
}

// lookEach is the pause between two checks of Until. Checks take CPU time from the machine for
// which they wait.
const lookEach = time.Second

// Until calls fn repeatedly until it returns nil or ctx ends. what describes the condition.
func Until(ctx context.Context, what string, fn func() error) error {
	if err := poll.Until(ctx, lookEach, lookEach, fn); err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return nil
}

// Gone waits until nothing of a volume is left in the cluster and on the node: neither objects, nor
// the mount staged, the mapping, or a file in images.
func (s Client) Gone(ctx context.Context, volume, staged, mapping, images string) error {
	return Until(ctx, "the volume is closed and deleted", func() error {
		left, err := s.Kubectl(ctx, "get", "pvc,pv,veilvolumes", "-A", "-o", "name")
		if err == nil && strings.Contains(left, volume) {
			err = fmt.Errorf("left are %s", strings.Fields(left))
		}
		if err != nil {
			return err
		}
		out, err := s.Node(ctx, fmt.Sprintf("mountpoint -q %s && echo it is mounted; "+
			"dmsetup info -c --noheadings -o name %s 2>/dev/null; ls %s | grep %s; true", staged,
			mapping, images, volume))
		if err == nil && out != "" {
			err = fmt.Errorf("left on the node: %q", out)
		}
		return err
	})
}

// Open returns the path on the node at which the kubelet has a volume staged, and the name of its
// mapping.
func (s Client) Open(ctx context.Context, volume string) (staged, mapping string, err error) {
	staged, err = s.Node(ctx, "findmnt -rno TARGET | grep "+
		"'^/var/lib/kubelet/plugins/kubernetes.io/csi/csi.kubeveil.io/.*/globalmount$' | while "+
		"read t; do "+
		"grep -qs "+volume+" $(dirname $t)/vol_data.json && echo $t; done; true")
	if err == nil && staged == "" {
		err = errors.New("no such mount")
	}
	if err != nil {
		return "", "", fmt.Errorf("find the staging path of volume %s: %w", volume, err)
	}

	mapping, err = s.Node(ctx, "cat /sys/dev/block/$(findmnt -rno MAJ:MIN --mountpoint "+staged+
		")/dm/name")
	return staged, mapping, err
}

// DriverReady waits until the driver on a node is Ready. A wait for the rollout would never end,
// because the control plane's host is a node without a kubelet, where the driver's pod never
// starts.
func (s Client) DriverReady(ctx context.Context, node string) error {
	return Until(ctx, "the driver on "+node, func() error {
		out, err := s.Driver(ctx, node, `{.items[*].status.conditions[?(@.type=="Ready")].status}`)
		if err == nil && out != "True" {
			err = fmt.Errorf("not Ready: %q", out)
		}
		return err
	})
}

// Driver returns the value at a jsonpath of kubectl in the driver's pods on a node.
func (s Client) Driver(ctx context.Context, node, path string) (string, error) {
	return s.Kubectl(ctx, "-n", "kube-system", "get", "pods",
		"--selector=app.kubernetes.io/component=veil-csi",
		"--field-selector=spec.nodeName="+node, "-o", "jsonpath="+path)
}

// users returns the number of loop devices of the first node that have the file open. It compares
// only the base name, because the kernel may return the path in the driver's container.
func (s Client) users(ctx context.Context, file string) (string, error) {
	return s.Node(ctx, "losetup -nO BACK-FILE | grep -c /"+filepath.Base(file)+"; true")
}

// StillOpen returns an error unless the first node still has the volume's file open. Without its
// kubelet the node cannot have closed it.
func (s Client) StillOpen(ctx context.Context, first, file string) error {
	n, err := s.users(ctx, file)
	if err == nil && n != "1" {
		err = fmt.Errorf("without a kubelet, %s has %s open %s times, want once", first,
			file, n)
	}
	return err
}

// LetGo waits until the first node, whose kubelet is back, has closed the volume's file. The file
// must still be there.
func (s Client) LetGo(ctx context.Context, first, file string) error {
	if err := s.DriverReady(ctx, first); err != nil {
		return err
	}
	err := Until(ctx, first+" closes the volume", func() error {
		n, err := s.users(ctx, file)
		if err == nil && n != "0" {
			err = fmt.Errorf("%s is open %s times", file, n)
		}
		return err
	})
	if err != nil {
		return err
	}
	_, err = s.Node(ctx, "test -f "+file)
	return err
}
