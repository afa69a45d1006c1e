package telemetry

import (
	"github.com/prometheus/client_golang/prometheus"
)

// Connections describes how full the table of tracked connections is.
type Connections struct {
	// Tracked and Max count connections of the node; Limit bounds each pod.
	Tracked int `json:"tracked"`
	Max     int `json:"max"`
	Limit   int `json:"limit"`
	// Opened are the pods that opened connections, those with most first.
	Opened []PodConnections `json:"opened,omitempty"`
	// Limited are the pods at their limit, sorted by name. They open no more until some end.
	Limited []PodConnections `json:"limited,omitempty"`
	// Dropped counts the packets with which such pods would have opened connections.
	Dropped uint64 `json:"dropped"`
}

// PodConnections is the number of tracked connections that a pod opened.
type PodConnections struct {
	Pod    string `json:"pod"`
	Opened int    `json:"opened"`
}

var (
	connectionLimitDesc = desc("pod_connections_limit",
		"How many tracked connections one pod may have opened.")
	connectionOpenedDesc = desc("pod_connections",
		"Tracked connections that a pod opened.", "pod")
	connectionLimitedDesc = desc("pod_connections_limited",
		"Tracked connections that a pod opened, of pods that have too many and open no more.", "pod")
	connectionDroppedDesc = desc("pod_connections_dropped_total",
		"Packets with which pods with too many tracked connections would have opened more.")

	connectionDescs = []*prometheus.Desc{connectionLimitDesc, connectionOpenedDesc,
		connectionLimitedDesc, connectionDroppedDesc}
)

func collectConnections(c *Connections, gauge func(*prometheus.Desc, float64, ...string),
	counter func(*prometheus.Desc, uint64, ...string)) {
	if c == nil {
		return
	}
	gauge(connectionLimitDesc, float64(c.Limit))
	for _, p := range c.Opened {
		gauge(connectionOpenedDesc, float64(p.Opened), p.Pod)
	}
	for _, p := range c.Limited {
		gauge(connectionLimitedDesc, float64(p.Opened), p.Pod)
	}
	counter(connectionDroppedDesc, c.Dropped)
}
