package site

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	mcs "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/kubeveil/kubeveil/cmd/veilctl/internal/site/mirrored"
	"github.com/kubeveil/kubeveil/cmd/veilctl/internal/verb"
	"github.com/kubeveil/kubeveil/pkg/abi"
	"github.com/kubeveil/kubeveil/pkg/cluster"
	"github.com/kubeveil/kubeveil/pkg/config"
	"github.com/kubeveil/kubeveil/pkg/remote"
	"github.com/kubeveil/kubeveil/pkg/telemetry"
)

// report is the result of status. Its JSON is output for programs: fields are added, never renamed.
type report struct {
	Well     bool         `json:"well"`
	VeilSite string       `json:"veilSite"`
	Sites    []siteReport `json:"sites"`
	// Services are exports and imports with a problem.
	Services []serviceProblem `json:"services,omitempty"`
	// NotExported holds, by node, the packets that were dropped because no export opens their
	// destination.
	NotExported map[string]uint64 `json:"notExported,omitempty"`
	Problems    []string          `json:"problems,omitempty"`
}

// siteReport is what is known of a site.
type siteReport struct {
	Name  string `json:"name"`
	Reach string `json:"reach"`
	Well  bool   `json:"well"`
	// Nodes are mirrored here. Up are those among them that no veild reports as silent or refused.
	Nodes   int `json:"nodes"`
	Up      int `json:"up"`
	Imports int `json:"imports"`
	Exports int `json:"exports"`
	Refused int `json:"refused"`
	// Problems are sentences with what to do.
	Problems []string `json:"problems,omitempty"`
}

// serviceProblem is an export or import that is not as its owner wants.
type serviceProblem struct {
	Kind    string `json:"kind"`
	Service string `json:"service"`
	Problem string `json:"problem"`
}

// linkStatus is the status of a SiteLink.
type linkStatus struct {
	Nodes      int                `json:"nodes"`
	Imports    int                `json:"imports"`
	Exports    int                `json:"exports"`
	Refused    int                `json:"refused"`
	Problems   []string           `json:"problems"`
	Conditions []metav1.Condition `json:"conditions"`
}

// showStatus prints the status of all sites of a cluster.
func showStatus(c verb.Call, k *remote.Cluster) error {
	r, err := look(c.Ctx, k)
	if err != nil {
		return err
	}
	return c.Print(r, !r.Well, func() error { return r.show(c) })
}

// look reads the status of all sites.
func look(ctx context.Context, k *remote.Cluster) (*report, error) {
	cfg, err := readConfig(ctx, k)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", k.Server, err)
	}
	r := &report{Sites: []siteReport{}, NotExported: map[string]uint64{}}
	links, err := readLinks(ctx, k)
	if err != nil {
		return nil, err
	}
	veil, err := veilSite(ctx, k)
	if err != nil {
		return nil, err
	}
	r.VeilSite = veil.String()
	if veil.ready == 0 && len(cfg.Sites) > 0 {
		r.Problems = append(r.Problems, fmt.Sprintf("veil-site: %s, so changes of sites and exports "+
			"wait: see kubectl -n kube-system describe deployment %s", veil, program))
	}

	bad, err := r.askNodes(ctx, k)
	if err != nil {
		return nil, err
	}
	r.addSites(cfg, links, bad)
	if err := r.addServices(ctx, k); err != nil {
		return nil, err
	}
	r.Well = len(r.Problems) == 0 && !slices.ContainsFunc(r.Sites,
		func(s siteReport) bool { return !s.Well })
	return r, nil
}

// readLinks returns the statuses of SiteLinks by name.
func readLinks(ctx context.Context, k *remote.Cluster) (map[string]linkStatus, error) {
	list, err := k.Dynamic.Resource(mirrored.SiteLinks).List(ctx, metav1.ListOptions{})
	if apierrors.IsNotFound(err) {
		return nil, fmt.Errorf("%s has no resource sitelinks.kubeveil.io: install the component "+
			"sites and its definitions: docs/how-to/sites.md", k.Server)
	}
	if err != nil {
		return nil, fmt.Errorf("list sitelinks: %w", err)
	}
	out := map[string]linkStatus{}
	for _, o := range list.Items {
		var s struct {
			Status linkStatus `json:"status"`
		}
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, &s); err != nil {
			return nil, fmt.Errorf("SiteLink %s: %w", o.GetName(), err)
		}
		out[o.GetName()] = s.Status
	}
	return out, nil
}

// addSites adds the sites of the configuration. bad holds what veilds report about peers, by site
// and peer.
func (r *report) addSites(cfg config.Config, links map[string]linkStatus,
	bad map[string]map[string]string) {
	for _, s := range cfg.Sites {
		one := siteReport{Name: s.Name, Reach: cmp.Or(s.Reach, cluster.ReachExports)}
		status, linked := links[s.Name]
		one.Nodes, one.Imports, one.Exports = status.Nodes, status.Imports, status.Exports
		one.Refused = status.Refused
		one.Up = max(0, status.Nodes-len(bad[s.Name]))

		switch {
		case !s.Open():
			if status.Nodes+status.Imports > 0 {
				one.Problems = append(one.Problems, "it is closed, and objects of it are left")
			}
		case !linked || len(status.Conditions) == 0:
			one.Problems = append(one.Problems, "veil-site has not read the configuration yet: wait "+
				"a minute, and see its log")
		default:
			one.Problems = problemsOf(status)
		}
		for _, peer := range slices.Sorted(maps.Keys(bad[s.Name])) {
			one.Problems = append(one.Problems, fmt.Sprintf("node %s %s", peer, bad[s.Name][peer]))
		}
		one.Well = len(one.Problems) == 0
		r.Sites = append(r.Sites, one)
	}

	for _, name := range slices.Sorted(maps.Keys(links)) {
		if !slices.ContainsFunc(cfg.Sites, func(s cluster.Site) bool { return s.Name == name }) {
			r.Problems = append(r.Problems, fmt.Sprintf("the configuration has no site %s, and its "+
				"SiteLink is left: veilctl site unlink %s", name, name))
		}
	}
}

// problemsOf returns the problems in the status of a SiteLink, each once.
func problemsOf(s linkStatus) (out []string) {
	add := func(text string) {
		text = strings.ReplaceAll(remote.Printable(text), "\n", " ")
		if text != "" && !slices.Contains(out, text) {
			out = append(out, text)
		}
	}
	for _, c := range s.Conditions {
		good := c.Type == "Ready" || c.Type == "Readable"
		if (c.Status == metav1.ConditionTrue) != good {
			add(c.Message)
		}
	}
	for _, p := range s.Problems {
		add(p)
	}
	return out
}

// askNodes reads the status of each veild: packets that were dropped as not exported, and peers of
// sites that do not answer.
func (r *report) askNodes(ctx context.Context, k *remote.Cluster) (
	bad map[string]map[string]string, err error) {
	pods, err := k.VeildPods(ctx)
	if err != nil {
		return nil, err
	}
	nodes := slices.Sorted(maps.Keys(pods))
	statuses, failed := make([]telemetry.Status, len(nodes)), make([]string, len(nodes))
	var g errgroup.Group
	g.SetLimit(verb.NodesAtOnce)
	for i, node := range nodes {
		g.Go(func() error {
			statuses[i], failed[i] = askVeild(ctx, k, pods[node])
			return nil
		})
	}
	_ = g.Wait() // no part returns an error

	bad = map[string]map[string]string{}
	for i, node := range nodes {
		if failed[i] != "" {
			r.Problems = append(r.Problems, fmt.Sprintf("node %s: %s", node, failed[i]))
			continue
		}
		for _, d := range statuses[i].Guard.Drops {
			if d.Name == "site_not_exported" && d.Packets > 0 {
				r.NotExported[node] = d.Packets
			}
		}
		for peer, state := range badPeers(statuses[i].Peers) {
			site := cluster.SiteOf(peer)
			if site == "" {
				continue
			}
			if bad[site] == nil {
				bad[site] = map[string]string{}
			}
			bad[site][peer] = fmt.Sprintf("is %s at node %s: see veilctl peers --node %s", state,
				node, node)
		}
	}
	return bad, nil
}

// badPeers returns the peers that no device reaches, with their best state. A peer may be on
// several devices.
func badPeers(peers []telemetry.Peer) map[string]telemetry.PeerState {
	good := func(s telemetry.PeerState) bool {
		return s == telemetry.PeerUp || s == telemetry.PeerIdle
	}
	bad := map[string]telemetry.PeerState{}
	for _, p := range peers {
		if !good(p.State) {
			bad[p.Name] = p.State
		}
	}
	for _, p := range peers {
		if good(p.State) {
			delete(bad, p.Name)
		}
	}
	return bad
}

// askVeild returns the status of the veild in a pod, or why there is none.
func askVeild(ctx context.Context, k *remote.Cluster, pod string) (s telemetry.Status,
	failed string) {
	if pod == "" {
		return s, "no pod of veild on this node"
	}
	ctx, cancel := context.WithTimeout(ctx, verb.NodeLimit)
	defer cancel()
	// If the node is not well, veilctl exits with its own status. Only the printed status counts.
	out, err := k.ExecVeilctl(ctx, pod, "status", "-o", "json", "--socket", abi.AdminSocket)
	if e := remote.DecodeAnswer(out, &s); e == nil && s.Node != "" {
		return s, ""
	}
	if err != nil {
		return s, err.Error()
	}
	return s, "its answer is not a status"
}

// addServices adds exports and imports with a problem.
func (r *report) addServices(ctx context.Context, k *remote.Cluster) error {
	for _, kind := range []struct {
		name     string
		resource schema.GroupVersionResource
	}{{mcs.ServiceExportKindName, mirrored.ServiceExports},
		{mcs.ServiceImportKindName, mirrored.ServiceImports}} {
		list, err := k.Dynamic.Resource(kind.resource).List(ctx, metav1.ListOptions{})
		if err != nil {
			return fmt.Errorf("list %s: %w", kind.resource.Resource, err)
		}
		for _, o := range list.Items {
			if problem := serviceProblemOf(o); problem != "" {
				r.Services = append(r.Services, serviceProblem{kind.name,
					o.GetNamespace() + "/" + o.GetName(), problem})
			}
		}
	}
	slices.SortFunc(r.Services, func(a, b serviceProblem) int {
		return cmp.Or(strings.Compare(a.Kind, b.Kind), strings.Compare(a.Service, b.Service))
	})
	return nil
}

// serviceProblemOf returns the message of the first condition of an export or import that is not as
// it should be, or "".
func serviceProblemOf(o unstructured.Unstructured) string {
	var s struct {
		Status struct {
			Conditions []metav1.Condition `json:"conditions"`
		} `json:"status"`
	}
	if runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, &s) != nil {
		return "its status is malformed"
	}
	for _, c := range s.Status.Conditions {
		isConflict := c.Type == string(mcs.ServiceExportConditionConflict)
		if (c.Status == metav1.ConditionTrue) == isConflict {
			text := strings.ReplaceAll(remote.Printable(c.Message), "\n", " ")
			return c.Type + "=" + string(c.Status) + ": " + cmp.Or(text, c.Reason)
		}
	}
	return ""
}

// show writes the report for people.
func (r *report) show(c verb.Call) error {
	var rows [][]string
	for _, s := range r.Sites {
		state := "ok"
		if !s.Well {
			state = "PROBLEM"
		} else if s.Reach == cluster.ReachNone {
			state = "closed"
		}
		rows = append(rows, []string{s.Name, s.Reach, state, fmt.Sprint(s.Nodes), fmt.Sprint(s.Up),
			fmt.Sprint(s.Imports), fmt.Sprint(s.Exports), fmt.Sprint(s.Refused)})
	}
	if len(rows) == 0 {
		fmt.Fprintln(c.Out, "the configuration has no sites: docs/how-to/sites.md")
	} else if err := verb.Table(c.Out, "SITE | REACH | STATE | NODES | UP | IMPORTS | EXPORTS | "+
		"REFUSED", rows); err != nil {
		return err
	}

	fmt.Fprintln(c.Out, "veil-site:", r.VeilSite)
	total, parts := uint64(0), []string{}
	for _, node := range slices.Sorted(maps.Keys(r.NotExported)) {
		total += r.NotExported[node]
		parts = append(parts, fmt.Sprintf("%s %d", node, r.NotExported[node]))
	}
	if total > 0 {
		fmt.Fprintf(c.Out, "dropped as not exported: %d packets (%s)\n", total, verb.Some(parts))
	} else {
		fmt.Fprintln(c.Out, "dropped as not exported: none")
	}

	for _, s := range r.Services {
		fmt.Fprintf(c.Out, "%s %s %s\n", s.Kind, s.Service, s.Problem)
	}
	for _, s := range r.Sites {
		for _, p := range s.Problems {
			fmt.Fprintf(c.Out, "PROBLEM site %s: %s\n", s.Name, p)
		}
	}
	for _, p := range r.Problems {
		fmt.Fprintln(c.Out, "PROBLEM", p)
	}
	return nil
}
