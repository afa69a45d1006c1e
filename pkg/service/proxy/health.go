package proxy

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/kubeveil/kubeveil/pkg/service"
)

// healthPorts answers balancers outside that ask whether a service has endpoints on this node, as kube-proxy does (KEP-27): at
// healthCheckNodePort, 200 with some and 503 without.
type healthPorts struct {
	node   string
	log    *slog.Logger
	listen func(port uint16) (net.Listener, error)

	mu       sync.Mutex // guards what follows
	services map[service.Name]uint16
	// local are the ready endpoints on this node, by service and slice.
	local   map[service.Name]map[string][]netip.Addr
	servers map[uint16]*healthServer
	failed  map[uint16]string
	changed bool // services, since servers were made what they ask for
	broken  bool // whether the table is behind
}

type healthServer struct {
	name service.Name
	http *http.Server
}

func newHealthPorts(node string, log *slog.Logger, listen func(uint16) (net.Listener, error)) *healthPorts {
	return &healthPorts{
		node: node, log: log, listen: listen, services: map[service.Name]uint16{}, local: map[service.Name]map[string][]netip.Addr{},
		servers: map[uint16]*healthServer{}, failed: map[uint16]string{},
	}
}

func (h *healthPorts) putService(s service.Service) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if s.HealthCheckNodePort == 0 || !s.ExternalLocal {
		h.deleteServiceLocked(s.Name)
		return
	}
	h.services[s.Name], h.changed = s.HealthCheckNodePort, true
}

func (h *healthPorts) deleteService(n service.Name) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.deleteServiceLocked(n)
}

func (h *healthPorts) deleteServiceLocked(n service.Name) {
	if _, had := h.services[n]; had {
		delete(h.services, n)
		h.changed = true
	}
}

func (h *healthPorts) putSlice(s service.Slice) {
	var ready []netip.Addr
	for _, ep := range s.Endpoints {
		if ep.Node == h.node && ep.Ready {
			ready = append(ready, ep.Addr)
		}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(ready) == 0 {
		h.deleteSliceLocked(s.Service, s.Name)
		return
	}
	if h.local[s.Service] == nil {
		h.local[s.Service] = map[string][]netip.Addr{}
	}
	h.local[s.Service][s.Name] = ready
}

func (h *healthPorts) deleteSlice(owner service.Name, slice string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.deleteSliceLocked(owner, slice)
}

func (h *healthPorts) deleteSliceLocked(owner service.Name, slice string) {
	delete(h.local[owner], slice)
	if len(h.local[owner]) == 0 {
		delete(h.local, owner)
	}
}

// lacking is whether a port could not be listened on.
func (h *healthPorts) lacking() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.failed) > 0
}

// update makes servers what services ask for, and tries again what could not be listened on.
func (h *healthPorts) update() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.changed && len(h.failed) == 0 {
		return
	}
	h.changed = false
	want := map[uint16]service.Name{}
	for name, port := range h.services {
		want[port] = name
	}
	for port, s := range h.servers {
		if want[port] != s.name {
			_ = s.http.Close()
			delete(h.servers, port)
		}
	}
	for port := range h.failed {
		if _, still := want[port]; !still {
			delete(h.failed, port)
		}
	}
	for port, name := range want {
		if h.servers[port] == nil {
			h.serveLocked(port, name)
		}
	}
}

func (h *healthPorts) serveLocked(port uint16, name service.Name) {
	l, err := h.listen(port)
	if err != nil {
		text := fmt.Sprintf("service %s: healthCheckNodePort %d cannot be listened on, so balancers send this node nothing: %v; end the program that has the port", name, port, err)
		if h.failed[port] == "" {
			h.log.Warn("a service is not served as it asks", "problem", text)
		}
		h.failed[port] = text
		return
	}
	delete(h.failed, port)
	s := &http.Server{
		Handler:           http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { h.answer(w, name) }),
		ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 5 * time.Second, WriteTimeout: 5 * time.Second, IdleTimeout: time.Minute, MaxHeaderBytes: 16 << 10,
		ErrorLog: slog.NewLogLogger(h.log.Handler(), slog.LevelDebug),
	}
	h.servers[port] = &healthServer{name, s}
	go func() {
		if err := s.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			h.log.Warn("health checks of a service are not answered any more", "service", name, "port", port, "error", err)
		}
	}()
}

// healthAnswer is what kube-proxy answers, field by field (pkg/proxy/healthcheck/service_health.go).
type healthAnswer struct {
	Service struct {
		Namespace string `json:"namespace"`
		Name      string `json:"name"`
	} `json:"service"`
	LocalEndpoints      int  `json:"localEndpoints"`
	ServiceProxyHealthy bool `json:"serviceProxyHealthy"`
}

func (h *healthPorts) answer(w http.ResponseWriter, name service.Name) {
	var a healthAnswer
	a.Service.Namespace, a.Service.Name = name.Namespace, name.Name
	a.LocalEndpoints, a.ServiceProxyHealthy = h.count(name)
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.Header().Set("X-Load-Balancing-Endpoint-Weight", strconv.Itoa(a.LocalEndpoints))
	if a.LocalEndpoints == 0 || !a.ServiceProxyHealthy {
		w.WriteHeader(http.StatusServiceUnavailable)
	}
	_ = json.NewEncoder(w).Encode(a)
}

// count is how many endpoints of a service are here, each address once, and whether the table follows.
func (h *healthPorts) count(name service.Name) (int, bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	seen := map[netip.Addr]bool{}
	for _, addrs := range h.local[name] {
		for _, a := range addrs {
			seen[a] = true
		}
	}
	return len(seen), !h.broken
}

// follows says whether the table is as it should be.
func (h *healthPorts) follows(yes bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.broken = !yes
}

func (h *healthPorts) problems() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	var out []string
	for _, text := range h.failed {
		out = append(out, text)
	}
	slices.Sort(out)
	return out
}

func (h *healthPorts) close() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for port, s := range h.servers {
		_ = s.http.Close()
		delete(h.servers, port)
	}
}
