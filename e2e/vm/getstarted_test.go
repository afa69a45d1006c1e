package vm_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/kubeveil/kubeveil/e2e/vm"
	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/filetest"
	"github.com/kubeveil/kubeveil/internal/nettest"
	"github.com/kubeveil/kubeveil/pkg/leak"
)

// getStartedEnv names the folder of the release that TestGetStarted installs. "build" means a
// release that the test builds from a clone of this tree, in which it makes the tag v0.0.1. The
// public key is in getStartedKeyEnv.
const (
	getStartedEnv    = "KUBEVEIL_GET_STARTED"
	getStartedKeyEnv = "KUBEVEIL_GET_STARTED_KEY"
)

// maxTyping is how long the commands may take that lead to two pods that talk.
const maxTyping = 10 * time.Minute

// notTyped is a comment before a block of commands that the test does not type, with the reason.
var notTyped = regexp.MustCompile(`^<!-- not typed: .+ -->$`)

// typed returns the commands of steps 1 to 5 of get-started, for a version. left is the number of
// blocks that are not typed.
func typed(page, version string) (script string, left int) {
	_, page, _ = strings.Cut(page, "\n## 1. ")
	page, _, _ = strings.Cut(page, "\n## 6. ")
	var b strings.Builder
	before, typing := "", false
	for line := range strings.Lines(page) {
		line = strings.TrimRight(line, "\n")
		switch {
		case line == "```sh" && notTyped.MatchString(before):
			left++
		case line == "```sh":
			typing = true
		case line == "```":
			typing = false
		case typing:
			b.WriteString(line + "\n")
		}
		before = line
	}
	return strings.ReplaceAll(b.String(), "v0.1.0", version), left
}

func getStarted(t *testing.T) string {
	t.Helper()
	return string(filetest.Read(t, "../../docs/get-started.md"))
}

// The commands of the page are found, in their order, and each block that is left out says why.
func TestCommandsOfGetStarted(t *testing.T) {
	script, left := typed(getStarted(t), "v0.0.1")
	at := 0
	for _, want := range []string{"verify.sh --key ../kubeveil.pub --version v0.0.1", "veilctl check",
		"images import kubeveil.tar", "kubectl apply -f kubeveil.yaml", "kubectl run a", "echo-send",
		"veilctl status"} {
		i := strings.Index(script[at:], want)
		if i < 0 {
			t.Fatalf("no %q after %q in\n%s", want, script[:at], script)
		}
		at += i
	}
	if strings.Contains(script, "kubeadm") || strings.Contains(script, "v0.1.0") || left < 3 {
		t.Errorf("%d blocks are left out of\n%s", left, script)
	}
}

// A user types the page on a node without Go, in the folder of a release, and two pods talk.
func TestGetStarted(t *testing.T) {
	if os.Getenv(getStartedEnv) == "" {
		nettest.Skip(t, nettest.Short, "make test-get-started")
	}
	folder, key := releaseToType(t)
	disk := diskWith(t, folder, key)
	ctx, c := newCluster(t, vm.ClusterConfig{NoVeil: true, QEMU: []string{
		"-drive", "if=none,id=release,format=raw,readonly=on,file=" + disk,
		"-device", "virtio-blk-pci,drive=release"}})
	prepareTyping(ctx, t, c)

	script, _ := typed(getStarted(t), filepath.Base(folder))
	user := c.Machines[0]
	errtest.Must(t, user.Put(ctx, "/root/typed.sh", 0o600, strings.NewReader(script)))
	start := time.Now()
	out, err := user.Exec(ctx, "cd /root/work && bash -eux -o pipefail /root/typed.sh 2>&1")
	took := time.Since(start).Round(time.Second)
	if err != nil || !bytes.Contains(out, []byte(`"received":10`)) {
		t.Fatalf("after %v: %v:\n%s", took, err, out)
	}
	if took > maxTyping {
		t.Errorf("the commands took %v, want at most %v", took, maxTyping)
	}
	t.Logf("typed in %v (%s):\n%s", took, c.Accel, out)

	result, err := c.Close()
	errtest.Must(t, err, result.Err())
	if result.Kinds[leak.Tunnel] == 0 {
		t.Errorf("no packet was in the tunnel: %v", result.Kinds)
	}
}

// releaseToType returns the folder of a release and its public key.
func releaseToType(t *testing.T) (folder, key string) {
	t.Helper()
	if folder = os.Getenv(getStartedEnv); folder != "build" {
		return folder, os.Getenv(getStartedKeyEnv)
	}
	tree, key := filepath.Join(t.TempDir(), "tree"), filepath.Join(t.TempDir(), "key")
	for _, line := range [][]string{
		{"git", "clone", "-q", "--no-hardlinks", "../..", tree},
		{"git", "-C", tree, "tag", "v0.0.1"},
		{"ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key},
		{"make", "-C", tree, "release", "VERSION=v0.0.1", "KEY=" + key},
	} {
		if out, err := exec.Command(line[0], line[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("%q: %v: %s", line, err, out)
		}
	}
	return filepath.Join(tree, "out/release/v0.0.1"), key + ".pub"
}

// diskWith returns a disk with what the user has: the folder, the key and kubectl.
func diskWith(t *testing.T, folder, key string) string {
	t.Helper()
	dir := t.TempDir()
	disk := filepath.Join(dir, "release.ext4")
	root := filepath.Join(dir, "root")
	errtest.Must(t, os.Mkdir(root, 0o755))
	for _, line := range [][]string{
		{"cp", "-r", folder, filepath.Join(root, filepath.Base(folder))},
		{"cp", key, filepath.Join(root, "kubeveil.pub")},
		{"cp", "../../out/bin/kubectl", root},
		{"mke2fs", "-q", "-t", "ext4", "-L", "release", "-d", root, disk, "1G"},
	} {
		if out, err := exec.Command(line[0], line[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("%q: %v: %s", line, err, out)
		}
	}
	errtest.Must(t, os.RemoveAll(root))
	return disk
}

// prepareTyping puts on the first machine what the page takes for granted: the disk, kubectl, ssh
// to all nodes by name, and the administrator's kubeconfig. Nodes of Debian have sudo; here it is a
// script.
func prepareTyping(ctx context.Context, t *testing.T, c *vm.Cluster) {
	t.Helper()
	var hosts strings.Builder
	for _, m := range c.Machines {
		fmt.Fprintf(&hosts, "%s %s\n", m.Addrs[0], m.Name)
		errtest.Must(t, m.Put(ctx, "/usr/local/bin/sudo", 0o755,
			strings.NewReader("#!/bin/sh\nexec \"$@\"\n")))
	}
	user := c.Machines[0]
	errtest.Must(t,
		user.PutFile(ctx, "/root/.ssh/id_ed25519", filepath.Join(c.Dir, "ssh")),
		user.Put(ctx, "/root/.ssh/config", 0o600,
			strings.NewReader("Host *\n  StrictHostKeyChecking accept-new\n")),
		user.Put(ctx, "/tmp/hosts", 0o600, strings.NewReader(hosts.String())),
		user.PutFile(ctx, "/etc/kubernetes/admin.conf",
			c.Control.Path("/etc/kubernetes/super-admin.conf")))
	out, err := user.Exec(ctx, `set -e
		chmod 0600 /root/.ssh/id_ed25519
		cat /tmp/hosts >>/etc/hosts
		mkdir -p /root/work
		mount -o ro -L release /root/work
		ln -s /root/work/kubectl /usr/local/bin/kubectl
		! command -v go`)
	if err != nil {
		t.Fatalf("prepare %s: %v: %s", user.Name, err, out)
	}
}
