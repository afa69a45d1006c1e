package link

import (
	"fmt"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubeveil/kubeveil/pkg/kube/object"
	"github.com/kubeveil/kubeveil/pkg/site/record"
	"github.com/kubeveil/kubeveil/pkg/wgkey"
)

// stated returns a SiteRecord.
func stated(name, spec string) *object.Object {
	return &object.Object{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: []byte(spec)}
}

func statedNode(i int) *object.Object {
	return stated(fmt.Sprintf("node.n-%d", i), fmt.Sprintf(
		`{"node":{"keys":[{"epoch":1,"publicKey":"%s"}],"addresses":["198.51.100.1"]}}`,
		wgkey.Public{1}))
}

// statedService returns a service with n endpoints.
func statedService(i, n int) *object.Object {
	endpoints := strings.TrimSuffix(strings.Repeat(`{"address":"10.245.1.5"},`, n), ",")
	return stated(fmt.Sprintf("service.shop.web-%d", i), `{"service":{"ports":[{"protocol":"TCP",`+
		`"port":80}],"slices":[{"endpoints":[`+endpoints+`]}]}}`)
}

// Beyond the bounds, nodes and services that are mirrored already stay, and new ones are left out.
func TestKnownRecordsHavePriority(t *testing.T) {
	b := &builder{known: map[string]bool{"node.n-1005": true, "service.shop.web-1002": true}}
	for i := range 1006 {
		b.take(statedNode(i))
	}
	for i := range 1003 {
		b.take(statedService(i, 1))
	}
	if _, kept := b.nodes["n-1005"]; !kept || len(b.nodes) != record.MaxNodes ||
		len(b.services) != record.MaxServices || b.left != 6+3 ||
		b.services[record.Key{Namespace: "shop", Name: "web-1002"}] == nil {
		t.Errorf("%d nodes, %d services, %d left", len(b.nodes), len(b.services), b.left)
	}
	if !strings.Contains(b.problem, "bound") {
		t.Errorf("problem %q", b.problem)
	}
}

// The endpoints of a site have a bound, regardless of the number of its services.
func TestEndpointsOfASiteAreBounded(t *testing.T) {
	b := &builder{}
	for i := range record.MaxAllEndpoints/record.MaxEndpoints + 2 {
		b.take(statedService(i, record.MaxEndpoints))
	}
	b.take(stated("service.shop", `{}`))
	b.take(stated("node."+strings.Repeat("n", 300), `{}`))
	b.take(statedNode(1))
	b.take(statedNode(1))
	if b.endpoints != record.MaxAllEndpoints || len(b.services) != 10 || b.left != 2+3 ||
		len(b.nodes) != 1 {
		t.Errorf("%d endpoints, %d services, %d left", b.endpoints, len(b.services), b.left)
	}
}
