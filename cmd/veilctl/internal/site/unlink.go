package site

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubeveil/kubeveil/cmd/veilctl/internal/site/mirrored"
	"github.com/kubeveil/kubeveil/cmd/veilctl/internal/site/path"
	"github.com/kubeveil/kubeveil/cmd/veilctl/internal/verb"
	"github.com/kubeveil/kubeveil/pkg/cluster"
	"github.com/kubeveil/kubeveil/pkg/remote"
	"github.com/kubeveil/kubeveil/pkg/site/link"
)

// unlinkFlags are the flags of unlink.
type unlinkFlags struct {
	ends ends
	wait time.Duration
}

// unlinked is the result of unlink. Its JSON is output for programs.
type unlinked struct {
	Site string `json:"site"`
	// Removed are the objects that this call deleted, as "cluster: kind name".
	Removed []string `json:"removed"`
	// Closed are the ranges of the site, which stay closed, by the cluster whose configuration has
	// them.
	Closed map[string][]string `json:"closed"`
	// Left are steps that remain.
	Left []string `json:"left,omitempty"`
}

// names returns the sites of this cluster, for completion.
func (f *unlinkFlags) names(ctx context.Context) (names []string, err error) {
	k, err := f.ends.here.Open()
	if err != nil {
		return nil, err
	}
	cfg, err := readConfig(ctx, k)
	for _, s := range cfg.Sites {
		names = append(names, s.Name)
	}
	return names, err
}

func (f *unlinkFlags) run(c verb.Call) error {
	if len(c.Args) != 1 {
		return fmt.Errorf("name one site, as veilctl site status does: %w", verb.ErrUsage)
	}
	if f.wait < 0 {
		return fmt.Errorf("--wait %v: write a time that is not negative: %w", f.wait, verb.ErrUsage)
	}
	r, err := f.unlink(c, c.Args[0])
	if err != nil {
		return err
	}
	return c.Print(r, len(r.Left) > 0, func() error { return r.show(c) })
}

// unlink cleans this cluster and, with --from, the other one.
func (f *unlinkFlags) unlink(c verb.Call, name string) (*unlinked, error) {
	r := &unlinked{Site: name, Removed: []string{}, Closed: map[string][]string{}}
	var here, there *side
	var err error
	both := f.ends.there != (remote.Access{})
	if both {
		here, there, err = f.ends.open(c.Ctx)
	} else {
		here, err = openSide(c.Ctx, f.ends.here, thisCluster)
	}
	if err != nil {
		return nil, err
	}

	if err := mayUnlink(here, name); err != nil {
		return nil, err
	}
	if both {
		if err := f.cleanOther(c, r, here, there); err != nil {
			return nil, err
		}
	} else {
		r.Left = append(r.Left, "the other cluster: set reach: none for this one there, and "+
			"repeat this command with --from")
	}
	return r, f.clean(c, r, here, name)
}

// cleanOther cleans the other cluster.
func (f *unlinkFlags) cleanOther(c verb.Call, r *unlinked, here, there *side) error {
	hereAs, err := entry(there, here, "a")
	if err != nil {
		r.Left = append(r.Left, "the other cluster: its configuration has no site with the ranges "+
			"of this one; run veilctl site unlink there, with the name that this one had")
		return nil
	}
	if err := mayUnlink(there, hereAs.Name); err != nil {
		return err
	}
	return f.clean(c, r, there, hereAs.Name)
}

// mayUnlink returns an error if the configuration of s keeps the site open.
func mayUnlink(s *side, name string) error {
	i := slices.IndexFunc(s.Veild.Sites, func(x cluster.Site) bool { return x.Name == name })
	if i >= 0 && s.Veild.Sites[i].Open() {
		return fmt.Errorf("the configuration of %s keeps site %s open, so veil-site would mirror it "+
			"again: set reach: none for it in the ConfigMap kube-system/kubeveil, and restart "+
			"veild: kubectl -n kube-system rollout restart daemonset/veild", s.What, name)
	}
	return nil
}

// clean removes from a cluster what is there because of a site: its credentials, the namespace that
// it reads, and what was mirrored.
func (f *unlinkFlags) clean(c verb.Call, r *unlinked, s *side, name string) error {
	note := func(what string) { r.Removed = append(r.Removed, s.What+": "+what) }
	if was, err := dropKey(c.Ctx, s.Cluster, name); err != nil {
		return fmt.Errorf("%s: Secret kube-system/%s: %w", s.What, program, err)
	} else if was {
		note("key " + name + " of Secret kube-system/" + program)
	}

	// Before the namespace: veil-site removes its SiteRecords from the namespaces of the
	// configuration.
	veil, err := veilSite(c.Ctx, s.Cluster)
	if err != nil {
		return err
	}
	m := mirrored.Objects{Cluster: s.Cluster, Site: name}
	if veil.wanted > 0 && f.wait > 0 {
		fmt.Fprintf(c.Progress, "waiting until veil-site of %s has deleted what it mirrored …\n",
			s.What)
		if err := m.Gone(c.Ctx, f.wait); err != nil {
			return fmt.Errorf("%s: veil-site has not deleted everything: %w; see its log, or "+
				"restart it: kubectl -n kube-system rollout restart deployment/%s", s.What, err,
				program)
		}
	} else if err := m.Remove(c.Ctx, note); err != nil {
		return fmt.Errorf("%s: %w", s.What, err)
	}

	if err := closeNamespace(c.Ctx, s, link.NamespacePrefix+name, note); err != nil {
		return err
	}
	pods, err := path.Remove(c.Ctx, s.Cluster, false)
	if err != nil {
		return fmt.Errorf("%s: %w", s.What, err)
	}
	for _, pod := range pods {
		note("pod kube-system/" + pod)
	}
	for _, site := range s.Veild.Sites {
		if site.Name == name {
			for _, p := range slices.Concat(site.PodRanges, site.NodeRanges) {
				r.Closed[s.What] = append(r.Closed[s.What], p.String())
			}
		}
	}
	return nil
}

// closeNamespace deletes a namespace, and waits until it is gone.
func closeNamespace(ctx context.Context, s *side, name string, note func(string)) error {
	_, err := s.Client.CoreV1().Namespaces().Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err == nil {
		err = (&remote.Namespace{Name: name, Cluster: s.Cluster}).Close(ctx)
	}
	if err != nil {
		return fmt.Errorf("%s: delete namespace %s: %w", s.What, name, err)
	}
	note("namespace " + name)
	return nil
}

// show writes the result for people.
func (r *unlinked) show(c verb.Call) error {
	if len(r.Removed) == 0 {
		fmt.Fprintln(c.Out, "nothing was left to remove")
	}
	for _, what := range r.Removed {
		fmt.Fprintln(c.Out, "removed from", what)
	}
	for _, cluster := range []string{thisCluster, otherCluster} {
		if ranges := r.Closed[cluster]; len(ranges) > 0 {
			fmt.Fprintf(c.Out, "still closed in the configuration of %s: %s\n", cluster,
				strings.Join(ranges, ", "))
		}
	}
	for _, what := range r.Left {
		fmt.Fprintln(c.Out, "LEFT", what)
	}
	return nil
}
