package main

import (
	"context"
	"fmt"
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/kubeveil/kubeveil/csi/driver"
	"github.com/kubeveil/kubeveil/pkg/telemetry"
)

func (p *process) serveMetrics(ctx context.Context) error {
	l, err := telemetry.ListenMetrics(p.options.metrics)
	if err != nil {
		return err
	}
	return telemetry.Serve(ctx, l,
		p.handler(p.registry, p.joined.Load, p.registration.Registered), p.log)
}

// handler returns the handler of the HTTP server. /healthz is ok while the driver waits for the API
// server (joined is false), because a restart would not help. /readyz is ok once the kubelet has
// registered the driver.
func (o *options) handler(registry *prometheus.Registry,
	joined, registered func() bool) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, r *http.Request) {
		if !joined() {
			fmt.Fprintln(w, "ok: the driver waits for the API server")
			return
		}
		if err := driver.Ask(r.Context(), o.endpoint); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(w, "ok")
	})
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		if o.registration != "" && !registered() {
			http.Error(w, "the kubelet has not registered the driver",
				http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(w, "ok")
	})
	return mux
}
