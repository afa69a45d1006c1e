package healthcheck

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/kubeveil/kubeveil/pkg/service"
)

// Ports answers health checks. Use New. Its methods may be called from several goroutines.
type Ports struct {
	node     string
	nodeAddr string // of the node's health check, served once the table is in force; "" disables it
	log      *slog.Logger
	listen   func(addr string) (net.Listener, error)

	mu       sync.Mutex // guards the fields below
	services map[service.Name]uint16
	// local are the ready endpoints on this node, by service and slice.
	local   map[service.Name]map[string][]netip.Addr
	servers map[string]*server // by address
	failed  map[string]string
	changed bool      // services or inForce changed since the last update
	inForce bool      // the table is in force
	broken  time.Time // when writes of the table began to fail; zero while they succeed
	leaving bool      // the node is about to be deleted
}

// server is the HTTP server of a service, or of the node if name is zero.
type server struct {
	name service.Name
	http *http.Server
}

// New returns Ports for the services of this node, and at nodeAddr for the node itself. An empty
// nodeAddr means that the node's health is not served. listen opens each listener. Close ends them.
func New(node, nodeAddr string, log *slog.Logger,
	listen func(string) (net.Listener, error)) *Ports {
	return &Ports{
		node: node, nodeAddr: nodeAddr, log: log, listen: listen,
		services: map[service.Name]uint16{}, local: map[service.Name]map[string][]netip.Addr{},
		servers: map[string]*server{}, failed: map[string]string{},
	}
}

// Attached records that the table is in force.
func (h *Ports) Attached() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.inForce, h.changed = true, true
}

// PutService adds or replaces a service. Update makes it effective.
func (h *Ports) PutService(s service.Service) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if s.HealthCheckNodePort == 0 || !s.ExternalLocal {
		h.deleteServiceLocked(s.Name)
		return
	}
	h.services[s.Name], h.changed = s.HealthCheckNodePort, true
}

// DeleteService removes a service. Update makes it effective.
func (h *Ports) DeleteService(n service.Name) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.deleteServiceLocked(n)
}

func (h *Ports) deleteServiceLocked(n service.Name) {
	if _, had := h.services[n]; had {
		delete(h.services, n)
		h.changed = true
	}
}

// PutSlice adds or replaces a slice of endpoints. It is effective at once.
func (h *Ports) PutSlice(s service.Slice) {
	var ready []netip.Addr
	for ep := range s.Endpoints.On(h.node) {
		if ep.Ready {
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

// DeleteSlice removes a slice of endpoints. It is effective at once.
func (h *Ports) DeleteSlice(owner service.Name, slice string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.deleteSliceLocked(owner, slice)
}

func (h *Ports) deleteSliceLocked(owner service.Name, slice string) {
	delete(h.local[owner], slice)
	if len(h.local[owner]) == 0 {
		delete(h.local, owner)
	}
}

// Lacking reports whether listening on a port failed.
func (h *Ports) Lacking() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.failed) > 0
}

// Update starts and stops servers as services need them. It tries failed ports again.
func (h *Ports) Update() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.changed && len(h.failed) == 0 {
		return
	}

	h.changed = false
	want := map[string]service.Name{}
	if h.inForce && h.nodeAddr != "" {
		want[h.nodeAddr] = service.Name{}
	}

	for name, port := range h.services {
		want[fmt.Sprintf(":%d", port)] = name
	}

	for addr, s := range h.servers {
		if name, still := want[addr]; !still || name != s.name {
			_ = s.http.Close()
			delete(h.servers, addr)
		}
	}

	for addr := range h.failed {
		if _, still := want[addr]; !still {
			delete(h.failed, addr)
		}
	}

	for addr, name := range want {
		if h.servers[addr] == nil {
			h.serveLocked(addr, name)
		}
	}
}

func (h *Ports) serveLocked(addr string, name service.Name) {
	l, err := h.listen(addr)
	if err != nil {
		of := fmt.Sprintf("service %s: healthCheckNodePort", name)
		if name == (service.Name{}) {
			of = "services.healthAddress"
		}
		text := fmt.Sprintf("%s %s: cannot listen, so load balancers send nothing to this node: "+
			"end the program that uses the port: %v", of, addr, err)
		if h.failed[addr] == "" {
			h.log.Warn("a health check port cannot be served", "problem", text)
		}
		h.failed[addr] = text
		return
	}

	delete(h.failed, addr)
	s := &http.Server{
		Handler:           h.handler(name),
		ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 5 * time.Second,
		WriteTimeout: 5 * time.Second, IdleTimeout: time.Minute, MaxHeaderBytes: 16 << 10,
		ErrorLog: slog.NewLogLogger(h.log.Handler(), slog.LevelDebug),
	}
	h.servers[addr] = &server{name, s}
	go func() {
		if err := s.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			h.log.Warn("health checks are no longer answered", "service", name, "address", addr,
				"error", err)
		}
	}()
}

func (h *Ports) handler(name service.Name) http.Handler {
	if name != (service.Name{}) {
		return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { h.answer(w, name) })
	}
	m := http.NewServeMux()
	m.HandleFunc("/healthz", func(w http.ResponseWriter, _ *http.Request) { h.answerNode(w, true) })
	m.HandleFunc("/livez", func(w http.ResponseWriter, _ *http.Request) { h.answerNode(w, false) })
	return m
}

// nodeAnswer has the fields of kube-proxy's answer (pkg/proxy/healthcheck/proxy_health.go).
type nodeAnswer struct {
	LastUpdated  time.Time `json:"lastUpdated"`
	CurrentTime  time.Time `json:"currentTime"`
	NodeEligible bool      `json:"nodeEligible"`
}

// answerNode answers whether this node serves and, if stays is true, whether it will go on to: a
// node that is about to be deleted gets no new connections, but its proxy needs no restart.
func (h *Ports) answerNode(w http.ResponseWriter, stays bool) {
	now := time.Now()
	h.mu.Lock()
	a := nodeAnswer{h.broken, now, !h.leaving}
	h.mu.Unlock()
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	healthy := a.LastUpdated.IsZero()
	if healthy {
		a.LastUpdated = now
	}
	if !healthy || stays && !a.NodeEligible {
		w.WriteHeader(http.StatusServiceUnavailable)
	}
	_ = json.NewEncoder(w).Encode(a)
}

// healthAnswer has the fields of kube-proxy's answer (pkg/proxy/healthcheck/service_health.go).
type healthAnswer struct {
	Service struct {
		Namespace string `json:"namespace"`
		Name      string `json:"name"`
	} `json:"service"`
	LocalEndpoints      int  `json:"localEndpoints"`
	ServiceProxyHealthy bool `json:"serviceProxyHealthy"`
}

func (h *Ports) answer(w http.ResponseWriter, name service.Name) {
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

// count returns the number of ready endpoints of a service on this node, each address once, and
// whether the table is up to date.
func (h *Ports) count(name service.Name) (int, bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	seen := map[netip.Addr]bool{}
	for _, addrs := range h.local[name] {
		for _, a := range addrs {
			seen[a] = true
		}
	}
	return len(seen), h.broken.IsZero()
}

// Follows records whether the last write of the table succeeded.
func (h *Ports) Follows(yes bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case yes:
		h.broken = time.Time{}
	case h.broken.IsZero():
		h.broken = time.Now()
	}
}

// SetLeaving records whether the node is about to be deleted.
func (h *Ports) SetLeaving(leaving bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.leaving = leaving
}

// Problems returns a sentence for each address on which listening failed, sorted.
func (h *Ports) Problems() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Sorted(maps.Values(h.failed))
}

// Close ends all servers.
func (h *Ports) Close() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for addr, s := range h.servers {
		_ = s.http.Close()
		delete(h.servers, addr)
	}
}
