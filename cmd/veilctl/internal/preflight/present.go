package preflight

import (
	"fmt"
	"slices"
	"strings"
)

func (o Object) String() string {
	what := o.Resource + "/" + o.Name
	if o.Namespace != "" && o.Namespace != system {
		what += " in " + o.Namespace
	}
	return what
}

// present reports which parts of Kubeveil exist already.
func (j *judge) present() {
	const check = "Kubeveil"
	if j.unreadable(check) {
		return
	}
	if j.f.Cleaning {
		j.say(Error, check, "the DaemonSet kubeveil-cleanup exists, which removes Kubeveil from "+
			"every node", "finish the removal: kubectl delete -f uninstall.yaml")
	}
	if !j.definition(check) {
		return
	}

	var missing []string
	for _, o := range Manifests {
		if !slices.Contains(j.f.Objects, o) {
			missing = append(missing, o.String())
		}
	}

	switch len(missing) {
	case len(Manifests):
		if !j.f.Cleaning {
			j.ok(check, "not installed")
		}
		return
	case 0:
		j.daemons(check)
		return
	}

	do := "apply all objects again: kubectl apply -f kubeveil.yaml"
	if j.half() {
		do += "; do so soon: until the admission policy and its binding exist, each node's veild " +
			"may write the keys of other nodes"
	}

	j.say(Warning, check, "partly installed; these are missing: "+strings.Join(missing, ", "), do)
}

// half reports whether the right to write VeilNodes exists without the admission policy that
// restricts it.
func (j *judge) half() bool {
	has := func(resource string) bool {
		return slices.ContainsFunc(j.f.Objects, func(o Object) bool {
			return o.Resource == resource && strings.HasPrefix(o.Name, "kubeveil-")
		})
	}
	return has("clusterrolebindings") && (!has("validatingadmissionpolicies") ||
		!has("validatingadmissionpolicybindings"))
}

// definition checks the custom resource. It reports whether the other objects need to be checked.
func (j *judge) definition(check string) bool {
	d := j.f.Definition
	switch {
	case d == nil:
		return true
	case d.Leaving:
		j.say(Error, check, "the custom resource veilnodes.kubeveil.io is being deleted",
			"wait until it is deleted; its conditions name what delays it: kubectl describe crd "+
				"veilnodes.kubeveil.io")
		return false
	case !slices.Contains(d.Versions, version):
		j.say(Error, check, fmt.Sprintf("veilnodes.kubeveil.io has only other versions: %s",
			strings.Join(d.Versions, ", ")),
			"another version of Kubeveil installed it: uninstall that version with its manifests")
		return false
	case !d.Established:
		j.say(Warning, check, "the custom resource veilnodes.kubeveil.io is not served yet",
			"repeat the check in a moment; its conditions name what it waits for")
	}
	return true
}

func (j *judge) daemons(check string) {
	var texts []string
	lacking := false
	for _, d := range j.f.Daemons {
		texts = append(texts, fmt.Sprintf("%s %d of %d ready (%s)", d.Name, d.Ready, d.Desired,
			d.Image))
		lacking = lacking || d.Ready < d.Desired
	}
	slices.Sort(texts)
	text := "installed: " + strings.Join(texts, ", ")
	if lacking {
		j.say(Warning, check, text, "run veilctl status, which shows what each node waits for")
		return
	}
	j.ok(check, "%s", text)
}
