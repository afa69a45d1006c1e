package keeper

import (
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"testing"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/pkg/service"
	"github.com/kubeveil/kubeveil/pkg/service/servicetest"
)

func localService(port uint16) service.Service {
	s := webService()
	s.ExternalLocal, s.HealthCheckNodePort = true, port
	return s
}

// healthy returns a healthPorts with one port, on loopback, and a function that requests it.
func healthy(t *testing.T) (*healthPorts, func() (*http.Response, healthAnswer)) {
	t.Helper()
	var addr string
	h := newHealthPorts("node-1", "", slog.New(slog.DiscardHandler),
		func(string) (net.Listener, error) {
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err == nil {
				addr = l.Addr().String()
			}
			return l, err
		})
	t.Cleanup(h.close)

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
			t.Fatalf("%s: %v", body, err)
		}
		return resp, a
	}
}

// The codes, header and fields are those that balancers know from kube-proxy.
func TestHealthCheckNodePort(t *testing.T) {
	h, ask := healthy(t)
	h.putService(localService(31000))
	h.update()
	resp, a := ask()
	if resp.StatusCode != http.StatusServiceUnavailable || a.LocalEndpoints != 0 ||
		!a.ServiceProxyHealthy || a.Service.Namespace != "default" || a.Service.Name != "web" {
		t.Errorf("without endpoints: %s %+v", resp.Status, a)
	}

	s := servicetest.ReadySlice(web, "http", 8080, "198.18.1.1", "198.18.1.2", "198.18.1.3")
	s.Endpoints[1].Node, s.Endpoints[2].Ready = "node-2", false
	h.putSlice(s)
	s.Name = "web-2" // the same address is the same endpoint
	h.putSlice(s)
	resp, a = ask()
	if resp.StatusCode != http.StatusOK || a.LocalEndpoints != 1 ||
		resp.Header.Get("X-Load-Balancing-Endpoint-Weight") != "1" ||
		resp.Header.Get("Content-Type") != "application/json" {
		t.Errorf("with one endpoint here: %s %+v %v", resp.Status, a, resp.Header)
	}

	h.follows(false)
	if resp, a := ask(); resp.StatusCode != http.StatusServiceUnavailable || a.ServiceProxyHealthy {
		t.Errorf("with a table that is behind: %s %+v", resp.Status, a)
	}

	h.follows(true)
	h.deleteSlice(web, "web-1")
	h.deleteSlice(web, "web-2")
	if resp, _ := ask(); resp.StatusCode != http.StatusServiceUnavailable {
		t.Errorf("after the endpoints went: %s", resp.Status)
	}

	h.deleteService(web)
	h.update()
	if len(h.servers) != 0 {
		t.Errorf("after the service went, %d ports are served", len(h.servers))
	}
}

func TestHealthPortThatIsTaken(t *testing.T) {
	taken := true
	h := newHealthPorts("node-1", "", slog.New(slog.DiscardHandler),
		func(string) (net.Listener, error) {
			if taken {
				return nil, errors.New("address in use")
			}
			return net.Listen("tcp", "127.0.0.1:0")
		})
	defer h.close()
	h.putService(localService(31000))
	h.update()
	if got := h.problems(); len(got) != 1 {
		t.Fatalf("problems %q, want one", got)
	}
	taken = false
	h.update()
	if got := h.problems(); len(got) != 0 || len(h.servers) != 1 {
		t.Errorf("once the port is free: problems %q, %d served", got, len(h.servers))
	}
}

func TestHealthPortsWithoutPolicyLocal(t *testing.T) {
	h := newHealthPorts("node-1", "", slog.New(slog.DiscardHandler),
		func(string) (net.Listener, error) { return nil, errors.New("asked for") })
	s := localService(31000)
	s.ExternalLocal = false
	h.putService(s)
	h.putSlice(service.Slice{Service: web, Name: "a",
		Endpoints: []service.Endpoint{{Addr: netip.MustParseAddr("198.18.1.1")}}})
	h.update()
	if got := h.problems(); len(got) != 0 {
		t.Errorf("a service of policy Cluster: %q", got)
	}
}

// TestHealthOfTheNode requests what load balancers request from kube-proxy at port 10256.
func TestHealthOfTheNode(t *testing.T) {
	var addr string
	h := newHealthPorts("node-1", ":10256", slog.New(slog.DiscardHandler),
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
	defer h.close()

	h.update()
	if addr != "" {
		t.Fatal("it is told of a table that is not in force")
	}

	h.attached()
	h.update()
	first := addr
	expect := func(situation, path string, want int) {
		t.Helper()
		resp, err := http.Get("http://" + addr + path)
		errtest.Must(t, err)
		defer resp.Body.Close()
		var a nodeAnswer
		if resp.StatusCode != want || want != http.StatusNotFound &&
			(json.NewDecoder(resp.Body).Decode(&a) != nil || !a.NodeEligible ||
				a.LastUpdated.Equal(a.CurrentTime) != (want == http.StatusOK)) {
			t.Errorf("%s, %s: %s %+v, want %d", situation, path, resp.Status, a, want)
		}
	}

	expect("in force", "/healthz", http.StatusOK)
	expect("in force", "/livez", http.StatusOK)
	expect("in force", "/", http.StatusNotFound)
	h.follows(false)
	expect("behind", "/healthz", http.StatusServiceUnavailable)
	h.follows(true)
	expect("it is made good", "/healthz", http.StatusOK)
	h.putService(service.Service{Name: web})
	h.update()
	if expect("services change", "/healthz", http.StatusOK); addr != first || len(h.servers) != 1 {
		t.Errorf("it is served at %s, was at %s", addr, first)
	}
}
