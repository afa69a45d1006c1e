package telemetry

// Connections describes how full the table of tracked connections is.
type Connections struct {
	// Tracked is the number of entries in the node's table, and Max its size. Limit is the maximum
	// number of entries that one pod may open.
	Tracked int `json:"tracked"`
	Max     int `json:"max"`
	Limit   int `json:"limit"`
	// Opened holds the pods that opened connections, sorted from most to fewest.
	Opened []PodConnections `json:"opened,omitempty"`
	// Limited holds the pods at their limit, sorted by name. They cannot open connections until
	// some of theirs end.
	Limited []PodConnections `json:"limited,omitempty"`
	// Dropped counts the dropped packets with which pods at their limit tried to open connections.
	Dropped uint64 `json:"dropped"`
	// SiteLimit is the maximum number of entries that one other cluster may open, 0 if there is no
	// limit. LimitedSites holds the clusters at their limit, sorted by name. SitesDropped counts the
	// dropped packets with which they tried to open more, or too many in a second.
	SiteLimit    int               `json:"siteLimit,omitempty"`
	LimitedSites []SiteConnections `json:"limitedSites,omitempty"`
	SitesDropped uint64            `json:"sitesDropped,omitempty"`
}

// SiteConnections is the number of tracked connections that another cluster opened.
type SiteConnections struct {
	Site   string `json:"site"`
	Opened int    `json:"opened"`
}

// PodConnections is the number of tracked connections that a pod opened.
type PodConnections struct {
	Pod    string `json:"pod"`
	Opened int    `json:"opened"`
}

var (
	connectionLimitDesc = desc("pod_connections_limit",
		"Maximum number of tracked connections that one pod may have opened.")
	connectionOpenedDesc = desc("pod_connections",
		"Tracked connections that a pod opened.", "pod")
	connectionLimitedDesc = desc("pod_connections_limited",
		"Tracked connections that a pod opened, only for pods that reached the limit.", "pod")
	connectionDroppedDesc = desc("pod_connections_dropped_total",
		"Packets that were dropped because they would have opened connections above a pod's limit.")
	siteLimitedDesc = desc("site_connections_limited",
		"Tracked connections that another cluster opened, only for those that reached the limit.",
		"site")
	siteDroppedDesc = desc("site_connections_dropped_total",
		"Packets that were dropped because another cluster would have opened connections above its "+
			"limit, or too many in a second.")
)

func collectConnections(c *Connections, gauge gaugeFunc, counter counterFunc) {
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
	for _, s := range c.LimitedSites {
		gauge(siteLimitedDesc, float64(s.Opened), s.Site)
	}
	counter(siteDroppedDesc, c.SitesDropped)
}
