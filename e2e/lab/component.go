package lab

// translates reports whether the lab's veilds translate services: then the lab has the component
// manifests/components/services.
func (o Options) translates() bool { return o.VeildConfig["serviceProxy"] == "ebpf" }

// judges reports whether the lab's veilds enforce network policies: then the lab has the component
// manifests/components/policy.
func (o Options) judges() bool { return o.VeildConfig["policy"] == "kubernetes" }

// apiServers returns the addresses in services.apiServers. known reports whether that key is
// written: then the lab has the component manifests/components/api-path, though the key may be
// empty.
func (o Options) apiServers() (servers []string, known bool) {
	services, _ := o.VeildConfig["services"].(map[string]any)
	servers, known = services["apiServers"].([]string)
	return servers, known
}

// byService reports whether the lab's veilds reach the API servers by their service, as without a
// balancer before these: services.apiServers allows it.
func (o Options) byService() bool {
	servers, _ := o.apiServers()
	return len(servers) > 0
}

// placeServices names the host's tree of cgroups, which veild does not take for the machine's by
// itself: it is a part of it.
func placeServices(settings map[string]any) {
	services := map[string]any{"cgroup": "/sys/fs/cgroup"}
	if have, ok := settings["services"].(map[string]any); ok {
		for key, value := range have {
			services[key] = value
		}
	}
	settings["services"] = services
}
