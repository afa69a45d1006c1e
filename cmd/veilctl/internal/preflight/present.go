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
		j.say(Error, check, "the DaemonSet kubeveil-cleanup is there, which takes Kubeveil from "+
			"every node", "finish the removal: kubectl delete -k manifests/uninstall")
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

	do := "apply all of it: kubectl apply -k manifests/; what is there converges"
	if j.half() {
		do = "do so soon, " + do + ": until the policy and its binding are there, each node's " +
			"daemon may write the keys of others"
	}

	j.say(Warning, check, "half applied; missing are "+strings.Join(missing, ", "), do)
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
			"wait until it is gone: kubectl get crd veilnodes.kubeveil.io; what holds it up is in "+
				"its conditions")
		return false
	case !slices.Contains(d.Versions, version):
		j.say(Error, check, fmt.Sprintf("veilnodes.kubeveil.io is there in another version: %s",
			strings.Join(d.Versions, ", ")),
			"it is of another Kubeveil: uninstall that one first, with its own manifests")
		return false
	case !d.Established:
		j.say(Warning, check, "the custom resource veilnodes.kubeveil.io is not served yet",
			"look again in a moment; its conditions say what it waits for")
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
		j.say(Warning, check, text, "veilctl status says of each node what it waits for")
		return
	}
	j.ok(check, "%s", text)
}
