package preflight

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Oldest supported versions.
const (
	// veild needs Linux 5.10.
	kernelMajor, kernelMinor = 5, 10
	// containerd supports CNI 1.0.0 from 1.6 on.
	containerdMajor, containerdMinor = 1, 6
	// crioMinor is the first minor version of CRI-O 1.x that supports CNI 1.0.0.
	crioMinor = 24
)

// chosen returns the nodes that the DaemonSets select.
func (j *judge) chosen() []NodeFacts {
	var out []NodeFacts
	for _, n := range j.f.Nodes {
		if n.OS == "linux" {
			out = append(out, n)
		}
	}
	return out
}

func (j *judge) kernels() {
	const check = "kernels"
	if j.unreadable("nodes") || len(j.f.Nodes) == 0 {
		return
	}

	seen, bad := map[string][]string{}, false
	var other []string
	for _, n := range j.f.Nodes {
		if n.OS != "linux" {
			other = append(other, n.Name)
			continue
		}
		seen[n.Kernel] = append(seen[n.Kernel], n.Name)
	}

	for _, kernel := range slices.Sorted(maps.Keys(seen)) {
		names := seen[kernel]
		switch old, known := older(kernel, kernelMajor, kernelMinor); {
		case !known:
			bad = true
			j.say(Warning, check, fmt.Sprintf("%s: unknown kernel version %q", listed(names),
				kernel), "check by hand that it is Linux 5.10 or newer")
		case old:
			bad = true
			j.say(Error, check, fmt.Sprintf("%s: Linux %s", listed(names), kernel),
				"upgrade to Linux 5.10 or newer: the guard's programs do not load there")
		}
	}

	if len(other) > 0 {
		j.say(Warning, check, fmt.Sprintf("%s: the label kubernetes.io/os is not linux, so no "+
			"DaemonSet of Kubeveil selects them", listed(other)),
			"nothing, if veild runs there in another way; otherwise these nodes and the pods "+
				"cannot reach each other, because nothing is sent in clear")
	}

	if !bad && len(seen) > 0 {
		j.ok(check, "Linux %s; %s on a node checks that it has BPF, nftables and WireGuard",
			listed(slices.Collect(maps.Keys(seen))), "`veild check`")
	}
}

func (j *judge) runtimes() {
	const check = "container runtimes"
	seen, bad := map[string][]string{}, false
	for _, n := range j.chosen() {
		seen[n.Runtime] = append(seen[n.Runtime], n.Name)
	}

	for _, runtime := range slices.Sorted(maps.Keys(seen)) {
		names := seen[runtime]
		name, version, _ := strings.Cut(runtime, "://")
		var old, known bool
		switch name {
		case "containerd":
			old, known = older(version, containerdMajor, containerdMinor)
		case "cri-o":
			old, known = older(version, 1, crioMinor)
		}
		switch {
		case !known:
			bad = true
			j.say(Warning, check, fmt.Sprintf("%s: Kubeveil has not been tested with %q",
				listed(names), runtime),
				"check that it reads CNI 1.0.0 and uses the first file of /etc/cni/net.d by name")
		case old:
			bad = true
			j.say(Error, check, fmt.Sprintf("%s: %s does not read CNI 1.0.0", listed(names),
				runtime), "upgrade to containerd 1.6 or CRI-O 1.24, or newer")
		}
	}

	if !bad && len(seen) > 0 {
		j.ok(check, "%s", listed(slices.Collect(maps.Keys(seen))))
	}
}

// kubelets checks the versions of kubelets. An older kubelet may silently ignore fields that the
// API server accepts.
func (j *judge) kubelets() {
	const check = "kubelets"
	var old, archs []string
	for _, n := range j.chosen() {
		if o, known := older(n.Kubelet, 1, 30); o && known {
			old = append(old, n.Name)
		}
		archs = append(archs, n.Arch)
	}
	if len(old) > 0 {
		j.say(Warning, check, fmt.Sprintf("%s: older than 1.30, where the AppArmor profile of a "+
			"container is an annotation", listed(old)),
			"upgrade them: if AppArmor is in force, veild cannot write below /sys/fs/bpf there")
	}
	if kinds := listed(archs); strings.Contains(kinds, ",") {
		j.say(Warning, check, "nodes of several architectures: "+kinds,
			"build an image for each (hack/image --arch), or one index of them in your registry")
	}
}
