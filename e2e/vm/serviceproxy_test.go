package vm

import (
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/kubeveil/kubeveil/e2e/lab"
	"github.com/kubeveil/kubeveil/e2e/lab/buildtree"
	"github.com/kubeveil/kubeveil/e2e/vm/hostnode"
	"github.com/kubeveil/kubeveil/internal/commandline"
	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/filetest"
	"github.com/kubeveil/kubeveil/pkg/config"
)

func TestServicesWithoutAProxyAreRefused(t *testing.T) {
	if _, err := New(t.Context(), ClusterConfig{ServiceProxy: "bpf"}); err == nil ||
		!strings.Contains(err.Error(), `services by "bpf": write none or ebpf`) {
		t.Errorf("error %v", err)
	}
}

// kustomize finds everything that the folder names, and veild accepts the configuration: unchanged
// on the machines, and with its arguments on the control plane's host.
func TestManifestsForServices(t *testing.T) {
	root, err := buildtree.Root()
	errtest.Must(t, err)
	at := t.TempDir()
	dir, api := filepath.Join(at, "manifests"), netip.MustParseAddrPort("198.18.0.2:6443")
	opts := ClusterConfig{ServiceProxy: config.ServiceProxyEBPF}
	errtest.Must(t, opts.writeManifests(dir, filepath.Join(root, "manifests"), api, place{},
		lab.Dual))
	var k struct {
		Resources, Components []string
		Patches               []struct{ Path string }
	}
	read(t, filepath.Join(dir, "kustomization.yaml"), &k)
	if len(k.Resources) != 1 || len(k.Components) != 1 || len(k.Patches) != 1 {
		t.Fatalf("kustomization %+v", k)
	}
	for _, found := range []string{filepath.Join(k.Resources[0], "kustomization.yaml"),
		filepath.Join(k.Components[0], "rights.yaml"), k.Patches[0].Path} {
		if _, err := os.Stat(filepath.Join(dir, found)); err != nil {
			t.Error(err)
		}
	}

	var object, base corev1.ConfigMap
	read(t, filepath.Join(dir, k.Patches[0].Path), &object)
	read(t, filepath.Join(root, "manifests/cni/configmap.yaml"), &base)
	if object.Name != base.Name || object.Namespace != base.Namespace {
		t.Errorf("configuration of %s/%s, want %s/%s", object.Namespace, object.Name,
			base.Namespace, base.Name)
	}
	text, ranges := []byte(object.Data["veild.yaml"]),
		[]byte("apiVersion: kubeadm.k8s.io/v1beta4\nkind: ClusterConfiguration\nnetworking: "+
			"{podSubnet: 198.19.0.0/16, serviceSubnet: 198.18.128.0/20}\n")
	worker, err := config.Parse("node-1", text, ranges)
	errtest.Must(t, err)
	if worker.Source.Kubeconfig != "" ||
		!slices.Equal(worker.Services.APIServers, []netip.AddrPort{api}) {
		t.Errorf("a worker uses the kubeconfig %q and the API servers %v", worker.Source.Kubeconfig,
			worker.Services.APIServers)
	}
	file, kubeadm := filepath.Join(at, "veild.yaml"), filepath.Join(at, "kubeadm.yaml")
	for path, content := range map[string][]byte{file: text, kubeadm: ranges} {
		filetest.Write(t, path, content, 0o600)
	}
	flags := commandline.New("veild")
	loaded := config.RegisterFlags(flags)
	opts = ClusterConfig{ServiceProxy: config.ServiceProxyEBPF}
	errtest.Must(t, flags.Parse(append(opts.hostSetup().VeildArguments(), "--config="+file,
		"--kubeadm-config="+kubeadm)))
	host, err := loaded.Load()
	errtest.Must(t, err)
	if host.ServiceProxy != config.ServiceProxyEBPF ||
		host.Services.Cgroup != hostnode.CgroupRoot ||
		host.Source.Kubeconfig != hostnode.VeildKubeconfig || len(host.Services.APIServers) != 1 {
		t.Errorf("the control plane's host has %+v", host)
	}
	opts = ClusterConfig{}
	if usual := opts.hostSetup().VeildArguments(); slices.ContainsFunc(usual,
		func(a string) bool { return strings.Contains(a, "service") }) {
		t.Errorf("beside kube-proxy: %q", usual)
	}
}

func read(t *testing.T, path string, into any) {
	t.Helper()
	text := filetest.Read(t, path)
	if err := yaml.Unmarshal(text, into); err != nil {
		t.Fatalf("%s: %v", path, err)
	}
}
