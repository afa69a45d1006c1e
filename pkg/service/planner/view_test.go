package planner

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/pkg/service"
)

func TestViewsSayWhoIsChosenAndWhy(t *testing.T) {
	for name, c := range map[string]struct {
		change    func(*service.Service)
		endpoints []service.Endpoint
		at        string
		scope     service.Scope
		want      []string // address, chosen or not, why
	}{
		"ready beside others": {
			endpoints: []service.Endpoint{endpoint("198.18.1.1", "ready"),
				endpoint("198.18.1.2", "terminating"), endpoint("198.18.1.3", "dead"),
				endpoint("127.0.0.1", "ready")},
			at: "198.18.0.1:80",
			want: []string{"198.18.1.1:8080 yes ready",
				"127.0.0.1:8080 no no pod can have this address and port",
				"198.18.1.2:8080 no it is terminating: it keeps its existing connections",
				"198.18.1.3:8080 no it does not serve"},
		},
		"only terminating ones": {
			endpoints: []service.Endpoint{endpoint("198.18.1.2", "terminating")},
			at:        "198.18.0.1:80",
			want:      []string{"198.18.1.2:8080 yes it is terminating and still serves, because no backend is ready"},
		},
		"the policy Local": {
			change: func(s *service.Service) { s.ExternalLocal = true },
			endpoints: []service.Endpoint{endpoint("198.18.1.1", "ready elsewhere"),
				endpoint("198.18.1.2", "ready")}, at: "198.19.1.1:30080", scope: service.Outside,
			want: []string{"198.18.1.2:8080 yes ready",
				"198.18.1.1:8080 no not on this node, and the policy is Local"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			p := planned(t, webService(c.change), c.endpoints...).planner
			f, ok := p.At(netip.MustParseAddrPort(c.at), service.TCP, c.scope)
			if !ok || f.Owner != web {
				t.Fatalf("%s is %+v", c.at, f)
			}

			var got []string
			for _, b := range f.Backends {
				chosen := map[bool]string{true: " yes ", false: " no "}[b.Chosen]
				got = append(got, b.Addr.String()+chosen+b.Why)
			}

			if !slices.Equal(got, c.want) {
				t.Errorf("got  %s\nwant %s", strings.Join(got, "\n     "),
					strings.Join(c.want, "\n     "))
			}
		})
	}
}

func TestViewOfAnAddressThatAnotherHas(t *testing.T) {
	c := planned(t, webService(nil), endpoint("198.18.1.1", "ready"))
	other := webService(func(s *service.Service) {
		s.Name = service.Name{Namespace: "shop",
			Name: "other"}
	})
	c.planner.PutService(other)
	c.planner.Plan()
	v, ok := c.planner.View(web)
	if !ok || len(v.Problems) == 0 || v.Frontends[0].Owner != other.Name {
		t.Errorf("view %+v", v)
	}
	if _, ok := c.planner.View(service.Name{Namespace: "shop", Name: "none"}); ok {
		t.Error("a service that does not exist has a view")
	}
	if _, ok := c.planner.At(netip.MustParseAddrPort("198.18.9.9:80"), service.TCP,
		service.Inside); ok {
		t.Error("At found a service at an address that no service has")
	}
}

// The list comes in pages, has the same numbers as show, and does not block the planner for long.
func TestList(t *testing.T) {
	c := planned(t, webService(func(s *service.Service) { s.ExternalLocal = true }),
		endpoint("198.18.1.1", "ready"), endpoint("198.18.1.2", "ready elsewhere"),
		endpoint("198.18.1.3", "dead"))
	c.planner.PutSlice(service.Slice{Service: web, Name: "2",
		Ports:     []service.SlicePort{{Name: "http", Protocol: service.TCP, Port: 8080}},
		Endpoints: service.EndpointsOf(endpoint("198.18.1.1", "ready"))})
	c.planner.SetAPIServer(service.APIServer{Frontends: []netip.AddrPort{
		netip.MustParseAddrPort("198.18.0.9:443")},
		Backends: []netip.AddrPort{netip.MustParseAddrPort("198.19.0.1:6443")}})

	const others = listPage + 20
	for i := range others {
		c.planner.PutService(service.Service{Name: service.Name{Namespace: "other",
			Name: fmt.Sprint(i)}})
	}

	c.planner.PutSlice(service.Slice{Service: service.Name{Namespace: "shop", Name: "no service"},
		Name: "1"})
	c.planner.Plan()
	var all []service.View

	asked := 0
	for after := (service.Name{}); ; after = all[len(all)-1].Service {
		page, err := List(after, func(f func(*Planner)) error { asked++; f(c.planner); return nil })
		errtest.Must(t, err)
		if len(page) == 0 {
			break
		}
		all = append(all, page...)
	}

	if !slices.IsSortedFunc(all, func(a, b service.View) int {
		return compareName(a.Service, b.Service)
	}) || len(all) != others+2 || asked < others/listChunk {
		t.Errorf("%d services, asked for %d times", len(all), asked)
	}

	for _, v := range []service.View{all[0], all[len(all)-1]} {
		full, _ := c.planner.View(v.Service)
		for i := range full.Frontends {
			if v.Frontends[i].Backends != nil {
				t.Errorf("the list has the backends of %s", v.Service)
			}
			full.Frontends[i].Backends = nil
		}
		if diff := cmp.Diff(full, v, cmp.Comparer(func(a, b netip.AddrPort) bool {
			return a == b
		})); diff != "" {
			t.Errorf("%s: the list differs: %s", v.Service, diff)
		}
	}

	if f := all[len(all)-1].Frontends[0]; f.Known != 3 || f.Chosen != 2 {
		t.Errorf("%d of %d backends, want 2 of 3", f.Chosen, f.Known)
	}
	if _, err := List(service.Name{},
		func(func(*Planner)) error { return service.ErrFull }); !errors.Is(err,
		service.ErrFull) {
		t.Errorf("List whose ask fails: %v", err)
	}
}

func TestTextOfWords(t *testing.T) {
	var p service.Protocol
	var s service.Scope
	var n service.Name
	for text, read := range map[string]func([]byte) error{"UDP": p.UnmarshalText,
		"outside": s.UnmarshalText, "shop/web": n.UnmarshalText} {
		errtest.Check(t, read([]byte(text)))
		if read([]byte("x")) == nil {
			t.Errorf("%q and %q are both read", "x", text)
		}
	}
	if p != service.UDP || s != service.Outside || n != web {
		t.Errorf("read %v, %v, %v", p, s, n)
	}
}
