package vm

import (
	"context"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/yaml"

	"github.com/kubeveil/kubeveil/e2e/lab"
	"github.com/kubeveil/kubeveil/internal/commandline"
	"github.com/kubeveil/kubeveil/internal/filetest"
	"github.com/kubeveil/kubeveil/pkg/config"
)

func hostOf(proxy string, objects ...runtime.Object) *hostNode {
	return &hostNode{cluster: &Cluster{Lab: &lab.Lab{}, opts: Options{ServiceProxy: proxy}},
		client: fake.NewClientset(objects...)}
}

func TestServicesWithoutAProxyAreRefused(t *testing.T) {
	if _, err := New(t.Context(), Options{ServiceProxy: "bpf"}); err == nil ||
		!strings.Contains(err.Error(), `services by "bpf": write none or ebpf`) {
		t.Errorf("error %v", err)
	}
}

func TestProgramsOfTheHost(t *testing.T) {
	for proxy, want := range map[string][]string{
		"": {"kube-proxy", "veil-wg", "veild"}, config.ServiceProxyNone: {"kube-proxy", "veil-wg",
			"veild"}, config.ServiceProxyEBPF: {"veil-wg", "veild"},
	} {
		var got []string
		for _, d := range hostOf(proxy).programs() {
			got = append(got, d.name)
		}
		if !slices.Equal(got, want) {
			t.Errorf("services by %q: %q, want %q", proxy, got, want)
		}
	}
}

// kustomize finds what the folder names, and veild takes the configuration: on the machines as it
// is, on the control plane's host with its arguments.
func TestManifestsForServices(t *testing.T) {
	root, err := lab.Root()
	if err != nil {
		t.Fatal(err)
	}
	at := t.TempDir()
	dir, api := filepath.Join(at, "manifests"), netip.MustParseAddrPort("198.18.0.2:6443")
	opts := Options{ServiceProxy: config.ServiceProxyEBPF}
	if err := opts.writeManifests(dir, filepath.Join(root, "manifests"), api); err != nil {
		t.Fatal(err)
	}
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
	if err != nil {
		t.Fatal(err)
	}
	if worker.Source.Kubeconfig != "" ||
		!slices.Equal(worker.Services.APIServers, []netip.AddrPort{api}) {
		t.Errorf("a worker asks by %q and knows API servers %v", worker.Source.Kubeconfig,
			worker.Services.APIServers)
	}
	file, kubeadm := filepath.Join(at, "veild.yaml"), filepath.Join(at, "kubeadm.yaml")
	for path, content := range map[string][]byte{file: text, kubeadm: ranges} {
		filetest.Write(t, path, content, 0o600)
	}
	flags := commandline.New("veild")
	loaded := config.RegisterFlags(flags)
	if err := flags.Parse(append(hostOf(config.ServiceProxyEBPF).veildArguments(), "--config="+file,
		"--kubeadm-config="+kubeadm)); err != nil {
		t.Fatal(err)
	}
	host, err := loaded.Load()
	if err != nil {
		t.Fatal(err)
	}
	if host.ServiceProxy != config.ServiceProxyEBPF || host.Services.Cgroup != cgroupRoot ||
		host.Source.Kubeconfig != veildKubeconfig || len(host.Services.APIServers) != 1 {
		t.Errorf("the control plane's host has %+v", host)
	}
	if usual := hostOf("").veildArguments(); slices.ContainsFunc(usual,
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

func TestKubeconfigOfTheHost(t *testing.T) {
	service := func(addr string) *corev1.Service {
		return &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "default",
			Name: "kubernetes"},
			Spec: corev1.ServiceSpec{ClusterIP: addr, Ports: []corev1.ServicePort{{Port: 443}}}}
	}

	proxys := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system",
		Name: "kube-proxy"}, Data: map[string]string{"kubeconfig.conf": "kube-proxy's"}}
	for name, tt := range map[string]struct {
		host         *hostNode
		text, server string
		refused      string
	}{
		"beside kube-proxy": {host: hostOf("", proxys), text: "kube-proxy's"},
		"without, IPv4": {host: hostOf(config.ServiceProxyEBPF,
			service("198.18.128.1")), server: "https://198.18.128.1:443"},
		"without, IPv6": {host: hostOf(config.ServiceProxyEBPF, service("fd42:2::1")),
			server: "https://[fd42:2::1]:443"},
		"a service without address": {host: hostOf(config.ServiceProxyEBPF, service("")),
			refused: "the service kubernetes"},
		"no kube-proxy by mistake": {host: hostOf(""), refused: "kube-proxy"},
	} {
		t.Run(name, func(t *testing.T) {
			text, err := tt.host.kubeconfigText(context.Background())
			if tt.refused != "" {
				if err == nil || !strings.Contains(err.Error(), tt.refused) {
					t.Errorf("error %v, want %q", err, tt.refused)
				}
				return
			}

			if err != nil || tt.text != "" && text != tt.text {
				t.Fatalf("%q, %v", text, err)
			}
			if tt.server == "" {
				return
			}
			k, err := clientcmd.Load([]byte(text))
			if err != nil {
				t.Fatal(err)
			}
			c := k.Contexts[k.CurrentContext]
			if c == nil || k.Clusters[c.Cluster] == nil || k.AuthInfos[c.AuthInfo] == nil {
				t.Fatalf("nothing hangs together in\n%s", text)
			}

			if k.Clusters[c.Cluster].Server != tt.server ||
				k.Clusters[c.Cluster].CertificateAuthority != accountDir+"/ca.crt" ||
				k.AuthInfos[c.AuthInfo].TokenFile != accountDir+"/token" {
				t.Errorf("got\n%s", text)
			}
		})
	}
}
