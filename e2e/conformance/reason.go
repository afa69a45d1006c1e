package conformance

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubeveil/kubeveil/e2e/conformance/upstream"
	"github.com/kubeveil/kubeveil/pkg/config"
	"github.com/kubeveil/kubeveil/pkg/remote"
)

// Facts are the properties of a cluster that decide which specs can run.
type Facts struct {
	// Nodes is the number of nodes that are Ready and accept pods. Others is the number of the
	// other nodes.
	Nodes, Others int
	// DNS reports whether the service kube-dns exists.
	DNS bool
	// Emulated reports whether the nodes' processors are emulated in software.
	Emulated bool
	// EBPF reports whether Kubeveil translates services and no other program does.
	EBPF bool
	// ProxyMode is the mode of kube-proxy on nodes that accept pods. An empty string means that the
	// mode is unknown, or that the cluster has no kube-proxy.
	ProxyMode string
	// Policies reports whether Kubeveil enforces NetworkPolicy.
	Policies bool
}

// byName returns the facts that the user chose, in the format of a result. The value of kube_proxy
// is "none" if Kubeveil translates services, and the value of policy is "none" if Kubeveil does not
// enforce policies. An unknown mode is left out.
func (f Facts) byName() map[string]string {
	facts := map[string]string{"policy": config.PolicyNone}
	if f.Policies {
		facts["policy"] = config.PolicyKubernetes
	}
	if mode := f.ProxyMode; f.EBPF {
		facts["kube_proxy"] = "none"
	} else if mode != "" {
		facts["kube_proxy"] = mode
	}
	return facts
}

// facts reads the facts from the cluster.
func (o RunConfig) facts(ctx context.Context) (Facts, error) {
	access := remote.Access{Kubeconfig: o.Kubeconfig}
	c, err := remote.Connect(ctx, access, remote.ConnectConfig{})
	if err != nil {
		return Facts{}, err
	}
	nodes, err := c.Nodes(ctx)
	if err != nil {
		return Facts{}, err
	}
	f := Facts{Emulated: o.Emulated, EBPF: o.EBPF, ProxyMode: o.ProxyMode, Policies: o.Policies}
	for _, n := range nodes {
		if n.Ready && n.Schedulable {
			f.Nodes++
		} else {
			f.Others++
		}
	}
	if f.Nodes == 0 {
		return Facts{}, fmt.Errorf("none of %d nodes is Ready and takes pods", len(nodes))
	}
	f.DNS, err = hasDNS(ctx, c)
	return f, err
}

// hasDNS reports whether the cluster has the DNS service. It waits until an endpoint of the service
// is ready, because the server's pods may be new.
func hasDNS(ctx context.Context, c *remote.Cluster) (bool, error) {
	_, err := c.Client.CoreV1().Services("kube-system").Get(ctx, "kube-dns", metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("look for DNS: %w", err)
	}
	return true, remote.Until(ctx, "kube-system/kube-dns has an endpoint that is ready",
		dnsPatience, func(ctx context.Context) error {
			list, err := c.Client.DiscoveryV1().EndpointSlices("kube-system").List(ctx,
				metav1.ListOptions{LabelSelector: "kubernetes.io/service-name=kube-dns"})
			if err != nil {
				return err
			}
			for _, slice := range list.Items {
				for _, e := range slice.Endpoints {
					if e.Conditions.Ready != nil && *e.Conditions.Ready {
						return nil
					}
				}
			}
			return errors.New("no endpoint is ready")
		})
}

// fate is the outcome that a reason explains.
type fate int

const (
	// notRun means that the specs are not run.
	notRun fate = iota
	// fails means that the specs are run and may fail.
	fails
)

// reason explains why specs whose name matches do not pass.
type reason struct {
	fate    fate
	pattern string
	// when limits the reason to some clusters. Nil means all clusters.
	when func(Facts) bool
	why  string

	expr *regexp.Regexp
}

// table contains the compiled entries of reasons.go. volumeTable contains those of
// volumereasons.go, and policyTable those of policyreasons.go.
var (
	table       = compile(reasons)
	volumeTable = compile(volumeReasons)
	policyTable = compile(policyReasons)
)

// Suite is a group of the upstream's specs with the reasons known for them.
type Suite struct {
	// Group is the prefix of the names of the suite's specs.
	Group string
	// Arguments are the additional arguments of e2e.test that the specs need.
	Arguments []string

	reasons []reason
	// mark is in the names of specs that the report counts by themselves, and that run first.
	mark string
	// contexts are the contexts of the two clusters of Sites. It is empty in other suites.
	contexts string
	// names is the path of the file with the names of a Go test's subtests. It is empty if the
	// specs are in e2e.test.
	names string
}

// Network returns the specs of networking.
func Network() Suite {
	return Suite{Group: upstream.Group, reasons: table, mark: "[Conformance]"}
}

// Volumes returns the upstream's specs for external storage drivers. They test Kubeveil's driver as
// the file definition describes it.
func Volumes(definition string) Suite {
	return Suite{Group: upstream.Volumes, Arguments: []string{"--storage.testdriver=" + definition},
		reasons: volumeTable}
}

func compile(reasons []reason) []reason {
	for i := range reasons {
		reasons[i].expr = regexp.MustCompile(reasons[i].pattern)
	}
	return reasons
}

// find returns the first reason with this fate that applies to spec on a cluster with these facts.
func (s Suite) find(fate fate, spec string, facts Facts) (why string, found bool) {
	for _, r := range s.reasons {
		if r.fate == fate && r.expr.MatchString(spec) && (r.when == nil || r.when(facts)) {
			return r.why, true
		}
	}
	return "", false
}

// Unmatched returns an error if a pattern of the table does not match any of the specs, for example
// because the upstream renamed or removed specs.
func (s Suite) Unmatched(specs []string) error {
	for _, r := range s.reasons {
		if !slices.ContainsFunc(specs, r.expr.MatchString) {
			return fmt.Errorf("reasons of %s: %q matches no spec", s.Group, r.pattern)
		}
	}
	return nil
}
