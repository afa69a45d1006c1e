package network_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/kubeveil/kubeveil/e2e/lab"
	"github.com/kubeveil/kubeveil/e2e/lab/apiserver"
	"github.com/kubeveil/kubeveil/e2e/node/nodetest"
	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/filetest"
	"github.com/kubeveil/kubeveil/internal/manifesttest"
)

// containers runs containers of the manifests on a node without a runtime. Each has a root
// directory like the image's root directory, and the mounts, capabilities and read-only paths that
// a runtime would set. It does not apply seccomp, AppArmor, SELinux and the device cgroup. It adds
// CAP_SYS_CHROOT, which it needs itself.
type containers struct {
	node *lab.Node
	// root is the path of the containers' root directory on the node.
	root string
}

// binDir replaces /opt/cni/bin, because a lab must not change this folder of the machine.
const binDir = "/run/test/opt-cni-bin"

func newContainers(ctx context.Context, t *testing.T, l *lab.Lab, n *lab.Node) containers {
	t.Helper()
	c := containers{node: n, root: "/run/test/rootfs"}
	bin := filepath.Join(nodetest.Root(t), "out/bin")
	script := fmt.Sprintf(`set -e
mount --make-shared /run
mkdir -p %[1]s/usr/local/bin %[1]s/opt/cni/bin %[1]s/var %[1]s/run %[1]s/etc %[1]s/proc %[1]s/sys %[1]s/dev %[3]s
ln -s /run %[1]s/var/run
cp %[2]s/veild %[2]s/veil-wg %[1]s/usr/local/bin/
cp %[2]s/veil %[2]s/host-local %[2]s/loopback %[2]s/bandwidth %[2]s/portmap %[1]s/opt/cni/bin/
echo old >%[3]s/host-local
`, c.root, bin, binDir)
	errtest.Must(t, errtest.Of(n.Exec(ctx, "bash", "-c", script)))
	c.kubeletFiles(ctx, t, l)
	return c
}

// kubeletFiles writes the files that a kubelet would mount: the token, and the three ConfigMaps.
// kubeadm makes two of these.
func (c containers) kubeletFiles(ctx context.Context, t *testing.T, l *lab.Lab) {
	t.Helper()
	ca := filetest.Read(t, filepath.Join(c.node.Disk(), "etc/kubeveil/ca.crt"))

	config := manifesttest.Read(t, filepath.Join(nodetest.Root(t), "manifests/cni/configmap.yaml")).
		Object.Object["data"].(map[string]any)["veild.yaml"].(string)
	const account = "/var/run/secrets/kubernetes.io/serviceaccount"
	kubeconfig, err := apiserver.Kubeconfig(clientcmdapi.Cluster{Server: l.Control.URL(),
		CertificateAuthority: account + "/ca.crt"},
		clientcmdapi.AuthInfo{TokenFile: account + "/token"})
	errtest.Must(t, err)
	for path, text := range map[string]string{
		"secrets/token": nodetest.NewToken(ctx, t, l, nodetest.DaemonAccount,
			nodetest.DaemonPod(ctx, t, l, nodetest.DaemonAccount, c.node.Name)),
		"secrets/ca.crt":    string(ca),
		"config/veild.yaml": config,
		"config/kubeadm.yaml": fmt.Sprintf("apiVersion: kubeadm.k8s.io/v1beta4\nkind: "+
			"ClusterConfiguration\nnetworking:\n  podSubnet: %s\n  serviceSubnet: %s\n",
			nodetest.JoinPrefixes(l.Family().ClusterRanges()),
			nodetest.JoinPrefixes(l.Family().ServiceRanges())),
		"config/kubeconfig": string(kubeconfig),
	} {
		path = c.node.Path(filepath.Join("/run/test", path))
		errtest.Must(t, os.MkdirAll(filepath.Dir(path), 0o755))
		filetest.Write(t, path, []byte(text), 0o600)
	}
}

// script returns a shell script that runs a container or init container of a DaemonSet.
func (c containers) script(t *testing.T, ds *unstructured.Unstructured, name string) string {
	t.Helper()
	var typed appsv1.DaemonSet
	errtest.Must(t, runtime.DefaultUnstructuredConverter.FromUnstructured(ds.Object, &typed))

	spec := typed.Spec.Template.Spec
	lines := []string{"set -e",
		"mount --bind " + c.root + " " + c.root,
		// Like a runtime, mount /sys and /proc/sys read-only.
		"mount -t proc proc " + c.root + "/proc", "mount --bind " + c.root + "/proc/sys " + c.root +
			"/proc/sys", "mount -o remount,bind,ro " + c.root + "/proc/sys",
		"mount -t sysfs -o ro sysfs " + c.root + "/sys",
		"for d in null zero urandom; do touch " + c.root + "/dev/$d; mount --bind /dev/$d " +
			c.root + "/dev/$d; done",
	}

	for _, k := range append(spec.InitContainers, spec.Containers...) {
		if k.Name != name {
			continue
		}

		for _, m := range k.VolumeMounts {
			lines = append(lines, c.mount(t, spec.Volumes, m)...)
		}

		if *spec.AutomountServiceAccountToken {
			lines = append(lines, c.bind("/run/test/secrets",
				"/run/secrets/kubernetes.io/serviceaccount", true)...)
		}

		caps := []string{"-all", "+sys_chroot"}
		for _, a := range k.SecurityContext.Capabilities.Add {
			caps = append(caps, "+"+strings.ToLower(string(a)))
		}

		command := append(k.Command, k.Args...)
		if len(k.Command) == 0 {
			command = append([]string{"/usr/local/bin/veild"}, k.Args...)
		}

		all := strings.NewReplacer("$(NODE_NAME)", c.node.Name, "$(NODE_ADDRESS)",
			c.node.Addrs[0].String()).Replace(strings.Join(command, " "))
		// The root is read-only from here on.
		return strings.Join(append(lines, "mount -o remount,bind,ro "+c.root,
			"exec setpriv --bounding-set="+strings.Join(caps, ",")+
				" --inh-caps=-all --no-new-privs chroot "+c.root+" "+all), "\n")
	}

	t.Fatalf("%s has no container %s", ds.GetName(), name)
	return ""
}

func (c containers) mount(t *testing.T, volumes []corev1.Volume, m corev1.VolumeMount) []string {
	t.Helper()
	for _, v := range volumes {
		switch {
		case v.Name != m.Name:
		case v.Projected != nil:
			return c.bind("/run/test/config", m.MountPath, true)
		case v.HostPath != nil:
			from := v.HostPath.Path
			if from == "/opt/cni/bin" {
				from = binDir
			}
			switch *v.HostPath.Type {
			case corev1.HostPathDirectoryOrCreate:
				return append([]string{"mkdir -p " + from},
					c.bind(from, m.MountPath, m.ReadOnly)...)
			case corev1.HostPathCharDev:
				to := c.root + m.MountPath
				return []string{"mkdir -p " + filepath.Dir(to), "touch " + to,
					"mount --bind " + from + " " + to}
			}
			return c.bind(from, m.MountPath, m.ReadOnly)
		}
	}
	t.Fatalf("no volume %s", m.Name)
	return nil
}

// bind mounts a directory of the node into the container, submounts included.
func (c containers) bind(from, to string, readOnly bool) []string {
	to = c.root + to
	lines := []string{"mkdir -p " + to + " 2>/dev/null || true", "mount --rbind " + from + " " + to}
	if readOnly {
		lines = append(lines, "mount -o remount,bind,ro "+to)
	}
	return lines
}

// daemonSet reads one of the manifests.
func daemonSet(t *testing.T, file string) *unstructured.Unstructured {
	t.Helper()
	return manifesttest.Read(t, filepath.Join(nodetest.Root(t), "manifests", file)).Object
}

// start starts a container of a manifest. It runs until it ends by itself or by a signal.
func (c containers) start(ctx context.Context, t *testing.T, file, name string) *lab.Process {
	t.Helper()
	return c.startOf(ctx, t, daemonSet(t, file), name)
}

// startOf is start for a DaemonSet.
func (c containers) startOf(ctx context.Context, t *testing.T, ds *unstructured.Unstructured,
	name string) *lab.Process {
	t.Helper()
	p, err := c.node.Start(ctx, "unshare", "--mount", "--propagation", "slave", "bash", "-c",
		c.script(t, ds, name))
	errtest.Must(t, err)
	return p
}

// run runs a container to its end and returns its output.
func (c containers) run(ctx context.Context, t *testing.T, file, name string) string {
	t.Helper()
	out, err := c.node.Exec(ctx, "unshare", "--mount", "--propagation", "slave", "bash", "-c",
		c.script(t, daemonSet(t, file), name))
	errtest.Must(t, err)
	return string(out)
}

// The programs work with the capabilities and mounts of the manifests. A node becomes ready, its
// pods reach each other, their MTU follows the underlay, and the clean-up removes everything.
func TestContainersOfTheManifests(t *testing.T) {
	ctx, l := nodetest.NewLab(t, lab.Options{NoBoot: true})
	var all []containers
	var daemons []*lab.Process
	for _, n := range l.Nodes() {
		c := newContainers(ctx, t, l, n)
		all = append(all, c)
		if out := c.run(ctx, t, "cni/daemonset-veild.yaml", "install-cni"); strings.Count(out,
			"installed /host/opt/cni/bin/") != 5 {
			t.Errorf("install-cni says %s", out)
		}
		daemons = append(daemons, c.start(ctx, t, "cni/daemonset-veil-wg.yaml", "veil-wg"),
			c.start(ctx, t, "cni/daemonset-veild.yaml", "veild"))
	}

	for _, n := range l.Nodes() {
		if err := n.WaitReady(ctx); err != nil {
			log, _ := os.ReadFile(daemons[1].Stderr)
			t.Fatalf("%v\n%s", err, log)
		}
	}

	pods := nodetest.EchoPods(ctx, t, l)
	nodetest.Meet(ctx, t, pods[0], pods[1])
	talk(ctx, t, pods[0], pods[1])
	t.Run("the MTU of pods follows the ConfigMap", func(t *testing.T) {
		path := l.Nodes()[0].Path("/run/test/config/veild.yaml")
		filetest.Write(t, path, append(filetest.Read(t, path), "mtu: 1400\n"...), 0o600)

		err := lab.Until(ctx, 20*time.Second, func() error {
			out, err := pods[0].Exec(ctx, "ip", "link", "show", "eth0")
			if err == nil && !strings.Contains(string(out), "mtu 13") {
				err = fmt.Errorf("the pod has %s", out)
			}
			return err
		})
		if err != nil {
			log, _ := os.ReadFile(daemons[1].Stderr)
			t.Errorf("%v\n%s", err, log)
		}

		talk(ctx, t, pods[0], pods[1])
	})

	for i, n := range l.Nodes() {
		if s := nodetest.NodeStatus(ctx, t, n); len(s.Problems) > 0 {
			t.Errorf("%s: %v", n.Name, s.Problems)
		}
		for _, p := range daemons[2*i : 2*i+2] {
			errtest.Must(t, p.Kill(ctx))
		}
	}

	for _, c := range all {
		t.Logf("%s", c.run(ctx, t, "uninstall/daemonset.yaml", "cleanup"))
		clean(t, c)
	}

	nodetest.NoLeaks(t, l)
}

// clean checks that a node has no state of Kubeveil.
func clean(t *testing.T, c containers) {
	t.Helper()
	for _, path := range []string{"/run/kubeveil", "/etc/cni/net.d/05-kubeveil.conflist",
		"/sys/fs/bpf/kubeveil", binDir + "/veil"} {
		if _, err := os.Lstat(c.node.Path(path)); !os.IsNotExist(err) {
			t.Errorf("%s: cleanup left %s (%v)", c.node.Name, path, err)
		}
	}
	if b, err := os.ReadFile(c.node.Path(binDir + "/host-local")); err != nil ||
		string(b) != "old\n" {
		t.Errorf("%s: the plugin that was there before is %q, %v", c.node.Name, b, err)
	}
}
