package chart

// base is a kustomization whose objects the chart has.
type base struct {
	// folder is its folder below manifests.
	folder string
	// when is the condition of its objects. An empty condition means always.
	when  string
	parts []part
}

// part is a component of a base, which a value of the chart can switch on.
type part struct {
	// component is its folder below manifests/components.
	component string
	// when is the condition of its objects and edits. An empty condition means always.
	when string
	// values holds template actions, keyed by the text of the component that they replace.
	values map[string]string
}

// bases are the parts of the chart. The components of a base are applied in this order.
var bases = []base{{
	parts: []part{
		{component: "policy", when: `eq .Values.policy "kubernetes"`},
		{component: "services", when: `eq .Values.serviceProxy "ebpf"`},
		{component: "api-path", when: `and (or .Values.apiServers ` +
			`(dig "services" "apiFrontends" (list) .Values.config)) (ne .Values.serviceProxy "ebpf")`},
		{component: "servicemonitor", when: `eq .Values.metrics "serviceMonitor"`},
		{component: "sites", when: ".Values.sites.enabled"},
		{component: "sites-servicemonitor",
			when: `and .Values.sites.enabled (eq .Values.metrics "serviceMonitor")`},
		{component: "wireguard-go", when: `eq .Values.engine "wireguard-go"`},
		{component: "cni-dirs", values: map[string]string{
			"/var/lib/rancher/k3s/agent/etc/cni/net.d": "{{ .Values.cni.confDir }}",
			"/var/lib/rancher/k3s/data/cni":            "{{ .Values.cni.binDir }}",
		}},
	},
}, {
	folder: "csi", when: ".Values.volumes.enabled",
	parts: []part{
		{component: "csi-servicemonitor", when: `eq .Values.metrics "serviceMonitor"`},
		// It patches the first container, so it comes before snapshots, which add one in front.
		{component: "kubelet-dir", when: `ne .Values.volumes.kubeletDir "/var/lib/kubelet"`,
			values: map[string]string{"/var/lib/k0s/kubelet": "{{ .Values.volumes.kubeletDir }}"}},
		{component: "snapshots", when: ".Values.volumes.snapshots"},
	},
}}

// imageValues holds template actions, keyed by the image that they replace.
var imageValues = map[string]string{
	"localhost/kubeveil:dev":     `{{ include "kubeveil.image" .Values.image }}`,
	"localhost/kubeveil-csi:dev": `{{ include "kubeveil.image" .Values.volumes.image }}`,
}

// example is a line of veild's configuration in the ConfigMap that values of the chart replace.
type example struct {
	// begin is how the line begins, after white space.
	begin string
	// when is the condition under which lines replace it.
	when  string
	lines []string
}

// examples are all such lines.
var examples = []example{
	{"kubeadmConfig: ", ".Values.clusterRanges", []string{
		"clusterRanges: {{ toJson .Values.clusterRanges }}",
		"serviceRanges: {{ toJson .Values.serviceRanges }}"}},
	{"# nodeRanges: ", ".Values.nodeRanges", []string{
		"nodeRanges: {{ toJson .Values.nodeRanges }}"}},
	// An empty list is a setting too: with it, all of nodeRanges is closed to pods.
	{"# outside: ", `kindIs "slice" .Values.outside`, []string{
		"outside: {{ toJson .Values.outside }}"}},
	{"# services: ", "or .Values.apiServers .Values.config.services", []string{
		"services: {{ toJson (merge (dict \"apiServers\" .Values.apiServers) " +
			"(default (dict) .Values.config.services)) }}"}},
}

// moreKeys has the other keys of veild's configuration. They follow the last example.
const moreKeys = `omit .Values.config "services"`
