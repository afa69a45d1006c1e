package kube

import (
	"encoding/json"
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/kubeveil/kubeveil/pkg/kube/kubetest"
	"github.com/kubeveil/kubeveil/pkg/kube/object"
	"github.com/kubeveil/kubeveil/pkg/wgkey"
)

// One object of the largest size that etcd accepts costs this process little.
func TestLargeObjectIsCountedWhileItIsRead(t *testing.T) {
	all := map[string]kubetest.Swollen{}
	node := func(name string, of func(n int) corev1.Node) {
		all["Node, "+name] = kubetest.Grow(t, func(n int) ([]byte, error) {
			node := of(n)
			return kubetest.Protobuf("v1", "Node", &node)
		}, func(message []byte) (any, string, error) {
			o, _, err := object.FromProtobuf(message)
			if err != nil {
				return nil, "", err
			}
			e := parseNode(o)
			return e, e.problem, nil
		})
	}
	node("labels", func(n int) corev1.Node {
		return corev1.Node{ObjectMeta: kubetest.ManyLabels(n)}
	})
	node("podCIDRs", func(n int) (node corev1.Node) {
		node.Spec.PodCIDRs = kubetest.Repeat(n, func(int) string { return "198.18.0.0/24" })
		return node
	})
	node("addresses", func(n int) (node corev1.Node) {
		node.Status.Addresses = kubetest.Repeat(n, func(i int) corev1.NodeAddress {
			return corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: "198.18.0.1"}
		})
		return node
	})

	veilNode := func(name string, of func(n int) m) {
		all["VeilNode, "+name] = kubetest.Grow(t, func(n int) ([]byte, error) {
			return json.Marshal(of(n))
		}, func(message []byte) (any, string, error) {
			var o object.Object
			err := json.Unmarshal(message, &o)
			e := parseVeilNode(&o)
			return e, e.problem, err
		})
	}
	claim := m{"keys": []m{{"epoch": 1, "publicKey": wgkey.Public{1}.String()}}}
	veilNode("features", func(n int) m {
		return m{"spec": m{"keys": claim["keys"], "features": kubetest.Numbered(n)}}
	})
	veilNode("keys", func(n int) m {
		return m{"spec": m{"keys": kubetest.Repeat(n, func(i int) m { return m{"epoch": i} })}}
	})
	veilNode("labels", func(n int) m {
		return m{"metadata": m{"labels": kubetest.ManyLabels(n).Labels}, "spec": claim}
	})
	veilNode("owners", func(n int) m {
		return m{"metadata": m{"ownerReferences": kubetest.Repeat(n, func(i int) m {
			return m{"uid": fmt.Sprint(i)}
		})}, "spec": claim}
	})
	kubetest.Check(t, all)
}
