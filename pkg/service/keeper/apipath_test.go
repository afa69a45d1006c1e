package keeper

import (
	"context"
	"testing"
	"time"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/nettest"
	"github.com/kubeveil/kubeveil/pkg/service"
	"github.com/kubeveil/kubeveil/pkg/service/planner"
)

// Beside another proxy the table has the ClusterIPs of the API servers' service. The other proxy
// serves NodePorts and external addresses.
func TestAPIFeedTakesClusterIPsOnly(t *testing.T) {
	p, err := New(ServiceConfig{Node: "node-1", Limits: service.APILimits, Table: emptyTable{}})
	errtest.Must(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); p.Run(ctx) }()
	defer func() { cancel(); <-done }()

	name := service.Name{Namespace: "default", Name: "kubernetes"}
	feed := apiFeed{p}
	feed.PutService(service.Service{Name: name, ClusterIPs: nettest.Addrs("198.19.0.1"),
		ExternalIPs: nettest.Addrs("198.18.9.1"), LoadBalancerIPs: nettest.Addrs("198.18.8.1"),
		HealthCheckNodePort: 31000, Ports: []service.Port{
			{Name: "https", Protocol: service.TCP, Port: 443, NodePort: 30443}}})
	p.SetNodeAddrs(nettest.Addrs("198.18.0.11"))
	feed.Listed()

	var got service.View
	nettest.Until(t, 10*time.Second, "the service is in the table", func() (has bool) {
		if err := p.Ask(ctx, func(planner *planner.Planner) {
			got, has = planner.View(name)
		}); err != nil {
			t.Fatal(err)
		}
		return has && len(got.Frontends) > 0
	})
	for _, f := range got.Frontends {
		if f.Kind != "ClusterIP" || f.Addr.String() != "198.19.0.1:443" {
			t.Errorf("the table has %s %s", f.Kind, f.Addr)
		}
	}
	if problems := p.Status().Problems; len(problems) > 0 {
		t.Errorf("problems %q", problems)
	}
}
