package cluster

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"unicode"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubeveil/kubeveil/cmd/veilctl/internal/verb"
	"github.com/kubeveil/kubeveil/pkg/remote"
	"github.com/kubeveil/kubeveil/pkg/version"
)

// Version returns the verb that shows the version of veilctl, and those in a cluster.
func Version() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Show which veilctl this is, and which versions run in a cluster",
		Long: `Without --kubeconfig, --context or --cluster, it shows the version of veilctl itself, and
opens no connection.

For a cluster, it also shows which veild each node runs, and the digests of the images of
Kubeveil's containers as the runtimes of the nodes report them. The exit status is 1 if nodes
differ, or if a node does not answer. It needs the same rights as status.

A runtime that pulled an image, or has it under a name with its digest, reports that digest, which
is the same on all nodes. Of another imported image it reports a digest that differs between
architectures. Such images are compared only among nodes of one architecture, and the output names
them.`,
		Example: `veilctl version -o json
veilctl version --cluster`,
	}
	var access remote.Access
	access.Register(cmd.Flags())
	all := cmd.Flags().Bool("cluster", false, "show the versions of all nodes, too")
	return verb.Reporting(cmd, func(c verb.Call) error {
		own := version.Read()
		if !*all && !access.Given() {
			return c.Print(own, false, func() error { return printInfo(c.Out, own) })
		}

		cluster, err := access.Open()
		if err != nil {
			return err
		}
		seen, err := Look(c.Ctx, cluster)
		if err != nil {
			return err
		}
		pods, err := cluster.Client.CoreV1().Pods(remote.SystemNamespace).List(c.Ctx,
			metav1.ListOptions{LabelSelector: "app.kubernetes.io/name=kubeveil"})
		if err != nil {
			return fmt.Errorf("list the pods of Kubeveil: %w", err)
		}
		r := compare(own, seen, pods.Items)
		return c.Print(r, !r.Same, func() error { return r.print(c.Out) })
	})
}

// printInfo writes one line about a build.
func printInfo(w io.Writer, v version.Info) error {
	facts := []string{v.Go, v.Platform}
	if v.Commit != "" {
		facts = []string{"commit " + v.Commit, v.Date, v.Go, v.Platform}
	}
	_, err := fmt.Fprintf(w, "%s (%s)\n", v.Version, strings.Join(facts, ", "))
	return err
}

// versions is the output of version for a cluster. Its JSON is output for programs: fields are
// added, never renamed.
type versions struct {
	version.Info
	// Same reports whether all nodes answered, and run the same version from the same images, as
	// far as their digests can be compared.
	Same  bool           `json:"same"`
	Nodes []nodeVersions `json:"nodes"`
	// NotCompared are the containers whose images were not compared between all nodes, because
	// their digests are of different kinds or for different architectures.
	NotCompared []string `json:"notCompared,omitempty"`
}

// nodeVersions is what one node runs.
type nodeVersions struct {
	Node         string `json:"node"`
	Architecture string `json:"architecture,omitempty"`
	// Version is the version of the node's veild. It is empty if veild did not answer; Error is
	// then the reason.
	Version string `json:"version,omitempty"`
	Error   string `json:"error,omitempty"`
	// Digests are the digests of images by component and container, such as "veild/veild". The
	// digest of a container that never started is empty.
	Digests map[string]string `json:"digests,omitempty"`
}

// compare builds the output from what nodes and the API server answered. It is pure.
func compare(own version.Info, seen []NodeSeen, pods []corev1.Pod) versions {
	byName := map[string]*nodeVersions{}
	r := versions{Info: own, Nodes: make([]nodeVersions, len(seen))}
	for i, n := range seen {
		v := &r.Nodes[i]
		v.Node, v.Architecture, v.Digests = n.Name, plain(n.Arch), map[string]string{}
		byName[n.Name] = v
		switch {
		case n.status != nil:
			if v.Version = plain(n.status.Version); v.Version == "" {
				v.Error = "veild reports no version"
			}
		case n.Pod != "" || n.linux:
			v.Error = plain(cmp.Or(n.PodWhy, n.err, "no pod of veild on this node"))
		}
	}
	for _, p := range pods {
		v := byName[p.Spec.NodeName]
		if v == nil {
			continue // not scheduled, or its node is gone
		}
		component := cmp.Or(p.Labels["app.kubernetes.io/component"], p.Name)
		for _, c := range slices.Concat(p.Status.InitContainerStatuses,
			p.Status.ContainerStatuses) {
			v.Digests[component+"/"+c.Name] = plain(c.ImageID)
		}
	}
	slices.SortFunc(r.Nodes, func(a, b nodeVersions) int { return cmp.Compare(a.Node, b.Node) })

	r.Same = len(seen) > 0
	for what, nodes := range r.grouped() {
		r.Same = r.Same && len(nodes) == 1 && what != noAnswer && nodes[""] == nil
	}
	r.NotCompared = r.notCompared()
	return r
}

// image returns how the image of a container is compared, and its digest.
func (n nodeVersions) image(container string) (what, digest string) {
	return ComparedImage("image of "+container, n.Digests[container], n.Architecture)
}

// ComparedImage returns what the image of a container is compared as, and its digest. Only images
// of the same what can be compared. id is what the runtime of a node reports. It is NAME@sha256:…
// with the digest of the index if the runtime has the image under such a name. Otherwise it is
// sha256:… with the digest of the image's configuration, which has the node's architecture in it.
func ComparedImage(container, id, arch string) (what, digest string) {
	if _, digest, found := strings.Cut(id, "@"); found || id == "" {
		return container, digest
	}
	return container + " on " + cmp.Or(arch, "an unknown architecture"), id
}

// notCompared returns the containers whose images are compared in more than one way.
func (r versions) notCompared() (containers []string) {
	ways := map[string]string{}
	for _, n := range r.Nodes {
		for container := range n.Digests {
			what, _ := n.image(container)
			if was, seen := ways[container]; seen && was != what {
				containers = append(containers, container)
			}
			ways[container] = what
		}
	}
	slices.Sort(containers)
	return slices.Compact(containers)
}

// noAnswer is the group of nodes whose veild did not answer.
const noAnswer = "no answer"

// grouped returns the nodes by what they run: by "veild" or a container, then by version or digest.
func (r versions) grouped() map[string]map[string][]string {
	groups := map[string]map[string][]string{}
	add := func(what, value, node string) {
		if groups[what] == nil {
			groups[what] = map[string][]string{}
		}
		groups[what][value] = append(groups[what][value], node)
	}
	for _, n := range r.Nodes {
		if n.Version != "" {
			add("veild", n.Version, n.Node)
		}
		if n.Error != "" {
			add(noAnswer, n.Error, n.Node)
		}
		for container := range n.Digests {
			what, digest := n.image(container)
			add(what, digest, n.Node)
		}
	}
	return groups
}

// print writes the output for people: which nodes run what.
func (r versions) print(w io.Writer) error {
	fmt.Fprint(w, "veilctl ")
	if err := printInfo(w, r.Info); err != nil {
		return err
	}
	fmt.Fprintln(w)

	var rows [][]string
	groups := r.grouped()
	for _, what := range slices.Sorted(maps.Keys(groups)) {
		for _, value := range slices.Sorted(maps.Keys(groups[what])) {
			nodes := groups[what][value]
			who := verb.Some(nodes)
			if len(groups[what]) == 1 && len(nodes) == len(r.Nodes) {
				who = "all"
			}
			rows = append(rows, []string{what, verb.OrDash(value), who})
		}
	}
	if err := verb.Table(w, "WHAT | VERSION OR DIGEST | NODES", rows); err != nil {
		return err
	}

	last := "all nodes run the same"
	if !r.Same {
		last = "nodes differ, or did not answer"
	}
	fmt.Fprintf(w, "\n%s\n", last)
	if len(r.NotCompared) > 0 {
		fmt.Fprintf(w, "not compared between all nodes: the images of %s. Imported images have a "+
			"digest for each architecture, unless they have a name with a digest.\n",
			strings.Join(r.NotCompared, ", "))
	}
	return nil
}

// plain returns the first line of a text from a node, without characters that control a terminal,
// and cut at 200 characters. The node may have been taken over.
func plain(text string) string {
	text, _, _ = strings.Cut(text, "\n")
	runes := []rune(text)
	if len(runes) > 200 {
		runes = append(runes[:199], '…')
	}
	for i, r := range runes {
		if !unicode.IsPrint(r) {
			runes[i] = unicode.ReplacementChar
		}
	}
	return string(runes)
}
