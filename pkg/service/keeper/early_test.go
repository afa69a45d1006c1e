package keeper

import (
	"fmt"
	"testing"
	"time"

	"github.com/kubeveil/kubeveil/internal/nettest"
	"github.com/kubeveil/kubeveil/pkg/service"
	"github.com/kubeveil/kubeveil/pkg/service/planner"
	"github.com/kubeveil/kubeveil/pkg/service/servicetest"
)

// Many services reach the planner before all are listed. Nothing of them is written before that,
// and what was deleted meanwhile never.
func TestServicesArePlannedWhileTheyAreListed(t *testing.T) {
	table := newFakeTable()
	p, _, _ := begin(t, table, nil)
	before := table.written()
	p.PutService(webService())
	p.PutSlice(servicetest.ReadySlice(web, "http", 8080, "198.18.1.1"))
	name := func(i int) service.Name {
		return service.Name{Namespace: "shop", Name: fmt.Sprint("s", i)}
	}

	for i := range early {
		p.PutSlice(servicetest.ReadySlice(name(i), "http", 8080, "198.18.1.2"))
	}
	nettest.Until(t, 10*time.Second, "the planner has services", func() bool {
		known := 0
		if err := p.Ask(t.Context(),
			func(p *planner.Planner) { known = p.Services() }); err != nil {
			t.Fatal(err)
		}
		return known == 1
	})

	for i := range early {
		p.DeleteSlice(name(i), "1")
	}
	p.PutSlice(servicetest.ReadySlice(web, "http", 8080, "198.18.1.3"))
	if n := table.written(); n != before {
		t.Errorf("%d writes before all services are listed", n-before)
	}
	p.Listed()
	table.waitBackends(t, webFrontend, "198.18.1.3:8080")
}
