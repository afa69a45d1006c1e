// Package testnetwork runs the end-to-end suite of correctness.
//
// Usage:
//
//	kvlab test network [--core|--full] [--run REGEXP] [--out DIR]
//		on virtual machines that it makes and removes
//	kvlab test network --kubeconfig FILE [--core|--full] [--run REGEXP] [--out DIR]
//		on a cluster where Kubeveil is installed
//	kvlab test network --releases FOLDER
//		the cases of releases, on virtual machines: an upgrade, and the Helm chart
//	kvlab test network --list
//		lists the cases
//
// It writes result.json (schema of pkg/bench), and the logs and state that explain failures, below
// --out.
//
// Exit status 0 means that at least one case passed and none failed. On virtual machines, it also
// means that an oracle on the wire saw nothing of the cluster in clear. The case of the reference
// network proves that the oracle sees plaintext; --run may leave it out. Exit status 1 means that
// a case failed, that none ran, or that the oracle saw plaintext or none of the reference network.
// Exit status 2 means that the command line is wrong.
package testnetwork

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/klog/v2"

	"github.com/kubeveil/kubeveil/e2e/cluster/network"
	"github.com/kubeveil/kubeveil/e2e/cluster/network/nodes"
	"github.com/kubeveil/kubeveil/e2e/cluster/network/session"
	"github.com/kubeveil/kubeveil/e2e/cluster/release"
	"github.com/kubeveil/kubeveil/e2e/cmd/kvlab/internal/program"
	"github.com/kubeveil/kubeveil/e2e/lab/buildtree"
	"github.com/kubeveil/kubeveil/internal/commandline"
	"github.com/kubeveil/kubeveil/pkg/bench"
	"github.com/kubeveil/kubeveil/pkg/remote"
)

// arguments are the values of the command line.
type arguments struct {
	kubeconfig, out, image, platform string
	// releases is the folder of releases that hack/vm/releases.sh writes. Empty means that the
	// cases install the tree.
	releases         string
	match            *regexp.Regexp
	core, full, list bool
}

// cases returns the cases of the run.
func (a *arguments) cases() []session.Case {
	if a.releases == "" {
		return network.Cases()
	}
	of := release.Folder(a.releases)
	return network.ReleaseCases(nodes.Releases{Last: release.Folder(of.File("last")),
		This: release.Folder(of.File("this")), Helm: of.File("helm")})
}

const usage = `Run the end-to-end tests of the network, on virtual machines made for the run or on a
cluster where Kubeveil is installed.

Usage: kvlab test network [flags]

Examples:
  kvlab test network --core                     run the core, without the cases that wait long or
                                                restart daemons: 20 minutes on two cores
  kvlab test network --full                     run all cases, more than half an hour
  kvlab test network --run 'reboot|uninstall'   run the cases whose names match
  kvlab test network --kubeconfig admin.conf    run on that cluster, and disturb it
  kvlab test network --releases out/releases    upgrade a release, and run Helm: make e2e-releases
  kvlab test network --list                     list the cases

Flags:
`

// Command returns the verb.
func Command() *cobra.Command {
	var a arguments
	return program.Command("Run the cases of the network on a cluster",
		a.flags(), usage, func() (program.Run, error) {
			if err := a.check(); err != nil {
				return nil, err
			}
			return func(ctx context.Context) error { return run(ctx, a) }, nil
		})
}

func (a *arguments) flags() *pflag.FlagSet {
	flags := commandline.New("kvlab test network")
	flags.StringVar(&a.kubeconfig, "kubeconfig", "",
		"`file` for a cluster where Kubeveil is installed; the run disturbs it (default: virtual "+
			"machines are made for the run)")
	flags.StringVar(&a.out, "out", "out/e2e",
		"`folder` of result.json and artefacts; emptied first")
	flags.StringVar(&a.image, "image", "", "`name` of the image of the tools in pods (default "+
		remote.ToolsImage()+")")
	flags.StringVar(&a.platform, "platform", bench.VM,
		"platform of the nodes of --kubeconfig: vm, emulated, sev-snp, tdx, metal")
	flags.StringVar(&a.releases, "releases", "",
		"`folder` of hack/vm/releases.sh: run the cases of releases")
	flags.BoolVar(&a.core, "core", false, "leave out the cases that wait long or restart daemons")
	flags.BoolVar(&a.full, "full", false, "run the cases that take long, too")
	flags.BoolVar(&a.list, "list", false, "list the cases and end")
	flags.Func("run", "run the cases whose names match this `regular expression`",
		func(s string) (err error) {
			a.match, err = regexp.Compile(s)
			return err
		})
	return flags
}

// check returns an error if the command line is wrong. It runs before anything is made.
func (a *arguments) check() error {
	if a.core && a.full {
		return errors.New("--core and --full: choose one")
	}
	if a.releases != "" && a.kubeconfig != "" {
		return errors.New("--releases and --kubeconfig: choose one")
	}
	if a.match != nil && !slices.ContainsFunc(a.cases(),
		func(c session.Case) bool { return a.match.MatchString(c.Name) }) {
		return fmt.Errorf("--run %s: no case has such a name, kvlab test network --list shows them",
			a.match)
	}
	if err := bench.CheckNodes(a.platform); err != nil {
		return fmt.Errorf("--platform: %w", err)
	}
	return nil
}

func run(ctx context.Context, a arguments) error {
	if a.list {
		network.List(os.Stdout, a.cases())
		return nil
	}

	root, err := buildtree.Root()
	if err != nil {
		return err
	}
	if a.out, err = program.Folder(a.out); err != nil {
		return err
	}
	if a.releases != "" {
		if a.releases, err = filepath.Abs(a.releases); err != nil {
			return err
		}
	}

	log, closeLog, err := program.Log(a.out, "e2e.log")
	if err != nil {
		return err
	}
	defer closeLog()

	// client-go logs each connection that ends. That belongs in the log file, not on the terminal.
	klog.SetSlogLogger(log)
	o := session.Setup{Core: a.core, Full: a.full, Match: a.match, Dir: a.out,
		Manifests: filepath.Join(root, "manifests"),
		Veilctl:   filepath.Join(root, "out/bin/veilctl"), Out: os.Stdout}
	began := time.Now()
	on := onMachines
	if a.kubeconfig != "" {
		on = onCluster
	}
	report, platform, err := on(ctx, a, root, o, log)
	if report == nil {
		return err
	}

	report.Print(os.Stdout)
	if err != nil {
		// An error of the run itself; the outcomes of the cases are kept.
		fmt.Fprintln(os.Stderr, "e2e:", err)
	}

	result, e := bench.New(platform, root)
	if e != nil {
		return e
	}

	result.Started = began.UTC().Truncate(time.Second)
	result.Tests, result.Leaks = report.Tests(), report.Leaks
	if report.Kernel != "" {
		result.Kernel = report.Kernel // of the nodes, not of this machine
	}
	path := filepath.Join(a.out, "result.json")
	if e := result.Write(path); e != nil {
		return e
	}

	if err == nil && result.Tests.Passed == 0 {
		err = errors.New("no case was run: the reasons are above")
		fmt.Fprintln(os.Stderr, "e2e:", err)
	}

	fmt.Printf("%s after %s on Linux %s, %s\n",
		report.Summary(), time.Since(began).Round(time.Second), result.Kernel, path)
	if result.Tests.Failed > 0 || err != nil || ctx.Err() != nil {
		return program.ErrFailed
	}

	return nil
}

// onCluster runs the suite on the cluster of --kubeconfig.
func onCluster(ctx context.Context, a arguments, root string, o session.Setup,
	log *slog.Logger) (*session.Report, string, error) {
	access := remote.Access{Kubeconfig: a.kubeconfig}
	cluster, err := remote.Connect(ctx, access, remote.ConnectConfig{Image: a.image, Log: log})
	if err != nil {
		return nil, "", err
	}
	o.Cluster, o.Kubeconfig = cluster, a.kubeconfig
	o.Kubectl = []string{kubectl(root), "--kubeconfig=" + a.kubeconfig}
	report, err := session.Run(ctx, a.cases(), o)
	return report, a.platform, err
}

// kubectl returns the path of the kubectl that was built in this tree, or of the system's kubectl.
func kubectl(root string) string {
	built := filepath.Join(root, "out/bin/kubectl")
	if _, err := os.Stat(built); err == nil {
		return built
	}
	if path, err := exec.LookPath("kubectl"); err == nil {
		return path
	}
	return "kubectl"
}
