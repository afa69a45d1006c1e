package telemetry

var (
	siteOpenDesc = desc("site_open_endpoints",
		"Exported endpoints of this node that another cluster may open connections to, counted "+
			"once for each port.", "site")
	siteEndedDesc = desc("site_ended_connections_total",
		"Known connections of other clusters that were deleted because their endpoint is not "+
			"exported any more.")
)

func collectSites(sites []Site, gauge gaugeFunc, counter counterFunc) {
	ended := uint64(0)
	for _, s := range sites {
		if e := s.Exports; e != nil {
			gauge(siteOpenDesc, float64(e.Open), s.Name)
			ended = e.Ended // of all sites
		}
	}
	if len(sites) > 0 {
		counter(siteEndedDesc, ended)
	}
}
