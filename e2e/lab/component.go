package lab

import "maps"

// translates reports whether the lab's veilds translate services. Such a lab has the component
// manifests/components/services.
func (o Options) translates() bool { return o.VeildConfig["serviceProxy"] == "ebpf" }

// linked reports whether the lab's veilds have sites. Such a lab has the component
// manifests/components/sites.
func (o Options) linked() bool { return o.Sites || o.VeildConfig["sites"] != nil }

// judges reports whether the lab's veilds enforce network policies. Such a lab has the component
// manifests/components/policy.
func (o Options) judges() bool { return o.VeildConfig["policy"] == "kubernetes" }

// apiServers returns the addresses in services.apiServers. known reports whether the configuration
// has this key, possibly empty. Such a lab has the component manifests/components/api-path.
func (o Options) apiServers() (servers []string, known bool) {
	services, _ := o.VeildConfig["services"].(map[string]any)
	servers, known = services["apiServers"].([]string)
	return servers, known
}

// byService reports whether the lab's veilds reach the API servers by the address of their service,
// as in a cluster without a load balancer for them. This needs services.apiServers.
func (o Options) byService() bool {
	servers, _ := o.apiServers()
	return len(servers) > 0
}

// placeServices sets services.cgroup to the host's tree of cgroups. veild does not use this tree by
// default, because it is only a part of the machine's tree.
func placeServices(settings map[string]any) {
	services := map[string]any{"cgroup": "/sys/fs/cgroup"}
	have, _ := settings["services"].(map[string]any)
	maps.Copy(services, have)
	settings["services"] = services
}
