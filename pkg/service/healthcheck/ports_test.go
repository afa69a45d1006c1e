package healthcheck

import (
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"testing"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/nettest"
	"github.com/kubeveil/kubeveil/pkg/service"
	"github.com/kubeveil/kubeveil/pkg/service/servicetest"
)

var web = service.Name{Namespace: "default", Name: "web"}

// localService returns a service of policy Local with a healthCheckNodePort.
func localService(port uint16) service.Service {
	return service.Service{Name: web, ExternalLocal: true, HealthCheckNodePort: port,
		ClusterIPs: nettest.Addrs("198.18.128.10"),
		Ports: []service.Port{{Name: "http", Protocol: service.TCP, Port: 80,
			NodePort: 30080}}}
}

// healthy returns Ports with one port, on loopback, and a function that requests it.
func healthy(t *testing.T) (*Ports, func() (*http.Response, healthAnswer)) {
	t.Helper()
	var addr string
	h := New("node-1", "", slog.New(slog.DiscardHandler),
		func(string) (net.Listener, error) {
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err == nil {
				addr = l.Addr().String()
			}
			return l, err
		})
	t.Cleanup(h.Close)

	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	return h, func() (*http.Response, healthAnswer) {
		t.Helper()
		resp, err := client.Get("http://" + addr + "/healthz")
		errtest.Must(t, err)
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		errtest.Must(t, err)
		var a healthAnswer
		if err := json.Unmarshal(body, &a); err != nil {
			t.Fatalf("parse the answer %s: %v", body, err)
		}
		return resp, a
	}
}

// The codes, the header and the fields are the same as kube-proxy's, which balancers expect.
func TestHealthCheckNodePort(t *testing.T) {
	h, ask := healthy(t)
	h.PutService(localService(31000))
	h.Update()
	resp, a := ask()
	if resp.StatusCode != http.StatusServiceUnavailable || a.LocalEndpoints != 0 ||
		!a.ServiceProxyHealthy || a.Service.Namespace != "default" || a.Service.Name != "web" {
		t.Errorf("without endpoints: %s %+v", resp.Status, a)
	}

	s := servicetest.ReadySlice(web, "http", 8080, "198.18.1.1", "198.18.1.2", "198.18.1.3")
	list := slices.Collect(s.Endpoints.All())
	list[1].Node, list[2].Ready = "node-2", false
	s.Endpoints = service.EndpointsOf(list...)
	h.PutSlice(s)
	s.Name = "web-2" // the same address is the same endpoint
	h.PutSlice(s)
	resp, a = ask()
	if resp.StatusCode != http.StatusOK || a.LocalEndpoints != 1 ||
		resp.Header.Get("X-Load-Balancing-Endpoint-Weight") != "1" ||
		resp.Header.Get("Content-Type") != "application/json" {
		t.Errorf("with one endpoint here: %s %+v %v", resp.Status, a, resp.Header)
	}

	h.Follows(false)
	if resp, a := ask(); resp.StatusCode != http.StatusServiceUnavailable || a.ServiceProxyHealthy {
		t.Errorf("with a table that is behind: %s %+v", resp.Status, a)
	}

	h.Follows(true)
	h.DeleteSlice(web, "web-1")
	h.DeleteSlice(web, "web-2")
	if resp, _ := ask(); resp.StatusCode != http.StatusServiceUnavailable {
		t.Errorf("after the endpoints were deleted: %s", resp.Status)
	}

	h.DeleteService(web)
	h.Update()
	if len(h.servers) != 0 {
		t.Errorf("after the service was deleted, %d ports are served", len(h.servers))
	}
}

func TestHealthPortThatIsTaken(t *testing.T) {
	taken := true
	h := New("node-1", "", slog.New(slog.DiscardHandler),
		func(string) (net.Listener, error) {
			if taken {
				return nil, errors.New("address in use")
			}
			return net.Listen("tcp", "127.0.0.1:0")
		})
	defer h.Close()
	h.PutService(localService(31000))
	h.Update()
	if got := h.Problems(); len(got) != 1 {
		t.Fatalf("problems %q, want one", got)
	}
	taken = false
	h.Update()
	if got := h.Problems(); len(got) != 0 || len(h.servers) != 1 {
		t.Errorf("once the port is free: problems %q, %d served", got, len(h.servers))
	}
}

func TestHealthPortsWithoutPolicyLocal(t *testing.T) {
	h := New("node-1", "", slog.New(slog.DiscardHandler),
		func(string) (net.Listener, error) { return nil, errors.New("asked for") })
	s := localService(31000)
	s.ExternalLocal = false
	h.PutService(s)
	h.PutSlice(service.Slice{Service: web, Name: "a",
		Endpoints: service.EndpointsOf(
			service.Endpoint{Addr: netip.MustParseAddr("198.18.1.1")})})
	h.Update()
	if got := h.Problems(); len(got) != 0 {
		t.Errorf("a service of policy Cluster: %q", got)
	}
}

// TestHealthOfTheNode requests what load balancers request from kube-proxy at port 10256.
func TestHealthOfTheNode(t *testing.T) {
	var addr string
	h := New("node-1", ":10256", slog.New(slog.DiscardHandler),
		func(at string) (net.Listener, error) {
			if at != ":10256" {
				t.Errorf("asked to listen on %s", at)
			}
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err == nil {
				addr = l.Addr().String()
			}
			return l, err
		})
	defer h.Close()

	h.Update()
	if addr != "" {
		t.Fatal("the node's health is served before the table is in force")
	}

	h.Attached()
	h.Update()
	first, leaving := addr, false
	expect := func(situation, path string, want int) {
		t.Helper()
		resp, err := http.Get("http://" + addr + path)
		errtest.Must(t, err)
		defer resp.Body.Close()
		var a nodeAnswer
		if resp.StatusCode != want || want != http.StatusNotFound &&
			(json.NewDecoder(resp.Body).Decode(&a) != nil || a.NodeEligible == leaving ||
				!leaving && a.LastUpdated.Equal(a.CurrentTime) != (want == http.StatusOK)) {
			t.Errorf("%s, %s: %s %+v, want %d", situation, path, resp.Status, a, want)
		}
	}

	expect("in force", "/healthz", http.StatusOK)
	expect("in force", "/livez", http.StatusOK)
	expect("in force", "/", http.StatusNotFound)
	h.Follows(false)
	expect("behind", "/healthz", http.StatusServiceUnavailable)
	h.Follows(true)
	expect("it is made good", "/healthz", http.StatusOK)
	leaving = true
	h.SetLeaving(true)
	expect("about to be deleted", "/healthz", http.StatusServiceUnavailable)
	expect("about to be deleted", "/livez", http.StatusOK)
	leaving = false
	h.SetLeaving(false)
	h.PutService(service.Service{Name: web})
	h.Update()
	if expect("services change", "/healthz", http.StatusOK); addr != first || len(h.servers) != 1 {
		t.Errorf("the node's health is served at %s, was at %s", addr, first)
	}
}
