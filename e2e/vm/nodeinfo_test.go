package vm

import (
	"runtime"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/kubeveil/kubeveil/e2e/lab"
	"github.com/kubeveil/kubeveil/internal/filetest"
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

// The Node of the host without a kubelet has the fields that people and programs look for.
func TestHeartbeatDescribesTheHost(t *testing.T) {
	h := &hostNode{cluster: &Cluster{Lab: &lab.Lab{}}, client: fake.NewClientset()}
	for range 2 { // the second finds the Node there
		if err := h.heartbeat(t.Context(), true); err != nil {
			t.Fatal(err)
		}
	}

	node, err := h.client.CoreV1().Nodes().Get(t.Context(), hostName, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	kernel := filetest.Read(t, "/proc/sys/kernel/osrelease")
	info := node.Status.NodeInfo
	if info.KernelVersion != strings.TrimSpace(string(kernel)) ||
		info.Architecture != runtime.GOARCH || info.OperatingSystem != "linux" ||
		info.OSImage == "" || info.BootID == "" {
		t.Errorf("node information %+v", info)
	}

	if info.KubeletVersion != "" || info.ContainerRuntimeVersion != "" {
		t.Errorf("there is neither kubelet nor runtime, and it says %+v", info)
	}

	var internal int
	for _, a := range node.Status.Addresses {
		if a.Type == corev1.NodeInternalIP {
			internal++
		}
	}

	if want := len(h.cluster.controlAddrs()); internal != want || want == 0 {
		t.Errorf("%d addresses, want %d", internal, want)
	}
}
