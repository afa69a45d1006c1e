package link

import (
	"net/http/httptest"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/nettest"
	"github.com/kubeveil/kubeveil/pkg/cluster"
	"github.com/kubeveil/kubeveil/pkg/site/inventory"
	"github.com/kubeveil/kubeveil/pkg/site/record"
)

// An API server refuses each new object in a namespace that is being deleted. Nothing is tried, so
// that no problem is shown. What is there is deleted.
func TestNothingIsCreatedInANamespaceThatEnds(t *testing.T) {
	for name, ending := range map[string]bool{"stays": false, "ends": true} {
		t.Run(name, func(t *testing.T) {
			server := &writes{}
			api := httptest.NewServer(server)
			defer api.Close()
			b, stateOfB := siteOf("b", 245, 0)
			b.Imports = []string{cluster.AllNamespaces}
			port := record.Port{Name: "http", Protocol: "TCP", Port: 80}
			stateOfB.view.services = map[record.Key]*record.Service{{Namespace: "shop",
				Name: "theirs"}: {V4: true, Ports: []record.Port{port}}}
			l, err := New(Config{API: &rest.Config{Host: api.URL}, Cluster: "a",
				PodRanges:  nettest.Prefixes("10.244.0.0/16"),
				NodeRanges: nettest.Prefixes("192.0.2.0/24"), Sites: []cluster.Site{b}})
			errtest.Must(t, err)
			l.remotes["b"] = stateOfB

			web := record.Key{Namespace: "shop", Name: "web"}
			there := inventory.Meta{Version: "1"}
			l.round(t.Context(), inventory.State{
				Namespaces: map[record.Key]inventory.Namespace{{Name: "shop"}: {Ending: ending}},
				Exports:    map[record.Key]inventory.Export{web: {Meta: there}},
				Services: map[record.Key]inventory.Service{web: {Meta: there,
					Spec: corev1.ServiceSpec{ClusterIP: "10.96.0.9",
						Ports: []corev1.ServicePort{{Port: 80, Protocol: "TCP"}}}}}})
			created := 0
			for _, request := range server.all {
				if strings.HasPrefix(request, "POST ") && strings.Contains(request, "/shop/") {
					created++
				}
			}
			// A ServiceImport and a derived Service of each service.
			if want := map[bool]int{false: 4, true: 0}[ending]; created != want {
				t.Errorf("%d objects are created, want %d: %q", created, want, server.all)
			}
		})
	}
}
