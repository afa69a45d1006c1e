package preflight

import (
	"fmt"
	"maps"
	"net/netip"
	"net/url"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"

	"github.com/kubeveil/kubeveil/pkg/cluster"
	"github.com/kubeveil/kubeveil/pkg/config"
)

// judge is the state of one call of Judge.
type judge struct {
	f        Facts
	cfg      config.Config
	cfgErr   error
	findings []Finding
}

// ok adds a finding of level OK.
func (j *judge) ok(check, format string, args ...any) {
	j.findings = append(j.findings, Finding{check, OK, fmt.Sprintf(format, args...), ""})
}

// say adds a finding. found is the fact, and do the remedy.
func (j *judge) say(l Level, check, found, do string) {
	j.findings = append(j.findings, Finding{check, l, found, do})
}

// unreadable reports whether the fact called what could not be read. unread reports such facts.
func (j *judge) unreadable(what string) bool { return j.f.Unread[what] != "" }

// readConfig parses the configuration with veild's own code. Any node name will do.
func (j *judge) readConfig() {
	j.cfg, j.cfgErr = config.Parse("any", []byte(j.f.Config), j.f.Kubeadm)
}

// server checks that the API server is at least 1.30. From this version on,
// ValidatingAdmissionPolicy is v1, and tokens name the node of their pod.
func (j *judge) server() {
	const check = "api server"
	s := j.f.Server
	old, known := older(s.Version, 1, 30)
	switch {
	case !known:
		j.say(Warning, check, fmt.Sprintf("%s says that its version is %q", s.Address, s.Version),
			"check by hand that it is Kubernetes 1.30 or newer")
	case old:
		j.say(Error, check, fmt.Sprintf("%s is Kubernetes %s", s.Address, s.Version),
			"upgrade to 1.30 or newer: older tokens do not name their pod's node, so one node "+
				"could write the keys of another")
	case !s.Policies:
		j.say(Error, check, fmt.Sprintf("%s (%s) has no ValidatingAdmissionPolicy in "+
			"admissionregistration.k8s.io/v1", s.Address, s.Version),
			"enable it again (--runtime-config, --feature-gates): without it, one node could "+
				"write the keys of another")
	default:
		j.ok(check, "%s, Kubernetes %s", s.Address, s.Version)
	}
}

func (r Right) String() string {
	what := r.Resource
	if r.Group != "" {
		what += "." + r.Group
	}
	if r.Namespace != "" {
		what += " in " + r.Namespace
	}
	return what
}

// rights checks that the user may apply the manifests.
func (j *judge) rights() {
	const check = "rights"
	if j.unreadable(check) {
		return
	}
	if len(j.f.Denied) > 0 {
		j.say(Error, check, "you may not "+strings.Join(denials(j.f.Denied), "; nor "),
			"use a kubeconfig of an administrator, such as /etc/kubernetes/admin.conf of a "+
				"control-plane node")
		return
	}
	if !j.f.Escalate && len(j.f.Ungiven) > 0 {
		var missing []string
		for _, r := range j.f.Ungiven {
			missing = append(missing, r.Verb+" "+r.String())
		}
		j.say(Error, check, "you may create roles, but not with rights that you lack yourself: "+
			strings.Join(missing, ", "),
			"use a kubeconfig of an administrator: the API server lets users grant only "+
				"rights that they have")
		return
	}
	j.ok(check, "you may create and change all objects of the manifests")
}

// denials groups rights for a message. Each string has verbs and all resources for which these
// verbs are denied.
func denials(denied []Right) []string {
	verbs, what := map[string][]string{}, map[string][]string{}
	for _, r := range denied {
		verbs[r.String()] = append(verbs[r.String()], r.Verb)
	}
	for resource, v := range verbs {
		slices.Sort(v)
		all := strings.Join(v, ", ")
		what[all] = append(what[all], resource)
	}
	var out []string
	for _, all := range slices.Sorted(maps.Keys(what)) {
		slices.Sort(what[all])
		out = append(out, all+" "+strings.Join(what[all], "; "))
	}
	return out
}

func (j *judge) podSecurity() {
	if l := j.f.PodSecurity; l != "" && l != "privileged" {
		j.say(Error, "pod security", fmt.Sprintf("the namespace kube-system enforces %q", l),
			"kubectl label namespace kube-system pod-security.kubernetes.io/enforce=privileged "+
				"--overwrite: the daemons are on the host's network, with capabilities")
	}
}

// kubeProxy checks how veild finds the API server. By default it uses the kubeconfig of kube-proxy
// (docs/design/0002-install.md).
func (j *judge) kubeProxy() {
	const check = "way to the API server"
	const mounted = "/etc/kubeveil/kubeconfig"
	if j.unreadable(check) {
		return
	}

	switch given := j.cfg.Source.Kubeconfig; {
	case given != mounted && given != "":
		j.ok(check, "by the kubeconfig %s that the configuration (%s) names; veilctl does not "+
			"check it", given, j.f.ConfigFrom)
		return
	case given == "" && len(j.cfg.Services.APIServers) > 0:
		var servers []string
		for _, s := range j.cfg.Services.APIServers {
			servers = append(servers, s.String())
		}
		j.ok(check, "by the service kubernetes, which veild itself translates to %s "+
			"(services.apiServers); veilctl does not check these", listed(servers))
		return
	case given == "":
		j.say(Warning, check,
			"source.kubeconfig is empty: veild uses the address of the service kubernetes",
			"that address is closed on a node until its tunnel is up: name a kubeconfig with the "+
				"API server's own address")
		return
	case j.f.Proxy == nil:
		j.say(Error, check, "kube-system has no ConfigMap kube-proxy with kubeconfig.conf, from "+
			"which veild would learn the API server's address",
			"put a kubeconfig with that address and tokenFile: "+
				"/var/run/secrets/kubernetes.io/serviceaccount/token into the ConfigMap kubeveil, "+
				"name it as source.kubeconfig, and check that with --config FILE")
		return
	}

	server, token, err := readKubeconfig(j.f.Proxy)
	if err != nil {
		j.say(Error, check, fmt.Sprintf("kubeconfig.conf of the ConfigMap kube-proxy cannot "+
			"be read: %v", err), "rewrite it with kubeadm init phase addon kube-proxy")
		return
	}

	j.judgeServer(check, server, token)
}

// readKubeconfig returns the first server and the first token file. The kubeconfig of kube-proxy
// has one of each.
func readKubeconfig(text []byte) (server, token string, err error) {
	var k struct {
		Clusters []struct {
			Cluster struct {
				Server string `json:"server"`
			} `json:"cluster"`
		} `json:"clusters"`
		Users []struct {
			User struct {
				TokenFile string `json:"tokenFile"`
			} `json:"user"`
		} `json:"users"`
	}
	if err := yaml.Unmarshal(text, &k); err != nil {
		return "", "", err
	}
	if len(k.Clusters) > 0 {
		server = k.Clusters[0].Cluster.Server
	}
	if len(k.Users) > 0 {
		token = k.Users[0].User.TokenFile
	}
	return server, token, nil
}

func (j *judge) judgeServer(check, server, token string) {
	u, err := url.Parse(server)
	if err != nil || u.Hostname() == "" {
		j.say(Error, check, fmt.Sprintf("the kubeconfig of kube-proxy has the server %q", server),
			"set clusters[0].cluster.server in the ConfigMap kube-proxy to the API "+
				"server's address")
		return
	}

	if token == "" {
		j.say(Error, check, "the kubeconfig of kube-proxy has no tokenFile, and veild accepts "+
			"no other credentials",
			"give veild a kubeconfig of its own, with tokenFile: "+
				"/var/run/secrets/kubernetes.io/serviceaccount/token, and check that with "+
				"--config FILE")
		return
	}

	addr, err := netip.ParseAddr(u.Hostname())
	switch {
	case err != nil:
		j.ok(check, "%s, from the ConfigMap kube-proxy; every node must be able to resolve that "+
			"name without cluster DNS", server)
	case cluster.InRanges(slices.Concat(j.cfg.ServiceRanges, j.cfg.ClusterRanges), addr):
		j.say(Error, check, fmt.Sprintf("the ConfigMap kube-proxy has the server %s, an address "+
			"of the cluster's own ranges", server),
			"set it to an API server's address outside of these ranges: veild needs the API "+
				"server before its tunnel is up, and until then the node drops packets to them")
	default:
		j.ok(check, "%s, from the ConfigMap kube-proxy", server)
	}
}

// unread adds a warning for each fact that could not be read.
func (j *judge) unread() {
	for _, what := range slices.Sorted(maps.Keys(j.f.Unread)) {
		j.say(Warning, what, "could not be read: "+j.f.Unread[what],
			"use a kubeconfig with the right to read it, or check it by hand")
	}
}
