// Package conformance runs Kubernetes' own end-to-end tests of networking, and reports the result
// of each. With --volumes it runs the tests of storage drivers, against Kubeveil's driver. With
// --cluster-policies it runs the tests of ClusterNetworkPolicy, and with --sites mcs-api's tests of
// linked clusters.
//
// Usage:
//
//	kvlab conformance [--nodes N] [--focus REGEXP] [--skip REGEXP] [--parallel N] [--out DIR]
//		on virtual machines that it makes and removes
//	kvlab conformance --service-proxy ebpf […]
//		the same without kube-proxy
//	kvlab conformance --proxy-mode ipvs […]
//		the same with kube-proxy in another mode
//	kvlab conformance --service-proxy ebpf --host-routing ebpf […]
//		the same, and packets bypass netfilter on the node
//	kvlab conformance --policy kubernetes […]
//		with network policies enforced, and the specs that need them
//	kvlab conformance --volumes […]
//		the tests of volumes, on one machine
//	kvlab conformance --cluster-policies […]
//		the tests of ClusterNetworkPolicy, on machines with its CRD and policies enforced
//	kvlab conformance --sites […]
//		the tests of linked clusters, on two clusters
//	kvlab conformance --sites --lab […]
//		the same on nodes of the lab, which are network namespaces of this machine
//	kvlab conformance --sites --kubeconfig FILE --contexts A,B […]
//		the same on two clusters that are linked
//	kvlab conformance --kubeconfig FILE [--registry NAME] [--platform NAME] […]
//		on a cluster where Kubeveil is installed
//
// It writes result.json (schema of pkg/bench; each failure and each skip with its reason),
// junit.xml and report.md below --out, with the logs of the tests beside them. Exit status 0 means
// that a spec passed, that none failed for an unlisted reason and that, on virtual machines, no
// frame of the cluster was in clear. These are the gates in result.json. Exit status 1 means that a
// gate was missed, and 2 a wrong command line.
//
// The machines get the images of hack/build-conformance.sh. A cluster of --kubeconfig pulls the
// upstream's images, or images of --registry. That is a registry to which the images of
// out/images/conformance.tar were pushed, or kubeveil.test/e2e if the nodes have them already.
package conformance

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/kubeveil/kubeveil/e2e/cmd/kvlab/internal/program"
	"github.com/kubeveil/kubeveil/e2e/conformance"
	"github.com/kubeveil/kubeveil/e2e/lab/buildtree"
	"github.com/kubeveil/kubeveil/e2e/vm"
	"github.com/kubeveil/kubeveil/internal/commandline"
	"github.com/kubeveil/kubeveil/pkg/bench"
	"github.com/kubeveil/kubeveil/pkg/config"
)

const (
	// policyFolder has the tests of ClusterNetworkPolicy, their names, and its CRD.
	policyFolder = "out/network-policy-api"
	// siteFolder has the tests of linked clusters.
	siteFolder = "out/mcs-api"
)

// arguments are the values of the command line.
type arguments struct {
	kubeconfig, out, registry, platform string
	testdriver, serviceProxy, policy    string
	hostRouting, proxyMode, contexts    string
	volumes, clusterPolicies, sites     bool
	lab                                 bool
	nodes, parallel                     int
	limit                               time.Duration
	focus, skip                         *regexp.Regexp
}

const usage = `Run Kubernetes' own end-to-end tests of networking, on virtual machines made for the
run or on a cluster where Kubeveil is installed, and report the result of each.

Usage: kvlab conformance [flags]

Examples:
  kvlab conformance                                  all tests
  kvlab conformance --focus 'nodePort: udp'          some tests; the report omits the others
  kvlab conformance --kubeconfig admin.conf          on that cluster
  kvlab conformance --service-proxy ebpf --focus '\[sig-network\] Services'
      tests of services, on machines without kube-proxy
  kvlab conformance --proxy-mode iptables --focus '\[sig-network\] Services'
      the same with kube-proxy in another mode
  kvlab conformance --policy kubernetes --focus Netpol
      tests of network policies, on machines where Kubeveil enforces them
  kvlab conformance --volumes --focus subPath        tests of volumes, with the driver installed on
                                                     one machine
  kvlab conformance --cluster-policies --focus TCP   tests of ClusterNetworkPolicy, on machines
                                                     where Kubeveil enforces policies
  kvlab conformance --sites --focus Required         tests of two clusters that are linked

Flags:
`

// Command returns the verb.
func Command() *cobra.Command {
	var a arguments
	return program.Command("Run the upstream's own tests of networking, of volumes, of "+
		"ClusterNetworkPolicy or of linked clusters",
		a.flags(), usage, func() (program.Run, error) {
			if err := a.check(); err != nil {
				return nil, err
			}
			return func(ctx context.Context) error { return run(ctx, a) }, nil
		})
}

func (a *arguments) flags() *pflag.FlagSet {
	flags := commandline.New("kvlab conformance")
	flags.StringVar(&a.kubeconfig, "kubeconfig", "",
		"`file` for a cluster where Kubeveil is installed (default: virtual machines are made "+
			"for the run)")
	flags.StringVar(&a.out, "out", "out/conformance",
		"`folder` of result.json, junit.xml and report.md; emptied first")
	flags.StringVar(&a.registry, "registry", "",
		"`prefix` of the names of the tests' images, for --kubeconfig (default: the upstream's "+
			"registries)")
	flags.StringVar(&a.platform, "platform", bench.VM,
		"platform of the nodes of --kubeconfig: vm, emulated, sev-snp, tdx, metal")

	flags.StringVar(&a.serviceProxy, "service-proxy", config.ServiceProxyNone,
		program.ServiceProxyUsage+"; with --kubeconfig, the present setting there")
	flags.StringVar(&a.proxyMode, "proxy-mode", "",
		program.ProxyModeUsage+"; with --kubeconfig, the present mode there")
	flags.StringVar(&a.hostRouting, "host-routing", config.HostRoutingKernel,
		program.HostRoutingUsage)
	flags.StringVar(&a.policy, "policy", config.PolicyNone,
		program.PolicyUsage+"; with --kubeconfig, the present setting there")
	flags.BoolVar(&a.volumes, "volumes", false,
		"run the tests of volumes instead of networking, on one machine")
	flags.BoolVar(&a.clusterPolicies, "cluster-policies", false,
		"run the tests of ClusterNetworkPolicy instead of networking, with --policy kubernetes; "+
			"a cluster of --kubeconfig needs the CRD of the experimental channel")
	flags.BoolVar(&a.sites, "sites", false,
		"run mcs-api's tests of linked clusters instead of networking, on two clusters with "+
			"half of --nodes each")
	flags.BoolVar(&a.lab, "lab", false,
		"for --sites: on nodes of the lab instead of virtual machines, with --service-proxy ebpf")
	flags.StringVar(&a.contexts, "contexts", "",
		"`names` of the contexts of two linked clusters in --kubeconfig, with a comma between, "+
			"for --sites; they import into all namespaces")
	flags.StringVar(&a.testdriver, "testdriver", "",
		"`file` with the driver's features and classes, for --volumes (default: "+
			"e2e/conformance/testdriver.yaml of the repository)")
	flags.IntVar(&a.nodes, "nodes", 2, "number of virtual machines")
	flags.IntVar(&a.parallel, "parallel", 3,
		"number of specs that run at a time; serial specs, and the tests of "+
			"ClusterNetworkPolicy, always run alone")

	flags.DurationVar(&a.limit, "limit", 0,
		"`time` after which no spec begins; the rest is reported as skipped, and specs marked "+
			"[Conformance] come first (default: no limit)")
	expression := func(name, usage string, to **regexp.Regexp) {
		flags.Func(name, usage, func(s string) (err error) {
			*to, err = regexp.Compile(s)
			return err
		})
	}
	expression("focus", "run and report only specs whose names match this `regular expression`",
		&a.focus)
	expression("skip", "leave out specs whose names match this `regular expression`, also in the "+
		"report", &a.skip)
	return flags
}

// check returns an error if the command line is wrong. It runs before anything is made.
func (a *arguments) check() error {
	if a.kubeconfig == "" && a.registry != "" {
		return errors.New("--registry is for a cluster of --kubeconfig: virtual machines get " +
			"their images from out/images")
	}
	if err := a.checkSuite(); err != nil {
		return err
	}
	if a.lab {
		a.serviceProxy = config.ServiceProxyEBPF
	}
	if a.clusterPolicies && a.registry != "" {
		return errors.New("--registry: the tests of --cluster-policies name their image " +
			"themselves, and nodes pull it by that name or have it")
	}

	if err := bench.CheckNodes(a.platform); err != nil {
		return fmt.Errorf("--platform: %w", err)
	}
	if err := program.CheckMachines(a.nodes); err != nil {
		return fmt.Errorf("--nodes %d: %w", a.nodes, err)
	}
	if err := vm.CheckServiceProxy(a.serviceProxy); err != nil {
		return fmt.Errorf("--service-proxy %s: %w", a.serviceProxy, err)
	}
	if err := vm.CheckProxyMode(a.proxyMode, a.serviceProxy); err != nil {
		return fmt.Errorf("--proxy-mode %s: %w", a.proxyMode, err)
	}
	if err := vm.CheckHostRouting(a.hostRouting, a.serviceProxy); err != nil {
		return fmt.Errorf("--host-routing %s: %w", a.hostRouting, err)
	}
	if err := vm.CheckPolicy(a.policy); err != nil {
		return fmt.Errorf("--policy %s: %w", a.policy, err)
	}
	if a.parallel < 1 {
		return fmt.Errorf("--parallel %d: write at least 1", a.parallel)
	}
	return nil
}

// checkSuite returns an error if the flags select no suite, or contradict the selected one.
func (a *arguments) checkSuite() error {
	suites := map[string]bool{"--cluster-policies": a.clusterPolicies, "--sites": a.sites,
		"--volumes": a.volumes}
	maps.DeleteFunc(suites, func(_ string, selected bool) bool { return !selected })
	if len(suites) > 1 {
		return fmt.Errorf("%s are %d suites: write one of them",
			strings.Join(slices.Sorted(maps.Keys(suites)), " and "), len(suites))
	}
	switch contexts := strings.Split(a.contexts, ","); {
	case a.contexts != "" && !(a.sites && a.kubeconfig != ""):
		return errors.New("--contexts is for --sites with --kubeconfig")
	case a.sites && a.kubeconfig != "" && (len(contexts) != 2 || slices.Contains(contexts, "")):
		return errors.New("--sites: name the contexts of both clusters: --contexts A,B")
	case a.sites && a.kubeconfig == "" && a.nodes%2 != 0:
		return fmt.Errorf("--nodes %d: write an even number, half for each cluster", a.nodes)
	case a.lab && (!a.sites || a.kubeconfig != "" || a.policy != config.PolicyNone):
		return errors.New("--lab is for --sites alone, without --kubeconfig and --policy")
	case a.sites && a.registry != "":
		return errors.New("--registry: the tests of --sites name their images themselves, and " +
			"nodes pull them by these names or have them")
	}
	return nil
}

// build is the command that builds what the tests need.
func (a *arguments) build() string {
	if a.clusterPolicies {
		return "hack/build-conformance.sh policy"
	}
	if a.sites {
		return "hack/build-conformance.sh sites FOLDER"
	}
	return "hack/build-conformance.sh"
}

func run(ctx context.Context, a arguments) error {
	root, err := buildtree.Root()
	if err != nil {
		return err
	}

	if a.clusterPolicies {
		a.policy = config.PolicyKubernetes
	}
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	o := conformance.RunConfig{
		Program:    filepath.Join(root, "out/bin/e2e.test"),
		Kubectl:    filepath.Join(root, "out/bin/kubectl"),
		Kubeconfig: a.kubeconfig, Emulated: a.platform == bench.Emulated,
		EBPF:      a.serviceProxy == config.ServiceProxyEBPF,
		ProxyMode: a.proxyMode,
		Policies:  a.policy == config.PolicyKubernetes, Registry: a.registry,
		Parallel: a.parallel, Limit: a.limit, Focus: a.focus, Skip: a.skip, Log: log,
	}
	if a.volumes {
		definition := filepath.Join(root, "e2e/conformance/testdriver.yaml")
		if a.testdriver != "" {
			// The tests are run in folders of their own.
			if definition, err = filepath.Abs(a.testdriver); err != nil {
				return err
			}
		}
		o.Suite = conformance.Volumes(definition)
	}
	if a.clusterPolicies {
		o.Program = filepath.Join(root, policyFolder, "conformance.test")
		o.Suite = conformance.ClusterPolicies(filepath.Join(root, policyFolder, "specs.txt"))
	}

	if a.sites {
		o.Program = filepath.Join(root, siteFolder, "conformance.test")
		o.Suite = conformance.Sites(cmp.Or(a.contexts, vm.PairContexts))
	}

	if _, err := os.Stat(o.Program); errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("%s is missing: run `%s` first", o.Program, a.build())
	}

	// This check comes before anything is emptied or made, so that a mistyped name costs seconds.
	if _, err := o.Wanted(ctx); err != nil {
		return err
	}
	if a.out, err = program.Folder(a.out); err != nil {
		return err
	}

	o.Dir = filepath.Join(a.out, "logs")
	platform := a.platform
	var report *conformance.Report
	if a.lab {
		report, platform, err = onLab(ctx, a, root, o)
	} else if a.kubeconfig == "" && a.sites {
		report, platform, err = onPair(ctx, a, root, o)
	} else if a.kubeconfig == "" {
		report, platform, err = onMachines(ctx, a, root, o)
	} else {
		if o.Kubeconfig, err = filepath.Abs(a.kubeconfig); err != nil {
			return err
		}
		report, err = conformance.Run(ctx, o)
	}

	if report == nil {
		return err
	}
	written := write(a.out, root, platform, report)
	if err != nil && errors.Is(written, program.ErrFailed) {
		written = nil // logged already, and must not hide another error
	}

	return errors.Join(written, err)
}
