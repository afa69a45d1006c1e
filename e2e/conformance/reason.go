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

// Facts are what of a cluster decides which specs can run.
type Facts struct {
	// Nodes are Ready and take pods; Others are not or do not.
	Nodes, Others int
	// DNS says that there is the service kube-dns.
	DNS bool
	// Emulated says that the nodes' processors are made by software.
	Emulated bool
	// EBPF says that Kubeveil translates services, and no other program does.
	EBPF bool
	// ProxyMode is the mode of kube-proxy on nodes that take pods; empty is unknown, or no
	// kube-proxy.
	ProxyMode string
	// Policies says that Kubeveil enforces NetworkPolicy.
	Policies bool
}

// byName returns the facts that the user chose, for a result: none is "none", and an unknown one is
// left out.
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

// facts looks at the cluster.
func (o Options) facts(ctx context.Context) (Facts, error) {
	access := remote.Access{Kubeconfig: o.Kubeconfig}
	c, err := remote.Connect(ctx, access, remote.Options{})
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

// hasDNS reports whether the cluster has the DNS service. It waits until a server behind the service
// answers, because the server's pods may be new.
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

// fate is what a reason explains.
type fate int

const (
	// notRun specs are left out.
	notRun fate = iota
	// fails is for specs that run and may fail.
	fails
)

// reason is why specs whose name matches do not pass.
type reason struct {
	fate    fate
	pattern string
	// when limits it to some clusters; nil is all.
	when func(Facts) bool
	why  string

	expr *regexp.Regexp
}

// table is reasons.go, compiled; volumeTable is volumereasons.go, policyTable policyreasons.go.
var (
	table       = compile(reasons)
	volumeTable = compile(volumeReasons)
	policyTable = compile(policyReasons)
)

// Suite is a group of the upstream's specs with what is known of them.
type Suite struct {
	// Group begins the names of its specs.
	Group string
	// Arguments are more of e2e.test's, with which it has them.
	Arguments []string

	reasons []reason
	// names is the file with the names of a Go test's subtests; empty where e2e.test has the specs.
	names string
}

// Network returns the specs of networking.
func Network() Suite { return Suite{Group: upstream.Group, reasons: table} }

// Volumes returns the specs of drivers outside Kubernetes for Kubeveil's, which the file definition
// describes.
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

// find returns the first reason of this kind that applies to a spec on such a cluster.
func (s Suite) find(fate fate, spec string, facts Facts) (why string, found bool) {
	for _, r := range s.reasons {
		if r.fate == fate && r.expr.MatchString(spec) && (r.when == nil || r.when(facts)) {
			return r.why, true
		}
	}
	return "", false
}

// Unmatched returns the patterns of the table that match none of the specs: the upstream has
// renamed or removed them.
func (s Suite) Unmatched(specs []string) error {
	for _, r := range s.reasons {
		if !slices.ContainsFunc(specs, r.expr.MatchString) {
			return fmt.Errorf("reasons of %s: %q matches no spec", s.Group, r.pattern)
		}
	}
	return nil
}
