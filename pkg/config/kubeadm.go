package config

import (
	"fmt"
	"net/netip"
	"strings"

	"sigs.k8s.io/yaml"
)

// Ranges are the ranges that a kubeadm ClusterConfiguration names.
type Ranges struct {
	Pod, Service []netip.Prefix
}

// kubeadmDocument holds the keys that are read from a ClusterConfiguration, or from the ConfigMap
// kubeadm-config that contains a ClusterConfiguration. Other keys are ignored.
type kubeadmDocument struct {
	Kind       string `json:"kind"`
	Networking struct {
		PodSubnet     string `json:"podSubnet"`
		ServiceSubnet string `json:"serviceSubnet"`
	} `json:"networking"`
	Data struct {
		ClusterConfiguration string `json:"ClusterConfiguration"`
	} `json:"data"`
}

// ParseKubeadm finds the ClusterConfiguration in text and reads networking.podSubnet and
// serviceSubnet (comma-separated for two families). text has one or more YAML documents. One of
// them is the ClusterConfiguration, or a ConfigMap with data.ClusterConfiguration.
func ParseKubeadm(text []byte) (Ranges, error) {
	return parseKubeadm(string(text), true)
}

func parseKubeadm(text string, configMap bool) (Ranges, error) {
	for i, part := range splitDocuments(text) {
		var doc kubeadmDocument
		if err := yaml.Unmarshal([]byte(part), &doc); err != nil {
			return Ranges{}, fmt.Errorf("document %d: %w", i+1, err)
		}
		switch {
		case doc.Kind == "ClusterConfiguration":
			return doc.ranges()
		case doc.Kind == "ConfigMap" && doc.Data.ClusterConfiguration != "" && configMap:
			return parseKubeadm(doc.Data.ClusterConfiguration, false)
		}
	}
	return Ranges{}, fmt.Errorf("no document of kind ClusterConfiguration: write the output of " +
		"kubectl -n kube-system get cm kubeadm-config -o yaml")
}

// splitDocuments splits YAML at its document markers, --- and ..., which begin a line (YAML 1.2,
// section 9.1).
func splitDocuments(text string) []string {
	var documents []string
	var current strings.Builder
	for line := range strings.Lines(text) {
		rest, ok := strings.CutPrefix(line, "---")
		if !ok {
			rest, ok = strings.CutPrefix(line, "...")
		}
		if ok && strings.Trim(rest[:min(len(rest), 1)], " \t\r\n") == "" {
			documents = append(documents, current.String())
			current.Reset()
			line = rest
		}
		current.WriteString(line)
	}
	return append(documents, current.String())
}

// documentsIn counts the documents of text that are not empty.
func documentsIn(text string) (n int) {
	for _, document := range splitDocuments(text) {
		for line := range strings.Lines(document) {
			if line = strings.TrimSpace(line); line != "" && line[0] != '#' && line[0] != '%' {
				n++
				break
			}
		}
	}
	return n
}

func (d kubeadmDocument) ranges() (r Ranges, err error) {
	if r.Pod, err = subnets("networking.podSubnet", d.Networking.PodSubnet); err != nil {
		return Ranges{}, err
	}
	if r.Service, err = subnets("networking.serviceSubnet",
		d.Networking.ServiceSubnet); err != nil {
		return Ranges{}, err
	}
	return r, nil
}

func subnets(key, list string) ([]netip.Prefix, error) {
	var out []netip.Prefix
	for _, s := range splitList(list) {
		p, err := netip.ParsePrefix(s.(string))
		if err != nil {
			return nil, fmt.Errorf("%s: %q is not %s", key, s, wanted(prefixType))
		}
		// kubeadm accepts a prefix with bits beyond its length, so they are cleared here.
		out = append(out, p.Masked())
	}
	return out, nil
}

// fillFromKubeadm sets the ranges that are not set from c.KubeadmConfig.
func (c *Config) fillFromKubeadm(read func(path string) ([]byte, error)) error {
	text, err := read(c.KubeadmConfig)
	if err != nil {
		return fmt.Errorf("kubeadmConfig: %w", err)
	}
	r, err := ParseKubeadm(text)
	if err != nil {
		return fmt.Errorf("kubeadmConfig: %s: %w", c.KubeadmConfig, err)
	}
	if len(c.ClusterRanges) == 0 {
		c.ClusterRanges = r.Pod
	}
	if len(c.ServiceRanges) == 0 {
		c.ServiceRanges = r.Service
	}
	return nil
}
