package hostnode

import (
	"context"
	goruntime "runtime"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/filetest"
	"github.com/kubeveil/kubeveil/internal/nettest"
	"github.com/kubeveil/kubeveil/pkg/config"
)

func TestOSImage(t *testing.T) {
	for name, tt := range map[string]struct{ release, want string }{
		"as Debian's": {"ID=debian\nPRETTY_NAME=\"Debian GNU/Linux 12 " +
			"(bookworm)\"\nNAME=\"Debian GNU/Linux\"\n", "Debian GNU/Linux 12 (bookworm)"},
		"single quotes":  {"PRETTY_NAME='Some Linux'", "Some Linux"},
		"without quotes": {"PRETTY_NAME=Linux-1\n", "Linux-1"},
		"no name":        {"ID=debian\n", "Linux"},
	} {
		t.Run(name, func(t *testing.T) {
			if got := osImage(tt.release); got != tt.want {
				t.Errorf("%q, want %q", got, tt.want)
			}
		})
	}
}

// The Node of the host without a kubelet has the fields that users and programs expect.
func TestHeartbeatDescribesTheHost(t *testing.T) {
	h := &Host{o: Setup{Addrs: nettest.Addrs("198.18.0.2", "fd42::2")},
		client: fake.NewClientset()}
	for range 2 { // in the second round the Node exists
		errtest.Must(t, h.heartbeat(t.Context(), true))
	}

	node, err := h.client.CoreV1().Nodes().Get(t.Context(), Name, metav1.GetOptions{})
	errtest.Must(t, err)
	kernel := filetest.Read(t, "/proc/sys/kernel/osrelease")
	info := node.Status.NodeInfo
	if info.KernelVersion != strings.TrimSpace(string(kernel)) ||
		info.Architecture != goruntime.GOARCH || info.OperatingSystem != "linux" ||
		info.OSImage == "" || info.BootID == "" {
		t.Errorf("node information %+v", info)
	}

	if info.KubeletVersion != "" || info.ContainerRuntimeVersion != "" {
		t.Errorf("the host has neither kubelet nor runtime, but reports %+v", info)
	}

	var internal int
	for _, a := range node.Status.Addresses {
		if a.Type == corev1.NodeInternalIP {
			internal++
		}
	}

	if want := len(h.o.Addrs); internal != want || want == 0 {
		t.Errorf("%d addresses, want %d", internal, want)
	}
}

func hostOf(proxy string, objects ...runtime.Object) *Host {
	return &Host{o: Setup{Translates: proxy == config.ServiceProxyEBPF},
		client: fake.NewClientset(objects...)}
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

func TestKubeconfigOfTheHost(t *testing.T) {
	service := func(addr string) *corev1.Service {
		return &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "default",
			Name: "kubernetes"},
			Spec: corev1.ServiceSpec{ClusterIP: addr, Ports: []corev1.ServicePort{{Port: 443}}}}
	}

	proxys := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system",
		Name: "kube-proxy"}, Data: map[string]string{"kubeconfig.conf": "kube-proxy's"}}
	for name, tt := range map[string]struct {
		host         *Host
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
			errtest.Must(t, err)
			c := k.Contexts[k.CurrentContext]
			if c == nil || k.Clusters[c.Cluster] == nil || k.AuthInfos[c.AuthInfo] == nil {
				t.Fatalf("the context of the kubeconfig is incomplete in\n%s", text)
			}

			if k.Clusters[c.Cluster].Server != tt.server ||
				k.Clusters[c.Cluster].CertificateAuthority != accountDir+"/ca.crt" ||
				k.AuthInfos[c.AuthInfo].TokenFile != accountDir+"/token" {
				t.Errorf("got\n%s", text)
			}
		})
	}
}
