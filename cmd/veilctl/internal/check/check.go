package check

import (
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/kubeveil/kubeveil/cmd/veilctl/internal/preflight"
	"github.com/kubeveil/kubeveil/cmd/veilctl/internal/verb"
	"github.com/kubeveil/kubeveil/pkg/remote"
)

// Check returns the verb that checks a cluster before an installation.
func Check() *cobra.Command {
	cmd := &cobra.Command{
		Use: "check", Short: "Check that a cluster is fit for Kubeveil, before anything is changed",
		Long: `It changes nothing. It checks the API server's version and admission policies, your
rights, the address ranges and whether they overlap, pod CIDRs, how veild reaches the API server,
other network plugins, kernels, container runtimes, and which parts of Kubeveil exist already. Each
problem comes with a remedy. Run veild check on a node to check what only the node can see.

By default, it checks the configuration in the cluster's ConfigMap kubeveil or, if there is none,
the configuration of the manifests. With --config, it checks a veild.yaml that you plan to install.

To install Kubeveil, run kubectl apply -f kubeveil.yaml.`,
		Example: `veilctl check && kubectl apply -f kubeveil.yaml
veilctl check --kubeconfig /etc/kubernetes/admin.conf
veilctl check --config my-veild.yaml -o json | jq '.findings[] | select(.level != "ok")'`,
	}
	flags := cmd.Flags()
	var access remote.Access
	access.Register(cmd.Flags())
	file := flags.String("config", "",
		"`file` to check (default: veild.yaml of the cluster, else of the manifests)")
	return verb.Reporting(cmd, func(c verb.Call) error {
		var text []byte
		if *file != "" {
			var err error
			if text, err = os.ReadFile(*file); err != nil {
				return fmt.Errorf("--config: %w", err)
			}
		}
		cluster, err := access.Open()
		if err != nil {
			return err
		}
		return reportFindings(c, preflight.Judge(Gather(c.Ctx, cluster, *file, text)))
	})
}

// reportFindings prints findings. The command fails if one of them is an error.
func reportFindings(c verb.Call, findings []preflight.Finding) (err error) {
	errors := preflight.Count(findings, preflight.Error)
	return c.Print(map[string]any{"fit": errors == 0, "findings": findings}, errors > 0,
		func() error {
			return PrintFindings(c.Out, findings)
		})
}

// PrintFindings writes findings for people, and the verdict below them.
func PrintFindings(w io.Writer, findings []preflight.Finding) error {
	const indent = "                                "
	for _, f := range findings {
		level := string(f.Level)
		if f.Level == preflight.Error {
			level = "ERROR"
		}
		fmt.Fprintf(w, "%-9s%-23s%s\n", level, f.Check, strings.ReplaceAll(f.Found, "\n", " "))
		if f.Do != "" {
			fmt.Fprintf(w, "%sdo: %s\n", indent, f.Do)
		}
	}
	errors, warnings := preflight.Count(findings, preflight.Error),
		preflight.Count(findings, preflight.Warning)
	verdict := "the cluster is fit for Kubeveil"
	if errors > 0 {
		verdict = "the cluster is NOT fit for Kubeveil as it is"
	}
	_, err := fmt.Fprintf(w, "\n%s (errors: %d, warnings: %d); nothing was changed\n", verdict,
		errors, warnings)
	return err
}
